"""What the server answers, as pieces of JSON schema, for its OpenAPI document.

Owns the forms of answers: what a client may rely on in each. They are made in openai_responses.py, openai_embeddings.py
and beside the routes. Objects may get further properties, so none are forbidden here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kaishu.server.openapi_pieces import OBJECT, TEXT, a_list

Json = dict[str, Any]

_COUNT: Json = {"type": "integer", "minimum": 0}
_TEXT_OR_NULL: Json = {"type": ["string", "null"]}


def _has(**properties: Json) -> Json:
    """An object in which all of these are there."""
    return {"type": "object", "properties": properties, "required": list(properties)}


def _ref(name: str) -> Json:
    return {"$ref": f"#/components/schemas/{name}"}


def _or_null(piece: Json) -> Json:
    return {"anyOf": [piece, {"type": "null"}]}


_USAGE = _has(prompt_tokens=_COUNT, completion_tokens=_COUNT, total_tokens=_COUNT)
_READ_USAGE = _has(prompt_tokens=_COUNT, total_tokens=_COUNT)
_FINISH: Json = {"enum": ["stop", "length", "tool_calls"]}
_CHAT_CHOICE = _has(
    index=_COUNT,
    message={
        **_has(role={"const": "assistant"}, content=_TEXT_OR_NULL),
        "description": "Has reasoning_content where the model thought, and tool_calls where it calls functions.",
    },
    logprobs=_or_null(_has(content=a_list(OBJECT))),
    finish_reason=_FINISH,
)
_TEXT_CHOICE = _has(index=_COUNT, text=TEXT, logprobs=_or_null(OBJECT), finish_reason=_FINISH)
_RESULT = _has(index=_COUNT, relevance_score={"type": "number", "minimum": 0, "maximum": 1})
_EMBEDDING = _has(
    object={"const": "embedding"}, index=_COUNT, embedding={"anyOf": [a_list({"type": "number"}, 1), TEXT]}
)

SCHEMAS: Mapping[str, Json] = {
    "Error": _has(error=_has(message=TEXT, type=TEXT, param=_TEXT_OR_NULL, code=_TEXT_OR_NULL)),
    "AnthropicError": _has(type={"const": "error"}, error=_has(type=TEXT, message=TEXT)),
    "ChatCompletion": _has(
        id=TEXT,
        object={"const": "chat.completion"},
        created=_COUNT,
        model=TEXT,
        choices=a_list(_CHAT_CHOICE, 1),
        usage=_USAGE,
    ),
    "Completion": _has(
        id=TEXT,
        object={"const": "text_completion"},
        created=_COUNT,
        model=TEXT,
        choices=a_list(_TEXT_CHOICE, 1),
        usage=_USAGE,
    ),
    "Response": _has(
        id=TEXT,
        object={"const": "response"},
        created_at=_COUNT,
        status={"enum": ["completed", "incomplete", "failed"]},
        model=TEXT,
        output=a_list(_has(id=TEXT, type={"enum": ["reasoning", "message", "function_call"]})),
        usage=_or_null(_has(input_tokens=_COUNT, output_tokens=_COUNT, total_tokens=_COUNT)),
    ),
    "AnthropicMessage": _has(
        id=TEXT,
        type={"const": "message"},
        role={"const": "assistant"},
        model=TEXT,
        content=a_list(_has(type={"enum": ["thinking", "text", "tool_use"]})),
        stop_reason={
            "enum": ["end_turn", "max_tokens", "model_context_window_exceeded", "stop_sequence", "tool_use"],
        },
        stop_sequence=_TEXT_OR_NULL,
        usage=_has(input_tokens=_COUNT, output_tokens=_COUNT),
    ),
    "AnthropicCount": _has(input_tokens=_COUNT),
    "Embeddings": _has(object={"const": "list"}, data=a_list(_EMBEDDING, 1), model=TEXT, usage=_READ_USAGE),
    "Ranking": _has(id=TEXT, model=TEXT, results=a_list(_RESULT, 1), usage=_READ_USAGE),
    "Model": _has(id=TEXT, object={"const": "model"}, created=_COUNT, owned_by=TEXT, context_length=_COUNT),
    "Models": _has(object={"const": "list"}, data=a_list(_ref("Model"), 1)),
    "Tokens": _has(count=_COUNT, max_model_len=_COUNT, tokens=a_list(_COUNT), token_strs=_or_null(a_list(TEXT))),
    "Text": _has(prompt=TEXT),
    "Health": _has(status={"const": "ok"}, state={"enum": ["loading", "ready", "draining", "failed"]}),
    "Document": _has(openapi=TEXT, info=OBJECT, paths=OBJECT),
    "Ready": _has(status={"const": "ready"}),
}

REFUSALS: Mapping[int, str] = {
    400: "Something in the request can't be honoured; `param` names the field.",
    401: "There is no API key, or one that isn't this server's.",
    403: "The Host header has a name that isn't this server's.",
    404: "There is no such model, or no such thing at this path.",
    408: "The body didn't arrive in time.",
    413: "The body is larger than this server takes.",
    415: "The body's Content-Type isn't application/json, or it is compressed.",
    429: "Too many requests: of this key, or of all together.",
    500: "The server failed; nothing is wrong with the request.",
    503: "The model is being loaded, the server is about to stop, or the request waited too long.",
    504: "The answer took longer than a request may.",
}
