"""Every field of the Responses API: honoured, accepted where it asks for nothing, or refused by name."""

from __future__ import annotations

from contextlib import suppress
from typing import get_type_hints

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai.types.responses import response_create_params

from kaishu.errors import InvalidParameterError, InvalidRequestError
from kaishu.openai_requests import EFFORTS
from kaishu.output_format import OutputFormat
from kaishu.prompting import ChatRequest
from kaishu.sampling import SamplingParams
from kaishu.server.responses_requests import (
    CACHE_OPTIONS,
    INCLUDABLE,
    REASONING,
    RESPONSE_FIELDS,
    TEXT_FIELDS,
    TOOL_CHOICE,
    read_response,
)

ASKED = {"model": "tiny", "input": "Hi"}
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
TOOL = {"type": "function", "name": "add", "parameters": SCHEMA, "strict": True}
ADD = {"type": "function", "name": "add"}
ALLOWED = {"type": "allowed_tools", "mode": "auto", "tools": [ADD]}

# Of each field that isn't read: what is accepted, and what is refused.
UNREAD = {
    "user": (["", "me"], [7, {}, "x" * 513]),
    "safety_identifier": (["me"], [1, "x" * 513]),
    "prompt_cache_key": (["k"], [1, "x" * 513]),
    "prompt_cache_retention": (["24h"], [24]),
    "store": ([False], [True, 0, "no"]),
    "previous_response_id": ([], ["resp_1", ""]),
    "conversation": ([], ["conv_1", {"id": "conv_1"}]),
    "prompt": ([], [{"id": "p"}]),
    "background": ([False], [True, 0]),
    "background_options": ([{}, {"completion_window": "soonest"}], [{"completion_window": "2h"}]),
    "truncation": (["disabled"], ["auto"]),
    "context_management": ([[]], [[{"type": "compaction"}]]),
    "max_tool_calls": ([], [1]),
    "service_tier": (["auto", "default"], ["flex", "priority", "fast"]),
    "moderation": ([], [{"model": "x"}]),
    "image": ([{}], [{"context_compression": "enabled"}]),
    "access_programs": ([{}], [{"cyber": "standard"}]),
    "messages": ([], [[{"role": "user", "content": "Hi"}]]),
    "max_tokens": ([], [5]),
    "max_completion_tokens": ([], [5]),
    "response_format": ([], [{"type": "json_object"}]),
    "reasoning_effort": ([], ["low"]),
    "logprobs": ([False], [True, 3]),
    "n": ([1], [2, True]),
}
# Of fields that are objects: what is refused in them, and its name.
INSIDE = [
    ({"reasoning": []}, "reasoning"),
    ({"reasoning": {"effort": "huge"}}, "reasoning.effort"),
    ({"reasoning": {"summary": "concise"}}, "reasoning.summary"),
    ({"reasoning": {"summary": 1}}, "reasoning.summary"),
    ({"reasoning": {"generate_summary": "auto"}}, "reasoning.generate_summary"),
    ({"reasoning": {"context": "all_turns"}}, "reasoning.context"),
    ({"reasoning": {"mode": "pro"}}, "reasoning.mode"),
    ({"reasoning": {"depth": 3}}, "reasoning.depth"),
    ({"reasoning": {"effort": "high"}, "enable_thinking": False}, "reasoning.effort"),
    ({"text": "plain"}, "text"),
    ({"text": {"verbosity": "low"}}, "text.verbosity"),
    ({"text": {"style": "x"}}, "text.style"),
    ({"text": {"format": "json"}}, "text.format"),
    ({"text": {"format": {"type": "xml"}}}, "text.format.type"),
    ({"text": {"format": {"type": "json_schema", "schema": SCHEMA}}}, "text.format.name"),
    ({"text": {"format": {"type": "json_schema", "name": "n", "schema": 1}}}, "text.format.schema"),
    ({"text": {"format": {"type": "json_schema", "json_schema": {}}}}, "text.format.json_schema"),
    ({"prompt_cache_options": {"prewarm": True}}, "prompt_cache_options.prewarm"),
    ({"prompt_cache_options": {"comparison_response_id": "r"}}, "prompt_cache_options.comparison_response_id"),
    ({"include": "x"}, "include"),
    ({"include": ["message.output_text.logprobs", "x"]}, "include[1]"),
    ({"include": [{}]}, "include[0]"),
    ({"top_logprobs": 2}, "top_logprobs"),
    ({"top_logprobs": 21, "include": [INCLUDABLE[0]]}, "top_logprobs"),
    ({"max_output_tokens": 0}, "max_output_tokens"),
    ({"max_output_tokens": "9"}, "max_output_tokens"),
    ({"temperature": -1}, "temperature"),
    ({"top_k": 0.5}, "top_k"),
    ({"stream": "yes"}, "stream"),
    ({"stream_options": {}}, "stream_options"),
    ({"stream": True, "stream_options": {"include_obfuscation": True}}, "stream_options.include_obfuscation"),
    ({"tools": [TOOL], "tool_choice": "any"}, "tool_choice"),
    ({"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "add"}}}, "tool_choice.function"),
    ({"tools": [TOOL], "tool_choice": {"type": "function", "name": 1}}, "tool_choice"),
    ({"tools": [TOOL], "tool_choice": {"type": "mcp", "server_label": "x"}}, "tool_choice"),
    ({"tools": [TOOL], "tool_choice": {"type": ["function"]}}, "tool_choice"),
    ({"tools": [TOOL], "tool_choice": {**ALLOWED, "tools": []}}, "tool_choice.tools"),
    ({"tools": [TOOL], "tool_choice": {**ALLOWED, "tools": ["add"]}}, "tool_choice.tools[0]"),
    (
        {"tools": [TOOL], "tool_choice": {**ALLOWED, "tools": [ADD, {"type": "mcp", "name": "add"}]}},
        "tool_choice.tools[1]",
    ),
    (
        {"tools": [TOOL], "tool_choice": {**ALLOWED, "tools": [ADD, {**ADD, "name": "sub"}]}},
        "tool_choice.tools[1].name",
    ),
    ({"tools": [TOOL, {**TOOL, "name": []}], "tool_choice": {**ALLOWED, "mode": "none"}}, "tool_choice.mode"),
    ({"tools": [TOOL], "tool_choice": {**ALLOWED, "strict": 1}}, "tool_choice.strict"),
    ({"parallel_tool_calls": 1}, "parallel_tool_calls"),
    ({"metadata": []}, "metadata"),
    ({"metadata": {"a": 1}}, "metadata.a"),
    ({"metadata": {"a": "x" * 513}}, "metadata.a"),
    ({"metadata": {str(place): "" for place in range(17)}}, "metadata"),
    ({"model": 7}, "model"),
    ({"priority": "high"}, "priority"),
]


def test_no_field_of_the_api_is_missing_and_ours_are_marked():
    theirs = {*get_type_hints(response_create_params.ResponseCreateParamsBase), "stream"}
    assert {name for name, said in RESPONSE_FIELDS.items() if not said.is_ours} == theirs
    assert {name for name, said in RESPONSE_FIELDS.items() if said.use != "read"} == set(UNREAD)


@pytest.mark.parametrize(
    "table, theirs",
    [
        (CACHE_OPTIONS, response_create_params.PromptCacheOptions),
        (REASONING, response_create_params.Reasoning),
        (TEXT_FIELDS, response_create_params.ResponseTextConfigParam),
        (TOOL_CHOICE["function"], response_create_params.ToolChoiceFunctionParam),
        (TOOL_CHOICE["allowed_tools"], response_create_params.ToolChoiceAllowedParam),
    ],
)
def test_no_key_of_an_object_inside_is_missing(table, theirs):
    assert set(table) == set(get_type_hints(theirs))


def test_keys_that_no_object_inside_has_are_noted_with_their_places():
    said = {
        "reasoning": {"depth": None},
        "text": {"style": ""},
        "prompt_cache_options": {"size": 1},
        "tools": [{**TOOL, "x": 1}],
        "tool_choice": {**ALLOWED, "why": 1, "tools": [{**ADD, "y": 2}]},
        "input": [{"role": "user", "content": "Hi", "colour": []}],
    }
    found = read_response({**ASKED, **said, "top": 1}, allow_unknown=True).unknown_fields
    inside = ["reasoning.depth", "text.style", "prompt_cache_options.size", "tools[0].x", "input[0].colour"]
    assert found[0] == "top" and set(found[1:]) == {*inside, "tool_choice.why", "tool_choice.tools[0].y"}


@pytest.mark.parametrize(
    "name, value", [(name, value) for name, (good, _) in UNREAD.items() for value in (*good, None)]
)
def test_fields_that_ask_for_nothing_are_accepted(name, value):
    assert read_response({**ASKED, name: value}).params == SamplingParams()


@pytest.mark.parametrize("name, value", [(name, value) for name, (_, bad) in UNREAD.items() for value in bad])
def test_fields_that_ask_for_what_is_not_here_are_refused_by_name(name, value):
    with pytest.raises(InvalidParameterError, match=f"^{name} is") as caught:
        read_response({**ASKED, name: value})
    assert caught.value.field == name


@pytest.mark.parametrize("said, field", INSIDE)
def test_what_is_wrong_inside_of_a_field_is_refused_with_its_place(said, field):
    with pytest.raises(InvalidRequestError) as caught:
        read_response({**ASKED, **said})
    assert caught.value.field == field


@pytest.mark.parametrize("name", RESPONSE_FIELDS)
def test_null_is_what_leaving_out_is(name):
    if name not in ("model", "input"):
        assert read_response({**ASKED, name: None}) == read_response(ASKED)


def test_a_body_without_input_or_with_an_unknown_field_is_refused():
    with pytest.raises(InvalidRequestError, match="input is missing"):
        read_response({"model": "tiny"})
    with pytest.raises(InvalidRequestError, match=r"There is no field \"temprature\"(.|\n)*mean temperature\?"):
        read_response({**ASKED, "temprature": 1})
    assert read_response({**ASKED, "temprature": 1}, allow_unknown=True).unknown_fields == ("temprature",)


def test_what_is_said_arrives_where_it_acts():
    call = read_response(
        {
            **ASKED,
            "instructions": "Be kind.",
            "max_output_tokens": 9,
            "temperature": 0.5,
            "top_p": 0.25,
            "include": ["message.output_text.logprobs"],
            "top_logprobs": 3,
            "text": {"format": {"type": "json_schema", "name": "n", "schema": SCHEMA, "strict": True}},
            "tools": [TOOL],
            "parallel_tool_calls": False,
            "reasoning": {"effort": "none", "summary": "auto"},
            "stream": True,
            "stream_options": {"include_obfuscation": False},
            "priority": 2,
            "top_k": 4,
            "min_p": 0.1,
            "repetition_penalty": 1.5,
            "presence_penalty": 1.0,
            "frequency_penalty": 0.5,
            "seed": 7,
            "stop": ["x"],
            "stop_token_ids": [5],
            "min_tokens": 2,
            "ignore_eos": True,
            "logit_bias": {"3": 1},
            "thinking_budget": 6,
            "chat_template_kwargs": {"a": 1},
        }
    )
    assert call.streams and call.only_first_call
    assert call.request == ChatRequest(
        [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hi"}],
        [{"type": "function", "function": {"name": "add", "parameters": SCHEMA}}],
        None,
        parallel_tool_calls=False,
        thinking=False,
        template_arguments={"a": 1},
        priority=2,
    )
    assert call.params == SamplingParams(
        max_tokens=9,
        temperature=0.5,
        top_p=0.25,
        logprobs=3,
        output_format=OutputFormat.json_schema(SCHEMA),
        top_k=4,
        min_p=0.1,
        repetition_penalty=1.5,
        presence_penalty=1.0,
        frequency_penalty=0.5,
        seed=7,
        stop=["x"],
        stop_token_ids=[5],
        min_tokens=2,
        ignore_eos=True,
        logit_bias={"3": 1},
        thinking_budget=6,
    )


@pytest.mark.parametrize("effort", EFFORTS)
def test_effort_says_whether_the_model_thinks(effort):
    assert read_response({**ASKED, "reasoning": {"effort": effort}}).request.thinking is (effort != "none")
    assert read_response({**ASKED, "reasoning": {}}).request.thinking is None


@pytest.mark.parametrize("name", INCLUDABLE)
def test_all_that_the_api_can_include_is_accepted_and_log_probabilities_are_given(name):
    logprobs = read_response({**ASKED, "include": [name]}).params.logprobs
    assert logprobs == (0 if name == "message.output_text.logprobs" else None)


@pytest.mark.parametrize("choice", ["auto", "none", "required", {"type": "function", "name": "add"}])
def test_a_choice_of_tools_arrives_as_it_is_and_is_repeated(choice):
    call = read_response({**ASKED, "tools": [TOOL], "tool_choice": choice})
    assert call.request.tool_choice == choice == call.echo["tool_choice"]


@pytest.mark.parametrize("mode", ["auto", "required"])
def test_of_allowed_tools_the_others_are_not_offered_but_repeated(mode):
    sub, choice = {**TOOL, "name": "sub"}, {**ALLOWED, "mode": mode}
    call = read_response({**ASKED, "tools": [sub, TOOL, {**sub, "name": "mul"}], "tool_choice": choice})
    assert [tool["function"]["name"] for tool in call.request.tools] == ["add"]
    assert call.request.tool_choice == mode and call.echo["tool_choice"] == choice
    assert [tool["name"] for tool in call.echo["tools"]] == ["sub", "add", "mul"]
    assert call.names["tools[0].function"] == "tools[1]"


def test_the_answer_repeats_what_was_asked():
    said = {
        "instructions": "Be kind.",
        "user": "u",
        "safety_identifier": "s",
        "prompt_cache_key": "k",
        "max_output_tokens": 9,
        "metadata": {"a": "b"},
        "parallel_tool_calls": False,
        "reasoning": {"effort": "low", "summary": "auto"},
        "text": {"format": {"type": "json_object"}, "verbosity": "medium"},
        "tool_choice": "auto",
        "tools": [{**TOOL, "description": None}],
        "top_logprobs": 0,
    }
    assert read_response({**ASKED, **said}).echo == said
    silent = read_response(ASKED).echo
    assert silent["text"] == {"format": {"type": "text"}, "verbosity": "medium"} and silent["tools"] == []


@pytest.mark.parametrize(
    "ours, theirs", [("prompt", "input"), ("output_format", "text.format"), ("max_tokens", "max_output_tokens")]
)
def test_errors_that_come_later_find_the_bodys_names(ours, theirs):
    assert read_response(ASKED).names[ours] == theirs
    assert read_response({**ASKED, "reasoning": {"effort": "low"}}).names["thinking"] == "reasoning.effort"
    assert read_response({**ASKED, "enable_thinking": True}).names["thinking"] == "enable_thinking"


WORDS = [*RESPONSE_FIELDS, "type", "role", "content", "summary", "name", "parameters", "call_id", "output", "arguments"]
WORDS += ["message", "function", "function_call", "function_call_output", "reasoning", "user", "assistant", "format"]
WORDS += [
    "json_schema",
    "schema",
    "strict",
    "effort",
    "none",
    "input_text",
    "reasoning_text",
    "text",
    "required",
    "auto",
]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.sampled_from(WORDS) | st.just("{}"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(WORDS), inner, max_size=4),
    max_leaves=12,
)


@settings(deadline=None, max_examples=300)
@given(st.dictionaries(st.sampled_from(list(RESPONSE_FIELDS)), JSON, max_size=4), JSON)
def test_whatever_the_json_it_is_read_or_refused_with_a_field(body, item):
    with suppress(InvalidRequestError):
        read_response({**ASKED, **body})
    with suppress(InvalidRequestError):
        read_response({**ASKED, "input": [item, item], "tools": [item]}, allow_unknown=True)
