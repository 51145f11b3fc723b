"""Bodies of chat and completion requests: what each field becomes, and each refusal with the name the body uses."""

from __future__ import annotations

import json

import pytest

from kaishu.errors import InvalidParameterError, InvalidRequestError
from kaishu.openai_fields import CHAT_FIELDS, COMPLETION_FIELDS
from kaishu.openai_requests import COMPLETION_TOKENS, read_chat, read_completion, read_inputs, read_response_format
from kaishu.output_format import OutputFormat
from kaishu.sampling import SamplingParams

CHAT = {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}
COMPLETION = {"model": "m", "prompt": "Once"}
TOOL = {"type": "function", "function": {"name": "f"}}
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}

SAMPLING = {
    "temperature": 0.5,
    "top_p": 0.9,
    "top_k": 5,
    "min_p": 0.1,
    "repetition_penalty": 1.1,
    "presence_penalty": -2,
    "frequency_penalty": 2,
    "seed": 0,
    "n": 3,
    "stop": ["a", "b"],
    "stop_token_ids": [1, 2],
    "min_tokens": 2,
    "ignore_eos": True,
    "logit_bias": {"5": -100},
    "max_tokens": 9,
}
# Of every field that is read: a value that is refused. (What only the model can refuse is in test_batch_run.py.)
REFUSED_CHAT = {
    "model": "",
    "temperature": -1,
    "top_p": 1.5,
    "n": 0,
    "stop": [""],
    "seed": -1,
    "presence_penalty": 3,
    "frequency_penalty": "high",
    "logit_bias": {"abc": 1},
    "max_tokens": 0,
    "logprobs": 1,
    "stream": True,
    "stream_options": {"include_usage": True},
    "top_k": -2,
    "min_p": 2,
    "repetition_penalty": 0,
    "min_tokens": -1,
    "ignore_eos": 1,
    "stop_token_ids": [-1],
    "priority": 1.5,
    "max_completion_tokens": 0,
    "top_logprobs": 2,
    "response_format": {"type": "xml"},
    "parallel_tool_calls": 0,
    "reasoning_effort": "very",
    "thinking_budget": -1,
    "enable_thinking": "false",
    "continue_final_message": 1,
}
ONLY_THE_MODEL_CAN_TELL = {"messages", "tools", "tool_choice", "chat_template_kwargs"}
REFUSED_COMPLETION = {
    **{name: value for name, value in REFUSED_CHAT.items() if name in COMPLETION_FIELDS},
    "logprobs": 21,
    "prompt": [],
    "echo": "yes",
    "best_of": 2,
}


def test_a_refusal_of_every_read_field_is_tested_here():
    read = {name for name, field in CHAT_FIELDS.items() if field.use == "read"}
    assert read == set(REFUSED_CHAT) | ONLY_THE_MODEL_CAN_TELL
    assert {name for name, field in COMPLETION_FIELDS.items() if field.use == "read"} == set(REFUSED_COMPLETION)


@pytest.mark.parametrize("name", REFUSED_CHAT)
def test_a_chat_field_with_a_wrong_value_is_refused_by_name(name):
    with pytest.raises(InvalidRequestError) as caught:
        read_chat({**CHAT, name: REFUSED_CHAT[name]})
    assert caught.value.field.split(".")[0] == name and name in caught.value.message


@pytest.mark.parametrize("name", REFUSED_COMPLETION)
def test_a_completion_field_with_a_wrong_value_is_refused_by_name(name):
    with pytest.raises(InvalidRequestError) as caught:
        read_completion({**COMPLETION, name: REFUSED_COMPLETION[name]})
    assert caught.value.field.split(".")[0] == name and name in caught.value.message


@pytest.mark.parametrize("read, body", [(read_chat, CHAT), (read_completion, COMPLETION)])
def test_the_least_body_and_one_of_nulls_mean_the_same(read, body):
    table = CHAT_FIELDS if read is read_chat else COMPLETION_FIELDS
    assert read(body) == read({**dict.fromkeys(table), **body})
    for name in body:
        with pytest.raises(InvalidRequestError) as caught:
            read({key: value for key, value in body.items() if key != name})
        assert caught.value.field == name


@pytest.mark.parametrize("read, body", [(read_chat, CHAT), (read_completion, COMPLETION)])
def test_sampling_fields_arrive(read, body):
    call = read({**body, **SAMPLING, "priority": -3})
    assert call.params == SamplingParams(**SAMPLING)
    assert (call.request.priority if read is read_chat else call.priority) == -3


