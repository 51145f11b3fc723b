"""Tool calls as a grammar: what `tool_choice` required, or a function's name, makes of the answer.

Owns the form: one `<tool_call>` or several, as Qwen3's template teaches them and text/tool_calls.py reads them, each
with a name that there is and arguments that are valid under that function's `parameters`.
Knows no tokens: the tags are named, and are the tokenizer's control tokens of these names. The result is an
OutputFormat like any other.
"""

from __future__ import annotations

import json
from typing import Any

from kaishu.errors import InvalidParameterError, InvalidRequestError, and_more, shown
from kaishu.output_format import OutputFormat, checked_json
from kaishu.text.messages import clean_tools
from kaishu.text.tool_calls import CALL_END, CALL_START

Json = dict[str, Any]


def tool_call_format(
    tools: object, *, name: str | None, is_required: bool, parallel: bool, field_name: str = "tool_choice"
) -> OutputFormat | None:
    """The format of an answer that must call a tool.

    tools:       as OpenAI's chat API takes them; None or an empty list: none
    name:        the one function to call (`tool_choice` names it); None: any of them
    is_required: whether a call must be made (`tool_choice` is required); a name implies it
    parallel:    whether several calls may be made
    field_name:  what the caller calls `tool_choice`, for errors
    return:      a format of kind lark; None where no call is required, so that nothing is constrained
    raises:      InvalidMessagesError for tools that are none; InvalidParameterError for a name that no tool has;
                 InvalidRequestError where a call is required but there is no tool, or a tool's `parameters` aren't
                 those of an object. What they say that can't be enforced is found when the format is compiled

    Arguments beyond those in `parameters.properties` are left out, unless `additionalProperties` asks for them: JSON
    schema would allow any. A function without `parameters` takes none.
    """
    cleaned = clean_tools(tools) or []
    if name is None and not is_required:
        return None
    if not cleaned:
        raise InvalidRequestError(
            f"{field_name} asks for a call, but there are no tools to call.",
            field=field_name,
            hint="Give tools, or leave tool_choice at auto.",
        )
    functions = [(place, tool["function"]) for place, tool in enumerate(cleaned)]
    chosen = [(place, function) for place, function in functions if name in (None, function["name"])]
    if not chosen:
        raise InvalidParameterError(field_name, name, and_more([shown(function["name"]) for _, function in functions]))
    rules = [
        f"call_{place}: {_quoted(_head(function))} %json {_arguments(place, function)}" for place, function in chosen
    ]
    calls = 'call ("\\n" call)*' if parallel else "call"
    names = " | ".join(f"call_{place}" for place, _ in chosen)
    one = f'call: {CALL_START} "\\n" ({names}) "}}\\n" {CALL_END}'
    return OutputFormat.lark(
        "\n".join([f"start: {calls}", one, *rules]),
        field_name=field_name,
        schema_fields=tuple(_field(place) for place, _ in chosen),
    )


def _field(place: int) -> str:
    return f"tools[{place}].function.parameters"


def _head(function: Json) -> str:
    """What a call begins with, written as templates write it."""
    return f'{{"name": {json.dumps(function["name"], ensure_ascii=False)}, "arguments": '


def _quoted(text: str) -> str:
    """A string of Lark's notation."""
    return json.dumps(text, ensure_ascii=False)


def _arguments(place: int, function: Json) -> str:
    """The schema of a function's arguments as text."""
    field = _field(place)
    schema = function.get("parameters") or {"type": "object", "properties": {}}
    if not isinstance(schema, dict) or schema.get("type", "object") != "object":
        raise InvalidRequestError(f"{field} is {shown(schema)}; allowed: a schema of type object.", field=field)
    schema = {"type": "object", **schema}
    others = ("additionalProperties", "patternProperties", "$ref", "anyOf", "oneOf", "allOf")
    if "properties" in schema and not any(keyword in schema for keyword in others):
        schema["additionalProperties"] = False
    return checked_json(schema, field)
