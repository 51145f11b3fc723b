"""What a chat message and a tool may be, before a template sees them.

Owns the shape of OpenAI's messages and tools: checks them and makes clean copies, in which contents are strings and
call arguments are objects. Refuses what it can't honour, with the path of the offending piece
(`messages[2].content[1]`). Never touches the caller's objects. Knows nothing of templates, tokens or models.
Called by template.py; the same errors reach a Python caller, the command line and an HTTP client.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from kaishu.errors import InvalidMessagesError, shortened, shown
from kaishu.text.encodable import find_unencodable

Json = dict[str, Any]

ROLES = ("system", "developer", "user", "assistant", "tool")
FIELDS = ("role", "content", "name", "reasoning_content", "reasoning", "tool_calls", "tool_call_id")
PART_FIELDS = ("type", "text", "prompt_cache_breakpoint")  # the last changes no prompt
CALL_FIELDS = ("id", "type", "index")  # the last is left over where a stream's deltas were added up
MAX_NUMBER_BITS = 4096  # Python neither reads nor writes numbers of many thousands of digits
MAX_PARTS = 10_000  # of one message
MAX_TOOLS = 2_048
MAX_DEPTH = 100  # nesting of JSON in tools and arguments; a template that writes it out recurses as deep


def clean_messages(messages: object) -> list[Json]:
    """Check a list of messages and copy it into the form that templates expect.

    messages: dicts with `role` and `content`, as OpenAI's chat API takes them. Content may be a string, a list of
              text parts, null for an assistant, an object for a tool. Arguments of a tool call may be an object or a
              string that holds one.
    return:   new dicts: `developer` became `system`, `reasoning` became `reasoning_content`, nulls are left out,
              contents are strings ("" for an assistant that only calls tools), arguments are objects
    raises:   InvalidMessagesError, with the path of what is wrong
    """
    if not isinstance(messages, Sequence) or isinstance(messages, str | bytes):
        raise _invalid("messages", f"is {_kind(messages)}", "a list of messages")
    if not messages:
        raise _invalid("messages", "is empty", "at least one message", hint="Begin with a user message.")
    return [_message(message, f"messages[{i}]") for i, message in enumerate(messages)]


def clean_tools(tools: object) -> list[Json] | None:
    """Check a list of tools and copy it; null and an empty list mean no tools.

    tools:  OpenAI's form: {"type": "function", "function": {"name", "description", "parameters"}}
    return: new dicts with the keys in the caller's order, since templates write tools out as they are
    raises: InvalidMessagesError, with the path of what is wrong
    """
    if tools is None:
        return None
    if not isinstance(tools, Sequence) or isinstance(tools, str | bytes):
        raise _invalid("tools", f"is {_kind(tools)}", "a list of tools")
    if len(tools) > MAX_TOOLS:
        raise _invalid("tools", f"has {len(tools):,} entries", f"{MAX_TOOLS:,}")
    cleaned = [_tool(tool, f"tools[{i}]") for i, tool in enumerate(tools)]
    names: set[str] = set()
    for i, tool in enumerate(cleaned):
        name = tool["function"]["name"]
        if name in names:
            raise _invalid(f"tools[{i}].function.name", f"is {name!r} again", "one tool of each name")
        names.add(name)
    return cleaned or None


def clean_json(value: object, path: str, depth: int = 0) -> Any:
    """A copy of JSON data in plain types.

    raises: InvalidMessagesError for anything else: other types, NaN, infinity, lone surrogates, keys that aren't
            strings, more than MAX_DEPTH levels, integers of more than MAX_NUMBER_BITS
    """
    if depth > MAX_DEPTH:
        raise _invalid(path.split(".", maxsplit=1)[0], f"is nested more than {MAX_DEPTH} levels deep", "less nesting")
    if isinstance(value, str):
        return _string(value, path)
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        if value.bit_length() > MAX_NUMBER_BITS:
            raise _invalid(path, f"is a number of {value.bit_length():,} bits", f"numbers of {MAX_NUMBER_BITS:,} bits")
        return value
    if isinstance(value, float):
        if not math.isfinite(value):
            raise _invalid(path, f"is {value}", "a finite number, since JSON has no other")
        return value
    if isinstance(value, list | tuple):
        return [clean_json(item, f"{path}[{i}]", depth + 1) for i, item in enumerate(value)]
    if isinstance(value, Mapping):
        return {_key(key, path): clean_json(item, f"{path}.{shortened(key)}", depth + 1) for key, item in value.items()}
    raise _invalid(path, f"is {_kind(value)}", "JSON: an object, list, string, number, true, false or null")


def _message(message: object, path: str) -> Json:
    if not isinstance(message, Mapping):
        raise _invalid(path, f"is {_kind(message)}", "an object with role and content", hint=_objects_hint(message))
    given = {_key(key, path): value for key, value in message.items() if value is not None}
    _check_fields(given, FIELDS, path, "a message")
    role = given.get("role")
    if role not in ROLES:
        found = "is missing" if role is None else f"is {shown(role)}"
        raise _invalid(f"{path}.role", found, ", ".join(ROLES))
    cleaned: Json = {"role": "system" if role == "developer" else role}
    cleaned["content"] = _content(given.get("content"), f"{path}.content", str(role))
    reasoning = _reasoning(given, path)
    if reasoning is not None:
        cleaned["reasoning_content"] = reasoning
    calls = given.get("tool_calls", [])
    if calls not in ([], ()):
        _only_for("assistant", role, f"{path}.tool_calls")
        cleaned["tool_calls"] = _tool_calls(calls, f"{path}.tool_calls")
    for key in ("name", "tool_call_id"):
        if key in given:
            cleaned[key] = _string(given[key], f"{path}.{key}")
    return cleaned


def _content(content: object, path: str, role: str) -> str:
    if isinstance(content, str):
        return _string(content, path)
    if content is None and role == "assistant":
        return ""
    if isinstance(content, Mapping) and role == "tool":
        return json.dumps(clean_json(content, path), ensure_ascii=False)
    if isinstance(content, list | tuple):
        if not content:
            raise _invalid(path, "is an empty list", "a string, or at least one text part")
        if len(content) > MAX_PARTS:
            raise _invalid(path, f"has {len(content):,} parts", f"{MAX_PARTS:,}")
        return "".join(_part(part, f"{path}[{i}]") for i, part in enumerate(content))
    found = "is missing or null" if content is None else f"is {_kind(content)}"
    allowed = "a string or a list of text parts" + (", or an object" if role == "tool" else "")
    raise _invalid(path, found, allowed)


def _part(part: object, path: str) -> str:
    if not isinstance(part, Mapping):
        raise _invalid(path, f"is {_kind(part)}", 'an object {"type": "text", "text": ...}')
    kind = part.get("type")
    if kind != "text":
        raise _invalid(
            path,
            "has no type" if kind is None else f"is a part of type {shown(kind)}",
            "parts of type 'text', since the model reads text only",
        )
    _check_fields(part, PART_FIELDS, path, "a text part")
    return _string(part.get("text"), f"{path}.text")


def _reasoning(given: Mapping[str, object], path: str) -> str | None:
    """The thinking that goes with a message, under either of the names in use for it."""
    found = {key: _string(given[key], f"{path}.{key}") for key in ("reasoning_content", "reasoning") if key in given}
    for key in found:
        _only_for("assistant", given["role"], f"{path}.{key}")
    if len(set(found.values())) > 1:
        raise _invalid(f"{path}.reasoning", "differs from reasoning_content", "one of the two, or both equal")
    return next(iter(found.values()), None)


def _tool_calls(calls: object, path: str) -> list[Json]:
    if not isinstance(calls, list | tuple):
        raise _invalid(path, f"is {_kind(calls)}", "a list of calls")
    return [_tool_call(call, f"{path}[{i}]") for i, call in enumerate(calls)]


def _tool_call(call: object, path: str) -> Json:
    """One call, as OpenAI nests it ({"function": {"name", "arguments"}}) or flat; always nested in the copy."""
    if not isinstance(call, Mapping):
        raise _invalid(path, f"is {_kind(call)}", "an object with a function", hint=_objects_hint(call))
    if call.get("type") not in (None, "function"):
        raise _invalid(f"{path}.type", f"is {shown(call['type'])}", "'function'")
    nested = "function" in call
    function = call["function"] if nested else call
    function_path = f"{path}.function" if nested else path
    if not isinstance(function, Mapping):
        raise _invalid(function_path, f"is {_kind(function)}", "an object with name and arguments")
    _check_fields(call, (*CALL_FIELDS, "function") if nested else (*CALL_FIELDS, "name", "arguments"), path, "a call")
    if nested:
        _check_fields(function, ("name", "arguments"), function_path, "a called function")
    copied = {
        "name": _function_name(function.get("name"), f"{function_path}.name"),
        "arguments": _arguments(function.get("arguments"), f"{function_path}.arguments"),
    }
    named = {} if call.get("id") is None else {"id": _string(call["id"], f"{path}.id")}
    return {**named, "type": "function", "function": copied}


def _arguments(arguments: object, path: str) -> Json:
    """Arguments as an object. A string must hold one: anything else would be written into the prompt twice quoted."""
    allowed = 'a JSON object, or a string that holds one; "{}" where there are none'
    if isinstance(arguments, str):
        _string(arguments, path)
        try:
            parsed = json.loads(arguments)
        except (ValueError, RecursionError):
            raise _invalid(path, f"is {shown(arguments)}, which isn't valid JSON", allowed) from None
        if not isinstance(parsed, dict):
            raise _invalid(path, f"is {shown(arguments)}, which holds {_kind(parsed)}", allowed)
        return dict(clean_json(parsed, path))
    if not isinstance(arguments, Mapping):
        raise _invalid(path, "is missing or null" if arguments is None else f"is {_kind(arguments)}", allowed)
    return dict(clean_json(arguments, path))


def _tool(tool: object, path: str) -> Json:
    if not isinstance(tool, Mapping):
        raise _invalid(path, f"is {_kind(tool)}", 'an object {"type": "function", "function": {...}}')
    if tool.get("type") != "function":
        found = "is missing" if "type" not in tool else f"is {shown(tool['type'])}"
        raise _invalid(f"{path}.type", found, "'function'")
    function = tool.get("function")
    if not isinstance(function, Mapping):
        raise _invalid(f"{path}.function", f"is {_kind(function)}", "an object with a name")
    _function_name(function.get("name"), f"{path}.function.name")
    if not isinstance(function.get("description"), str | None):
        raise _invalid(f"{path}.function.description", f"is {_kind(function['description'])}", "a string")
    if not isinstance(function.get("strict"), bool | None):
        raise _invalid(f"{path}.function.strict", f"is {_kind(function['strict'])}", "true, false or null")
    if not isinstance(function.get("parameters"), Mapping | None):
        raise _invalid(f"{path}.function.parameters", f"is {_kind(function['parameters'])}", "a JSON schema object")
    return dict(clean_json(tool, path))


def _function_name(name: object, path: str) -> str:
    """Templates write names into JSON as they are, so a name must not need escaping there."""
    name = _string(name, path)
    if not name or any(character in '"\\' or ord(character) < 0x20 for character in name):
        raise _invalid(path, f"is {shown(name)}", "a name without quotes, backslashes and control characters")
    return name


def _string(value: object, path: str) -> str:
    if not isinstance(value, str):
        raise _invalid(path, "is missing or null" if value is None else f"is {_kind(value)}", "a string")
    wrong = find_unencodable(value)
    if wrong is not None:
        raise _invalid(path, f"has {wrong.found}", "text that can be encoded", hint=wrong.hint)
    return str.__str__(value)  # a subclass (an enum member, say) becomes a plain string


def _key(key: object, path: str) -> str:
    if not isinstance(key, str):
        raise _invalid(path, f"has the key {shown(key)}", "keys that are strings")
    return _string(key, f"{path}: a key")


def _check_fields(given: Mapping[Any, object], allowed: Collection[str], path: str, what: str) -> None:
    """Refuse what an object may not have; keys that hold nothing ask for nothing."""
    for key, value in given.items():
        if key not in allowed and value not in (None, [], {}, ""):
            raise _invalid(f"{path}.{shortened(_key(key, path))}", f"is not a field of {what}", ", ".join(allowed))


def _only_for(wanted: str, role: object, path: str) -> None:
    if role != wanted:
        raise _invalid(path, f"is in a message of role {role}", f"only in a message of role {wanted}")


def _kind(value: object) -> str:
    """What a value is, in JSON's words."""
    names = {type(None): "null", bool: "a boolean", int: "a number", float: "a number", str: "a string"}
    if isinstance(value, Mapping):
        return "an object"
    if isinstance(value, list | tuple):
        return "a list"
    return names.get(type(value), f"a Python {type(value).__name__}")


def _objects_hint(value: object) -> str | None:
    return "Pass value.model_dump() instead of the object." if hasattr(value, "model_dump") else None


def _invalid(path: str, found: str, allowed: str, *, hint: str | None = None) -> InvalidMessagesError:
    return InvalidMessagesError(f"{path} {found}; allowed: {allowed}.", field=path, hint=hint)