def test_a_chat_has_no_limit_of_tokens_unless_given_and_a_completion_openais():
    assert read_chat(CHAT).params == SamplingParams()
    assert read_completion(COMPLETION).params == SamplingParams(max_tokens=COMPLETION_TOKENS)


def test_both_names_of_the_token_limit_work_and_contradictions_are_refused():
    assert read_chat({**CHAT, "max_completion_tokens": 5}).params.max_tokens == 5
    assert read_chat({**CHAT, "max_completion_tokens": 5, "max_tokens": 5}).params.max_tokens == 5
    with pytest.raises(InvalidRequestError, match="max_tokens is 4"):
        read_chat({**CHAT, "max_completion_tokens": 5, "max_tokens": 4})
    with pytest.raises(InvalidRequestError, match=r"^max_completion_tokens is 0"):
        read_chat({**CHAT, "max_completion_tokens": 0})


def test_log_probabilities_of_a_chat_are_asked_for_with_two_fields():
    assert read_chat({**CHAT, "logprobs": False, "top_logprobs": 0}).params.logprobs is None
    assert read_chat({**CHAT, "logprobs": True}).params.logprobs == 0
    assert read_chat({**CHAT, "logprobs": True, "top_logprobs": 20}).params.logprobs == 20
    with pytest.raises(InvalidParameterError, match="top_logprobs is 2000000000"):
        read_chat({**CHAT, "logprobs": True, "top_logprobs": 2_000_000_000})


def test_an_echo_asks_for_the_prompts_log_probabilities_too():
    assert read_completion({**COMPLETION, "logprobs": 0}).params.prompt_logprobs is None
    call = read_completion({**COMPLETION, "logprobs": 3, "echo": True})
    assert call.echo and call.params.logprobs == call.params.prompt_logprobs == 3
    assert read_completion({**COMPLETION, "echo": True}).params.prompt_logprobs is None


def test_best_of_may_only_be_n():
    assert read_completion({**COMPLETION, "best_of": 1}).params.n == 1
    assert read_completion({**COMPLETION, "best_of": 3, "n": 3}).params.n == 3


@pytest.mark.parametrize(
    "fields, thinking, name",
    [
        ({}, None, None),
        ({"reasoning_effort": "none"}, False, "reasoning_effort"),
        ({"reasoning_effort": "minimal"}, True, "reasoning_effort"),
        ({"reasoning_effort": "xhigh"}, True, "reasoning_effort"),
        ({"enable_thinking": False}, False, "enable_thinking"),
        ({"chat_template_kwargs": {"enable_thinking": True}}, True, "chat_template_kwargs.enable_thinking"),
        ({"enable_thinking": True, "reasoning_effort": "low"}, True, "reasoning_effort"),
    ],
)
def test_thinking_can_be_said_in_three_ways(fields, thinking, name):
    call = read_chat({**CHAT, **fields})
    assert call.request.thinking is thinking and call.request.template_arguments is None
    assert call.names.get("thinking") == name


def test_ways_that_contradict_each_other_are_refused():
    with pytest.raises(InvalidRequestError, match="reasoning_effort and enable_thinking contradict"):
        read_chat({**CHAT, "enable_thinking": True, "reasoning_effort": "none"})
    with pytest.raises(InvalidParameterError, match=r"chat_template_kwargs.enable_thinking is 'no'"):
        read_chat({**CHAT, "chat_template_kwargs": {"enable_thinking": "no"}})


def test_the_rest_of_a_chat_arrives_as_it_is():
    arguments = {"enable_thinking": False, "city": "x"}
    body = {
        **CHAT,
        "tools": [TOOL],
        "tool_choice": "required",
        "parallel_tool_calls": False,
        "thinking_budget": 7,
        "chat_template_kwargs": arguments,
        "continue_final_message": True,
    }
    before = json.dumps(body)
    call = read_chat(body)
    request = call.request
    assert (request.messages, request.tools, request.tool_choice) == (CHAT["messages"], [TOOL], "required")
    assert request.continue_final_message and not request.parallel_tool_calls and call.only_first_call
    assert request.template_arguments == {"city": "x"} and call.params.thinking_budget == 7
    assert json.dumps(body) == before, "the caller's objects stay as they are"


def test_streaming_is_read_where_it_may_be():
    call = read_chat({**CHAT, "stream": True, "stream_options": {"include_usage": True}}, may_stream=True)
    assert call.streams and call.include_usage
    assert not read_chat({**CHAT, "stream": True}, may_stream=True).include_usage
    for options in ("x", {"other": 1}, {"include_usage": 1}, {"include_obfuscation": True}):
        with pytest.raises(InvalidRequestError) as caught:
            read_chat({**CHAT, "stream": True, "stream_options": options}, may_stream=True)
        assert caught.value.field.startswith("stream_options")


