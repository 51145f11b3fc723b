"""What fields of the Responses and Messages APIs may be, as pieces of JSON schema, for the server's OpenAPI document.

Owns the pieces that these two have apart from the others, which are in openapi_pieces.py: conversations as items and
as blocks, tools in their own forms.
"""

from __future__ import annotations

from kaishu.openai_requests import EFFORTS
from kaishu.sampling.params import MAX_LOGPROBS
from kaishu.server.messages_requests import THOUGHT_OF_EFFORT
from kaishu.server.openapi_pieces import (
    COMMON,
    FUNCTION_NAME,
    FURTHER_FORMATS,
    OBJECT,
    PLAIN_FORMAT,
    SOME_TEXT,
    TEXT,
    Json,
    Pieces,
    a_list,
    an_object,
    either,
    nullable,
)
from kaishu.server.responses_input import ROLES, TEXT_PARTS
from kaishu.server.responses_requests import INCLUDABLE

_IGNORED: Json = {"annotations": {}, "logprobs": {}}  # of parts that were answers
_PARTS = a_list(an_object({"type": {"enum": list(TEXT_PARTS)}, "text": TEXT, **_IGNORED}, ("type", "text")), 1)
_LABELS: Json = {"id": {}, "status": {}}  # which nobody looks at
_ITEM: Json = {
    "anyOf": [
        an_object(
            {
                "type": {"const": "message"},
                "role": {"enum": list(ROLES)},
                "content": {"anyOf": [TEXT, _PARTS]},
                **_LABELS,
            },
            ("role", "content"),
        ),
        an_object(
            {
                "type": {"const": "function_call"},
                "call_id": TEXT,
                "name": FUNCTION_NAME,
                "arguments": {"type": ["string", "object"]},
                **_LABELS,
            },
            ("type", "call_id", "name", "arguments"),
        ),
        an_object(
            {
                "type": {"const": "function_call_output"},
                "call_id": TEXT,
                "output": {"anyOf": [TEXT, _PARTS]},
                **_LABELS,
            },
            ("type", "call_id", "output"),
        ),
        an_object(
            {
                "type": {"const": "reasoning"},
                "summary": a_list(an_object({"type": {"const": "summary_text"}, "text": TEXT}, ("type", "text"))),
                "content": a_list(an_object({"type": {"const": "reasoning_text"}, "text": TEXT}, ("type", "text"))),
                **_LABELS,
            },
            ("type",),
        ),
    ]
}
_SCHEMA_FORMAT = an_object(
    {
        "type": {"const": "json_schema"},
        "name": {"type": "string", "pattern": "^[A-Za-z0-9_-]{1,64}$"},
        "schema": OBJECT,
        "strict": {"type": "boolean"},
    },
    ("type", "name", "schema"),
)
_FUNCTION: Json = an_object(
    {
        "type": {"const": "function"},
        "name": FUNCTION_NAME,
        "description": TEXT,
        "parameters": OBJECT,
        "strict": {"type": "boolean"},
    },
    ("type", "name"),
)

_NAMED = an_object({"type": {"const": "function"}, "name": TEXT}, ("type", "name"))

RESPONSES: Pieces = {
    "input": either(TEXT, a_list(_ITEM, 1), description="A text, or the whole conversation as items."),
    "instructions": {**TEXT, "description": "What the model is told before everything else."},
    "max_output_tokens": COMMON["max_tokens"],
    "include": a_list({"enum": list(INCLUDABLE)}, description="What else the answer has."),
    "top_logprobs": {
        "type": "integer",
        "minimum": 0,
        "maximum": MAX_LOGPROBS,
        "description": "Only where include has log probabilities.",
    },
    "text": {
        **an_object(
            {
                "format": either(PLAIN_FORMAT, _SCHEMA_FORMAT, *FURTHER_FORMATS, description="Of the answer."),
                "verbosity": {"const": "medium"},
            }
        ),
        "description": "The form that the answer has to have.",
    },
    "reasoning": {
        **an_object(
            {
                "effort": {"enum": list(EFFORTS)},
                "summary": {"enum": ["auto", "detailed"]},
                "context": {"const": "auto"},
                "mode": {"const": "standard"},
            }
        ),
        "description": "Whether the model thinks before it answers.",
    },
    "tools": a_list(_FUNCTION, description="Functions that the model may call."),
    "tool_choice": either(
        {"enum": ["auto", "none", "required"]},
        _NAMED,
        an_object(
            {"type": {"const": "allowed_tools"}, "mode": {"enum": ["auto", "required"]}, "tools": a_list(_NAMED, 1)},
            ("type", "mode", "tools"),
        ),
        description="Whether a function has to be called, or which.",
    ),
    "metadata": {
        "type": "object",
        "maxProperties": 16,
        "propertyNames": {"maxLength": 64},
        "additionalProperties": {"type": "string", "maxLength": 512},
        "description": "Notes of the caller's own, which the answer repeats.",
    },
    "prompt_cache_options": {
        **an_object({"mode": TEXT, "ttl": TEXT, "prewarm": {"const": False}}),
        "description": "Changes nothing.",
    },
}

