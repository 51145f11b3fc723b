"""POST /v1/responses, and what there is to say of stored responses: that there are none.

Owns these routes: a body in, a response or a stream of events out. What fields mean is in responses_requests.py and
responses_input.py, the form of answers in responses_answers.py and responses_events.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from kaishu.async_engine import EngineRequest
from kaishu.errors import EngineClosedError, shown
from kaishu.openai_fields import spelt
from kaishu.openai_responses import Json
from kaishu.results import ChatEnd
from kaishu.server.bodies import read_body
from kaishu.server.events import event
from kaishu.server.refusals import RefusedError
from kaishu.server.responses_events import ResponseEvents
from kaishu.server.responses_requests import ResponseCall, read_response
from kaishu.server.service import Service, service_of
from kaishu.server.unknown_fields import warning_headers
from kaishu.server.waiting import EventStream, answer_of

router = APIRouter()


@router.post("/v1/responses")
async def responses(request: Request) -> Response:
    """Answer a conversation."""
    service = service_of(request)
    settings = service.settings
    call = await read_body(request, settings, lambda body: _read(body, service))
    headers = warning_headers(call.unknown_fields)
    with spelt(call.names):
        started = await service.engine.add_chat(call.request, call.params)
    params = call.params.with_defaults(service.engine.loaded.config.generation)
    events = ResponseEvents(
        call.model, call.echo, params, only_first_call=call.only_first_call, packs_thoughts=call.packs_thoughts
    )
    if call.streams:
        return EventStream(
            _streamed(started, events),
            settings,
            lambda error: _sent(events.failed(error)),
            abort=started.abort,
            headers=headers,
        )
    answer = await answer_of(request, _whole(started, events), settings)
    return await asyncio.to_thread(lambda: JSONResponse(answer, headers=headers))  # log probabilities are megabytes


@router.api_route("/v1/responses/{response_id}", methods=["GET", "DELETE"])
@router.get("/v1/responses/{response_id}/input_items")
@router.post("/v1/responses/{response_id}/cancel")
async def stored_response(response_id: str) -> Response:
    """There are none: a response is its request's answer, and is kept by whoever asked."""
    raise RefusedError(
        f"There is no response {shown(response_id)}: nothing is stored here.",
        status=404,
        code="not_stored",
        hint="Keep the answer yourself, and give the whole conversation as input.",
    )


def _read(body: object, service: Service) -> ResponseCall:
    if isinstance(body, dict):
        with spelt({"messages": "input"}):
            service.check_messages(body.get("input"))
    call = read_response(body, allow_unknown=not service.settings.strict)
    service.check_model(call.model)
    return call


async def _whole(started: EngineRequest, events: ResponseEvents) -> Json:
    async for _ in _each(started, events):
        pass
    return events.response


async def _streamed(started: EngineRequest, events: ResponseEvents) -> AsyncIterator[bytes]:
    async for made in _each(started, events):
        yield event(made, made["type"])


async def _each(started: EngineRequest, events: ResponseEvents) -> AsyncIterator[Json]:
    is_over = False
    async for found in started:
        for made in events.push(found):
            yield made
        is_over = isinstance(found.delta, ChatEnd)
    if not is_over:
        raise EngineClosedError("The request was aborted before it was over.")


def _sent(events: Iterable[Json]) -> bytes:
    return b"".join(event(made, made["type"]) for made in events)
