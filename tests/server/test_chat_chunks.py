"""Chunks of a streamed chat add up to the whole answer, however the engine cuts its events."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kaishu.deltas import ChatDeltas
from kaishu.engine.stream import ChoiceEnd, Event, RequestEnd, TextPiece
from kaishu.openai_responses import chat_response
from kaishu.results import ChatEnd, PositionLogprobs, Timing, TokenLogprob, Usage
from kaishu.server.chat_chunks import ChatChunks
from kaishu.text.channels import ChannelParser
from tests.server.adding_up import Json, added_up

USAGE = Usage(7, 9, 3, 2)
CALLS = [
    '<tool_call>\n{"name": "f", "arguments": {"id": 42, "o": {"k": [1, null]}}}\n</tool_call>',
    '<tool_call>\n{"name": "g", "arguments": {}}\n</tool_call>',
    '<tool_call>\n{"name": "北京", "arguments": {"s": "</tool_call>\\n🙂"}}\n</tool_call>',
    '<tool_call>\n{"name": "broken", "arguments": {"a": ',
    "<tool_call>no call</tool_call>",
]
PIECES = st.sampled_from(
    [*CALLS, "<think>", "</think>", "<think>\nplan\n</think>\n\n", "\n", " ", "Paris", "楷书", "<"]
)
TEXTS = st.lists(PIECES, max_size=8).map("".join)


def position(token_id: int, text: str) -> PositionLogprobs:
    token = TokenLogprob(token_id, text, text.encode(), -0.5 - token_id)
    return PositionLogprobs(token, (token,), origin=("sampled", "guessed", "forced")[token_id % 3])


@st.composite
def outputs(draw: st.DrawFn) -> tuple[list[Event], int]:
    """The engine's events of a request with one to three choices, whose pieces come in any order. And how many."""
    n = draw(st.integers(1, 3))
    queues: list[list[Event]] = []
    for choice in range(n):
        text = draw(TEXTS)
        cuts = sorted(draw(st.sets(st.integers(0, len(text)), max_size=6)))
        parts = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
        events: list[Event] = []
        positions: list[PositionLogprobs] = []
        for part in parts:
            ids = tuple(range(len(positions), len(positions) + draw(st.integers(0, 2))))
            found = tuple(position(token_id, part) for token_id in ids)
            positions += found
            events.append(TextPiece(choice, part, ids, found))
        # The last token's text may come with the end alone.
        positions += [position(len(positions), "") for _ in range(draw(st.integers(0, 1)))]
        reason = draw(st.sampled_from(["stop", "length"]))
        events.append(ChoiceEnd(choice, text, (1,), reason, 1, 0, tuple(positions)))
        queues.append(events)
    mixed: list[Event] = []
    while any(queues):
        mixed.append(draw(st.sampled_from([queue for queue in queues if queue])).pop(0))
    return [*mixed, RequestEnd(USAGE, Timing(0.0, 0.0, 0), None)], n


def streamed(events: list[Event], thinking: str, **options: bool) -> tuple[list[Json], Json]:
    """The chunks, and what the whole answer is where nobody streams."""
    options = {"include_usage": False, "wants_logprobs": True, "only_first_call": False, **options}
    deltas = ChatDeltas(lambda: ChannelParser(thinking, parse_tool_calls=True))
    chunks = ChatChunks("m", **options)
    made: list[Json] = []
    for event in events:
        for found in deltas.push(event):
            made += chunks.push(found)
            if isinstance(found.delta, ChatEnd):
                answer = found.delta.completion
    if not options["wants_logprobs"]:
        answer = replace(
            answer, logprobs=None, alternatives=tuple(replace(a, logprobs=None) for a in answer.alternatives)
        )
    return made, chat_response(answer, "m", only_first_call=options["only_first_call"])


def without_empty(logprobs: Json | None) -> Json | None:
    """A stream has no chunk for the log probabilities of no tokens."""
    return logprobs if logprobs and logprobs["content"] else None


@given(outputs(), st.sampled_from(["none", "open", "closed"]), st.booleans(), st.booleans(), st.booleans())
def test_chunks_add_up_to_the_whole_answer(output, thinking, wants_logprobs, only_first_call, include_usage):
    events, n = output
    made, whole = streamed(
        events, thinking, wants_logprobs=wants_logprobs, only_first_call=only_first_call, include_usage=include_usage
    )
    found = added_up(made, n=n, wants_usage=include_usage)
    expected = [{**choice, "logprobs": without_empty(choice["logprobs"])} for choice in whole["choices"]]
    assert found["choices"] == expected
    if include_usage:
        assert found["usage"] == whole["usage"]


def test_each_token_says_how_it_came_to_be():
    made, _ = streamed([TextPiece(0, "a", (0, 1, 2), tuple(position(i, "a") for i in range(3))), *ended("a")], "closed")
    assert [chunk["choices"][0]["kaishu"]["origins"] for chunk in made if "kaishu" in chunk["choices"][0]] == [
        ["sampled", "guessed", "forced"]
    ]


def ended(text: str) -> list[Event]:
    return [ChoiceEnd(0, text, (1,), "stop", 1, 0, None), RequestEnd(USAGE, Timing(0.0, 0.0, 0), None)]


def test_text_before_a_call_streams_and_the_call_begins_before_it_is_whole():
    text = "Let me see.\n" + CALLS[0]
    made, _ = streamed([*(TextPiece(0, letter, (i,)) for i, letter in enumerate(text)), *ended(text)], "closed")
    deltas = [chunk["choices"][0]["delta"] for chunk in made]
    first_call = next(i for i, delta in enumerate(deltas) if "tool_calls" in delta)
    assert "".join(delta.get("content") or "" for delta in deltas[:first_call]) == "Let me see."
    assert deltas[first_call]["tool_calls"][0]["function"] == {"name": "f", "arguments": ""}
    assert len(deltas) - first_call > 10, "arguments come as they are written"


def test_a_choice_that_is_over_says_so_before_others_are():
    deltas = ChatDeltas(lambda: ChannelParser("closed", parse_tool_calls=True))
    chunks = ChatChunks("m", include_usage=False, wants_logprobs=False, only_first_call=False)
    events = [TextPiece(1, CALLS[0], (1,)), ChoiceEnd(1, CALLS[0], (1,), "stop", 1, 0, None), TextPiece(0, "a", (1,))]
    made = [chunk for event in events for found in deltas.push(event) for chunk in chunks.push(found)]
    said = [(chunk["choices"][0]["index"], chunk["choices"][0]["finish_reason"]) for chunk in made]
    assert said[-2:] == [(1, "tool_calls"), (0, None)]


@pytest.mark.parametrize("only_first_call, count", [(True, 1), (False, 2)])
def test_of_several_calls_the_first_is_all_where_one_at_a_time_was_asked_for(only_first_call, count):
    text = "\n".join(CALLS[:2])
    made, _ = streamed([TextPiece(0, text, (1,)), *ended(text)], "closed", only_first_call=only_first_call)
    (choice,) = added_up(made)["choices"]
    assert len(choice["message"]["tool_calls"]) == count and choice["finish_reason"] == "tool_calls"
