"""The events of a response add up to it, however the model's text was cut into pieces.

What reads them is OpenAI's own client: its types, strictly, and what it collects of a stream.
"""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai import omit
from openai.lib.streaming.responses._responses import ResponseStreamState
from openai.types.responses import ResponseStreamEvent
from pydantic import TypeAdapter

from kaishu.deltas import ChatDeltas
from kaishu.engine.stream import ChoiceEnd, RequestEnd, TextPiece
from kaishu.errors import NumericalError
from kaishu.results import PositionLogprobs, Timing, TokenLogprob, Usage
from kaishu.sampling import SamplingParams
from kaishu.server.responses_events import ResponseEvents
from kaishu.server.responses_requests import read_response
from kaishu.text.channels import ChannelParser

EVENT = TypeAdapter(ResponseStreamEvent)
CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
OTHER = '<tool_call>\n{"name": "sub", "arguments": {}}\n</tool_call>'
ANSWER = f"Hm, 世界.\n</think>\n\nLet me see.\n{CALL}\n{OTHER}"


def token(text: str) -> PositionLogprobs:
    return PositionLogprobs(TokenLogprob(1, text, text.encode(), -0.5), (TokenLogprob(1, text, text.encode(), -0.5),))


def machine(**options) -> ResponseEvents:
    reasoning = {"summary": options.pop("summary", None)}
    call = read_response({"model": "tiny", "input": "Hi", "metadata": {"a": "b"}, "reasoning": reasoning})
    params = SamplingParams(temperature=1.0, top_p=1.0, logprobs=1 if options.pop("logprobs", False) else None)
    return ResponseEvents("tiny", call.echo, params, **options)


def answered(pieces, reason="stop", thinking="open", **options):
    """return: the events of an answer that came in these pieces, a token each, and the response"""
    calls = iter(range(100))
    deltas = ChatDeltas(
        lambda: ChannelParser(thinking, parse_tool_calls=True, make_call_id=lambda: f"call_{next(calls)}")
    )
    events = machine(**options)
    text = "".join(pieces)
    given = [
        *(TextPiece(0, piece, (1,), (token(piece),)) for piece in pieces),
        ChoiceEnd(0, text, (1,), reason, len(pieces) + 1, 0, tuple(map(token, pieces))),
        RequestEnd(Usage(7, 9, 3, 2), Timing(0.5, 1.0, 8), None),
    ]
    made = [one for event in given for found in deltas.push(event) for one in events.push(found)]
    return made, events.response


def as_the_client_reads(events):
    """return: the client's own objects, after a check of each against its types, strictly"""
    return [EVENT.validate_json(json.dumps(event), strict=True) for event in events]


def nameless(response):
    """What it says, without the ids that differ from one answer to the next."""
    return [{key: value for key, value in item.items() if key != "id"} for item in response["output"]]


def test_the_order_of_events_is_that_of_the_api():
    made, _ = answered([f"Hm.\n</think>\n\nWell.\n{CALL}"])
    assert [event["type"].removeprefix("response.") for event in made] == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "reasoning_text.delta",
        "reasoning_text.done",
        "content_part.done",
        "output_item.done",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "output_item.added",
        "function_call_arguments.delta",
        "function_call_arguments.done",
        "output_item.done",
        "completed",
    ]
    assert [event["sequence_number"] for event in made] == list(range(len(made)))
    assert [event["output_index"] for event in made if "output_index" in event] == [0] * 6 + [1] * 6 + [2] * 4


def test_the_whole_says_what_the_model_said():
    _, response = answered([ANSWER])
    assert nameless(response) == [
        {
            "type": "reasoning",
            "status": "completed",
            "summary": [],
            "content": [{"type": "reasoning_text", "text": "Hm, 世界."}],
        },
        {
            "type": "message",
            "status": "completed",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "Let me see.", "annotations": [], "logprobs": []}],
        },
        {
            "type": "function_call",
            "status": "completed",
            "call_id": "call_0",
            "name": "add",
            "arguments": '{"a": 1}',
        },
        {"type": "function_call", "status": "completed", "call_id": "call_1", "name": "sub", "arguments": "{}"},
    ]
    assert response["status"] == "completed" and response["usage"]["total_tokens"] == 16
    assert response["metadata"] == {"a": "b"}


TEXTS = st.lists(
    st.sampled_from(
        ["Hm", "\n", " ", "</think>", "<think>", CALL, OTHER, "<tool_call>", "</tool_call>", "世🙂", CALL[:30]]
    ),
    max_size=10,
).map("".join)


