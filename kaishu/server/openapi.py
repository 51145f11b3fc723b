"""GET /openapi.json: what the server can be asked, and what it answers.

Owns the document, after the OpenAPI Specification 3.1. It is written from what the routes themselves read: the bodies
from their tables of fields, with openapi_pieces.py saying what each may be and openapi_answers.py what comes back. So
a field that a table gets without a piece here is an error at once, and a route without its line one of the tests.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from kaishu import __version__
from kaishu.openai_fields import CHAT_FIELDS, COMPLETION_FIELDS, EMBEDDING_FIELDS, Field
from kaishu.server import openapi_conversations as conversations
from kaishu.server import openapi_pieces as pieces
from kaishu.server.messages_fields import COUNT_FIELDS, MESSAGE_FIELDS
from kaishu.server.openapi_answers import REFUSALS, SCHEMAS
from kaishu.server.openapi_pieces import Json, Pieces, nullable
from kaishu.server.rerank import RERANK_FIELDS
from kaishu.server.responses_requests import RESPONSE_FIELDS
from kaishu.server.service import life_of
from kaishu.server.tokens import DETOKENIZE_FIELDS, OF_CHATS, TOKENIZE_FIELDS
from kaishu.server.unknown_fields import HEADER as IGNORED_FIELDS

router = APIRouter()

_ALWAYS = (401, 403, 429, 500)
_GUARDED = (*_ALWAYS, 503)
_OF_BODIES = (400, 404, 408, 413, 415, *_GUARDED)
_OF_ANSWERS = (*_OF_BODIES, 504)
_TYPES: Mapping[type, str] = {str: "string", dict: "object"}


@dataclass(frozen=True)
class Body:
    """A body that a route reads.

    fields:   the route's table
    example:  a body, but for the model
    pieces:   of its own fields; those that it shares are pieces.COMMON
    required: fields that have to be there
    further:  what else has to be so
    """

    fields: Mapping[str, Field]
    example: Json
    pieces: Pieces = field(default_factory=dict)
    required: tuple[str, ...] = ("model",)
    further: Json = field(default_factory=dict)

    def content(self, names: tuple[str, ...]) -> Json:
        """The Media Type Object. names: of the model; empty while it isn't loaded"""
        model = {"model": names[0] if names else "NAME"} if "model" in self.required else {}
        return {"schema": self._schema(names), "example": {**model, **self.example}}

    def _schema(self, names: tuple[str, ...]) -> Json:
        return {
            "type": "object",
            "properties": {name: self._property(name, one, names) for name, one in self.fields.items()},
            "required": list(self.required),
            **self.further,
            "description": "Further fields are ignored with a warning header, or refused if the server is strict.",
        }

    def _property(self, name: str, one: Field, names: tuple[str, ...]) -> Json:
        if one.use == "read":
            piece = self.pieces[name] if name in self.pieces else pieces.COMMON[name]
            if name == "model" and names:
                piece = {"enum": list(names), "description": piece["description"]}
            return piece if name in self.required else nullable(piece)
        if one.use == "noted":
            return {"type": [_TYPES[one.kind or str], "null"], "description": "Changes nothing."}
        instead = {"description": f"At these values only. {one.instead}"} if one.instead else {}
        return {"enum": [*one.neutral, None], **instead}


