"""Every field of OpenAI's schemas, as its installed client has them: honoured, neutral, or refused by name."""

from __future__ import annotations

import typing
from typing import Any

import pytest
from openai.types import completion_create_params, embedding_create_params
from openai.types.chat import completion_create_params as chat_create_params

from kaishu.openai_fields import CHAT_FIELDS, COMPLETION_FIELDS, EMBEDDING_FIELDS

TYPES = {
    "/v1/chat/completions": (chat_create_params.CompletionCreateParamsBase, "stream", CHAT_FIELDS),
    "/v1/completions": (completion_create_params.CompletionCreateParamsBase, "stream", COMPLETION_FIELDS),
    "/v1/embeddings": (embedding_create_params.EmbeddingCreateParams, None, EMBEDDING_FIELDS),
}
LEAST: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1},
    "/v1/completions": {"model": "tiny", "prompt": "Hi", "max_tokens": 1},
    "/v1/embeddings": {"model": "tiny", "input": "Hi"},
}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
# Values that ask for something; whatever isn't here is refused or asks for nothing.
HONOURED: dict[str, list[Any]] = {
    "messages": [[{"role": "developer", "content": "Be kind."}, {"role": "user", "content": "Hi"}]],
    "model": ["tiny"],
    "prompt": ["Once", [1, 2], ["a", "b"]],
    "input": ["Once", [1, 2], ["a", "b"]],
    "frequency_penalty": [-2, 0.5, 2],
    "presence_penalty": [-2, 0.5, 2],
    "logit_bias": [{}, {"5": -100, "6": 100}],
    "logprobs": [True, False, 0, 5],
    "max_completion_tokens": [1],
    "max_tokens": [1, 3],
    "n": [1, 2],
    "parallel_tool_calls": [True, False],
    "reasoning_effort": ["none", "minimal", "low", "medium", "high"],
    "response_format": [{"type": "text"}, {"type": "json_object"}],
    "seed": [0, 5],
    "stop": ["a", ["a", "b"]],
    "stream": [True, False],
    "temperature": [0, 2],
    "tool_choice": ["auto", "none"],
    "tools": [[], [TOOL]],
    "top_p": [0.1, 1],
    "echo": [True, False],
    "dimensions": [1, 8],
    "encoding_format": ["float", "base64"],
    "user": ["me"],
    "metadata": [{"a": "b"}],
    "safety_identifier": ["me"],
    "prompt_cache_key": ["key"],
    "prompt_cache_retention": ["in-memory", "24h"],
    "prompt_cache_options": [{}],
    "service_tier": ["auto", "default"],
    "store": [False],
    "verbosity": ["medium"],
    "modalities": [["text"]],
    "function_call": ["auto", "none"],
    "functions": [[]],
    "suffix": [""],
    "best_of": [1],
}
# With what else they make sense.
TOGETHER: dict[str, dict[str, Any]] = {
    "top_logprobs": {"logprobs": True},
    "stream_options": {"stream": True},
    "max_completion_tokens": {"max_tokens": None},
}
HONOURED |= {"top_logprobs": [0, 20], "stream_options": [{"include_usage": True}, {"include_usage": False}]}
REFUSED: dict[str, list[Any]] = {
    "audio": [{"voice": "alloy", "format": "wav"}],
    "modalities": [["text", "audio"]],
    "prediction": [{"type": "content", "content": "x"}],
    "service_tier": ["flex", "scale", "priority"],
    "store": [True],
    "verbosity": ["low", "high"],
    "web_search_options": [{}],
    "functions": [[{"name": "f"}]],
    "function_call": [{"name": "f"}],
    "moderation": [{"model": "omni"}],
    "suffix": ["the end"],
    "best_of": [5],
    "n": [0, 129, 5_000_000],
    "temperature": [-1, "hot"],
    "top_p": [0.0001 - 1, 1.5],
    "top_logprobs": [21, 2 * 10**9],
    "logit_bias": [{"99999999": 1}, {"abc": 1}, {"5": 101}],
    "stop": [5, [""]],
    "seed": ["x", 1.5],
    "response_format": [{"type": "grammar"}, "json"],
    "reasoning_effort": ["extreme"],
    "encoding_format": ["int8"],
    "dimensions": [0],
    "user": [5],
}


def fields_of(path: str) -> set[str]:
    kind, streaming, _ = TYPES[path]
    return set(typing.get_type_hints(kind)) | ({streaming} if streaming else set())


@pytest.mark.parametrize("path", TYPES)
def test_every_field_of_the_clients_types_is_in_our_table_and_no_other_passes_for_one(path):
    ours = {name for name, field in TYPES[path][2].items() if not field.is_ours}
    assert ours == fields_of(path)


def test_every_field_has_a_value_that_is_tried_here():
    everything = set.union(*(fields_of(path) for path in TYPES))
    assert everything <= HONOURED.keys() | REFUSED.keys()


def tried(path: str, values: dict[str, list[Any]]) -> list[tuple[str, Any]]:
    return [(name, value) for name in sorted(fields_of(path)) for value in values.get(name, [])]


def fits(path: str, name: str, value: Any) -> bool:
    """Of `logprobs`, chats take one type and completions the other."""
    return name != "logprobs" or (type(value) is bool) == (path == "/v1/chat/completions")


@pytest.mark.parametrize("path", TYPES)
def test_values_that_can_be_honoured_are_accepted_and_null_asks_for_nothing(tiny, path):
    for name, value in tried(path, HONOURED):
        if not fits(path, name, value):
            continue
        body = {**LEAST[path], **TOGETHER.get(name, {}), name: value}
        response = tiny.client.post(path, json=body)
        assert response.status_code == 200, (name, value, response.text)
        assert "X-Kaishu-Ignored-Fields" not in response.headers
    for name in fields_of(path) - LEAST[path].keys():
        assert tiny.client.post(path, json={**LEAST[path], name: None}).status_code == 200, name


@pytest.mark.parametrize("path", TYPES)
def test_values_that_cannot_be_honoured_are_refused_with_a_400_that_names_the_field(tiny, path):
    for name, value in tried(path, REFUSED):
        for stream in ({}, {"stream": True}) if "stream" in TYPES[path][2] else ({},):
            response = tiny.client.post(path, json={**LEAST[path], **TOGETHER.get(name, {}), **stream, name: value})
            error = response.json()["error"]
            assert response.status_code == 400, (name, value)
            assert error["param"].split(".")[0].split("[")[0] == name and name in error["message"], (name, value, error)


@pytest.mark.parametrize("path", TYPES)
def test_a_wrong_type_is_a_400_for_every_field_and_never_anything_else(tiny, path):
    wrong: list[Any] = [{"a": [1]}, [[{}]], "\u0000", -(10**30), 1e308, True]
    for name in TYPES[path][2]:
        for value in wrong:
            response = tiny.client.post(path, json={**LEAST[path], name: value})
            assert response.status_code in (200, 400, 404), (name, value, response.text)
            if response.status_code == 400:
                assert response.json()["error"]["param"], (name, value, response.text)
