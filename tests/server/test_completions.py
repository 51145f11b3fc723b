"""POST /v1/completions over a live server: against the Python API, whole and streamed, and every refusal."""

from __future__ import annotations

from typing import Any

import pytest

from kaishu import LLM
from tests.server.adding_up import chunks_of
from tests.server.contract.conftest import full

ASKED: dict[str, Any] = {"model": "tiny", "prompt": "Once upon a time", "max_tokens": 12, "temperature": 0}
LISTS = ("tokens", "token_logprobs", "top_logprobs", "text_offset")


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM("tiny", threads=1, context_tokens=1024)


def post(server, **fields):
    return server.client.post("/v1/completions", json={**ASKED, **fields})


def choices(server, **fields) -> list[dict[str, Any]]:
    response = post(server, **fields)
    assert response.status_code == 200, response.text
    return response.json()["choices"]


def streamed(server, **fields) -> list[dict[str, Any]]:
    """The choices that a stream adds up to."""
    found: dict[int, dict[str, Any]] = {}
    for chunk in chunks_of(post(server, stream=True, **fields)):
        for choice in chunk["choices"]:
            whole = found.setdefault(choice["index"], {**choice, "text": "", "logprobs": None})
            whole["text"] += choice["text"]
            whole["finish_reason"] = choice["finish_reason"]
            if choice["logprobs"]:
                whole["logprobs"] = whole["logprobs"] or {name: [] for name in LISTS}
                for name in LISTS:
                    whole["logprobs"][name] += choice["logprobs"][name]
    return [found[index] for index in range(len(found))]


def test_a_text_is_continued_as_the_python_api_does(tiny, llm):
    (choice,) = choices(tiny)
    expected = llm.generate(ASKED["prompt"], max_tokens=12, temperature=0)
    assert choice["text"] == expected.text != "" and choice["finish_reason"] == expected.finish_reason == "length"
    body = post(tiny).json()
    assert body["object"] == "text_completion" and body["id"].startswith("cmpl-") and body["model"] == "tiny"
    assert body["usage"]["completion_tokens"] == 12


def test_without_max_tokens_it_is_openais_sixteen(tiny):
    response = tiny.client.post("/v1/completions", json={"model": "tiny", "prompt": "Once upon a time"})
    assert response.json()["usage"]["completion_tokens"] <= 16


def test_ids_are_continued_as_the_text_they_stand_for(tiny, llm):
    ids = llm.tokenizer.encode(ASKED["prompt"])
    assert choices(tiny, prompt=ids) == choices(tiny) == choices(tiny, prompt=[ids])


def test_several_prompts_have_n_choices_each_in_their_order(tiny):
    prompts = ["Once upon a time", "从前有", "The capital of"]
    alone = [choices(tiny, prompt=prompt)[0]["text"] for prompt in prompts]
    found = choices(tiny, prompt=prompts, n=2)
    assert [choice["index"] for choice in found] == list(range(6))
    assert [choice["text"] for choice in found] == [text for text in alone for _ in range(2)]
    sampled = choices(tiny, prompt=prompts, n=2, temperature=1, seed=7)
    assert sampled == choices(tiny, prompt=prompts, n=2, temperature=1, seed=7)
    assert sampled[0]["text"] != sampled[1]["text"]


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"logprobs": 0},
        {"logprobs": 3},
        {"n": 3, "temperature": 1, "seed": 5, "logprobs": 1},
        {"prompt": ["Once", "从前", "a"], "n": 2, "temperature": 1, "seed": 5},
        {"prompt": ["Once", "从前"], "logprobs": 2},
        {"echo": True},
        {"echo": True, "prompt": ["Once", "从前"], "n": 2},
        {"echo": True, "prompt": ["Once upon a time", "a", "从前🙂"], "n": 2, "logprobs": 2},
        {"echo": True, "prompt": ["Once upon a time", "a"], "n": 2, "max_tokens": 0, "logprobs": 2},
        {"echo": True, "max_tokens": 0},
        {"stop": " a", "max_tokens": 60},
    ],
    ids=str,
)
def test_a_stream_adds_up_to_the_whole_answer(tiny, fields):
    assert streamed(tiny, **fields) == choices(tiny, **fields)


def test_log_probabilities_spell_the_text(tiny):
    for fields in ({}, {"prompt": "从前🙂"}):
        (choice,) = choices(tiny, logprobs=2, max_tokens=30, **fields)
        lists = choice["logprobs"]
        spelt = b"".join(
            bytes.fromhex(token[6:].replace("\\x", "")) if token.startswith("bytes:") else token.encode()
            for token in lists["tokens"]
        )
        assert spelt.decode(errors="replace") == choice["text"] and len({len(lists[name]) for name in LISTS}) == 1
        for token, logprob, top in zip(lists["tokens"], lists["token_logprobs"], lists["top_logprobs"], strict=True):
            assert top[token] == logprob <= 0 and 2 <= len(top) <= 3


