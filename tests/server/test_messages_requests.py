"""Bodies of Anthropic's Messages API, read: every field is honoured, accepted where it asks for nothing, or refused."""

from __future__ import annotations

from typing import Any

import pytest

from kaishu.errors import InvalidParameterError, InvalidRequestError
from kaishu.openai_fields import spelt
from kaishu.server.messages_requests import MessageCall, read_count, read_messages

TOOL = {"name": "weather", "description": "of a city", "input_schema": {"type": "object", "properties": {}}}
BODY: dict[str, Any] = {"model": "tiny", "max_tokens": 20, "messages": [{"role": "user", "content": "Hi"}]}


def read(**fields: Any) -> MessageCall:
    body = {name: value for name, value in {**BODY, **fields}.items() if value is not ...}
    return read_messages(body, most_messages=10)


def test_a_body_is_read() -> None:
    call = read(
        system="Be brief.",
        temperature=0.5,
        top_p=0.9,
        top_k=5,
        stop_sequences=["END"],
        stream=True,
        metadata={"user_id": "u"},
        service_tier="auto",
        cache_control={"type": "ephemeral"},
    )
    assert call.request.messages == [{"role": "system", "content": "Be brief."}, BODY["messages"][0]]
    params = call.params
    assert (params.temperature, params.top_p, params.top_k, params.stop) == (0.5, 0.9, 5, ("END",))
    assert (params.max_tokens, call.max_tokens, call.streams, call.model) == (20, 20, True, "tiny")
    assert read().params.temperature is None, "what isn't said is the model's to say"


@pytest.mark.parametrize(
    ("thinking", "thinks", "budget"),
    [
        (None, False, None),
        ({"type": "disabled"}, False, None),
        ({"type": "enabled", "budget_tokens": 8}, True, 8),
        ({"type": "enabled", "budget_tokens": 8, "display": "summarized"}, True, 8),
        ({"type": "adaptive"}, None, None),
    ],
)
def test_thinking(thinking: Any, thinks: bool | None, budget: int | None) -> None:
    call = read(thinking=thinking)
    assert call.request.thinking is thinks and call.params.thinking_budget == budget
    assert call.says_thinking == (thinking is not None)


@pytest.mark.parametrize(("effort", "budget"), [("low", 1024), ("medium", 4096), ("high", None), ("max", None)])
def test_effort_says_how_long_a_thought_may_be_where_nothing_else_does(effort: str, budget: int | None) -> None:
    config = {"effort": effort}
    assert read(output_config=config, thinking={"type": "adaptive"}).params.thinking_budget == budget
    enabled = {"type": "enabled", "budget_tokens": 8}
    assert read(output_config=config, thinking=enabled).params.thinking_budget == 8
    assert read(output_config=config).params.thinking_budget is None


def test_a_thought_may_be_left_out_of_the_answer() -> None:
    assert read(thinking={"type": "adaptive"}).shows_thought
    assert not read(thinking={"type": "adaptive", "display": "omitted"}).shows_thought


def test_results_of_calls_count_as_messages() -> None:
    calls = [{"type": "tool_use", "id": str(index), "name": "f", "input": {}} for index in range(9)]
    results = [{"type": "tool_result", "tool_use_id": str(index), "content": "x"} for index in range(9)]
    messages = [*BODY["messages"], {"role": "assistant", "content": calls}, {"role": "user", "content": results}]
    with pytest.raises(InvalidRequestError, match="results of calls together"):
        read(messages=messages)


def test_a_model_that_always_thinks_does_so_unless_it_was_told_not_to() -> None:
    def make(request: Any) -> Any:
        if request.thinking is False:
            raise InvalidParameterError("thinking", False, "true, since it always thinks")
        return request.thinking

    assert read().with_thinking(make) is None
    assert read(thinking={"type": "enabled", "budget_tokens": 8}).with_thinking(make) is True
    with pytest.raises(InvalidParameterError):
        read(thinking={"type": "disabled"}).with_thinking(make)


