"""Answers as OpenAI's API has them."""

from __future__ import annotations

import json

import pytest

from kaishu.errors import (
    ContextLengthError,
    GrammarsBusyError,
    InvalidMessagesError,
    InvalidParameterError,
    ModelNotFoundError,
    NumericalError,
    QueueFullError,
    TemplateError,
)
from kaishu.openai_responses import (
    Echo,
    chat_response,
    completion_response,
    echo_of,
    error_response,
    error_status,
    new_id,
)
from kaishu.results import ChatCompletion, Completion, PositionLogprobs, Timing, TokenLogprob, Usage
from kaishu.text.channels import ToolCall

TIMING, USAGE = Timing(0.1, 0.2, 3), Usage(7, 5, cached_tokens=4, reasoning_tokens=2)


def token(raw: bytes, logprob: float) -> TokenLogprob:
    return TokenLogprob(0, raw.decode("utf-8", errors="replace"), raw, logprob)


def chat(content: str = "", reasoning: str = "", calls: tuple[ToolCall, ...] = (), **more) -> ChatCompletion:
    return ChatCompletion(content, reasoning, calls, more.pop("finish", "stop"), (1,), USAGE, TIMING, **more)


def test_a_chat_has_openais_form():
    body = chat_response(chat("42", "12 + 30", alternatives=(chat("43"),)), "m", created=99.9)
    assert body.pop("id").startswith("chatcmpl-") and body == {
        "object": "chat.completion",
        "created": 99,
        "model": "m",
        "choices": [
            {
                "index": 0,
                "message": {
                    "role": "assistant",
                    "content": "42",
                    "refusal": None,
                    "reasoning_content": "12 + 30",
                    "reasoning": "12 + 30",
                },
                "logprobs": None,
                "finish_reason": "stop",
            },
            {
                "index": 1,
                "message": {"role": "assistant", "content": "43", "refusal": None},
                "logprobs": None,
                "finish_reason": "stop",
            },
        ],
        "usage": {
            "prompt_tokens": 7,
            "completion_tokens": 5,
            "total_tokens": 12,
            "prompt_tokens_details": {"cached_tokens": 4},
            "completion_tokens_details": {"reasoning_tokens": 2},
        },
    }


def test_calls_are_part_of_the_message_and_where_there_is_no_content_it_is_null():
    calls = (ToolCall("call_1", "f", '{"a": 1}', True), ToolCall("call_2", "g", "{}", True))
    message = chat_response(chat(calls=calls, finish="tool_calls"), "m")["choices"][0]["message"]
    assert message["content"] is None
    assert message["tool_calls"][0] == {
        "id": "call_1",
        "type": "function",
        "function": {"name": "f", "arguments": '{"a": 1}'},
    }
    assert [call["id"] for call in message["tool_calls"]] == ["call_1", "call_2"]
    one = chat_response(chat("Well.", calls=calls), "m", only_first_call=True)["choices"][0]["message"]
    assert [call["id"] for call in one["tool_calls"]] == ["call_1"] and one["content"] == "Well."
    assert chat_response(chat(""), "m")["choices"][0]["message"]["content"] == ""


def test_log_probabilities_of_a_chat_have_bytes():
    position = PositionLogprobs(token("你".encode()[:2], -0.5), (token("é".encode(), -0.25),))
    said = chat_response(chat("x", logprobs=(position,)), "m")["choices"][0]["logprobs"]
    assert said == {
        "content": [
            {
                "token": "\ufffd",
                "logprob": -0.5,
                "bytes": [0xE4, 0xBD],
                "top_logprobs": [{"token": "é", "logprob": -0.25, "bytes": [0xC3, 0xA9]}],
            }
        ],
        "refusal": None,
    }


def test_completions_of_many_prompts_are_choices_one_after_another():
    two = Completion("b", (1,), "length", USAGE, TIMING)
    first = Completion("a", (1,), "stop", USAGE, TIMING, alternatives=(two,))
    body = completion_response([first, two], "m", created=5)
    assert [(choice["index"], choice["text"], choice["finish_reason"]) for choice in body["choices"]] == [
        (0, "a", "stop"),
        (1, "b", "length"),
        (2, "b", "length"),
    ]
    assert body["id"].startswith("cmpl-") and body["object"] == "text_completion"
    assert body["usage"]["total_tokens"] == 24 and body["usage"]["prompt_tokens_details"] == {"cached_tokens": 8}