def test_unknown_fields_are_told():
    assert read_chat({**CHAT, "zzz": 1}, allow_unknown=True).unknown_fields == ("zzz",)
    with pytest.raises(InvalidRequestError, match="zzz"):
        read_chat({**CHAT, "zzz": 1})


@pytest.mark.parametrize(
    "given, read",
    [("a", ["a"]), ([1, 2], [[1, 2]]), (["a", "b"], ["a", "b"]), ([[1], [2]], [[1], [2]]), ([-1], [[-1]])],
)
def test_prompts_are_texts_or_ids_or_many_of_them(given, read):
    assert read_inputs("prompt", given) == read


@pytest.mark.parametrize("given", [None, [], {}, 5, ["a", 1], ["a", [1]], [[1], "a"], [1, "a"], ["a"] * 2049])
def test_prompts_of_other_kinds_are_refused(given):
    with pytest.raises(InvalidRequestError) as caught:
        read_inputs("prompt", given)
    assert caught.value.field.startswith("prompt")


@pytest.mark.parametrize(
    "given, read",
    [
        (None, None),
        ({"type": "text"}, None),
        ({"type": "json_object"}, OutputFormat.json_object()),
        (
            {"type": "json_schema", "json_schema": {"name": "a-b_1", "schema": SCHEMA, "strict": True}},
            OutputFormat.json_schema(SCHEMA),
        ),
        (
            {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA, "strict": None, "description": "d"}},
            OutputFormat.json_schema(SCHEMA),
        ),
        ({"type": "regex", "regex": "a+"}, OutputFormat.regex("a+")),
        ({"type": "lark", "lark": 'start: "a"'}, OutputFormat.lark('start: "a"')),
        ({"type": "choice", "choice": ["a", "b"]}, OutputFormat.choice(["a", "b"])),
    ],
)
def test_response_formats_become_output_formats(given, read):
    assert read_response_format(given) == read
    assert read_chat({**CHAT, "response_format": given}).params.output_format == read


@pytest.mark.parametrize(
    "given, field",
    [
        ("json_object", "response_format"),
        ({}, "response_format.type"),
        ({"type": ["text"]}, "response_format.type"),
        ({"type": "text", "x": 1}, "response_format.x"),
        ({"type": "json_schema"}, "response_format.json_schema"),
        ({"type": "json_schema", "json_schema": {"schema": SCHEMA}}, "response_format.json_schema.name"),
        ({"type": "json_schema", "json_schema": {"name": "a b", "schema": {}}}, "response_format.json_schema.name"),
        ({"type": "json_schema", "json_schema": {"name": "a" * 65, "schema": {}}}, "response_format.json_schema.name"),
        ({"type": "json_schema", "json_schema": {"name": "a"}}, "response_format.json_schema.schema"),
        (
            {"type": "json_schema", "json_schema": {"name": "a", "schema": {}, "strict": 1}},
            "response_format.json_schema.strict",
        ),
        (
            {"type": "json_schema", "json_schema": {"name": "a", "schema": {}, "description": 1}},
            "response_format.json_schema.description",
        ),
        ({"type": "json_object", "json_schema": {}}, "response_format.json_schema"),
        ({"type": "regex"}, "response_format.regex"),
        ({"type": "choice", "choice": []}, "response_format.choice"),
    ],
)
def test_response_formats_that_are_none_are_refused_with_their_place(given, field):
    with pytest.raises(InvalidRequestError) as caught:
        read_response_format(given)
    assert caught.value.field == field


def test_a_flat_format_means_what_the_nested_one_does_and_is_named_as_it_is_spelt():
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    flat = {"type": "json_schema", "name": "n", "schema": schema, "strict": True}
    read = read_response_format(flat, "text.format", is_flat=True)
    assert read == OutputFormat.json_schema(schema) and read.field_name == "text.format.schema"
    with pytest.raises(InvalidParameterError, match=r"^text\.format\.name is None"):
        read_response_format({"type": "json_schema", "schema": schema}, "text.format", is_flat=True)
    with pytest.raises(InvalidRequestError, match=r"^text\.format\.json_schema is {}; allowed: null with"):
        read_response_format({"type": "json_schema", "json_schema": {}}, "text.format", is_flat=True)
