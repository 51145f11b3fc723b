"""Stop strings: the longest possible beginning is held back, nothing else."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kaishu.text.channels import ChannelCollector, ChannelParser
from kaishu.text.stopping import StopStrings, unfinished_tail

LETTERS = st.text("abc,", max_size=30)
STOPS = st.lists(st.text("abc,", min_size=1, max_size=4), max_size=3)


def run(stops: list[str], pieces: list[str]) -> tuple[str, str | None]:
    stopping = StopStrings(stops)
    shown = "".join(map(stopping.push, pieces)) + stopping.finish()
    return shown, stopping.matched


def cut(text: str, size: int) -> list[str]:
    return [text[i : i + size] for i in range(0, len(text), size)]


@pytest.mark.parametrize("size", [1, 2, 3, 5, 100])
def test_a_stop_string_across_pieces_ends_the_text_before_it(size):
    assert run(["b,c"], cut("alpha, b,c tail", size)) == ("alpha, ", "b,c")


@pytest.mark.parametrize("size", [1, 2, 3, 5, 100])
def test_what_only_begins_like_a_stop_string_is_shown_in_the_end(size):
    assert run(["b,c"], cut("alpha, b,", size)) == ("alpha, b,", None)
    assert run(["\n\nUser:"], cut("a\n\nUse b\n\nU", size)) == ("a\n\nUse b\n\nU", None)


def test_text_that_can_not_become_a_stop_string_is_shown_at_once():
    stopping = StopStrings(["END", "xyz"])
    assert [stopping.push(piece) for piece in ["abc", "dEx", "EN", "x", "q"]] == ["abc", "dE", "x", "EN", "xq"]
    assert stopping.is_stopped is False


def test_nothing_is_shown_after_a_stop_string():
    stopping = StopStrings(["END"])
    assert stopping.push("aENDb") == "a" and stopping.is_stopped
    assert stopping.push("more") == "" and stopping.finish() == ""


@pytest.mark.parametrize("size", [1, 2, 100])
@pytest.mark.parametrize("stops, expected", [(["abcd", "bc"], ("xa", "bc")), (["c", "abc", "bc"], ("x", "abc"))])
def test_the_first_stop_string_to_be_complete_wins_and_the_longest_of_those(stops, expected, size):
    assert run(stops, cut("xabcd", size)) == expected


@settings(max_examples=400)
@given(LETTERS, STOPS, st.lists(st.integers(1, 5), max_size=30))
def test_any_cut_gives_what_the_definition_says(text, stops, sizes):
    """The definition, letter by letter: stop where any stop string first ends, before the longest that ends there."""
    expected, matched = text, None
    for end in range(1, len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            matched = max(ending, key=len)
            expected = text[: end - len(matched)]
            break
    pieces, position = [], 0
    for size in sizes:
        pieces.append(text[position : position + size])
        position += size
    assert run(stops, [*pieces, text[position:]]) == (expected, matched)


@given(LETTERS, STOPS)
def test_what_is_held_back_is_the_longest_beginning_of_a_stop_string(text, stops):
    beginnings = {stop[:i] for stop in stops for i in range(1, len(stop))}
    expected = max((len(b) for b in beginnings if text.endswith(b)), default=0)
    assert unfinished_tail(text, stops) == expected


@pytest.mark.parametrize("size", [1, 2, 3, 5, 100])
def test_holding_back_does_not_disturb_thinking_and_calls(size):
    text = '<think>\nx</thi\n</think>\n\nHi <tool_call>\n{"name": "f", "arguments": {"a": "</x"}}\n</tool_call>STOP</y'
    stopping, collector = StopStrings(["STOP", "</tool_x", "<think>y"]), ChannelCollector()
    parser = ChannelParser("none", parse_tool_calls=True)
    for piece in cut(text, size):
        for delta in parser.push(stopping.push(piece)):
            collector.add(delta)
    for delta in [*parser.push(stopping.finish()), *parser.finish()]:
        collector.add(delta)
    answer = collector.result()
    assert (answer.reasoning, answer.content) == ("x</thi", "Hi")
    assert [(call.name, call.arguments, call.is_whole) for call in answer.tool_calls] == [("f", '{"a": "</x"}', True)]