def test_tools_become_functions() -> None:
    example = {"city": "Berlin"}
    call = read(tools=[{**TOOL, "type": "custom", "input_examples": [example], "strict": False}])
    assert call.request.tools == [
        {
            "type": "function",
            "function": {
                "name": "weather",
                "description": "of a city",
                "parameters": TOOL["input_schema"],
                "input_examples": [example],
            },
        }
    ]
    assert read(tools=[]).request.tools is None


@pytest.mark.parametrize(
    ("choice", "ours"),
    [
        (None, None),
        ({"type": "auto"}, "auto"),
        ({"type": "any"}, "required"),
        ({"type": "none"}, "none"),
        ({"type": "tool", "name": "weather"}, {"type": "function", "function": {"name": "weather"}}),
    ],
)
def test_tool_choice(choice: Any, ours: Any) -> None:
    call = read(tools=[TOOL], tool_choice=choice)
    assert (call.request.tool_choice, call.only_first_call, call.request.parallel_tool_calls) == (ours, False, True)
    if choice and choice["type"] != "none":
        single = read(tools=[TOOL], tool_choice={**choice, "disable_parallel_tool_use": True})
        assert (single.only_first_call, single.request.parallel_tool_calls) == (True, False)


def test_a_last_message_of_the_assistant_is_gone_on_with() -> None:
    prefill = [*BODY["messages"], {"role": "assistant", "content": "It is"}]
    assert read(messages=prefill).request.continue_final_message
    assert not read().request.continue_final_message


