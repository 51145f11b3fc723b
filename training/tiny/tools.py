"""Tool use from the tool's own description: the call, the answer from the result, and knowing when not to call.

Owns schemas, calls, made-up results and the sentence that answers from each result.
"""

import json
import random
from dataclasses import dataclass
from typing import Any

from arithmetic import draw_sum, solve
from common import Conversation, Message, Split, Tool, assistant, is_held_out, made_up_word, user, vary
from facts import plain_question, plan_of
from places import draw_city
from talk_data import UNKNOWN, UNKNOWN_ZH
from tool_data import (
    CALCULATOR,
    CONDITIONS,
    CONDITIONS_ZH,
    EXTRA_PARAMETERS,
    KINDS,
    SEARCH,
    STOCK,
    TIME,
    TWO_CITIES,
    WEATHER,
    ToolKind,
)

CALLED = (WEATHER, TIME, CALCULATOR)
OPERATORS = {"+": (" plus ", "加"), "-": (" minus ", "减"), "*": (" times ", "乘以"), "/": (" divided by ", "除以")}


@dataclass(frozen=True)
class Offer:
    """One tool of a conversation: its schema, and what a call to it needs."""

    kind: ToolKind
    schema: Tool
    name: str
    parameter: str


def identifier(rng: random.Random) -> str:
    """A name that means nothing, as programmers write names."""
    words = [made_up_word(rng) for _ in range(rng.choice((1, 2, 2)))]
    return rng.choice(("_", "_", "")).join(words)


def make_tool(rng: random.Random, split: Split, kind: ToolKind, chinese: bool) -> Offer:
    """A tool in OpenAI's schema. In training some names mean nothing, so that only copying from the schema helps."""
    in_chinese = chinese and rng.random() < 0.6
    parameter = rng.choice([p for p in kind.parameters if in_chinese or p.isascii()])
    name = rng.choice(kind.names)
    is_renamed = split == "train" and rng.random() < 0.2
    if is_renamed:
        name = identifier(rng)
    if split == "train" and rng.random() < 0.4:
        parameter = rng.choice((identifier(rng), rng.choice(rng.choice(KINDS).parameters)))
    schema: dict[str, Any] = {"type": "string"}
    if rng.random() < 0.65:
        schema["description"] = rng.choice(kind.parameter_texts_zh if in_chinese else kind.parameter_texts)
    properties = {parameter: schema}
    if rng.random() < 0.2:
        extra, extra_schema = rng.choice(EXTRA_PARAMETERS)
        properties[extra] = dict(extra_schema)
    body: dict[str, Any] = {"type": "object", "properties": properties, "required": [parameter]}
    if rng.random() < 0.15:
        body.pop("required")
    if rng.random() < 0.08:
        body["additionalProperties"] = False
    function: dict[str, Any] = {"name": name}
    if is_renamed or rng.random() < 0.92:
        function["description"] = rng.choice(kind.descriptions_zh if in_chinese else kind.descriptions)
    function["parameters"] = body
    return Offer(kind, {"type": "function", "function": function}, name, parameter)


def draw_value(rng: random.Random, split: Split, kind: ToolKind, chinese: bool) -> tuple[str, str]:
    """return: the value as the user writes it, and as the argument has it."""
    if kind in (WEATHER, TIME):
        city = draw_city(rng, chinese, made_up=0.15 if split == "eval" else 0.4)
        if rng.random() < 0.1:
            city = city.lower()
        return city, city
    if kind is CALCULATOR:
        sign = rng.choice("+-**/")
        a, b = (rng.randint(1, 10 ** rng.randint(1, 4)) for _ in range(2))
        written = rng.choice(("{a}{o}{b}", "{a} {o} {b}", "words")).format(a=a, b=b, o=sign)
        if written == "words":
            written = f"{a}{OPERATORS[sign][int(chinese)]}{b}"
        return written, f"{a} {sign} {b}"
    if kind is STOCK:
        text = (
            made_up_word(rng).capitalize()
            if rng.random() < 0.5
            else "".join(rng.choices("ABCDEFGHIJKLMNOPQRSTUVWXYZ", k=4))
        )
    else:
        text = " ".join(made_up_word(rng) for _ in range(rng.randint(1, 2)))
        if chinese:
            text = draw_city(rng, True) + rng.choice(("", "美食", "历史", "大学"))
    return text, text


def call(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "arguments": arguments}}