@dataclass(frozen=True)
class Operation:
    """What can be done at a path.

    answer:   the name of its form in openapi_answers.SCHEMAS; None for text, or no content at all
    streams:  whether the answer may come as server-sent events
    refusals: statuses other than success
    success:  the status of an answer
    """

    method: Literal["get", "post", "delete"]
    path: str
    summary: str
    answer: str | None = None
    body: Body | None = None
    streams: bool = False
    refusals: tuple[int, ...] = _OF_ANSWERS
    success: int | None = 200

    def described(self, names: tuple[str, ...]) -> Json:
        """The Operation Object."""
        made: Json = {"summary": self.summary, "operationId": self._id(), "responses": self._responses()}
        parameters = [part[1:-1] for part in self.path.split("/") if part.startswith("{")]
        if parameters:
            made["parameters"] = [
                {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
                for name in parameters
            ]
        if self.body is not None:
            made["requestBody"] = {"required": True, "content": {"application/json": self.body.content(names)}}
        return made

    def _id(self) -> str:
        words = self.path.replace("{", "").replace("}", "").replace(".", "_").strip("/").split("/")
        return "_".join([self.method, *words])

    def _responses(self) -> Json:
        made: Json = {} if self.success is None else {str(self.success): self._success()}
        form = "AnthropicError" if self.path.startswith("/v1/messages") else "Error"
        for status in sorted(self.refusals):
            said: Json = {"description": REFUSALS[status], "content": _json(form)}
            if status in (429, 503):
                said["headers"] = {"Retry-After": _header("integer", "In how many seconds to ask again.")}
            made[str(status)] = said
        return made

    def _success(self) -> Json:
        said: Json = {"description": "The answer."}
        if self.success == 204:
            return said
        content = {"text/plain": {"schema": pieces.TEXT}} if self.answer is None else _json(self.answer)
        if self.streams:
            content = {**content, "text/event-stream": {}}
            said["description"] = "The answer; with `stream` its pieces, as server-sent events."
        if self.body is not None:
            said["headers"] = {IGNORED_FIELDS: _header("string", "Names of fields that were ignored, if any.")}
        return {**said, "content": content}


def _json(form: str) -> Json:
    return {"application/json": {"schema": {"$ref": f"#/components/schemas/{form}"}}}


def _header(kind: str, description: str) -> Json:
    return {"schema": {"type": kind}, "description": description}


_STORED = (404, *_ALWAYS)
_CONVERSATION: Json = {"messages": [{"role": "user", "content": "Hello!"}]}
_SEARCH: Json = {"query": "What does a cat drink?", "documents": ["A cat drinks milk.", "Paris is in France."]}

OPERATIONS: tuple[Operation, ...] = (
    Operation(
        "post",
        "/v1/chat/completions",
        "Answer a conversation.",
        "ChatCompletion",
        Body(CHAT_FIELDS, _CONVERSATION, pieces.CHAT, ("model", "messages")),
        streams=True,
    ),
    Operation(
        "post",
        "/v1/chat/completions/{chat_id}/stop_thinking",
        "Have the thought of a chat that is being streamed end now, and its answer follow.",
        refusals=(404, *_GUARDED),
        success=204,
    ),
    Operation(
        "post",
        "/v1/completions",
        "Continue texts.",
        "Completion",
        Body(COMPLETION_FIELDS, {"prompt": "Once", "max_tokens": 16}, pieces.COMPLETION, ("model", "prompt")),
        streams=True,
    ),
    Operation(
        "post",
        "/v1/responses",
        "Answer a conversation, in the form of the Responses API; nothing is stored.",
        "Response",
        Body(RESPONSE_FIELDS, {"input": "Hello!"}, conversations.RESPONSES, ("model", "input")),
        streams=True,
    ),
    Operation("get", "/v1/responses/{response_id}", "None is stored.", refusals=_STORED, success=None),
    Operation("delete", "/v1/responses/{response_id}", "None is stored.", refusals=_STORED, success=None),
    Operation("get", "/v1/responses/{response_id}/input_items", "None are stored.", refusals=_STORED, success=None),
    Operation("post", "/v1/responses/{response_id}/cancel", "None is stored.", refusals=_STORED, success=None),
    Operation(
        "post",
        "/v1/messages",
        "Answer a conversation, in the form of Anthropic's API.",
        "AnthropicMessage",
        Body(
            MESSAGE_FIELDS,
            {"max_tokens": 256, **_CONVERSATION},
            conversations.MESSAGES,
            ("model", "messages", "max_tokens"),
        ),
        streams=True,
    ),
    Operation(
        "post",
        "/v1/messages/count_tokens",
        "How many tokens a conversation's prompt has.",
        "AnthropicCount",
        Body(COUNT_FIELDS, _CONVERSATION, conversations.MESSAGES, ("model", "messages")),
        refusals=_OF_BODIES,
    ),
    Operation(
        "post",
        "/v1/embeddings",
        "Texts as vectors.",
        "Embeddings",
        Body(EMBEDDING_FIELDS, {"input": ["one text", "another"]}, pieces.EMBEDDING, ("model", "input")),
    ),
    Operation(
        "post",
        "/v1/rerank",
        "Put documents in the order in which they answer a query.",
        "Ranking",
        Body(RERANK_FIELDS, _SEARCH, pieces.RERANK, ("model", "query", "documents")),
    ),
    Operation("get", "/v1/models", "List the names of the model.", "Models", refusals=_GUARDED),
    Operation("get", "/v1/models/{name}", "One of them.", "Model", refusals=(404, *_GUARDED)),
    Operation(
        "post",
        "/tokenize",
        "The tokens of a text, or of a conversation as the model reads it.",
        "Tokens",
        Body(TOKENIZE_FIELDS, {"prompt": "Once upon a time"}, pieces.TOKENS, (), pieces.prompt_or_messages(OF_CHATS)),
        refusals=_OF_BODIES,
    ),
    Operation(
        "post",
        "/detokenize",
        "The text of tokens.",
        "Text",
        Body(DETOKENIZE_FIELDS, {"tokens": [1, 2, 3]}, pieces.TOKENS, ("tokens",)),
        refusals=_OF_BODIES,
    ),
    Operation("get", "/health", "Whether the process lives; it does when it answers.", "Health", refusals=(403, 500)),
    Operation("get", "/ready", "Whether requests are answered.", "Ready", refusals=(403, 500, 503)),
    Operation("get", "/metrics", "Everything that is counted, for Prometheus.", refusals=_ALWAYS),
    Operation("get", "/openapi.json", "This document.", "Document", refusals=_ALWAYS),
)


def document(names: tuple[str, ...] = ()) -> Json:
    """The OpenAPI Object. names: of the model; empty while it isn't loaded"""
    paths: dict[str, Json] = {}
    for operation in OPERATIONS:
        paths.setdefault(operation.path, {})[operation.method] = operation.described(names)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Kaishu",
            "version": __version__,
            "description": "A language model behind the forms of OpenAI's and Anthropic's APIs.",
        },
        "paths": paths,
        "components": {
            "schemas": {**pieces.SHARED_SCHEMAS, **SCHEMAS},
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "header": {"type": "apiKey", "in": "header", "name": "X-Api-Key"},
            },
        },
        # The server may ask for a key, or for none.
        "security": [{}, {"bearer": []}, {"header": []}],
    }


@router.get("/openapi.json", include_in_schema=False)
async def openapi_document(request: Request) -> Response:
    """The document, with the names of the model once they are known."""
    service = life_of(request).service
    names = () if service is None else service.names
    return await asyncio.to_thread(lambda: JSONResponse(document(names)))
