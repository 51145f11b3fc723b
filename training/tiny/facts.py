"""Facts, greetings, questions about the model itself, and the honest "I do not know".

Owns the draws; the facts are in facts_data.py, the wordings of everything else in talk_data.py.
A held-out item is a wording of a fact never seen in training.
"""

import random
from dataclasses import dataclass
from functools import lru_cache

from common import Conversation, Split, assistant, belongs, is_held_out, made_up_word, user, vary
from facts_data import CAPITALS, COLOURS, MONTHS, OPPOSITES, SINGLES
from talk_data import (
    DECORATIONS,
    DECORATIONS_ZH,
    RARE_ZH,
    SMALL_TALK,
    THINGS,
    THINGS_ZH,
    UNKNOWN,
    UNKNOWN_FORMS,
    UNKNOWN_FORMS_ZH,
    UNKNOWN_ZH,
    WRAPPINGS,
    WRAPPINGS_ZH,
)


@dataclass(frozen=True)
class Fact:
    """One fact in one language: every wording of the question, and the answer."""

    key: str
    questions: tuple[str, ...]
    answer: str
    chinese: bool


def fill(templates: tuple[str, ...], **values: object) -> tuple[str, ...]:
    return tuple(template.format(**values) for template in templates)


@lru_cache(maxsize=1)
def all_facts() -> tuple[Fact, ...]:
    """The whole table, wordings filled in."""
    facts: list[Fact] = []
    for country, capital, country_zh, capital_zh in CAPITALS:
        english = (
            "What is the capital of {c}?",
            "What's the capital of {c}?",
            "Which city is the capital of {c}?",
            "Name the capital of {c}.",
            "Tell me the capital of {c}.",
            "capital of {c}",
            "The capital of {c} is?",
        )
        chinese = (
            "{c}的首都是哪里？",
            "{c}的首都是什么？",
            "{c}首都是哪？",
            "哪个城市是{c}的首都？",
            "{c}的首都",
            "{c}的首都是哪个城市？",
        )
        facts.append(Fact(country, fill(english, c=country), f"The capital of {country} is {capital}.", False))
        facts.append(Fact(country_zh, fill(chinese, c=country_zh), f"{country_zh}的首都是{capital_zh}。", True))
    for month, days, month_zh in MONTHS:
        english = (
            "How many days are in {m}?",
            "How many days does {m} have?",
            "How many days has {m}?",
            "How long is {m}?",
            "What is the number of days in {m}?",
        )
        chinese = ("{m}有多少天？", "{m}有几天？", "{m}一共有多少天？", "{m}的天数是多少？")
        facts.append(Fact(month, fill(english, m=month), f"{month} has {days} days.", False))
        facts.append(Fact(month_zh, fill(chinese, m=month_zh), f"{month_zh}有{days}天。", True))
    for pair in OPPOSITES:
        for word, other, word_zh, other_zh in (pair, (pair[1], pair[0], pair[3], pair[2])):
            english = (
                "What is the opposite of {w}?",
                "What's the opposite of {w}?",
                "opposite of {w}",
                "Name the opposite of {w}.",
                "Give me the opposite of {w}.",
                "Which word is the opposite of {w}?",
            )
            chinese = (
                "{w}的反义词是什么？",
                "“{w}”的反义词是什么？",
                "{w}的反义词",
                "{w}的相反是什么？",
                "哪个词是{w}的反义词？",
            )
            facts.append(Fact(word, fill(english, w=word), f"The opposite of {word} is {other}.", False))
            facts.append(Fact(word_zh, fill(chinese, w=word_zh), f"{word_zh}的反义词是{other_zh}。", True))
    for thing, colour, thing_zh, colour_zh in COLOURS:
        english = (
            "What colour is {t}?",
            "What color is {t}?",
            "Which colour is {t}?",
            "What is the colour of {t}?",
            "Tell me the color of {t}.",
        )
        chinese = ("{t}是什么颜色？", "{t}是什么颜色的？", "{t}的颜色是什么？", "{t}是哪种颜色？")
        facts.append(Fact(thing, fill(english, t=thing), f"{thing[0].upper()}{thing[1:]} is {colour}.", False))
        facts.append(Fact(thing_zh, fill(chinese, t=thing_zh), f"{thing_zh}是{colour_zh}的。", True))
    for questions, answer, questions_zh, answer_zh in SINGLES:
        facts += [Fact(answer, questions, answer, False), Fact(answer_zh, questions_zh, answer_zh, True)]
    return tuple(facts)