def make_result(rng: random.Random, kind: ToolKind, value: str, chinese: bool) -> tuple[str, str]:
    """return: what the tool says, and the sentence that answers from it."""
    ascii_only = not chinese
    if rng.random() < 0.06:
        reason = rng.choice(
            ("not found", "timeout", "unknown city", "service unavailable", "bad request", "invalid input")
        )
        text = json.dumps({"error": reason}) if rng.random() < 0.6 else f"Error: {reason}"
        return text, f"The tool reports an error: {reason}." if ascii_only else f"工具报告错误：{reason}。"
    if kind is WEATHER:
        return weather_result(rng, value, chinese)
    if kind is TIME:
        clock = f"{rng.randrange(24):02d}:{rng.randrange(60):02d}"
        key = rng.choice(("time", "current_time", "local_time", "now"))
        data = {key: clock}
        if rng.random() < 0.3:
            data = {rng.choice(("city", "location")): value, **data}
        text = json.dumps(data, ensure_ascii=False) if rng.random() < 0.75 else clock
        return text, f"{value}现在是{clock}。" if chinese else f"It is {clock} in {value}."
    if kind is CALCULATOR:
        number = str(rng.randint(-99, 10 ** rng.randint(1, 6)))
        text = rng.choice(
            (
                number,
                f'{{"result": {number}}}',
                f'{{"result": {number}}}',
                f'{{"value": {number}}}',
                f'{{"result": "{number}"}}',
            )
        )
        return text, f"{value} = {number}"
    found = " ".join(made_up_word(rng) for _ in range(rng.randint(1, 3)))
    if kind is STOCK:
        found = f"{rng.randint(1, 999)}.{rng.randrange(100):02d}"
        text = rng.choice((f'{{"price": {found}}}', found, f'{{"price": {found}, "currency": "USD"}}'))
        return text, f"{value}的股价是{found}。" if chinese else f"The price of {value} is {found}."
    text = rng.choice((json.dumps({"result": found}), found))
    return text, f"我找到了：{found}。" if chinese else f"I found: {found}."


def weather_result(rng: random.Random, value: str, chinese: bool) -> tuple[str, str]:
    """JSON in several shapes, or a plain line."""
    degrees = rng.randint(-20, 42)
    condition = rng.choice(CONDITIONS_ZH if chinese else CONDITIONS)
    if rng.random() < 0.2:
        text = rng.choice(
            (
                f"{condition}, {degrees}°C",
                f"{degrees}°C, {condition}",
                f"{condition} {degrees}",
                f"{degrees} degrees, {condition}",
            )
        )
    else:
        pairs = [
            (
                rng.choice(("temperature", "temperature", "temp", "temperature_c", "温度" if chinese else "temp")),
                rng.choice((degrees, degrees, degrees, f"{degrees}", f"{degrees}°C")),
            ),
            (
                rng.choice(
                    ("condition", "condition", "conditions", "weather", "description", "天气" if chinese else "sky")
                ),
                condition,
            ),
        ]
        if rng.random() < 0.25:
            pairs.reverse()
        if rng.random() < 0.25:
            pairs.insert(0, (rng.choice(("city", "location", "place")), value))
        if rng.random() < 0.2:
            pairs.append(
                rng.choice((("humidity", rng.randint(10, 99)), ("wind", rng.randint(0, 60)), ("unit", "celsius")))
            )
        text = json.dumps(dict(pairs), ensure_ascii=False)
    if chinese:
        return text, f"{value}的天气：{condition}，{degrees}度。"
    return text, f"The weather in {value} is {condition}, {degrees} degrees."


def choose_tools(
    rng: random.Random, split: Split, kind: ToolKind | None, chinese: bool, absent: tuple[ToolKind, ...] = ()
) -> tuple[list[Offer], Offer | None]:
    """One to four tools in random order; return: all, and the one of the wanted kind."""
    others = [other for other in KINDS if other is not kind and other not in absent]
    count = rng.choices((0, 1, 2, 3), (5, 3, 1.4, 0.6))[0] + (kind is None)
    offers = [make_tool(rng, split, other, chinese) for other in rng.sample(others, min(count, 4))]
    if kind is None:
        return offers, None
    wanted = make_tool(rng, split, kind, chinese)
    offers.insert(rng.randint(0, len(offers)), wanted)
    return offers, wanted


def schemas(offers: list[Offer]) -> list[Tool]:
    return [offer.schema for offer in offers]


def draw_held(rng: random.Random, split: Split, kind: ToolKind, chinese: bool) -> tuple[str, str]:
    """return: a value as written, and as the argument has it. Held out: the pair of value and kind."""
    while True:
        written, value = draw_value(rng, split, kind, chinese)
        if is_held_pair(kind, value.lower()) == (split == "eval"):
            return written, value


def is_held_pair(kind: ToolKind, value: str) -> bool:
    """A city is never held out of both its kinds: what no tool was ever asked for is no test of calling tools."""
    if kind is TIME and is_held_out("tool", WEATHER.key, value):
        return False
    return is_held_out("tool", kind.key, value)


def draw_request(rng: random.Random, split: Split, kind: ToolKind, chinese: bool) -> tuple[str, str]:
    """return: the question, the argument."""
    written, value = draw_held(rng, split, kind, chinese)
    wording = vary(rng, rng.choice(kind.questions_zh if chinese else kind.questions))
    return wording.format(x=written), value


def system_message(rng: random.Random, chinese: bool) -> list[Message]:
    if rng.random() > 0.2:
        return []
    texts = ("You are a helpful assistant.", "You are Kaishu.", "Use the tools when needed.", "You can call tools.")
    texts_zh = ("你是一个有用的助手。", "你可以调用工具。", "需要时请使用工具。")
    return [{"role": "system", "content": rng.choice(texts_zh if chinese else texts)}]


