"""OpenAI's own Python client against a live server: tools and answers of a given form, chosen or forced."""

from __future__ import annotations

import json
from typing import Any, Literal

import jsonschema
import openai
import pytest
from pydantic import BaseModel

from tests.server.contract.conftest import ASKED, CALLS, HI, NO_THOUGHT, TIME, TOOLS, WEATHER, streamed

PARAMETERS = {tool["function"]["name"]: tool["function"]["parameters"] for tool in TOOLS}


def checked(call) -> dict[str, Any]:
    """A call's arguments, which its tool allows."""
    arguments = json.loads(call.function.arguments)
    jsonschema.validate(arguments, PARAMETERS[call.function.name])
    return arguments


def test_a_call_that_the_model_chose_comes_out_and_its_result_goes_back(saying):
    client = saying(CALLS, "It is sunny.")
    answer = client.chat.completions.create(**ASKED, tools=TOOLS)
    (choice,) = answer.choices
    assert choice.finish_reason == "tool_calls" and choice.message.content == "Let me look."
    first, second = choice.message.tool_calls
    assert (first.type, first.function.name, second.function.name) == ("function", "get_weather", "get_time")
    assert first.id != second.id and checked(first) == {"city": "北京", "days": 2}
    messages = [
        *HI,
        choice.message,
        *({"role": "tool", "tool_call_id": one.id, "content": "sunny"} for one in (first, second)),
    ]
    again = client.chat.completions.create(model="tiny", messages=messages, tools=TOOLS)
    assert again.choices[0].message.content == "It is sunny." and again.choices[0].finish_reason == "stop"


def test_streamed_calls_add_up(saying):
    whole = saying(CALLS).chat.completions.create(**ASKED, tools=TOOLS).choices[0].message
    said = streamed(saying(CALLS).chat.completions.create(**ASKED, tools=TOOLS, stream=True))
    assert said["calls"] == [[call.function.name, call.function.arguments] for call in whole.tool_calls]
    assert (said["content"], said["reason"]) == (whole.content, "tool_calls")


def test_one_call_at_a_time_if_asked(saying):
    for stream in (False, True):
        found = saying(CALLS).chat.completions.create(**ASKED, tools=TOOLS, parallel_tool_calls=False, stream=stream)
        names = (
            [name for name, _ in streamed(found)["calls"]]
            if stream
            else [call.function.name for call in found.choices[0].message.tool_calls]
        )
        assert names == ["get_weather"]


def test_without_a_choice_of_tools_calls_are_text(saying):
    for fields in ({}, {"tools": TOOLS, "tool_choice": "none"}):
        message = saying(CALLS).chat.completions.create(**ASKED, **fields).choices[0].message
        assert message.tool_calls is None and "<tool_call>" in message.content


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("thinks", [False, True])
@pytest.mark.parametrize(
    "choice, names",
    [
        ("required", ["get_weather", "get_time"]),
        ({"type": "function", "function": {"name": "get_weather"}}, ["get_weather"]),
        ({"type": "function", "function": {"name": "get_time"}}, ["get_time"]),
    ],
    ids=str,
)
def test_a_call_that_must_be_is_made_and_is_valid(client, choice, names, thinks, stream):
    fields = {**ASKED, "temperature": 1.5, "seed": 3, "tools": TOOLS, "tool_choice": choice}
    found = client.chat.completions.create(
        **fields, parallel_tool_calls=False, stream=stream, extra_body={"enable_thinking": thinks, "thinking_budget": 5}
    )
    if stream:
        said = streamed(found)
        ((name, arguments),), reason = said["calls"], said["reason"]
    else:
        (call,) = found.choices[0].message.tool_calls
        name, arguments, reason = call.function.name, call.function.arguments, found.choices[0].finish_reason
    assert name in names and reason == "tool_calls"
    jsonschema.validate(json.loads(arguments), PARAMETERS[name])


@pytest.mark.parametrize(
    "fields, param",
    [
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "fly"}}}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": "always"}, "tool_choice"),
        ({"tools": [{"type": "function"}]}, "tools[0]"),
        ({"tools": [WEATHER, WEATHER]}, "tools"),
        ({"tools": [TIME], "tool_choice": "required", "response_format": {"type": "json_object"}}, "response_format"),
    ],
    ids=lambda value: str(value)[:70],
)
def test_tools_that_cannot_be_are_refused_by_name(client, fields, param):
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(**ASKED, **fields)
    assert caught.value.param.startswith(param)


# Forms


class Step(BaseModel):
    what: Literal["北京", "🙂", "é"]
    number: int


class Plan(BaseModel):
    steps: list[Step]
    done: bool | None


