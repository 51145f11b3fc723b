"""Every field of the OpenAI client's own parameter types, at any depth: honoured, neutral or refused by name.

The types are walked, so a field that a new client knows and our tables don't is found here.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any, get_args

import pytest
from openai.types.chat.completion_create_params import CompletionCreateParamsStreaming as ChatParams
from openai.types.completion_create_params import CompletionCreateParamsStreaming as CompletionParams
from openai.types.embedding_create_params import EmbeddingCreateParams
from typing_extensions import get_type_hints, is_typeddict

from kaishu.errors import InvalidRequestError
from kaishu.openai_embeddings import read_embedding
from kaishu.openai_fields import CHAT_FIELDS, COMPLETION_FIELDS, EMBEDDING_FIELDS, Field
from kaishu.openai_requests import read_chat, read_completion
from kaishu.server.unknown_fields import HEADER
from tests.server.conftest import service_on

BODIES = [(ChatParams, CHAT_FIELDS), (CompletionParams, COMPLETION_FIELDS), (EmbeddingCreateParams, EMBEDDING_FIELDS)]
FREE = {"tools.function.parameters", "response_format.json_schema.schema", "logit_bias", "metadata"}  # the caller's own
# Read by their `type`, which text/messages.py and Prompting refuse: their members are never looked at.
OTHER_KINDS = {
    "messages.content.image_url",
    "messages.content.input_audio",
    "messages.content.file",
    "messages.tool_calls.custom",
}


def objects_of(hint: Any) -> Iterator[Any]:
    """The objects that a value of a type may be, or be a list of."""
    if is_typeddict(hint):
        yield hint
    for part in get_args(hint):
        yield from objects_of(part)


def unread(kind: Any, table: Mapping[str, Field], path: str = "") -> Iterator[str]:
    """Fields of a type that our table would call unknown, and objects that nobody looks into."""
    for name, hint in get_type_hints(kind).items():
        place = f"{path}.{name}" if path else name
        if name not in table:
            yield place
            continue
        field = table[name]
        if field.use == "neutral" or place in FREE | OTHER_KINDS:
            continue  # refused whole, or free
        inner = field.inside if field.inside is not None else field.each
        for inside in objects_of(hint):
            if inner is None:
                yield f"{place}.*"
            else:
                yield from unread(inside, inner, place)


@pytest.mark.parametrize("kind, table", BODIES)
def test_every_field_of_the_clients_types_is_in_a_table(kind, table):
    assert list(unread(kind, table)) == []


def test_a_field_that_no_table_has_would_be_found():
    inner = {name: field for name, field in CHAT_FIELDS["tools"].each.items() if name != "custom"}
    lacking = {**CHAT_FIELDS, "tools": Field("read", each=inner), "stream_options": Field("read")}
    assert set(unread(ChatParams, lacking)) == {"tools.custom", "stream_options.*"}


WHOLE: dict[str, Any] = {  # with every object that is read
    "model": "tiny",
    "messages": [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "Hi"},
                {"type": "text", "text": "!", "prompt_cache_breakpoint": {"mode": "explicit", "ttl": "30m"}},
            ],
            "name": "ada",
        },
        {
            "role": "assistant",
            "content": None,
            "refusal": None,
            "annotations": [],
            "audio": None,
            "function_call": None,
            "tool_calls": [
                {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": '{"free": {"a": 1}}'}}
            ],
        },
        {"role": "tool", "tool_call_id": "call_1", "content": {"free": 1}},
    ],
    "tools": [
        {
            "type": "function",
            "function": {
                "name": "f",
                "description": "d",
                "parameters": {"type": "object", "properties": {}, "$comment": "free"},
                "strict": True,
            },
        }
    ],
    "tool_choice": {"type": "function", "function": {"name": "f"}},
    "stream": True,
    "stream_options": {"include_usage": True, "include_obfuscation": False},
    "prompt_cache_options": {"mode": "implicit", "ttl": "30m"},
    "metadata": {"free": "x"},
    "logit_bias": {"5": 1},
    "max_tokens": 4,
}
SCHEMA: dict[str, Any] = {
    "model": "tiny",
    "messages": [{"role": "user", "content": "Hi"}],
    "response_format": {
        "type": "json_schema",
        "json_schema": {"name": "n", "description": "d", "strict": True, "schema": {"type": "object"}},
    },
    "max_tokens": 4,
}
PLACES = {  # of every object in them, and where it stands in a body
    "messages[0]": (WHOLE, ("messages", 0)),
    "messages[0].content[1]": (WHOLE, ("messages", 0, "content", 1)),
    "messages[0].content[1].prompt_cache_breakpoint": (
        WHOLE,
        ("messages", 0, "content", 1, "prompt_cache_breakpoint"),
    ),
    "messages[1].tool_calls[0]": (WHOLE, ("messages", 1, "tool_calls", 0)),
    "messages[1].tool_calls[0].function": (WHOLE, ("messages", 1, "tool_calls", 0, "function")),
    "tools[0]": (WHOLE, ("tools", 0)),
    "tools[0].function": (WHOLE, ("tools", 0, "function")),
    "tool_choice": (WHOLE, ("tool_choice",)),
    "tool_choice.function": (WHOLE, ("tool_choice", "function")),
    "stream_options": (WHOLE, ("stream_options",)),
    "prompt_cache_options": (WHOLE, ("prompt_cache_options",)),
    "response_format": (SCHEMA, ("response_format",)),
    "response_format.json_schema": (SCHEMA, ("response_format", "json_schema")),
}


def places_of(table: Mapping[str, Field], path: str = "") -> Iterator[str]:
    """Where a table has objects."""
    for name, field in table.items():
        place = f"{path}.{name}" if path else name
        for inner, end in ((field.inside, ""), (field.each, "[]")):
            if inner is not None:
                yield place + end
                yield from places_of(inner, place + end)


def test_every_object_that_is_read_is_tested_here():
    tested = {place.replace("[0]", "[]").replace("[1]", "[]") for place in PLACES}
    assert set(places_of(CHAT_FIELDS)) == tested
    assert set(places_of(COMPLETION_FIELDS)) <= tested and not list(places_of(EMBEDDING_FIELDS))


def with_more(body: dict[str, Any], path: tuple[str | int, ...], **more: Any) -> dict[str, Any]:
    body = copy.deepcopy(body)
    found: Any = body
    for step in path:
        found = found[step]
    found |= more
    return body


@pytest.mark.parametrize("place", PLACES)
def test_an_unknown_field_of_an_object_is_left_out_with_a_warning_or_refused(place):
    body, path = PLACES[place]
    wrong = with_more(body, path, foo=1)
    read = read_chat(wrong, allow_unknown=True, may_stream=True)
    assert read.unknown_fields == (f"{place}.foo",)
    expected = read_chat(body, may_stream=True)
    assert (read.request, read.params, read.include_usage) == (
        expected.request,
        expected.params,
        expected.include_usage,
    )
    with pytest.raises(InvalidRequestError) as caught:  # as `kaishu batch` and a strict server read it
        read_chat(wrong, may_stream=True)
    assert caught.value.field == f"{place}.foo" and "allowed: " in caught.value.message


def test_unknown_fields_of_the_other_bodies_are_noted_too():
    asked = {"model": "m", "prompt": "a", "stream": True, "stream_options": {"foo": 1}, "response_format": {"bar": 1}}
    asked["response_format"]["type"] = "text"
    call = read_completion(asked, allow_unknown=True, may_stream=True)
    assert set(call.unknown_fields) == {"stream_options.foo", "response_format.bar"}
    assert read_embedding({"model": "m", "input": "a", "foo": 1}, allow_unknown=True).unknown_fields == ("foo",)


@pytest.mark.parametrize("place", PLACES)
def test_the_header_names_the_place(place, tiny):
    body, path = PLACES[place]
    response = tiny.client.post("/v1/chat/completions", json=with_more(body, path, foo=1))
    assert response.status_code == 200 and response.headers[HEADER] == f"{place}.foo", response.text


def test_a_strict_server_refuses_it(tiny_model, serve):
    strict = serve(service_on(tiny_model), strict=True)
    for place, (body, path) in PLACES.items():
        refused = strict.client.post("/v1/chat/completions", json=with_more(body, path, foo=1))
        assert refused.status_code == 400 and refused.json()["error"]["param"] == f"{place}.foo"
    for body in (WHOLE, SCHEMA):
        assert strict.client.post("/v1/chat/completions", json=body).status_code == 200


REFUSED = {  # of objects: what asks for something that isn't done
    "messages[0].content[1]": [
        {"type": "image_url", "image_url": {"url": "u"}},
        {"type": "input_audio", "input_audio": {"data": "", "format": "wav"}},
        {"type": "file", "file": {"file_id": "f"}},
        {"type": "refusal", "refusal": "no"},
        {"image_url": {"url": "u"}},
        {"refusal": "no"},
    ],
    "messages[0]": [{"audio": {"id": "x"}}, {"function_call": {"name": "f", "arguments": ""}}, {"refusal": "no"}],
    "messages[1].tool_calls[0]": [{"type": "custom", "custom": {"name": "f", "input": ""}}, {"custom": {"name": "f"}}],
    "tools[0]": [{"type": "custom", "custom": {"name": "f"}}, {"custom": {"name": "f"}}],
    "tools[0].function": [{"strict": "yes"}],
    "tool_choice": [
        {"type": "custom", "custom": {"name": "f"}},
        {"custom": {"name": "f"}},
        {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": []}},
    ],
    "stream_options": [{"include_obfuscation": True}, {"include_usage": "yes"}],
}


@pytest.mark.parametrize("place, more", [(place, more) for place, found in REFUSED.items() for more in found], ids=str)
def test_what_a_known_field_of_an_object_asks_for_and_is_not_done_is_refused_by_name(place, more, tiny):
    body, path = PLACES[place]
    response = tiny.client.post("/v1/chat/completions", json=with_more(body, path, **more))
    assert response.status_code == 400 and response.json()["error"]["param"].startswith(place), response.text