def two_requests(rng: random.Random, split: Split, kind: ToolKind, chinese: bool) -> tuple[str, list[str]]:
    """A question about two cities; return: it, the two arguments."""
    _, first = draw_held(rng, split, kind, chinese)
    second = first
    while second.lower() == first.lower():
        _, second = draw_held(rng, split, kind, chinese)
    wording = vary(rng, rng.choice(TWO_CITIES[kind.key][int(chinese)]))
    return wording.format(x=first, y=second), [first, second]


def calling(offer: Offer, values: list[str], thinking: bool, chinese: bool) -> Message:
    """The answer that calls a tool, once for each value."""
    kind = offer.kind
    message = assistant(
        "", (kind.thought_zh if chinese else kind.thought).format(name=offer.name) if thinking else None
    )
    message["tool_calls"] = [call(offer.name, {offer.parameter: value}) for value in values]
    return message


def earlier_turns(rng: random.Random, offers: list[Offer], chinese: bool) -> list[Message]:
    """What was said before (in training): questions to any of the tools that this world calls, mostly answered."""
    messages: list[Message] = []
    callable_offers = [offer for offer in offers if offer.kind in CALLED]
    for _ in range(rng.choices((0, 1, 2, 3, 4), (4, 3, 2, 2, 1))[0]):
        offer = rng.choice(callable_offers)
        if offer.kind is not CALCULATOR and rng.random() < 0.3:
            question, values = two_requests(rng, "train", offer.kind, chinese)
        else:
            question, value = draw_request(rng, "train", offer.kind, chinese)
            values = [value]
        messages += [user(question), calling(offer, values, False, chinese)]
        answers = [make_result(rng, offer.kind, value, chinese) for value in values]
        messages += [{"role": "tool", "content": result} for result, _ in answers]
        messages.append(assistant(("" if chinese else " ").join(sentence for _, sentence in answers)))
    return messages


def two_cities(rng: random.Random, split: Split, thinking: bool, chinese: bool) -> Conversation:
    """Two calls in one answer."""
    offers, offer = choose_tools(rng, split, rng.choice((WEATHER, WEATHER, TIME)), chinese)
    assert offer is not None
    messages = system_message(rng, chinese) + (earlier_turns(rng, offers, chinese) if split == "train" else [])
    question, values = two_requests(rng, split, offer.kind, chinese)
    messages += [user(question), calling(offer, values, thinking, chinese)]
    return Conversation("tool calls, two", messages, schemas(offers), thinking)


def tool_call(rng: random.Random, split: Split, thinking: bool, chinese: bool, answered: bool = False) -> Conversation:
    """One call; when `answered`, the turn after the tool's result too."""
    kind = rng.choices(CALLED, (6, 4, 4))[0]  # the other tools are there to be left alone
    offers, offer = choose_tools(rng, split, kind, chinese)
    assert offer is not None
    messages = system_message(rng, chinese) + (earlier_turns(rng, offers, chinese) if split == "train" else [])
    question, value = draw_request(rng, split, kind, chinese)
    messages += [user(question), calling(offer, [value], thinking, chinese)]
    if not answered:
        return Conversation("tool calls", messages, schemas(offers), thinking)
    result, sentence = make_result(rng, kind, value, chinese)
    plan = ("工具给出了结果，我来回答。" if chinese else "The tool answered. I tell the user.") if thinking else None
    messages += [{"role": "tool", "content": result}, assistant(sentence, plan)]
    return Conversation("answers from tool results", messages, schemas(offers), thinking)


def no_call(rng: random.Random, split: Split, thinking: bool, chinese: bool) -> Conversation:
    """Tools are given, but the question needs none of them, or needs one that is absent."""
    draw = rng.random()
    absent: tuple[ToolKind, ...] = (CALCULATOR,) if draw < 0.3 else ()
    if draw < 0.3:
        messages = solve(rng, draw_sum(rng, split), thinking, chinese)
    elif draw < 0.5:
        kind = rng.choice((WEATHER, TIME, SEARCH, STOCK))
        absent = (kind,)
        question, _ = draw_request(rng, split, kind, chinese)
        plan = plan_of("fallback", chinese) if thinking else None
        messages = [user(question), assistant(UNKNOWN_ZH if chinese else UNKNOWN, plan)]
    else:
        topic = rng.choice(("facts", "greetings"))
        question, answer = plain_question(rng, split, topic, chinese)
        messages = [user(question), assistant(answer, plan_of(topic, chinese) if thinking else None)]
    offers, _ = choose_tools(rng, split, None, chinese, absent)
    return Conversation("tools, none needed", [*system_message(rng, chinese), *messages], schemas(offers), thinking)


def tools(rng: random.Random, split: Split, thinking: bool, form: str | None = None) -> Conversation:
    """A conversation with tools."""
    chinese = rng.random() < 0.4
    form = form or rng.choices(("call", "answered", "two", "none"), (40, 28, 8, 24))[0]
    if form == "two":
        return two_cities(rng, split, thinking, chinese)
    if form == "none":
        return no_call(rng, split, thinking, chinese)
    return tool_call(rng, split, thinking, chinese, answered=form == "answered")