def test_an_echo_has_the_prompts_log_probabilities_too(tiny, llm):
    (choice,) = choices(tiny, echo=True, logprobs=1)
    ids = llm.tokenizer.encode(ASKED["prompt"])
    lists = choice["logprobs"]
    assert choice["text"].startswith(ASKED["prompt"]) and len(lists["tokens"]) == len(ids) + 12
    assert lists["token_logprobs"][0] is None and all(number <= 0 for number in lists["token_logprobs"][1:])
    for token, offset in zip(lists["tokens"], lists["text_offset"], strict=True):
        assert choice["text"][offset:].startswith(token)
    # What the model says of a prompt's token is what it would have said while generating it.
    (again,) = choices(tiny, prompt=choice["text"], echo=True, logprobs=1, max_tokens=1)
    if again["logprobs"]["tokens"][: len(lists["tokens"])] == lists["tokens"]:
        found = again["logprobs"]["token_logprobs"][1 : len(lists["tokens"])]
        assert found == pytest.approx(lists["token_logprobs"][1:], abs=1e-3)


def test_usage_counts_all_prompts_and_a_stream_has_it_only_if_asked(tiny):
    fields = {"prompt": ["Once upon", "a time"], "n": 2, "max_tokens": 4}
    usage = post(tiny, **fields).json()["usage"]
    assert usage["completion_tokens"] == 16
    chunks = chunks_of(post(tiny, stream=True, stream_options={"include_usage": True}, **fields))
    assert chunks[-1]["choices"] == [] and chunks[-1]["usage"]["completion_tokens"] == 16
    assert all(chunk["usage"] is None and chunk["choices"] for chunk in chunks[:-1])
    assert all("usage" not in chunk for chunk in chunks_of(post(tiny, stream=True, **fields)))


def test_a_form_holds(tiny):
    (choice,) = choices(tiny, response_format={"type": "regex", "regex": "[0-9]{3}"})
    assert choice["text"].isdigit() and len(choice["text"]) == 3


@pytest.mark.parametrize(
    "fields, param, words",
    [
        ({"suffix": "the end"}, "suffix", "fills no gap"),
        ({"prompt": None}, "prompt", "a text, a list of token ids"),
        ({"prompt": ""}, "prompt", "empty"),
        ({"prompt": []}, "prompt", "not empty"),
        ({"prompt": [[]]}, "prompt", "empty"),
        ({"prompt": ["a", ""]}, "prompt[1]", "prompt[1]|prompt is empty"),
        ({"prompt": ["a", "b " * 2000]}, "prompt[1]", "1,024"),
        ({"prompt": [[1], [2, -1]]}, "prompt[1]", "prompt[1] is -1; allowed: token ids from 0 to 2,125"),
        ({"prompt": [999999]}, "prompt", "prompt is 999999"),
        ({"prompt": [2130]}, "prompt", "prompt is 2130; allowed: token ids from 0 to 2,125"),
        ({"prompt": [2130], "echo": True}, "prompt", "prompt is 2130"),
        ({"prompt": [1.5]}, "prompt", "1.5"),
        ({"prompt": {"a": 1}}, "prompt", "a text"),
        ({"prompt": ["a", [1]]}, "prompt[1]", "only texts"),
        ({"prompt": ["a"] * 2049}, "prompt", "2,049"),
        ({"prompt": "b " * 2000}, "prompt", "1,024"),
        ({"best_of": 2}, "best_of", "n, or null"),
        ({"prompt": [[5] * 1000] * 100, "n": 2, "echo": True, "logprobs": 10}, "logprobs", "would be 2,200,000"),
        ({"max_tokens": 0}, "max_tokens", "max_tokens is 0"),
        ({"max_tokens": 0, "echo": True, "min_tokens": 1}, "min_tokens", "max_tokens is 0"),
        ({"logprobs": 21}, "logprobs", "20"),
        ({"logprobs": True}, "logprobs", "20"),
        ({"logit_bias": {"99999999": 1}}, "logit_bias", "token ids"),
        ({"logit_bias": {"abc": 1}}, "logit_bias", "abc"),
        ({"n": 5_000_000}, "n", "128"),
        ({"stream": "yes"}, "stream", "true or false"),
        ({"thinking_budget": 5}, None, None),
        ({"model": "gpt"}, "model", "There is no model 'gpt'"),
    ],
    ids=str,
)
@pytest.mark.parametrize("stream", [False, True])
def test_what_cannot_be_done_is_refused_by_name_before_a_stream_begins(tiny, fields, param, words, stream):
    response = post(tiny, **{"stream": stream, **fields})
    if param is None:
        assert response.headers["X-Kaishu-Ignored-Fields"] == next(iter(fields))
        return
    error = response.json()["error"]
    assert response.status_code == (404 if param == "model" else 400) and error["param"] == param
    assert any(one in error["message"] for one in words.split("|")), error


def test_with_no_tokens_asked_for_an_echo_is_the_prompt_alone(tiny):
    """How evaluation harnesses score a text."""
    body = post(tiny, echo=True, max_tokens=0, logprobs=1, n=2).json()
    (more, _) = choices(tiny, echo=True, max_tokens=1, logprobs=1, n=2)
    for choice in body["choices"]:
        assert choice["text"] == ASKED["prompt"] and choice["finish_reason"] == "length"
        assert choice["logprobs"] == {name: values[:-1] for name, values in more["logprobs"].items()}
    assert body["usage"]["completion_tokens"] == 0 and body["usage"]["total_tokens"] == body["usage"]["prompt_tokens"]


def test_a_full_queue_is_429_before_a_stream_begins(steady):
    server, executor = steady(max_waiting=1, max_running=1)
    with full(server, executor):
        for stream in (False, True):
            response = post(server, stream=stream, prompt=["a", "b"])
            assert response.status_code == 429 and response.headers["Retry-After"]
            assert response.json()["error"]["code"] == "queue_full"
