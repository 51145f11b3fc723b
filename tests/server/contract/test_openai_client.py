"""OpenAI's own Python client, synchronous, against a live server: chats, streams, sampling, errors, and the rest."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest

from tests.server.contract.conftest import ASKED, CALLS, HI, NO_THOUGHT, TOOLS, client_of, full, streamed

# Everything may be said.
FREE: dict[str, Any] = {
    **ASKED,
    "messages": [{"role": "user", "content": "Tell me a story."}],
    "temperature": 3.0,
    "top_p": 1.0,
    "max_tokens": 12,
    "extra_body": {"enable_thinking": False, "top_k": 0},
}


# Answers


def test_a_chat_is_answered(client):
    answer = client.chat.completions.create(**ASKED)
    (choice,) = answer.choices
    assert answer.object == "chat.completion" and answer.model == "tiny" and answer.id.startswith("chatcmpl-")
    assert choice.message.role == "assistant" and choice.message.content and choice.finish_reason == "stop"
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    assert answer.usage.completion_tokens_details.reasoning_tokens > 0


def test_a_stream_adds_up_to_the_answer(client):
    answer = client.chat.completions.create(**ASKED, logprobs=True, top_logprobs=2)
    said = streamed(client.chat.completions.create(**ASKED, logprobs=True, top_logprobs=2, stream=True))
    message = answer.choices[0].message
    assert (said["content"], said["reasoning"]) == (message.content, message.reasoning_content)
    assert said["reason"] == "stop" and said["usage"] is None
    assert said["logprobs"] == answer.choices[0].logprobs.content


def test_usage_comes_with_a_stream_if_asked_for(client):
    chunks = list(client.chat.completions.create(**ASKED, stream=True, stream_options={"include_usage": True}))
    assert chunks[-1].choices == [] and chunks[-1].usage == client.chat.completions.create(**ASKED).usage.model_copy(
        update={"prompt_tokens_details": chunks[-1].usage.prompt_tokens_details}
    )
    assert all(chunk.choices and chunk.usage is None for chunk in chunks[:-1])


def test_the_clients_own_helper_for_streams_adds_up(saying):
    with saying(CALLS).chat.completions.stream(**ASKED, tools=TOOLS) as stream:
        for _ in stream:
            pass
        answer = stream.get_final_completion()
    (choice,) = answer.choices
    assert choice.finish_reason == "tool_calls" and choice.message.content == "Let me look."
    assert [json.loads(call.function.arguments) for call in choice.message.tool_calls] == [
        {"city": "北京", "days": 2},
        {"zone": "UTC", "o": {"k": [1, None]}},
    ]


def test_thoughts_are_apart_from_content(saying):
    message = saying("<think>\nplan\n</think>\n\nHi").chat.completions.create(**ASKED).choices[0].message
    assert (message.reasoning_content, message.reasoning, message.content) == ("plan", "plan", "Hi")
    said = streamed(saying("<think>\nplan\n</think>\n\nHi").chat.completions.create(**ASKED, stream=True))
    assert (said["reasoning"], said["content"]) == ("plan", "Hi")


@pytest.mark.parametrize(
    "fields",
    [
        {"extra_body": {"enable_thinking": False}},
        {"extra_body": {"chat_template_kwargs": {"enable_thinking": False}}},
        {"reasoning_effort": "none"},
    ],
    ids=str,
)
def test_thinking_can_be_turned_off(client, saying, fields):
    message = client.chat.completions.create(**ASKED, **fields).choices[0].message
    assert message.content and not hasattr(message, "reasoning_content")
    message = saying("Paris.").chat.completions.create(**ASKED, **fields).choices[0].message
    assert message.content == "Paris." and not hasattr(message, "reasoning_content")


@pytest.mark.parametrize("effort", ["minimal", "low", "medium", "high"])
def test_any_other_effort_thinks(client, effort):
    message = client.chat.completions.create(**ASKED, reasoning_effort=effort).choices[0].message
    assert message.reasoning_content and message.content


@pytest.mark.parametrize("stream", [False, True])
def test_a_thinking_budget_ends_the_thought_and_an_answer_follows(client, stream):
    whole = client.chat.completions.create(**ASKED)
    body = {"thinking_budget": 3}
    if stream:
        said = streamed(client.chat.completions.create(**ASKED, stream=True, extra_body=body))
        content, reasoning = said["content"], said["reasoning"]
    else:
        message = client.chat.completions.create(**ASKED, extra_body=body).choices[0].message
        content, reasoning = message.content, message.reasoning_content
    assert content and reasoning
    assert len(reasoning) < len(whole.choices[0].message.reasoning_content)


def test_cut_short_inside_a_thought_there_is_no_content(client):
    answer = client.chat.completions.create(**ASKED, max_tokens=4)
    (choice,) = answer.choices
    assert choice.finish_reason == "length" and choice.message.content == "" and choice.message.reasoning_content


def test_an_answer_can_be_begun_for_the_model(saying, client):
    messages = [*HI, {"role": "assistant", "content": "The answer is"}]
    body = {"continue_final_message": True}
    answer = saying(" 22.").chat.completions.create(model="tiny", messages=messages, extra_body=body)
    assert answer.choices[0].message.content == " 22."
    real = client.chat.completions.create(model="tiny", messages=messages, extra_body=body, max_tokens=5)
    assert not hasattr(real.choices[0].message, "reasoning_content")


# Sampling


def test_a_seed_repeats_and_others_differ(client):
    def said(seed: int | None) -> str:
        return client.chat.completions.create(**FREE, seed=seed).choices[0].message.content

    assert said(7) == said(7) and said(0) == said(0)
    assert len({said(seed) for seed in (0, 1, 2, 3, None, None)}) > 2


@pytest.mark.parametrize("stream", [False, True])
def test_n_choices_differ_and_repeat_under_a_seed(client, stream):
    fields: dict[str, Any] = {**FREE, "seed": 5, "n": 3}

    def texts() -> list[str]:
        found = client.chat.completions.create(**fields, stream=stream)
        if not stream:
            assert [choice.index for choice in found.choices] == [0, 1, 2]
            return [choice.message.content for choice in found.choices]
        said = ["", "", ""]
        for chunk in found:
            for choice in chunk.choices:
                said[choice.index] += choice.delta.content or ""
        return said

    first = texts()
    assert len(set(first)) > 1 and first == texts()


@pytest.mark.parametrize("stream", [False, True])
def test_nothing_of_a_stop_string_leaks(saying, stream):
    client = saying("alpha, b,c tail")
    found = client.chat.completions.create(**ASKED, stop=["b,c"], stream=stream)
    if stream:
        said = streamed(found)
        assert (said["content"], said["reason"]) == ("alpha, ", "stop")
    else:
        assert (found.choices[0].message.content, found.choices[0].finish_reason) == ("alpha, ", "stop")


def test_log_probabilities_spell_the_answer(client):
    (choice,) = client.chat.completions.create(**ASKED, logprobs=True, top_logprobs=3, **NO_THOUGHT).choices
    entries = choice.logprobs.content
    assert b"".join(bytes(entry.bytes) for entry in entries).decode() == choice.message.content
    for entry in entries:
        tops = [top.logprob for top in entry.top_logprobs]
        assert len(tops) == 3 and tops == sorted(tops, reverse=True) and entry.logprob <= 0
        assert entry.logprob == tops[0], "at temperature 0 the likeliest is chosen"


def test_a_bias_forbids_a_token(client, tiny):
    without = client.chat.completions.create(**ASKED, **NO_THOUGHT).choices[0].message.content
    found = (
        client.chat.completions.create(**ASKED, logprobs=True, max_tokens=1, **NO_THOUGHT).choices[0].logprobs.content
    )
    ids = tiny.client.post("/tokenize", json={"prompt": found[0].token}).json()["tokens"]
    other = client.chat.completions.create(**ASKED, logit_bias={str(ids[0]): -100}, **NO_THOUGHT)
    assert other.choices[0].message.content != without


# Errors


def test_errors_are_the_clients_own_types(saying, client, tiny):
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(**ASKED | {"temperature": -1})
    assert (caught.value.param, caught.value.code, caught.value.status_code) == ("temperature", "invalid_value", 400)
    with pytest.raises(openai.NotFoundError) as missing:
        client.chat.completions.create(**ASKED | {"model": "gpt-4o"})
    assert (missing.value.param, missing.value.code) == ("model", "model_not_found")
    for stream in (False, True):
        with pytest.raises(openai.BadRequestError) as long:
            client.chat.completions.create(
                model="tiny", messages=[{"role": "user", "content": "x " * 5000}], stream=stream
            )
        assert long.value.code == "context_length_exceeded"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("gpt-4o")
    with pytest.raises(openai.APIStatusError) as large:
        saying("a", max_body_bytes=100).chat.completions.create(**ASKED | {"messages": HI * 9})
    assert large.value.status_code == 413
    assert client.chat.completions.create(**ASKED, max_tokens=1).choices


@pytest.mark.parametrize("stream", [False, True])
def test_a_full_queue_is_the_clients_rate_limit_error(steady, stream):
    server, executor = steady(max_running=1, max_waiting=1)
    with full(server, executor), pytest.raises(openai.RateLimitError) as caught:
        client_of(server).chat.completions.create(**ASKED, stream=stream)
    assert caught.value.code == "queue_full" and int(caught.value.response.headers["Retry-After"]) >= 1


def test_a_failure_in_a_stream_is_raised_by_the_client(steady):
    server, executor = steady()
    stream = client_of(server).chat.completions.create(**ASKED, stream=True)
    with pytest.raises(openai.APIError, match="The server failed; this is no fault of the request"):
        for count, _ in enumerate(stream):
            if count == 3:
                executor.fails = ZeroDivisionError("secret")
    server.wait_until_idle()


@pytest.mark.parametrize("n", [1, 3])
def test_a_stream_that_is_closed_gives_its_pages_back(steady, n):
    server, executor = steady()
    stream = client_of(server).chat.completions.create(**ASKED, stream=True, n=n)
    for _, _ in zip(range(5), stream, strict=False):
        pass
    stream.close()
    server.wait_until_idle()
    assert len(executor.steps) < 800, "it ended early"


# The client's other resources


def test_models_are_listed_and_retrieved(client):
    (model,) = client.models.list().data
    assert model.id == "tiny" and client.models.retrieve("tiny") == model


def test_completions(client):
    fields: dict[str, Any] = {
        "model": "tiny",
        "prompt": ["Once", "从前"],
        "max_tokens": 5,
        "temperature": 0,
        "logprobs": 1,
    }
    answer = client.completions.create(**fields)
    said = ["", ""]
    for chunk in client.completions.create(**fields, stream=True):
        for choice in chunk.choices:
            said[choice.index] += choice.text
    assert said == [choice.text for choice in answer.choices] and answer.usage.completion_tokens == 10
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(**fields, suffix="x")
    assert caught.value.param == "suffix"


def test_embeddings_are_equal_in_both_encodings(client):
    texts = ["Once", "从前"]
    # Unless it is told otherwise, the client asks for base64 and reads it itself.
    as_base64 = [one.embedding for one in client.embeddings.create(model="tiny", input=texts).data]
    as_numbers = [
        one.embedding for one in client.embeddings.create(model="tiny", input=texts, encoding_format="float").data
    ]
    assert as_base64 == [pytest.approx(one, rel=1e-7) for one in as_numbers] and len(as_base64[0]) > 10


def test_unknown_fields_are_warned_of(client):
    raw = client.chat.completions.with_raw_response.create(**ASKED, max_tokens=1, extra_body={"top_a": 1})
    assert raw.headers["X-Kaishu-Ignored-Fields"] == "top_a" and raw.parse().choices
