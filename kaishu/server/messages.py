"""POST /v1/messages and POST /v1/messages/count_tokens: Anthropic's Messages API.

Owns the routes: a body in, a message or a stream of events out. What fields mean is in messages_requests.py, the form
of answers in messages_events.py and messages_answers.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from functools import partial

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from kaishu.async_engine import EngineRequest
from kaishu.deltas import ChatDeltas
from kaishu.errors import EngineClosedError
from kaishu.openai_fields import spelt
from kaishu.prompting import Prompting
from kaishu.server.bodies import read_body
from kaishu.server.events import event
from kaishu.server.messages_answers import Json, count_object
from kaishu.server.messages_events import MessageEvents
from kaishu.server.messages_requests import MessageCall, read_count, read_messages
from kaishu.server.refusals import MESSAGES, anthropic_error
from kaishu.server.service import service_of
from kaishu.server.unknown_fields import warning_headers
from kaishu.server.waiting import EventStream, answer_of

router = APIRouter()
PING, PING_S = b'event: ping\ndata: {"type":"ping"}\n\n', 10.0


@router.post(MESSAGES)
async def messages(request: Request) -> Response:
    """Answer a conversation, in Anthropic's form."""
    service = service_of(request)
    settings, engine = service.settings, service.engine
    read = partial(read_messages, most_messages=settings.max_messages, allow_unknown=not settings.strict)
    call = await read_body(request, settings, read)
    service.check_model(call.model)
    with spelt(call.names):
        made = await asyncio.to_thread(call.with_thinking, lambda chat: engine.prompting.chat(chat, call.params))
        started = await engine.start(made.job, ChatDeltas(made.new_parser))
    events = MessageEvents(
        call.model,
        prompt_tokens=len(made.job.prompt_ids),
        max_tokens=call.max_tokens,
        only_first_call=call.only_first_call,
        shows_thought=call.shows_thought,
    )
    headers = warning_headers(call.unknown_fields)
    if call.streams:
        request_id = getattr(request.state, "request_id", None)
        return EventStream(
            _stream(events, started),
            settings,
            lambda error: event(anthropic_error(error, request_id), "error"),
            abort=started.abort,
            headers=headers,
            ping=PING,
            ping_s=PING_S,
        )
    return JSONResponse(await answer_of(request, _whole(events, started), settings), headers=headers)


@router.post(f"{MESSAGES}/count_tokens")
async def count_tokens(request: Request) -> Response:
    """How many tokens a conversation's prompt has."""
    service = service_of(request)
    settings = service.settings
    read = partial(read_count, most_messages=settings.max_messages, allow_unknown=not settings.strict)
    call = await read_body(request, settings, read)
    service.check_model(call.model)
    with spelt(call.names):
        counted = await asyncio.to_thread(_counted, service.engine.prompting, call)
    return JSONResponse(count_object(counted), headers=warning_headers(call.unknown_fields))


def _counted(prompting: Prompting, call: MessageCall) -> int:
    return len(prompting.token_ids(call.with_thinking(prompting.render)))


async def _stream(events: MessageEvents, started: EngineRequest) -> AsyncIterator[bytes]:
    cached_tokens = await started.begun()
    if cached_tokens is not None:
        yield event(events.begin(cached_tokens), "message_start")
        yield PING
    async for found in started:
        for one in events.push(found):
            yield event(one, one["type"])
    _ended(events)


async def _whole(events: MessageEvents, started: EngineRequest) -> Json:
    async for found in started:
        for _ in events.push(found):
            pass
    return _ended(events)


def _ended(events: MessageEvents) -> Json:
    """raises: EngineClosedError where somebody else aborted the request"""
    if events.message is None:
        raise EngineClosedError("The request was aborted before it was over.")
    return events.message
