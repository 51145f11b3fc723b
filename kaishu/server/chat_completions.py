"""POST /v1/chat/completions.

Owns the route: a body in, an answer or a stream of chunks out. What fields mean is in openai_requests.py, what becomes
of messages in prompting.py, the form of answers in openai_responses.py and chat_chunks.py.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from kaishu.async_engine import EngineRequest
from kaishu.openai_fields import spelt
from kaishu.openai_requests import ChatCall, read_chat
from kaishu.openai_responses import chat_response
from kaishu.server.bodies import json_body
from kaishu.server.chat_chunks import ChatChunks
from kaishu.server.events import DONE, event
from kaishu.server.refusals import openai_error
from kaishu.server.service import service_of
from kaishu.server.unknown_fields import warning_headers
from kaishu.server.waiting import EventStream, answer_of

router = APIRouter()


@router.post("/v1/chat/completions")
async def chat_completions(request: Request) -> Response:
    """Answer a conversation."""
    service = service_of(request)
    settings = service.settings
    call = read_chat(await json_body(request, settings), allow_unknown=not settings.strict, may_stream=True)
    service.check_model(call.model)
    service.check_messages(call.request.messages)
    headers = warning_headers(call.unknown_fields)
    with spelt(call.names):
        started = await service.engine.add_chat(call.request, call.params)
    if call.streams:
        return EventStream(_events(call, started), settings, lambda error: event(openai_error(error)), headers)
    answer = await answer_of(request, started.completion(), settings)
    return JSONResponse(chat_response(answer, call.model, only_first_call=call.only_first_call), headers=headers)


async def _events(call: ChatCall, started: EngineRequest) -> AsyncIterator[bytes]:
    chunks = ChatChunks(
        call.model,
        include_usage=call.include_usage,
        wants_logprobs=call.params.logprobs is not None,
        only_first_call=call.only_first_call,
    )
    async for found in started:
        for chunk in chunks.push(found):
            yield event(chunk)
    yield DONE