_CACHE = nullable(an_object({"type": {"const": "ephemeral"}, "ttl": {"enum": ["5m", "1h"]}}))
_TEXT_BLOCK = an_object({"type": {"const": "text"}, "text": TEXT, "cache_control": _CACHE}, ("type", "text"))
_TEXTS: Json = {"anyOf": [TEXT, a_list(_TEXT_BLOCK)]}
_ASSISTANTS_BLOCK: Json = {
    "anyOf": [
        _TEXT_BLOCK,
        an_object({"type": {"const": "thinking"}, "thinking": TEXT, "signature": TEXT}, ("type", "thinking")),
        an_object(
            {
                "type": {"const": "tool_use"},
                "id": TEXT,
                "name": FUNCTION_NAME,
                "input": OBJECT,
                "cache_control": _CACHE,
            },
            ("type", "id", "name", "input"),
        ),
    ]
}
_USERS_BLOCK: Json = {
    "anyOf": [
        _TEXT_BLOCK,
        an_object(
            {
                "type": {"const": "tool_result"},
                "tool_use_id": TEXT,
                "content": _TEXTS,
                "is_error": {"type": "boolean"},
                "cache_control": _CACHE,
            },
            ("type", "tool_use_id"),
        ),
    ]
}
_ANTHROPIC_MESSAGE: Json = {
    "anyOf": [
        an_object(
            {"role": {"const": "user"}, "content": {"anyOf": [TEXT, a_list(_USERS_BLOCK, 1)]}}, ("role", "content")
        ),
        an_object(
            {"role": {"const": "assistant"}, "content": {"anyOf": [TEXT, a_list(_ASSISTANTS_BLOCK)]}},
            ("role", "content"),
        ),
        an_object({"role": {"const": "system"}, "content": _TEXTS}, ("role", "content")),
    ]
}
_DISPLAY: Json = {"enum": ["summarized", "omitted"]}
_SINGLE: Json = {"disable_parallel_tool_use": {"type": "boolean"}}

MESSAGES: Pieces = {
    "messages": a_list(_ANTHROPIC_MESSAGE, 1, description="The conversation so far."),
    "system": {**_TEXTS, "description": "What the model is told before everything else."},
    "max_tokens": {**COMMON["max_tokens"], "maximum": 2**31 - 1},
    "stop_sequences": a_list(SOME_TEXT, 0, 64, description="Texts that end the answer."),
    "tools": a_list(
        an_object(
            {
                "type": {"const": "custom"},
                "name": FUNCTION_NAME,
                "description": TEXT,
                "input_schema": {**OBJECT, "description": "A JSON schema of type object."},
                "input_examples": a_list(OBJECT),
                "strict": {"type": "boolean"},
                "cache_control": _CACHE,
            },
            ("name", "input_schema"),
        ),
        description="Functions that the model may call.",
    ),
    "tool_choice": either(
        an_object({"type": {"enum": ["auto", "any"]}, **_SINGLE}, ("type",)),
        an_object({"type": {"const": "tool"}, "name": TEXT, **_SINGLE}, ("type", "name")),
        an_object({"type": {"const": "none"}}, ("type",)),
        description="Whether a function has to be called, or which.",
    ),
    "thinking": either(
        an_object(
            {"type": {"const": "enabled"}, "budget_tokens": COMMON["max_tokens"], "display": _DISPLAY},
            ("type", "budget_tokens"),
        ),
        an_object({"type": {"const": "adaptive"}, "display": _DISPLAY}, ("type",)),
        an_object({"type": {"const": "disabled"}}, ("type",)),
        description="Whether the model thinks before it answers, and for how many tokens.",
    ),
    "output_config": {
        **an_object(
            {
                "effort": {"enum": list(THOUGHT_OF_EFFORT)},
                "format": an_object({"type": {"const": "json_schema"}, "schema": OBJECT}, ("schema",)),
            }
        ),
        "description": "The form that the answer has to have, and how long a thought may be that adapts.",
    },
    "cache_control": {**an_object({"type": {"const": "ephemeral"}}), "description": "Changes nothing."},
    "metadata": {**an_object({"user_id": TEXT}), "description": "Changes nothing."},
}