@settings(deadline=None, max_examples=60)
@given(
    TEXTS,
    st.lists(st.integers(1, 200), max_size=30),
    st.sampled_from(["open", "closed", "none"]),
    st.booleans(),
    st.booleans(),
)
def test_however_it_is_cut_the_events_add_up_to_one_and_the_same_response(text, cuts, thinking, cut_off, only_first):
    places = sorted({0, len(text), *(place for place in cuts if place < len(text))})
    pieces = [text[start:end] for start, end in pairwise(places)]
    options = {"reason": "length" if cut_off else "stop", "thinking": thinking, "only_first_call": only_first}
    made, response = answered(pieces, **options)
    assert nameless(response) == nameless(answered([text], **options)[1])

    state, said, done = ResponseStreamState(input_tools=omit, text_format=omit), {}, {}
    read = as_the_client_reads(made)
    for event in read:
        state.handle_event(event)
        if event.type.endswith(".delta"):
            assert event.delta
            said[event.item_id] = said.get(event.item_id, "") + event.delta
        elif event.type.endswith(("_text.done", "arguments.done")):
            done[event.item_id] = getattr(event, "text", None) or getattr(event, "arguments", "")
    whole = read[-1].response
    assert read[-1].type == ("response.incomplete" if cut_off else "response.completed")
    assert whole.to_dict() == response
    assert [item.id for item in whole.output] == list(done)
    for index, item in enumerate(whole.output):
        text_of_it = item.arguments if item.type == "function_call" else "".join(part.text for part in item.content)
        assert said.get(item.id, "") == done[item.id] == text_of_it
        assert state._completed_output[index].to_dict() == item.to_dict()
    assert not only_first or sum(item.type == "function_call" for item in whole.output) <= 1
    if not cut_off:
        final = state._completed_response
        assert final.output_text == whole.output_text and len(final.output) == len(whole.output) > 0


@settings(deadline=None, max_examples=60)
@given(st.lists(st.sampled_from(["a", " ", "\n", "世", "🙂é", "b c"]), min_size=1, max_size=12))
def test_log_probabilities_spell_the_text_and_nothing_else(words):
    pieces = ["Hm", ".", "\n", "</think>", "\n", "\n", "x", *words, "\n", *CALL]
    made, response = answered(pieces, logprobs=True)
    (part,) = response["output"][1]["content"]
    spelt = b"".join(bytes(entry["bytes"]) for entry in part["logprobs"])
    assert spelt.decode() == part["text"] == ("x" + "".join(words)).rstrip()
    streamed = [entry for event in made if event["type"] == "response.output_text.delta" for entry in event["logprobs"]]
    assert streamed == part["logprobs"] and all(len(entry["top_logprobs"]) == 1 for entry in streamed)


def test_a_thought_is_its_own_summary_where_one_was_asked_for():
    made, response = answered(["Hm, ", "well.\n</think>\n\nYes."], summary="auto")
    read = as_the_client_reads(made)
    said = [event.delta for event in read if event.type == "response.reasoning_summary_text.delta"]
    assert said == ["Hm, ", "well."]
    thought = response["output"][0]
    assert thought["summary"] == [{"type": "summary_text", "text": "Hm, well."}]
    assert thought["content"] == [{"type": "reasoning_text", "text": "Hm, well."}]
    assert [event.part.text for event in read if event.type == "response.reasoning_summary_part.done"] == ["Hm, well."]


def test_events_with_log_probabilities_are_those_of_the_client():
    made, _ = answered(["Well", ", 世"], logprobs=True, thinking="closed")
    deltas = [event for event in as_the_client_reads(made) if event.type == "response.output_text.delta"]
    assert [[entry.token for entry in event.logprobs] for event in deltas] == [["Well"], [", 世"]]


def test_an_empty_answer_is_an_empty_message():
    made, response = answered([], thinking="closed")
    as_the_client_reads(made)
    assert [item["type"] for item in response["output"]] == ["message"]
    assert response["output"][0]["content"][0]["text"] == ""


@pytest.mark.parametrize(
    "text, statuses",
    [
        ("Hm", ["incomplete"]),
        ("Hm.</think>Well", ["completed", "incomplete"]),
        (f"Hm.</think>{CALL}\n{OTHER[:42]}", ["completed", "completed", "incomplete"]),
    ],
)
def test_an_answer_that_was_cut_off_says_where(text, statuses):
    made, response = answered([text], reason="length")
    as_the_client_reads(made)
    assert [item["status"] for item in response["output"]] == statuses
    assert made[-1]["type"] == "response.incomplete"
    assert response["incomplete_details"] == {"reason": "max_output_tokens"}


def test_a_failure_ends_what_is_open_and_keeps_what_was_said():
    deltas, events = ChatDeltas(lambda: ChannelParser("closed", parse_tool_calls=True)), machine()
    made = [one for found in deltas.push(TextPiece(0, "Well", (1,))) for one in events.push(found)]
    made += events.failed(NumericalError("The model computed NaN."))
    read = as_the_client_reads(made)
    assert [event.sequence_number for event in read] == list(range(len(read)))
    assert [event.type for event in read[-3:]] == [
        "response.content_part.done",
        "response.output_item.done",
        "response.failed",
    ]
    assert read[-1].response.status == "failed" and read[-1].response.output_text == "Well"
    assert read[-1].response.error.message == "The model computed NaN."
    assert read[0].response.output == [] and made[0]["response"]["status"] == "in_progress", "what was said stays said"
