"""POST /tokenize and /detokenize: the model's tokens of a text or chat, and back.

Owns these routes, and the form of their bodies and answers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from kaishu.errors import InvalidParameterError, InvalidRequestError
from kaishu.openai_fields import CHAT_FIELDS, Field, boolean, read_fields, spelt
from kaishu.openai_requests import read_thinking
from kaishu.openai_responses import Json
from kaishu.prompting import ChatRequest
from kaishu.server.bodies import read_body
from kaishu.server.service import Service, service_of
from kaishu.server.unknown_fields import warning_headers
from kaishu.text.tokenizer import check_text

router = APIRouter()
_READ = Field("read")
OF_CHATS = ("tools", "enable_thinking", "reasoning_effort", "chat_template_kwargs", "continue_final_message")
TOKENIZE_FIELDS: Mapping[str, Field] = {
    **{name: CHAT_FIELDS[name] for name in ("model", "messages", *OF_CHATS)},
    **dict.fromkeys(("prompt", "return_token_strs"), _READ),
}
DETOKENIZE_FIELDS: Mapping[str, Field] = dict.fromkeys(("model", "tokens"), _READ)


@router.post("/tokenize")
async def tokenize(request: Request) -> Response:
    """The tokens of a text (`prompt`) or of a conversation as the model reads it (`messages`)."""
    service = service_of(request)
    fields, headers = await _fields(request, service, TOKENIZE_FIELDS)
    return await asyncio.to_thread(lambda: JSONResponse(_tokenized(service, fields), headers=headers))


@router.post("/detokenize")
async def detokenize(request: Request) -> Response:
    """The text of tokens."""
    service = service_of(request)
    fields, headers = await _fields(request, service, DETOKENIZE_FIELDS)
    if "tokens" not in fields:
        raise InvalidRequestError("tokens is missing; allowed: a list of token ids.", field="tokens")
    return await asyncio.to_thread(lambda: JSONResponse(_detokenized(service, fields["tokens"]), headers=headers))


async def _fields(
    request: Request, service: Service, table: Mapping[str, Field]
) -> tuple[dict[str, Any], dict[str, str]]:
    read = partial(read_fields, table=table, allow_unknown=not service.settings.strict)
    fields, unknown = await read_body(request, service.settings, read)
    if "model" in fields:  # there is only one, so it may be left out
        if not isinstance(fields["model"], str):
            raise InvalidParameterError("model", fields["model"], "the name of a model")
        service.check_model(fields["model"])
    return fields, warning_headers(unknown)


def _tokenized(service: Service, fields: Mapping[str, Any]) -> Json:
    """raises: InvalidRequestError and its kinds, TemplateError"""
    prompting, tokenizer = service.engine.prompting, service.engine.loaded.tokenizer
    if ("prompt" in fields) == ("messages" in fields):
        raise InvalidRequestError("Give one of prompt and messages.", field="prompt")
    with_texts = boolean(fields, "return_token_strs", False)
    if "prompt" in fields:
        for name in OF_CHATS:
            if name in fields:
                raise InvalidParameterError(name, fields[name], "null with prompt; it goes with messages")
        check_text(fields["prompt"], field="prompt")
        ids = prompting.token_ids(fields["prompt"])
    else:
        service.check_messages(fields["messages"])
        names = {"template_arguments": "chat_template_kwargs", "prompt": "messages"}
        thinking, template_arguments = read_thinking(fields, names)
        chat = ChatRequest(
            fields["messages"],
            fields.get("tools"),
            thinking=thinking,
            continue_final_message=boolean(fields, "continue_final_message", False),
            template_arguments=template_arguments,
        )
        with spelt(names):
            ids = prompting.token_ids(prompting.render(chat))
    texts = [tokenizer.token_bytes(one).decode("utf-8", errors="replace") for one in ids] if with_texts else None
    context_tokens = service.engine.loaded.context_tokens
    return {"count": len(ids), "max_model_len": context_tokens, "tokens": ids, "token_strs": texts}


def _detokenized(service: Service, tokens: object) -> Json:
    """raises: InvalidParameterError"""
    token_ids = service.engine.prompting.checked_ids("tokens", tokens)
    return {"prompt": service.engine.loaded.tokenizer.decode(token_ids)}