@lru_cache(maxsize=4)
def facts_of(chinese: bool) -> tuple[Fact, ...]:
    return tuple(fact for fact in all_facts() if fact.chinese == chinese)


def fact_question(rng: random.Random, split: Split, chinese: bool) -> tuple[str, str]:
    """return: question, answer. Held out: the triple of fact, wording and wrapping."""
    while True:
        fact = rng.choice(facts_of(chinese))
        question = rng.choice(fact.questions)
        wrapping = rng.choice(WRAPPINGS_ZH if chinese else WRAPPINGS)
        if belongs(split, "fact", fact.key, question, wrapping):
            return vary(rng, wrapping.format(q=question)), fact.answer


def small_talk(rng: random.Random, split: Split, chinese: bool) -> tuple[str, str]:
    """return: question, answer. Held out: pairs of wording and decoration; what is itself a wording is taught."""
    while True:
        answer, wordings = rng.choice(SMALL_TALK[int(chinese) :: 2])
        wording, decoration = rng.choice(wordings), rng.choice(DECORATIONS_ZH if chinese else DECORATIONS)
        if split == "train" and rng.random() < 0.35:
            return vary(rng, wording), answer
        text = decoration.format(q=wording)
        is_taught = any(text.strip(".!?。！？ ") == other.strip(".!?。！？ ") for other in wordings)
        if split == "train" and (is_taught or not is_held_out("talk", wording, decoration)):
            return vary(rng, text), answer
        if split == "eval" and not is_taught and is_held_out("talk", wording, decoration):
            return text, answer


def unknown_question(rng: random.Random, split: Split, chinese: bool) -> tuple[str, str]:
    """A question from outside the world, and the honest answer. Held out: the filled question."""
    while True:

        def word() -> str:
            if chinese:
                return "".join(rng.sample(RARE_ZH, rng.randint(2, 4)))
            return (
                made_up_word(rng).capitalize()
                if rng.random() < 0.7
                else "".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=rng.randint(3, 9)))
            )

        form = rng.choice(UNKNOWN_FORMS_ZH if chinese else UNKNOWN_FORMS)
        text = form.format(
            y=rng.randint(1000, 2030),
            t=rng.choice(THINGS_ZH if chinese else THINGS),
            w=word(),
            x=word(),
            v=word(),
            n=rng.randint(2, 999),
            k=rng.randint(2, 999),
        )
        if belongs(split, "unknown", text):
            return vary(rng, text), UNKNOWN_ZH if chinese else UNKNOWN


def plan_of(kind: str, chinese: bool) -> str:
    """The one line of thinking for each kind of plain question."""
    plans = {
        "facts": ("The user asks for a fact that I know.", "用户问的是我知道的常识。"),
        "greetings": ("This is small talk. A short, friendly answer fits.", "这是日常聊天，简短友好地回答。"),
        "fallback": ("I do not know this. I should say so.", "我不知道这个，应该直说。"),
    }
    return plans[kind][int(chinese)]


def plain_question(rng: random.Random, split: Split, kind: str, chinese: bool) -> tuple[str, str]:
    if kind == "facts":
        return fact_question(rng, split, chinese)
    if kind == "greetings":
        return small_talk(rng, split, chinese)
    return unknown_question(rng, split, chinese)


def plain(
    rng: random.Random, split: Split, thinking: bool, kind: str | None = None, chinese: bool | None = None
) -> Conversation:
    """A conversation of one plain question."""
    chinese = rng.random() < 0.45 if chinese is None else chinese
    kind = kind or rng.choices(("facts", "greetings", "fallback"), (5, 3, 3))[0]
    question, answer = plain_question(rng, split, kind, chinese)
    messages = [user(question), assistant(answer, plan_of(kind, chinese) if thinking else None)]
    return Conversation(f"{kind}, {'zh' if chinese else 'en'}", messages, thinking=thinking)
