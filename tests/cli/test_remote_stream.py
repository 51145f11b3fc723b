"""Streams of OpenAI's API as servers really send them."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as some

from kaishu.cli.remote_stream import RemoteAnswer, error_words, event_data
from kaishu.errors import RemoteError
from kaishu.text.channels import (
    ContentDelta,
    ThinkingDelta,
    ToolCall,
    ToolCallArguments,
    ToolCallEnd,
    ToolCallStart,
)

# The HTML standard, section 9.2.6 "Interpreting an event stream": its examples, and what it says they are.
STANDARD = [
    ("data: YHOO\ndata: +2\ndata: 10\n\n", ["YHOO\n+2\n10"]),
    (
        ": test stream\n\ndata: first event\nid: 1\n\ndata:second event\nid\n\ndata:  third event\n\n",
        ["first event", "second event", " third event"],
    ),
    ("data\n\ndata\ndata\n\ndata:", ["", "\n"]),
    ("data:test\n\ndata: test\n\n", ["test", "test"]),
    ("event: add\ndata: 73857293\n\nretry: 1\n\n", ["73857293"]),
]


@pytest.mark.parametrize(("text", "expected"), STANDARD)
@pytest.mark.parametrize("line_end", ["\n", "\r\n", "\r"])
@given(cuts=some.lists(some.integers(0, 200)))
def test_events_are_read_as_the_standard_says_wherever_they_are_cut(text, expected, line_end, cuts):
    raw = ("\ufeff" + text.replace("\n", line_end)).encode()
    places = sorted({0, len(raw), *(cut % (len(raw) + 1) for cut in cuts)})
    chunks = [raw[start:end] for start, end in zip(places, places[1:], strict=False)]  # noqa: RUF007
    assert list(event_data(chunks)) == expected


def test_line_separators_of_unicode_are_text():
    data = json.dumps({"text": "a\u2028b\u2029c\x85d\x0be"}, ensure_ascii=False)
    raw = f"data: {data}\n\n".encode()
    assert list(event_data([bytes([byte]) for byte in raw])) == [data]


def chunk(finish_reason: str | None = None, **delta: object) -> dict:
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": finish_reason}]}


def call(index: int | None, arguments: object, name: str | None = None, call_id: str | None = None) -> dict:
    function = {"arguments": arguments} | ({"name": name} if name else {})
    said = (
        {"function": function} | ({"index": index} if index is not None else {}) | ({"id": call_id} if call_id else {})
    )
    return chunk(tool_calls=[said])


def read(chunks: Sequence[object]):
    """All deltas, and the whole answer."""
    answer = RemoteAnswer()
    deltas = [delta for one in chunks for delta in answer.push(one)]
    return [*deltas, *answer.end()], answer.completion()


def test_text_thought_and_usage_add_up():
    usage = {
        "prompt_tokens": 9, "completion_tokens": 5,
        "prompt_tokens_details": {"cached_tokens": 4}, "completion_tokens_details": {"reasoning_tokens": 2},
    }  # fmt: skip
    deltas, answer = read([
        chunk(role="assistant", content=""), chunk(reasoning_content="Hm", reasoning="Hm"), chunk(content="4"),
        chunk(content="2"), chunk("stop"), {"choices": [], "usage": usage},
    ])  # fmt: skip
    assert deltas == [ThinkingDelta("Hm"), ContentDelta("4"), ContentDelta("2")]
    assert (answer.content, answer.reasoning, answer.finish_reason) == ("42", "Hm", "stop")
    said = answer.usage
    assert (said.prompt_tokens, said.completion_tokens, said.cached_tokens, said.reasoning_tokens) == (9, 5, 4, 2)


@pytest.mark.parametrize("field", ["reasoning", "reasoning_content"])
def test_a_thought_is_found_under_either_name(field):
    assert read([chunk(**{field: "Hm"}), chunk("stop", content="x")])[1].reasoning == "Hm"


def test_a_thought_that_a_server_leaves_in_the_text_is_taken_out():
    _, answer = read([chunk(content="<thi"), chunk(content="nk>\nHm\n</think>\n\n42"), chunk("stop")])
    assert (answer.reasoning, answer.content) == ("Hm", "42")


def test_numbers_that_a_server_does_not_give_are_not_made_up():
    _, answer = read([chunk(content="4"), chunk("stop", content="2")])
    assert answer.usage.total_tokens == 0
    assert answer.timing.tokens_per_second is None


def test_the_end_is_said_in_our_words():
    assert read([chunk("length", content="x")])[1].finish_reason == "length"
    assert read([chunk("content_filter", content="x")])[1].finish_reason == "stop"
    assert read([call(0, "{}", "f", "a"), chunk("stop")])[1].finish_reason == "tool_calls"


def test_a_call_comes_in_pieces():
    deltas, answer = read([
        call(0, "", "weather", "call_1"), call(0, '{"city": '), call(0, '"Paris"}'), chunk("tool_calls"),
    ])  # fmt: skip
    assert deltas == [
        ToolCallStart(0, "call_1", "weather"), ToolCallArguments(0, '{"city": '), ToolCallArguments(0, '"Paris"}'),
        ToolCallEnd(0, is_whole=True),
    ]  # fmt: skip
    assert answer.tool_calls == (ToolCall("call_1", "weather", '{"city": "Paris"}', is_whole=True),)


@pytest.mark.parametrize(
    "pieces",
    [
        [call(0, "", "f", "a"), call(0, '{"x": 1}'), call(1, "", "g", "b"), call(1, '{"y": 2}')],
        [call(0, '{"x": 1}', "f", "a"), call(1, '{"y": 2}', "g", "b")],
        [call(0, "", "f", "a"), call(1, "", "g", "b"), call(0, '{"x": '), call(1, '{"y": '),
         call(0, "1}"), call(1, "2}")],
        [call(None, '{"x": 1}', "f", "a"), call(None, '{"y": 2}', "g", "b")],
        [call(0, '{"x": 1}', "f", "a"), call(0, '{"y": 2}', "g", "b")],
        [call(0, {"x": 1}, "f", "a"), call(1, {"y": 2}, "g", "b")],
    ],
    ids=["one after the other", "at once", "in turn", "without index", "the same index", "as objects"],
)  # fmt: skip
def test_two_calls_are_told_apart(pieces):
    deltas, answer = read([*pieces, chunk("tool_calls")])
    assert [(made.id, made.name, made.arguments, made.is_whole) for made in answer.tool_calls] == [
        ("a", "f", '{"x": 1}', True), ("b", "g", '{"y": 2}', True),
    ]  # fmt: skip
    ended = [delta.index for delta in deltas if isinstance(delta, ToolCallEnd)]
    assert sorted(ended) == [0, 1]


def test_a_call_without_arguments_has_none_and_one_that_breaks_off_is_not_whole():
    assert read([call(0, None, "f", "a"), chunk("tool_calls")])[1].tool_calls[0].arguments == "{}"
    broken = read([call(0, '{"x": ', "f"), chunk("length")])[1].tool_calls[0]
    assert not broken.is_whole and broken.id.startswith("call_")


def test_a_whole_answer_at_once_is_read_too():
    whole = {"choices": [{"index": 0, "message": {"role": "assistant", "content": "42"}, "finish_reason": "stop"}]}
    assert read([whole])[1].content == "42"


def test_parts_and_refusals_are_text():
    parts = [{"type": "text", "text": "4"}, {"type": "text", "text": "2"}, "no part"]
    assert read([chunk(content=parts), chunk("stop", refusal="!")])[1].content == "42!"


@pytest.mark.parametrize(
    ("found", "said"),
    [
        ({"error": {"message": "Out of luck.", "code": 1}}, "Out of luck."),
        ({"error": "Out of luck."}, "Out of luck."),
        ({"error": {"message": "No choices."}, "choices": []}, "No choices."),
        ([1], "[1]"),
        ("text", "'text'"),
        ({"choices": 1}, "1"),
        ({"choices": [1]}, "1"),
        ({"choices": [{"delta": 1}]}, "1"),
        (chunk(tool_calls=1), "1"),
        (chunk(tool_calls=[1]), "1"),
        (chunk(tool_calls=[{"function": 1}]), "1"),
    ],
)  # fmt: skip
def test_errors_and_what_is_no_chunk_are_said(found, said):
    with pytest.raises(RemoteError) as caught:
        read([chunk(content="x"), found])
    assert said in str(caught.value)


def test_chunks_that_say_nothing_are_passed_over():
    nothing = [
        {},
        {"choices": None},
        {"choices": []},
        {"choices": [{}]},
        chunk(content=None, tool_calls=None),
        {"usage": None},
    ]
    assert read(nothing)[0] == []


def test_an_error_is_found_in_every_form():
    assert error_words({"error": {"message": "a"}}) == "a"
    assert error_words({"error": "a"}) == error_words({"detail": "a"}) == error_words({"message": "a"}) == "a"
    assert error_words({"detail": [{"msg": "a"}]}) == "[{'msg': 'a'}]"
