"""The response object, held against the types of OpenAI's own client."""

from __future__ import annotations

import json

import pytest
from openai.types.responses import Response, ResponseOutputItem
from pydantic import TypeAdapter

from kaishu.errors import InvalidParameterError, NumericalError, QueueFullError
from kaishu.results import PositionLogprobs, TokenLogprob, Usage
from kaishu.sampling import SamplingParams
from kaishu.server.responses_answers import (
    call_item,
    ended_response,
    error_object,
    message_item,
    new_response,
    response_usage,
    text_part,
    thought_item,
    token_logprobs,
)
from kaishu.server.responses_requests import read_response


def begun():
    call = read_response({"model": "tiny", "input": "Hi", "instructions": "Be kind.", "metadata": {"a": "b"}})
    return new_response("tiny", call.echo, SamplingParams(temperature=0.5, top_p=0.9))


def checked(response):
    return Response.model_validate_json(json.dumps(response), strict=True)


def test_a_response_is_one_to_the_client_from_its_beginning_to_its_end():
    response = begun()
    read = checked(response)
    assert (read.status, read.output, read.usage, read.completed_at) == ("in_progress", [], None, None)
    assert (read.instructions, read.metadata, read.temperature, read.top_p) == ("Be kind.", {"a": "b"}, 0.5, 0.9)
    whole = checked(ended_response(response, "completed", usage=Usage(7, 5, 3, 2)))
    assert whole.id == read.id and whole.status == "completed" and whole.completed_at >= whole.created_at
    assert whole.usage.input_tokens == 7 and whole.usage.output_tokens == 5 and whole.usage.total_tokens == 12
    assert whole.incomplete_details is None and whole.error is None


def test_an_answer_that_was_cut_off_says_why():
    cut = checked(ended_response(begun(), "incomplete", usage=Usage(1, 1)))
    assert cut.incomplete_details.reason == "max_output_tokens" and cut.completed_at is None


@pytest.mark.parametrize(
    "error, code",
    [
        (QueueFullError(3, 2), "rate_limit_exceeded"),
        (InvalidParameterError("input", 1, "a text"), "invalid_prompt"),
        (NumericalError("The model computed NaN."), "server_error"),
        (ZeroDivisionError("secret"), "server_error"),
    ],
)
def test_a_failure_is_one_to_the_client_and_tells_no_internals(error, code):
    failed = checked(ended_response(begun(), "failed", error=error_object(error)))
    assert failed.status == "failed" and failed.error.code == code
    assert "secret" not in failed.error.message


@pytest.mark.parametrize("status", ["in_progress", "completed", "incomplete"])
def test_items_are_those_of_the_client(status):
    token = PositionLogprobs(TokenLogprob(1, "Hi", b"Hi", -0.5), (TokenLogprob(1, "Hi", b"Hi", -0.5),))
    items = [
        thought_item("Hm.", status, "rs_1"),
        thought_item("Hm.", status, "rs_1", with_summary=True),
        thought_item(None, status, "rs_1"),
        message_item(text_part("Hi", [token_logprobs(token)]), status, "msg_1"),
        message_item(None, status, "msg_1"),
        call_item("call_1", "add", '{"a": 1}', status, "fc_1"),
    ]
    for item in items:
        read = TypeAdapter(ResponseOutputItem).validate_json(json.dumps(item), strict=True)
        assert read.status == status
        assert read.to_dict() == item, "nothing is lost, and nothing is there that the client doesn't know"


def test_usage_counts_thought_and_what_was_cached():
    assert response_usage(Usage(10, 7, 4, 5)) == {
        "input_tokens": 10,
        "input_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 0},
        "output_tokens": 7,
        "output_tokens_details": {"reasoning_tokens": 5},
        "total_tokens": 17,
    }
