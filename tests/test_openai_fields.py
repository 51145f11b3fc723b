"""Every field of OpenAI's bodies: known, and honoured, accepted where it asks for nothing, or refused by name."""

from __future__ import annotations

import pytest

from kaishu.errors import ContextLengthError, InvalidParameterError, InvalidRequestError
from kaishu.openai_fields import (
    CHAT_FIELDS,
    COMPLETION_FIELDS,
    EMBEDDING_FIELDS,
    MOST_UNKNOWN,
    Field,
    UnknownFields,
    read_fields,
    read_object,
    spelt,
)

# What OpenAI's API has: the parameter types of its own Python client, version 3.57.
OPENAI_CHAT = """
audio frequency_penalty function_call functions logit_bias logprobs max_completion_tokens max_tokens
messages metadata modalities model moderation n parallel_tool_calls prediction presence_penalty prompt_cache_key
prompt_cache_options prompt_cache_retention reasoning_effort response_format safety_identifier seed service_tier stop
store stream stream_options temperature tool_choice tools top_logprobs top_p user verbosity web_search_options
"""
OPENAI_COMPLETION = """
best_of echo frequency_penalty logit_bias logprobs max_tokens model n presence_penalty prompt seed
stop stream stream_options suffix temperature top_p user
"""
OPENAI_EMBEDDING = "dimensions encoding_format input model user"

TABLES = [(CHAT_FIELDS, OPENAI_CHAT), (COMPLETION_FIELDS, OPENAI_COMPLETION), (EMBEDDING_FIELDS, OPENAI_EMBEDDING)]

# Of each field that isn't read: what is accepted, and what is refused.
UNREAD = {
    "user": (["", "me"], [7, {}]),
    "metadata": ([{}, {"a": "b"}], ["a", []]),
    "safety_identifier": (["me"], [1]),
    "prompt_cache_key": (["k"], [1]),
    "prompt_cache_retention": (["24h"], [24]),
    "prompt_cache_options": ([{}], ["24h"]),
    "store": ([False], [True, 0, "no"]),
    "service_tier": (["auto", "default"], ["flex", "priority", 1]),
    "verbosity": (["medium"], ["low", "high"]),
    "modalities": ([["text"]], [["audio"], ["text", "audio"], "text"]),
    "audio": ([], [{"voice": "x", "format": "wav"}, False]),
    "prediction": ([], [{"type": "content", "content": "x"}]),
    "moderation": ([], [{"model": "x"}]),
    "web_search_options": ([], [{}]),
    "functions": ([[]], [[{"name": "f"}]]),
    "function_call": (["auto", "none"], [{"name": "f"}]),
    "suffix": ([""], ["the end"]),
}


@pytest.mark.parametrize("table, listed", TABLES)
def test_every_field_of_openais_is_in_the_table_and_no_other_passes_for_one(table, listed):
    assert {name for name, field in table.items() if not field.is_ours} == set(listed.split())


def test_every_field_that_is_not_read_is_tested_here():
    unread = {name for table, _ in TABLES for name, field in table.items() if field.use != "read"}
    assert unread == set(UNREAD)


@pytest.mark.parametrize("name", UNREAD)
def test_a_field_that_is_not_read_is_accepted_where_it_asks_for_nothing_and_else_refused(name):
    accepted, refused = UNREAD[name]
    for table in (table for table, _ in TABLES if name in table):
        for value in [*accepted, None]:
            assert read_fields({name: value}, table) == ({}, ())
        for value in refused:
            with pytest.raises(InvalidParameterError) as caught:
                read_fields({name: value}, table)
            assert caught.value.field == name and caught.value.message.startswith(f"{name} is ")


def test_an_unknown_field_is_refused_with_the_nearest_known_one_or_left_to_the_caller():
    with pytest.raises(InvalidRequestError, match="temprature") as caught:
        read_fields({"temprature": 1}, CHAT_FIELDS)
    assert caught.value.field == "temprature" and caught.value.hint == "Did you mean temperature?"
    with pytest.raises(InvalidRequestError):
        read_fields({"unheard_of": None}, CHAT_FIELDS)
    read = read_fields({"temprature": 1, "top_p": 0.5, "x": None}, CHAT_FIELDS, allow_unknown=True)
    assert read == ({"top_p": 0.5}, ("temprature", "x"))


@pytest.mark.parametrize("body", [None, [], "x", 1])
def test_a_body_is_an_object(body):
    with pytest.raises(InvalidParameterError, match="body is"):
        read_fields(body, CHAT_FIELDS)


@pytest.mark.parametrize("field, spelling", [("texts", "input"), ("texts[3]", "input[3]"), ("texts.a", "input.a")])
def test_errors_name_fields_as_the_body_spells_them(field, spelling):
    with pytest.raises(InvalidParameterError) as caught, spelt({"texts": "input"}):
        raise InvalidParameterError(field, 1, "two", hint="Do it.")
    assert caught.value.field == spelling
    assert str(caught.value) == f"{spelling} is 1; allowed: two.\n  Do it."


@pytest.mark.parametrize(
    "field, spelling",
    [
        ("m[1].content[0].text", "input[4].content[0].text"),
        ("m[1].name", "input[4].name"),
        ("m[10].name", "in[10].name"),
    ],
)
def test_of_the_places_that_are_spelt_otherwise_the_longest_that_fits_counts(field, spelling):
    names = {"m": "in", "m[1]": "input[4]", "m[1].content": "input[4].content"}
    with pytest.raises(InvalidParameterError, match="is 1") as caught, spelt(names):
        raise InvalidParameterError(field, 1, "two")
    assert caught.value.field == spelling and caught.value.message.startswith(f"{spelling} is 1")


def test_other_errors_keep_their_words():
    with pytest.raises(InvalidParameterError, match=r"^textsy is 1") as caught, spelt({"texts": "input"}):
        raise InvalidParameterError("textsy", 1, "two")
    assert caught.value.field == "textsy"
    with pytest.raises(ContextLengthError, match=r"^The prompt has") as long, spelt({"prompt": "messages"}):
        raise ContextLengthError(9, 8)
    assert long.value.field == "messages"


def test_unknown_fields_of_objects_inside_a_body_are_noted_with_their_places_or_refused():
    table = {"type": Field("read"), "format": Field("neutral", ("a",))}
    unknown = UnknownFields(are_allowed=True)
    assert read_object({"type": 1, "typ": None, "x" * 200: 2}, "text[1]", table, unknown) == {"type": 1}
    assert unknown.places[0] == "text[1].typ" and len(unknown.places) == 2 and len(unknown.places[1]) < 100
    with pytest.raises(InvalidRequestError, match=r"no field \"typ\" in text\[1\]; (.|\n)*mean type\?") as caught:
        read_object({"type": 1, "typ": None}, "text[1]", table, UnknownFields())
    assert caught.value.field == "text[1].typ"
    with pytest.raises(InvalidParameterError, match=r"^text\[1\].format is 'b'"):
        read_object({"format": "b"}, "text[1]", table, unknown)
    for _ in range(MOST_UNKNOWN):
        unknown.check({"y": 1}, table, "text[2]")
    assert len(unknown.places) == MOST_UNKNOWN