def test_the_older_log_probabilities_spell_bytes_and_count_characters():
    raw = "你".encode()
    generated = (
        PositionLogprobs(token(raw[:2], -1.0), (token(raw[:2], -1.0), token(b"x", -2.0))),
        PositionLogprobs(token(raw[2:], -3.0), (token(b"x", -0.1),)),
        PositionLogprobs(token(b"!", -4.0), ()),
    )
    answer = Completion("你!", (1, 2, 3), "stop", USAGE, TIMING, generated)
    assert completion_response([answer], "m")["choices"][0]["logprobs"] == {
        "tokens": ["bytes:\\xe4\\xbd", "bytes:\\xa0", "!"],
        "token_logprobs": [-1.0, -3.0, -4.0],
        "top_logprobs": [
            {"bytes:\\xe4\\xbd": -1.0, "x": -2.0},
            {"x": -0.1, "bytes:\\xa0": -3.0},
            {"!": -4.0},
        ],
        "text_offset": [0, 0, 1],
    }


def test_an_echo_stands_before_the_text_and_nothing_predicts_its_first_token():
    answer = Completion(
        "c",
        (1,),
        "stop",
        USAGE,
        TIMING,
        (PositionLogprobs(token(b"c", -1.0)),),
        prompt_logprobs=(PositionLogprobs(token(b"b", -2.0), (token(b"z", -0.5),)),),
    )
    choice = completion_response([answer], "m", echoes=[Echo("ab", token(b"a", 0.0))])["choices"][0]
    assert choice["text"] == "abc"
    assert choice["logprobs"] == {
        "tokens": ["a", "b", "c"],
        "token_logprobs": [None, -2.0, -1.0],
        "top_logprobs": [None, {"z": -0.5, "b": -2.0}, {"c": -1.0}],
        "text_offset": [0, 1, 2],
    }


def test_an_echo_is_the_prompt_as_text(loaded):
    ids = loaded.tokenizer.encode("从前 Once")
    assert echo_of("从前 Once", ids, loaded.tokenizer).text == echo_of(ids, ids, loaded.tokenizer).text == "从前 Once"
    assert echo_of(ids, ids, loaded.tokenizer).first.bytes == loaded.tokenizer.token_bytes(ids[0])


@pytest.fixture(scope="module")
def loaded():
    from kaishu.loading import load_model

    return load_model("tiny", threads=1)


@pytest.mark.parametrize(
    "error, status, kind, param, code",
    [
        (InvalidParameterError("n", 0, "1"), 400, "invalid_request_error", "n", "invalid_value"),
        (ContextLengthError(9, 8), 400, "invalid_request_error", "prompt", "context_length_exceeded"),
        (InvalidMessagesError("bad", field="messages[0]"), 400, "invalid_request_error", "messages[0]", None),
        (TemplateError("none"), 400, "invalid_request_error", None, "chat_template"),
        (ModelNotFoundError("none"), 404, "invalid_request_error", "model", "model_not_found"),
        (QueueFullError(3, 3), 429, "rate_limit_error", None, "queue_full"),
        (GrammarsBusyError("response_format"), 429, "rate_limit_error", None, "grammars_busy"),
        (NumericalError("NaN"), 500, "server_error", None, "numerical_error"),
        (ZeroDivisionError("secret"), 500, "server_error", None, None),
    ],
)
def test_errors_have_openais_form_and_those_of_ours_no_details(error, status, kind, param, code):
    assert error_status(error) == status
    said = error_response(error)["error"]
    assert (said["type"], said["param"], said["code"]) == (kind, param, code)
    assert "secret" not in json.dumps(said) and "\n" not in said["message"]


def test_ids_are_new():
    assert new_id("x-") != new_id("x-")