def test_a_form_of_the_answer_is_a_schema() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    call = read(output_config={"effort": "high", "format": {"type": "json_schema", "schema": schema}})
    assert call.params.output_format is not None and call.params.output_format.kind == "json_schema"


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"model": ...}, "model"),
        ({"max_tokens": ...}, "max_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"messages": ...}, "messages"),
        ({"messages": BODY["messages"] * 11}, "messages"),
        ({"system": 5}, "system"),
        ({"system": [{"type": "image"}]}, "system[0].type"),
        ({"temperature": "hot"}, "temperature"),
        ({"temperature": -1}, "temperature"),
        ({"top_p": 2}, "top_p"),
        ({"top_k": 0.5}, "top_k"),
        ({"stop_sequences": "END"}, "stop_sequences"),
        ({"stop_sequences": [""]}, "stop_sequences"),
        ({"stop_sequences": ["x"] * 65}, "stop_sequences"),
        ({"stream": "yes"}, "stream"),
        ({"metadata": {"user_id": 5}}, "metadata.user_id"),
        ({"metadata": {"other": "x"}}, "metadata.other"),
        ({"service_tier": "priority"}, "service_tier"),
        ({"speed": "fast"}, "speed"),
        ({"container": "x"}, "container"),
        ({"inference_geo": "eu"}, "inference_geo"),
        ({"mcp_servers": [{}]}, "mcp_servers"),
        ({"cache_control": {"type": "x"}}, "cache_control.type"),
        ({"thinking": "on"}, "thinking"),
        ({"thinking": {"type": "between_tools"}}, "thinking.type"),
        ({"thinking": {"type": "enabled"}}, "thinking.budget_tokens"),
        ({"thinking": {"type": "enabled", "budget_tokens": 0}}, "thinking.budget_tokens"),
        ({"thinking": {"type": "enabled", "budget_tokens": 20}}, "thinking.budget_tokens"),
        ({"thinking": {"type": "disabled", "budget_tokens": 5}}, "thinking.budget_tokens"),
        ({"thinking": {"type": "adaptive", "display": "full"}}, "thinking.display"),
        ({"thinking": {"type": "adaptive", "budget_tokens": 5}}, "thinking.budget_tokens"),
        ({"tools": {}}, "tools"),
        ({"tools": [TOOL] * 2049}, "tools"),
        ({"tools": ["weather"]}, "tools[0]"),
        ({"tools": [{"name": "x"}]}, "tools[0].input_schema"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools[0].type"),
        ({"tools": [TOOL, {**TOOL, "defer_loading": True}]}, "tools[1].defer_loading"),
        ({"tools": [{**TOOL, "strict": True}]}, "tools[0].strict"),
        ({"tools": [{**TOOL, "strict": "yes"}]}, "tools[0].strict"),
        ({"tools": [{**TOOL, "input_examples": ["x"]}]}, "tools[0].input_examples"),
        ({"tool_choice": "auto"}, "tool_choice"),
        ({"tool_choice": {"type": "required"}}, "tool_choice.type"),
        ({"tool_choice": {"type": "tool"}}, "tool_choice.name"),
        ({"tool_choice": {"type": "any", "disable_parallel_tool_use": 1}}, "tool_choice.disable_parallel_tool_use"),
        ({"output_config": {"effort": "none"}}, "output_config.effort"),
        ({"output_config": {"effort": ["low"]}}, "output_config.effort"),
        ({"output_config": {"format": {"type": "text"}}}, "output_config.format.type"),
        ({"output_config": {"format": {"type": "json_schema"}}}, "output_config.format.schema"),
        ({"thread": {"type": "create"}}, "thread"),
        ({"compaction": {"type": "x"}}, "compaction"),
        ({"fallbacks": [{"model": "x"}]}, "fallbacks"),
        ({"temprature": 1}, "temprature"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_its_name(fields: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidRequestError) as found:
        read(**fields)
    assert found.value.field == field
    assert found.value.message.startswith(field) or "There is no field" in found.value.message


def test_thinking_before_an_answer_that_has_begun_is_refused() -> None:
    prefill = [*BODY["messages"], {"role": "assistant", "content": "It is"}]
    with pytest.raises(InvalidRequestError) as found:
        read(messages=prefill, thinking={"type": "enabled", "budget_tokens": 8})
    assert found.value.field == "thinking"


def test_strict_tools_are_accepted_where_calls_are_held_to_their_schema() -> None:
    strict = {**TOOL, "strict": True}
    for choice in ({"type": "any"}, {"type": "tool", "name": "weather"}):
        assert read(tools=[strict], tool_choice=choice).request.tools


def test_errors_that_come_later_name_places_of_the_body() -> None:
    call = read(system="x", tools=[TOOL])
    for ours, theirs in [
        ("messages[1].content", "messages[0].content"),
        ("messages[0].content", "system.content"),
        ("tools[0].function.parameters", "tools[0].input_schema"),
        ("tools[0].function.name", "tools[0].name"),
        ("thinking_budget", "thinking.budget_tokens"),
    ]:
        with pytest.raises(InvalidRequestError) as found, spelt(call.names):
            raise InvalidParameterError(ours, 5, "something else")
        assert found.value.field == theirs and found.value.message.startswith(f"{theirs} is 5")


def test_unknown_fields_are_told_where_they_are_allowed() -> None:
    said = {
        "x": 1,
        "metadata": {"a": 1},
        "cache_control": {"type": "ephemeral", "b": 1},
        "system": [{"type": "text", "text": "s", "c": 1}],
        "thinking": {"type": "adaptive", "d": None},
        "tools": [{**TOOL, "e": ""}],
        "tool_choice": {"type": "auto", "f": 0},
        "output_config": {"g": 1, "format": {"type": "json_schema", "schema": {"type": "object"}, "h": 1}},
        "messages": [{"role": "user", "content": "Hi", "i": 1}],
    }
    places = ["metadata.a", "cache_control.b", "system[0].c", "thinking.d", "tools[0].e", "tool_choice.f"]
    places += ["output_config.g", "output_config.format.h", "messages[0].i"]
    call = read_messages({**BODY, **said}, most_messages=10, allow_unknown=True)
    assert call.unknown_fields[0] == "x" and set(call.unknown_fields[1:]) == set(places)
    del said["metadata"]
    counted = read_count({"model": "tiny", **said}, most_messages=10, allow_unknown=True)
    assert counted.unknown_fields[0] == "x" and set(counted.unknown_fields[1:]) == set(places) - {"metadata.a"}


def test_counting_reads_the_same_prompt_and_nothing_of_the_answer() -> None:
    fields = {"system": "x", "tools": [TOOL], "tool_choice": {"type": "auto"}}
    counted = {name: value for name, value in {**BODY, **fields}.items() if name != "max_tokens"}
    assert read_count(counted, most_messages=10).request == read(**fields).request
    with pytest.raises(InvalidRequestError) as found:
        read_count({**counted, "max_tokens": 5}, most_messages=10)
    assert found.value.field == "max_tokens"