@pytest.mark.parametrize("thinks", [False, True])
@pytest.mark.parametrize("seed", [1, 2])
def test_an_answer_keeps_to_its_schema(client, seed, thinks):
    schema = {
        "type": "object",
        "properties": {"名前": {"type": "string", "pattern": "^[a-z]{1,4}$"}, "n": {"enum": [1, "two", None]}},
        "required": ["名前", "n"],
        "additionalProperties": False,
    }
    form = {"type": "json_schema", "json_schema": {"name": "thing", "schema": schema, "strict": True}}
    answer = client.chat.completions.create(
        **ASKED | {"temperature": 1.5},
        seed=seed,
        response_format=form,
        extra_body={"enable_thinking": thinks, "thinking_budget": 9},
    )
    (choice,) = answer.choices
    assert choice.finish_reason == "stop"
    jsonschema.validate(json.loads(choice.message.content), schema)
    assert hasattr(choice.message, "reasoning_content") == thinks


KEYWORDS: dict[str, Any] = {
    "an enum beyond ASCII": {"enum": ["北京", "🙂", "é", "e\u0301"]},
    "letters of any script": {"type": "string", "pattern": r"^\p{L}{1,6}$"},
    "a pattern and a length": {"type": "string", "pattern": "^[a-c]+$", "minLength": 2, "maxLength": 3},
    "a list with bounds": {"type": "array", "items": {"type": "boolean"}, "minItems": 2, "maxItems": 3},
    "steps of a number": {"type": "integer", "multipleOf": 5, "minimum": 0, "maximum": 100},
    "one of two": {"oneOf": [{"const": 1}, {"const": "a"}]},
    "a constant": {"const": {"名前": [1, None]}},
    "names by pattern": {"type": "object", "patternProperties": {"^a": {"const": 1}}, "additionalProperties": False},
    "mixed values": {"enum": [1, "1", None, True, [1], {"a": 1}]},
    "text or null": {"type": ["string", "null"], "maxLength": 3},
}


@pytest.mark.parametrize("keyword", KEYWORDS)
def test_keywords_are_kept_to_or_refused_by_their_place_and_never_dropped(client, keyword):
    schema = {
        "type": "object",
        "properties": {"名前": KEYWORDS[keyword]},
        "required": ["名前"],
        "additionalProperties": False,
    }
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    fields = {**ASKED, "temperature": 2.5, "max_tokens": 300, "response_format": form, **NO_THOUGHT}
    for seed in range(3):
        try:
            (choice,) = client.chat.completions.create(**fields, seed=seed).choices
        except openai.BadRequestError as error:
            assert error.param.startswith("response_format.json_schema.schema") and "名前" in str(error)
            return
        if choice.finish_reason == "stop":
            found = json.loads(choice.message.content)
            assert set(found) == {"名前"}
            if "p{L}" not in str(schema):
                jsonschema.validate(found, schema)
            else:
                assert found["名前"].isalpha() and len(found["名前"]) <= 6


def test_an_answer_is_parsed_by_the_client(client):
    class Short(BaseModel):
        what: Literal["北京", "🙂", "é"]
        sure: bool | None

    answer = client.chat.completions.parse(**ASKED, response_format=Short, **NO_THOUGHT)
    assert isinstance(answer.choices[0].message.parsed, Short)


def test_a_nested_answer_is_parsed_by_the_client(saying):
    said = '{"steps": [{"what": "北京", "number": 1}, {"what": "🙂", "number": -2}], "done": null}'
    answer = saying(said).chat.completions.parse(**ASKED, response_format=Plan, **NO_THOUGHT)
    assert answer.choices[0].message.parsed == Plan.model_validate_json(said)


def test_calls_are_parsed_by_the_client(saying):
    tool = openai.pydantic_function_tool(Step, name="take_step")
    said = '<tool_call>\n{"name": "take_step", "arguments": {"what": "é", "number": 3}}\n</tool_call>'
    answer = saying(said).chat.completions.parse(**ASKED, tools=[tool], **NO_THOUGHT)
    (call,) = answer.choices[0].message.tool_calls
    assert call.function.parsed_arguments == Step(what="é", number=3)


def test_a_json_object_is_one(client):
    form = {"type": "json_object"}
    answer = client.chat.completions.create(**ASKED, response_format=form, max_tokens=400, **NO_THOUGHT)
    if answer.choices[0].finish_reason == "stop":
        assert isinstance(json.loads(answer.choices[0].message.content), dict)
    assert answer.choices[0].message.content.lstrip().startswith("{")


@pytest.mark.parametrize(
    "keyword", [{"unevaluatedItems": False}, {"type": "text"}, {"$ref": "#/nowhere"}, {"pattern": "(a"}]
)
def test_a_schema_that_cannot_be_kept_to_is_refused_with_its_place(client, keyword):
    schema = {"type": "object", "properties": {"a": {"type": "string"} | keyword}}
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(**ASKED, response_format=form)
    assert caught.value.param.startswith("response_format.json_schema.schema")
