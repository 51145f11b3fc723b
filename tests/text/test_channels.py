"""Output text, split into thinking, content and tool calls, however it is cut."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kaishu.text.channels import (
    Answer,
    ChannelCollector,
    ChannelDelta,
    ChannelParser,
    ContentDelta,
    ThinkingDelta,
    ToolCallArguments,
    ToolCallEnd,
    ToolCallStart,
    new_call_id,
)
from tests.text.counted_text import Work

SIZES = [1, 2, 3, 5, 10_000]


def call(name: str = "f", arguments: str = "{}") -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


def deltas_of(text: str, size: int, thinking: Any = "closed", parse_tool_calls: bool = True) -> list[ChannelDelta]:
    numbers = itertools.count()
    parser = ChannelParser(thinking, parse_tool_calls=parse_tool_calls, make_call_id=lambda: f"call_{next(numbers)}")
    deltas = [delta for i in range(0, len(text), size) for delta in parser.push(text[i : i + size])]
    return deltas + parser.finish()


def answer_of(text: str, size: int = 10_000, **how: Any) -> Answer:
    collector = ChannelCollector()
    for delta in deltas_of(text, size, **how):
        collector.add(delta)
    return collector.result()


def calls_of(answer: Answer) -> list[tuple[str, str, bool]]:
    return [(call.name, call.arguments, call.is_whole) for call in answer.tool_calls]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(
    "thinking, text, reasoning, content",
    [
        ("none", "<think>\nplan\n</think>\n\nHi", "plan", "Hi"),
        ("open", "plan\n</think>\n\nHi", "plan", "Hi"),
        ("open", "\n\nplan\n\nmore\n\n</think>Hi\n", "plan\n\nmore", "Hi\n"),
        ("closed", "Paris.", None, "Paris."),
        ("none", "Paris.", None, "Paris."),
        ("none", "<think>\n\n</think>\n\nHi", None, "Hi"),
        ("none", " \n<think>a</think>b", "a", "b"),
        ("none", " \n hi", None, " \n hi"),
        ("none", "", None, ""),
        ("none", "<thi", None, "<thi"),
        ("none", "  ", None, "  "),
        ("closed", "\n\nHi \n", None, "\n\nHi \n"),
        # cut short inside the thought
        ("none", "<think>\npla", "pla", ""),
        ("open", "plan\n</thi", "plan\n</thi", ""),
        ("open", "plan\n\n", "plan", ""),
        ("open", "", None, ""),
        # tags that are only text
        ("none", "a <think>b</think>", None, "a <think>b</think>"),
        ("closed", "<think>x</think>", None, "<think>x</think>"),
        ("none", "</think>x", None, "</think>x"),
        ("open", "a <think> b</think>c</think>d", "a <think> b", "c</think>d"),
        ("open", "a </ think> <b> </thin</think>c", "a </ think> <b> </thin", "c"),
        ("open", "no call <tool_call> here</think>x", "no call <tool_call> here", "x"),
    ],
)
def test_thinking_and_content_are_told_apart(size, thinking, text, reasoning, content):
    answer = answer_of(text, size, thinking=thinking)
    assert (answer.reasoning, answer.content, answer.tool_calls) == (reasoning, content, ())


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(
    "arguments",
    [
        "{}",
        "{\n}",
        '{"id": 42, "o": {"k": [1, null]}}',
        '{ "a" :"x\\"}</tool_call>{" , "b": "\\\\" }',
        '{"城市":"北京 🙂"}',
        '{"a": [[], {}, [{"b": -1.5e+9}]], "c": true, "d": false}',
        '{"name": "inner", "arguments": {"name": 1}}',
    ],
)
def test_streamed_arguments_add_up_to_what_the_model_wrote(size, arguments):
    text = "Let me see.\n" + call("f", arguments) + "\n" + call("g", arguments) + "\n"
    deltas = deltas_of(text, size)
    for index, name in enumerate("fg"):
        own = [delta for delta in deltas if getattr(delta, "index", None) == index]
        assert own[0] == ToolCallStart(index, f"call_{index}", name)
        assert own[-1] == ToolCallEnd(index, is_whole=True)
        assert all(isinstance(delta, ToolCallArguments) and delta.text for delta in own[1:-1])
        assert "".join(delta.text for delta in own[1:-1]) == arguments
    assert "".join(delta.text for delta in deltas if isinstance(delta, ContentDelta)) == "Let me see."
    json.loads(arguments)


def test_text_and_arguments_stream_before_the_end():
    parser = ChannelParser("closed", parse_tool_calls=True, make_call_id=lambda: "id")
    assert parser.push("Hi ") == [ContentDelta("Hi")]
    assert parser.push("there <") == [ContentDelta(" there")]
    assert parser.push("b>") == [ContentDelta(" <b>")]
    assert parser.push('<tool_call>{"name": "f"') == []
    assert parser.push(', "arguments": {"a') == [ToolCallStart(0, "id", "f"), ToolCallArguments(0, '{"a')]
    assert parser.push('": 1}') == [ToolCallArguments(0, '": 1}')]
    assert parser.push("}</tool_call>") == [ToolCallEnd(0, is_whole=True)]
    assert parser.finish() == []


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(
    "text, calls, content",
    [
        # forms that differ from the usual one and are calls all the same
        ('<tool_call>{"arguments": {"a": 1}, "name": "f"}</tool_call>', [("f", '{"a": 1}', True)], ""),
        ('<tool_call>{"name": "f"}</tool_call>', [("f", "{}", True)], ""),
        (
            '<tool_call>{"id": [1, {"x": "}"}], "n": null, "name":"f" ,"arguments":{}}</tool_call>',
            [("f", "{}", True)],
            "",
        ),
        ('<tool_call>{"name": "f\\u00e9\\"", "arguments": {}}</tool_call>', [('fé"', "{}", True)], ""),
        (call() + call("g"), [("f", "{}", True), ("g", "{}", True)], ""),
        (call() + " \n\t" + call("g") + "\n", [("f", "{}", True), ("g", "{}", True)], ""),
        ('<tool_call>{"name": "f", "arguments": {}}', [("f", "{}", True)], ""),
        ('<tool_call>{"name": "f", "arguments": {}}\n</tool_', [("f", "{}", True)], ""),
        ("a \n" + call() + "\n b", [("f", "{}", True)], "ab"),
        # cut short
        ("<tool_call>", [], "<tool_call>"),
        ('a\n<tool_call>\n{"name": "f", "argu', [], 'a\n<tool_call>\n{"name": "f", "argu'),
        ('<tool_call>{"name": "f", "arguments": {"a": "x', [("f", '{"a": "x', False)], ""),
        ('<tool_call>{"name": "f", "arguments": {"a": 1}', [("f", '{"a": 1}', False)], ""),
        # malformed: nothing is lost
        ("<tool_call>\nhello\n</tool_call> x", [], "<tool_call>\nhello\n</tool_call> x"),
        ("a \n<tool_call></tool_call>\n", [], "a \n<tool_call></tool_call>\n"),
        ("<tool_call>[1]</tool_call>", [], "<tool_call>[1]</tool_call>"),
        ("<tool_call>{}</tool_call>", [], "<tool_call>{}</tool_call>"),
        ('<tool_call>{"name": 5, "arguments": {}}', [], '<tool_call>{"name": 5, "arguments": {}}'),
        ('<tool_call>{"name": "", "arguments": {}}', [], '<tool_call>{"name": "", "arguments": {}}'),
        ('<tool_call>{"name": "f", "arguments": "{}"}', [], '<tool_call>{"name": "f", "arguments": "{}"}'),
        ('<tool_call>{"name": "f", "arguments": null}', [], '<tool_call>{"name": "f", "arguments": null}'),
        ('<tool_call>{"name": "f" "name": "g"}', [], '<tool_call>{"name": "f" "name": "g"}'),
        ('<tool_call>{"name": "\\q"}', [], '<tool_call>{"name": "\\q"}'),
        ("<tool_call>{name: f}</tool_call>" + call(), [("f", "{}", True)], "<tool_call>{name: f}</tool_call>"),
        ('<tool_call>{"name": "f", "arguments": {"a": oops}}', [("f", '{"a": ', False)], "oops}}"),
        ('<tool_call>{"name": "f", "arguments": {"a": [}}}x', [("f", '{"a": [}}', False)], "x"),
        (call("f", '{"a" 1}'), [("f", '{"a" 1}', False)], ""),
        ('<tool_call>{"name": "f", "arguments": {}}}\n</tool_call>', [("f", "{}", True)], "}\n</tool_call>"),
        ('<tool_call>{"name": "f", "arguments": {}}</tool_x', [("f", "{}", True)], "</tool_x"),
        ('<tool_call>{"name": "f", "arguments": {}}' + call("g"), [("f", "{}", True), ("g", "{}", True)], ""),
        ('<tool_call>{"name": "f", "arguments": {' + "</tool_call>", [("f", "{", False)], "</tool_call>"),
    ],
)
def test_calls_of_every_form(size, text, calls, content):
    answer = answer_of(text, size)
    assert calls_of(answer) == calls and answer.content == content


@pytest.mark.parametrize("size", SIZES)
def test_calls_are_content_where_no_tools_are_wanted(size):
    text = "a \n" + call() + "\n"
    assert answer_of(text, size, parse_tool_calls=False) == Answer(text, None, ())


@pytest.mark.parametrize("size", SIZES)
def test_a_thought_then_text_then_calls(size):
    text = "<think>\nI need <tool_call>\n</think>\n\nOne moment.\n" + call("f", '{"a": "<think>"}')
    answer = answer_of(text, size, thinking="none")
    assert (answer.reasoning, answer.content) == ("I need <tool_call>", "One moment.")
    assert calls_of(answer) == [("f", '{"a": "<think>"}', True)]


def test_ids_are_unique_and_look_like_openais():
    ids = {new_call_id() for _ in range(1000)}
    assert len(ids) == 1000 and all(call_id.startswith("call_") for call_id in ids)


def test_long_arguments_take_time_in_proportion_to_their_length():
    """Counted in steps of the interpreter, not in time: twice the text, about twice the calls."""
    import sys

    def calls_for(length: int) -> int:
        count = 0

        def trace(*_: object) -> None:
            nonlocal count
            count += 1

        sys.setprofile(trace)
        try:
            answer_of(call("f", json.dumps({"a": "x" * length})), 7)
        finally:
            sys.setprofile(None)
        return count

    assert calls_for(40_000) < 2.5 * calls_for(20_000)


LONG_OUTPUTS = {
    "newlines in a thought": ("open", "a", "\n", "b"),
    "newlines before a thought ends": ("open", "a", "\n", "</think>"),
    "layout at the beginning of a thought": ("open", "", "\n", "a"),
    "white space in an answer": ("closed", "a", " \n", "b"),
    "white space before a call": ("closed", "a", "\n\t", call()),
    "white space before a thought": ("none", "", " \n", "<think>a"),
    "white space before an answer": ("none", "", "\n ", "a"),
    "beginnings of a tag": ("open", "", "</thin", ""),
    "white space in a call": ("closed", "<tool_call>", "\n", '{"name": "f"}</tool_call>'),
    "a call that breaks": ("closed", "<tool_call>", '{"a": "' + "x" * 100, ""),
    "arguments": ("closed", '<tool_call>{"name": "f", "arguments": {"a": "', "xy", '"}}</tool_call>'),
    "tags of calls that are none": ("closed", "", "<tool_call>", ""),
    "calls": ("closed", "", call(), ""),
}


@pytest.mark.parametrize("size", [1, 1_000_000])
@pytest.mark.parametrize("thinking, before, repeated, after", LONG_OUTPUTS.values(), ids=LONG_OUTPUTS)
def test_a_long_run_of_anything_costs_in_proportion_to_its_length(size, thinking, before, repeated, after):
    """Counted in characters read and copied. What is quadratic would cost thousands for each."""
    text = before + repeated * (10_000 // len(repeated)) + after
    work = Work()
    parser, collector = ChannelParser(thinking, parse_tool_calls=True), ChannelCollector()
    for start in range(0, len(text), size):
        for delta in parser.push(work.text(text[start : start + size])):
            collector.add(delta)
    for delta in parser.finish():
        collector.add(delta)
    collector.result()
    assert work.characters < 600 * len(text)


def test_adding_up_many_pieces_costs_in_proportion_to_their_number():
    work, collector = Work(), ChannelCollector()
    collector.add(ToolCallStart(0, "id", "f"))
    for _ in range(10_000):
        collector.add(ToolCallArguments(0, work.text("x")))
    assert collector.result().tool_calls[0].arguments == "x" * 10_000 and work.characters < 100_000


PIECES = ["<think>", "</think>", "<tool_call>", "</tool_call>", "\n", " ", "{", "}", '"', ":", ",", "[", "]", "\\", "x"]
PIECES += ['{"name": "f", "arguments": {', '"a": "b"', "}}", call("f", '{"k": [1]}'), "<", "</", "tool_call>", "1", "é"]
OUTPUT = st.lists(st.sampled_from(PIECES), max_size=25).map("".join)


def merged(deltas: list[ChannelDelta]) -> list[Any]:
    """The deltas with neighbours of one kind joined: what must not depend on how the text was cut."""
    out: list[Any] = []
    for delta in deltas:
        key = (type(delta), getattr(delta, "index", None))
        if out and key == (type(out[-1]), getattr(out[-1], "index", None)) and hasattr(delta, "text"):
            joined = out[-1].text + delta.text
            out[-1] = (
                ToolCallArguments(delta.index, joined) if isinstance(delta, ToolCallArguments) else type(delta)(joined)
            )
        else:
            out.append(delta)
    return out


@settings(max_examples=400, deadline=None)
@given(OUTPUT, st.lists(st.integers(1, 9), max_size=40), st.sampled_from(["none", "open", "closed"]), st.booleans())
def test_every_cut_gives_the_same_and_nothing_is_lost(text, sizes, thinking, parse_tool_calls):
    whole = deltas_of(text, max(len(text), 1), thinking, parse_tool_calls)
    numbers = itertools.count()
    parser = ChannelParser(thinking, parse_tool_calls=parse_tool_calls, make_call_id=lambda: f"call_{next(numbers)}")
    deltas, position = [], 0
    for size in sizes:
        deltas += parser.push(text[position : position + size])
        position += size
    deltas += parser.push(text[position:]) + parser.finish()
    assert merged(deltas) == merged(whole)
    assert all(
        not isinstance(delta, ThinkingDelta | ContentDelta | ToolCallArguments) or delta.text for delta in deltas
    )
    if thinking == "closed" and not parse_tool_calls:
        assert "".join(delta.text for delta in deltas) == text
    if ToolCallEnd not in map(type, deltas):  # a call's own keys and quotes are not text
        letters = [letter for letter in "".join(map(shown, deltas)) if letter in "xé1"]
        assert letters == [letter for letter in text if letter in "xé1"]


def shown(delta: ChannelDelta) -> str:
    return getattr(delta, "text", "")
