"""POST /v1/chat/completions, and the word to a running one that it has thought enough.

Owns these routes: a body in, an answer or a stream of chunks out. What fields mean is in openai_requests.py, what
becomes of messages in prompting.py, the form of answers in openai_responses.py and chat_chunks.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from functools import partial

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from kaishu.async_engine import EngineRequest
from kaishu.errors import shown
from kaishu.openai_fields import spelt
from kaishu.openai_requests import read_chat
from kaishu.openai_responses import chat_response
from kaishu.server.bodies import read_body
from kaishu.server.chat_chunks import ChatChunks
from kaishu.server.events import DONE, event
from kaishu.server.refusals import RefusedError, openai_error
from kaishu.server.service import service_of
from kaishu.server.unknown_fields import warning_headers
from kaishu.server.waiting import EventStream, answer_of

router = APIRouter()


@router.post("/v1/chat/completions")
async def chat_completions(request: Request) -> Response:
    """Answer a conversation."""
    service = service_of(request)
    settings = service.settings
    read = partial(read_chat, allow_unknown=not settings.strict, may_stream=True)
    call = await read_body(request, settings, read)
    service.check_model(call.model)
    service.check_messages(call.request.messages)
    headers = warning_headers(call.unknown_fields)
    with spelt(call.names):
        started = await service.engine.add_chat(call.request, call.params)
    if call.streams:
        chunks = ChatChunks(
            call.model,
            include_usage=call.include_usage,
            wants_logprobs=call.params.logprobs is not None,
            only_first_call=call.only_first_call,
        )
        service.streams[chunks.id] = started.number

        def end() -> None:
            del service.streams[chunks.id]
            started.abort()

        return EventStream(
            _events(chunks, started), settings, lambda error: event(openai_error(error)), abort=end, headers=headers
        )
    answer = await answer_of(request, started.completion(), settings)

    def whole() -> JSONResponse:
        body = chat_response(answer, call.model, only_first_call=call.only_first_call)
        return JSONResponse(body, headers=headers)

    return await asyncio.to_thread(whole)  # many choices with log probabilities are many megabytes


@router.post("/v1/chat/completions/{chat_id}/stop_thinking", status_code=204)
async def stop_thinking(chat_id: str, request: Request) -> Response:
    """Have the thought of a chat that is being streamed end now, and its answer follow.

    chat_id: which its chunks have as `id`
    """
    service = service_of(request)
    if chat_id not in service.streams:
        raise RefusedError(
            f"No chat {shown(chat_id)} is being streamed.", status=404, code="not_found", hint="It may be over."
        )
    service.engine.stop_thinking(service.streams[chat_id])
    return Response(status_code=204)


async def _events(chunks: ChatChunks, started: EngineRequest) -> AsyncIterator[bytes]:
    async for found in started:
        for chunk in chunks.push(found):
            yield event(chunk)
    yield DONE
