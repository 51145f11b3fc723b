"""The fields of Anthropic's Messages API, as data: what becomes of each of them.

Owns the tables, after Anthropic's API reference: of the body, and of every object in it. So no field is dropped
unread. What the fields mean is in messages_requests.py and messages_history.py; what a table says, in openai_fields.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kaishu.errors import InvalidParameterError
from kaishu.openai_fields import Field, UnknownFields, read_object

Fields = Mapping[str, Field]

_READ = Field("read")
_TEXT, _OBJECT = Field("noted", kind=str), Field("noted", kind=dict)
_CACHE = Field("read")  # checked, and then noted: every prompt is cached here, up to where it differs

COUNT_FIELDS: Fields = {
    "model": _READ,
    "messages": _READ,
    "system": _READ,
    "tools": _READ,
    "tool_choice": _READ,
    "thinking": _READ,
    "output_config": _READ,
    "cache_control": _CACHE,
    "user_profile_id": _TEXT,
    "speed": Field("neutral", ("standard",), instead="The machine has one speed."),
    "mcp_servers": Field("neutral", ([],), instead="Connect to them yourself, and give their tools in tools."),
    "context_management": Field("neutral", ({}, {"edits": []}), instead="Leave out of messages what is too much."),
}

MESSAGE_FIELDS: Fields = {
    **COUNT_FIELDS,
    "max_tokens": _READ,
    "stop_sequences": _READ,
    "temperature": _READ,
    "top_p": _READ,
    "top_k": _READ,
    "stream": _READ,
    "metadata": _READ,
    "service_tier": Field("neutral", ("auto", "standard_only"), instead="There is one tier."),
    "inference_geo": Field("neutral", instead="Everything is computed on this machine."),
    "container": Field("neutral", instead="No code runs here; give functions of your own in tools."),
    "diagnostics": Field("neutral", ({}, {"previous_message_id": None}), instead="usage says what was cached."),
    "output_format": Field("neutral", instead="Use output_config.format."),
    "thread": Field("neutral", instead="Nothing is stored here: give the whole conversation as messages."),
    "compaction": Field("neutral", instead="Leave out or sum up earlier messages yourself."),
    "fallbacks": Field("neutral", ([],), instead="There is no other model here to ask."),
}

METADATA: Fields = {"user_id": _TEXT}
CACHE_CONTROL: Fields = {"type": Field("neutral", ("ephemeral",)), "ttl": Field("neutral", ("5m", "1h"))}
OUTPUT_CONFIG: Fields = {"effort": _READ, "format": _READ}
OUTPUT_FORMAT: Fields = {"type": Field("neutral", ("json_schema",)), "schema": _READ}

_NO_BUDGET = Field("neutral", instead='A budget needs "type": "enabled".')
THINKING: Mapping[str, Fields] = {  # by type
    "enabled": {"type": _READ, "budget_tokens": _READ, "display": _READ},
    "adaptive": {"type": _READ, "display": _READ, "budget_tokens": _NO_BUDGET},
    "disabled": {"type": _READ, "budget_tokens": _NO_BUDGET},
}

TOOL: Fields = {
    "type": _READ,
    "name": _READ,
    "description": _READ,
    "input_schema": _READ,
    "input_examples": _READ,
    "strict": _READ,
    "cache_control": _CACHE,
    "eager_input_streaming": Field("neutral", (True,), instead="Input is streamed as it is written."),
    "defer_loading": Field("neutral", (False,), instead="Give only the tools that are needed."),
    "allowed_callers": Field("neutral", (["direct"],), instead="No code runs here that could call it."),
}
_PARALLEL = {"type": _READ, "disable_parallel_tool_use": _READ}
TOOL_CHOICE: Mapping[str, Fields] = {  # by type
    "auto": _PARALLEL,
    "any": _PARALLEL,
    "tool": {**_PARALLEL, "name": _READ},
    "none": {"type": _READ},
}

MESSAGE: Fields = {"role": _READ, "content": _READ}
BLOCKS: Mapping[str, Fields] = {  # by type
    "text": {
        "type": _READ,
        "text": _READ,
        "cache_control": _CACHE,
        "citations": Field("neutral", ([],), instead="Write what is cited into the text."),
    },
    "tool_use": {
        "type": _READ,
        "id": _READ,
        "name": _READ,
        "input": _READ,
        "cache_control": _CACHE,
        "caller": Field("neutral", ({"type": "direct"},), instead="No code runs here that could call it."),
        "toolset_name": Field("neutral", instead="Give each tool by itself."),
    },
    "tool_result": {
        "type": _READ,
        "tool_use_id": _READ,
        "content": _READ,
        "is_error": _READ,
        "cache_control": _CACHE,
        "toolset_name": Field("neutral", instead="Give each tool by itself."),
    },
    "thinking": {"type": _READ, "thinking": _READ, "signature": _TEXT},
    "redacted_thinking": {"type": _READ, "data": _TEXT},
}


def members(value: object, path: str, table: Fields, unknown: UnknownFields) -> dict[str, Any]:
    """An object inside the body, taken apart.

    path:    where it stands
    unknown: gets the keys that the table doesn't have
    return:  what is read of it and given
    raises:  InvalidRequestError and its kinds, naming the place
    """
    found = read_object(value, path, table, unknown)
    cached = found.pop("cache_control", None)
    if cached is not None:
        check_cache_control(cached, f"{path}.cache_control", unknown)
    return found


def check_cache_control(value: object, path: str, unknown: UnknownFields) -> None:
    """raises: InvalidRequestError and its kinds"""
    read_object(value, path, CACHE_CONTROL, unknown)


def kind_of(value: object, path: str, allowed: tuple[str, ...], *, hint: str | None = None) -> str:
    """The `type` of an object.

    raises: InvalidParameterError, naming the place
    """
    if not isinstance(value, Mapping):
        raise InvalidParameterError(path, value, "an object, {...}")
    kind = value.get("type")
    if not isinstance(kind, str) or kind not in allowed:
        raise InvalidParameterError(f"{path}.type", kind, ", ".join(allowed), hint=hint)
    return kind
