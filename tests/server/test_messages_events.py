"""Events of a streamed message, added up by Anthropic's own client, against the whole message."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count, pairwise
from typing import Any

import pytest
from anthropic.lib.streaming._messages import accumulate_event
from hypothesis import example, given
from hypothesis import strategies as st

from kaishu.deltas import ChatDeltas
from kaishu.engine.stream import ChoiceEnd, RequestEnd, TextPiece
from kaishu.results import Timing, Usage
from kaishu.server.messages_events import UNSIGNED, MessageEvents
from kaishu.text.channels import ChannelParser

CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Berlin", "days": [1, 2]}}\n</tool_call>'
NO_THOUGHT = {"output_tokens_details": {"thinking_tokens": 0}}
WHOLE_INPUT = {"city": "Berlin", "days": [1, 2]}
PARTS = [
    "<think>\nhm\n\nwell\n</think>\n\n",
    "Let me see. ",
    CALL,
    "\n",
    '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>',
    '<tool_call>\n{"name": "f", "arguments": {"a": "x" 1}}\n</tool_call>',
    '<tool_call>\n{"name": "f", "arguments": {"a": "\\ud800", "b": 2}}\n</tool_call>',
    '<tool_call>\n{"name": "f", "arguments": {"a": 1e999}}\n</tool_call>',
    '<tool_call>\n{"name": "f", "arguments": {"a": "two\nlines"}}\n</tool_call>',
    '<tool_call>\n{"name": "f", "arguments": {"a": {"b": "c',
    "<tool_call>\nno call",
    "楷书🙂",
]


def pieces_of(text: str, cuts: Sequence[int]) -> list[str]:
    places = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    return [text[start:end] for start, end in pairwise(places)]


def streamed(
    pieces: Sequence[str], *, only_first_call: bool = False, shows_thought: bool = True, finish_reason: Any = "stop"
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """return: all events of an answer, and the whole message"""
    numbers = count()
    deltas = ChatDeltas(
        lambda: ChannelParser("none", parse_tool_calls=True, make_call_id=lambda: f"call_{next(numbers)}")
    )
    made = MessageEvents(
        "tiny", prompt_tokens=9, max_tokens=50, only_first_call=only_first_call, shows_thought=shows_thought
    )
    events = [made.begin(4)]
    for event in [
        *(TextPiece(0, piece, (1,)) for piece in pieces),
        ChoiceEnd(0, "".join(pieces), (1,), finish_reason, 50, 3, None),
        RequestEnd(Usage(9, 50, 4, 3), Timing(0, 0, 0), None),
    ]:
        for delta in deltas.push(event):
            assert made.message is None
            events += list(made.push(delta))
    assert made.message is not None
    return events, made.message


def added_up(events: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What the client makes of them."""
    message: Any = None
    buffers: dict[int, bytes] = {}
    for event in events:
        message = accumulate_event(event=event, current_snapshot=message, json_bufs=buffers)  # type: ignore[arg-type]
    found: dict[str, Any] = message.to_dict(mode="json")
    return {key: value for key, value in found.items() if value is not None}


def check_order(events: Sequence[dict[str, Any]]) -> None:
    """One block after the other, each with its own index, between the message's beginning and its end."""
    kinds = [event["type"] for event in events]
    assert kinds[0] == "message_start" and kinds[-2:] == ["message_delta", "message_stop"]
    index, is_open = -1, False
    for event in events[1:-2]:
        if event["type"] == "content_block_start":
            assert not is_open
            index, is_open = index + 1, True
        assert is_open and event["index"] == index
        if event["type"] == "content_block_stop":
            is_open = False
    assert not is_open


@given(
    st.lists(st.sampled_from(PARTS), max_size=5),
    st.lists(st.integers(0, 10**4), max_size=12),
    st.booleans(),
    st.sampled_from(["stop", "length"]),
)
@example(PARTS[:5], list(range(400)), False, "stop")
def test_events_add_up_to_the_whole_message_however_the_text_is_cut(
    parts: list[str], cuts: list[int], only_first_call: bool, finish_reason: str
) -> None:
    text = "".join(parts)
    events, whole = streamed(pieces_of(text, cuts), only_first_call=only_first_call, finish_reason=finish_reason)
    check_order(events)
    assert added_up(events) == {key: value for key, value in whole.items() if value is not None}
    _, at_once = streamed([text], only_first_call=only_first_call, finish_reason=finish_reason)
    assert {**whole, "id": at_once["id"]} == at_once


def test_thought_text_and_calls_are_blocks_of_their_own_in_their_order() -> None:
    events, whole = streamed(pieces_of("".join([PARTS[0], PARTS[1], CALL, PARTS[4]]), range(0, 300, 3)))
    assert whole["content"] == [
        {"type": "thinking", "thinking": "hm\n\nwell", "signature": UNSIGNED},
        {"type": "text", "text": "Let me see."},
        {"type": "tool_use", "id": "toolu_0", "name": "weather", "input": WHOLE_INPUT},
        {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {}},
    ]
    assert whole["stop_reason"] == "tool_use"
    num_deltas = sum(event.get("delta", {}).get("type") == "input_json_delta" for event in events)
    assert num_deltas > 5, "a call's input is streamed while it is written"


def test_of_a_thought_that_is_left_out_a_sign_remains() -> None:
    events, whole = streamed(pieces_of(PARTS[0] + "Yes.", range(9)), shows_thought=False)
    assert whole["content"] == [
        {"type": "thinking", "thinking": "", "signature": UNSIGNED},
        {"type": "text", "text": "Yes."},
    ]
    assert added_up(events)["content"] == whole["content"]


def test_of_several_calls_only_the_first_remains_where_one_is_allowed() -> None:
    _, whole = streamed([CALL + PARTS[4]], only_first_call=True)
    assert [block["name"] for block in whole["content"]] == ["weather"] and whole["stop_reason"] == "tool_use"


@pytest.mark.parametrize(
    ("call", "found"),
    [(PARTS[5], {"a": "x"}), (PARTS[6], {}), (PARTS[7], {"a": 1e99}), (PARTS[8], {}), (PARTS[9], {"a": {}})],
)
def test_a_call_whose_input_is_no_json_is_not_reported_as_one_to_be_made(call: str, found: Any) -> None:
    _, whole = streamed([call])
    assert whole["content"][0]["input"] == found and whole["stop_reason"] == "end_turn"


def test_an_answer_of_nothing_has_no_blocks() -> None:
    events, whole = streamed([])
    assert [event["type"] for event in events] == ["message_start", "message_delta", "message_stop"]
    assert whole["content"] == [] and whole["stop_reason"] == "end_turn"


def test_usage_is_final_at_the_end_and_the_prompt_is_known_at_the_beginning() -> None:
    events, whole = streamed(["x"], finish_reason="length")
    begun = events[0]["message"]
    assert begun["content"] == [] and begun["usage"] == {**whole["usage"], "output_tokens": 0} | NO_THOUGHT
    assert events[-2]["usage"] == whole["usage"]
    assert (whole["usage"]["input_tokens"], whole["usage"]["cache_read_input_tokens"]) == (5, 4)
    assert events[-2]["delta"] == {"stop_reason": "max_tokens", "stop_sequence": None}
