"""POST /v1/completions: texts continued, without a chat template.

Owns the route. What fields mean is in openai_requests.py; several prompts run side by side (many.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import aclosing
from functools import partial

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from kaishu.async_engine import Engine
from kaishu.engine.jobs import Generate, room_of
from kaishu.errors import InvalidRequestError
from kaishu.openai_fields import spelt
from kaishu.openai_requests import CompletionCall, read_completion
from kaishu.openai_responses import Echo, completion_response, echo_of
from kaishu.results import Completion, CompletionEnd, PromptRead
from kaishu.server.bodies import read_body
from kaishu.server.completion_chunks import CompletionChunks
from kaishu.server.events import DONE, event
from kaishu.server.many import merged
from kaishu.server.refusals import openai_error
from kaishu.server.service import service_of
from kaishu.server.settings import ServerSettings
from kaishu.server.unknown_fields import warning_headers
from kaishu.server.waiting import EventStream, answer_of

router = APIRouter()
MAX_ECHOED_LOGPROBS = 2_000_000  # of one request; each takes a hundred bytes and more, and little to compute


@router.post("/v1/completions")
async def completions(request: Request) -> Response:
    """Continue texts."""
    service = service_of(request)
    settings, engine = service.settings, service.engine
    read = partial(read_completion, allow_unknown=not settings.strict, may_stream=True)
    call = await read_body(request, settings, read)
    service.check_model(call.model)
    headers = warning_headers(call.unknown_fields)
    with spelt(call.names):
        jobs, echoes = await asyncio.to_thread(_jobs, call, engine)
    if call.streams:
        events = _events(call, engine, jobs, echoes, settings)
        return EventStream(events, settings, lambda error: event(openai_error(error)), headers=headers)
    answers = await answer_of(request, _answers(call, engine, jobs, settings), settings)

    def whole() -> JSONResponse:
        return JSONResponse(completion_response(answers, call.model, echoes=echoes), headers=headers)

    return await asyncio.to_thread(whole)


def _jobs(call: CompletionCall, engine: Engine) -> tuple[list[Generate], list[Echo] | None]:
    jobs = []
    for place, prompt in enumerate(call.prompts):
        name = f"prompt[{place}]" if len(call.prompts) > 1 else "prompt"
        with spelt({"prompt": name, "text": name}):
            jobs.append(engine.prompting.completion(prompt, call.params, priority=call.priority))
            room_of(jobs[-1], engine.loaded.limits)  # it refuses what doesn't fit, before a stream begins
    if not call.echo:
        return jobs, None
    if call.params.prompt_logprobs is not None:
        num_tokens = call.params.n * sum(len(job.prompt_ids) for job in jobs)
        num_logprobs = num_tokens * (1 + call.params.prompt_logprobs)
        if num_logprobs > MAX_ECHOED_LOGPROBS:
            raise InvalidRequestError(
                f"logprobs of the prompts, for each of their n choices, would be {num_logprobs:,}; "
                f"allowed: {MAX_ECHOED_LOGPROBS:,}.",
                field="logprobs",
                hint="Ask for fewer prompts, choices or alternatives in one request.",
            )
    tokenizer = engine.loaded.tokenizer
    return jobs, [echo_of(prompt, job.prompt_ids, tokenizer) for prompt, job in zip(call.prompts, jobs, strict=True)]


async def _answers(
    call: CompletionCall, engine: Engine, jobs: Sequence[Generate], settings: ServerSettings
) -> list[Completion]:
    answers: dict[int, Completion] = {}
    with spelt(call.names):
        async with aclosing(merged(engine, jobs, settings, call.new_deltas)) as deltas:
            async for place, found in deltas:
                if isinstance(found.delta, CompletionEnd):
                    answers[place] = found.delta.completion
    return [answers[place] for place in range(len(jobs))]


async def _events(
    call: CompletionCall,
    engine: Engine,
    jobs: Sequence[Generate],
    echoes: Sequence[Echo] | None,
    settings: ServerSettings,
) -> AsyncIterator[bytes]:
    chunks = CompletionChunks(call, echoes)
    with spelt(call.names):
        async with aclosing(merged(engine, jobs, settings, call.new_deltas)) as deltas:
            async for place, found in deltas:
                made: Iterator[bytes] = (event(chunk) for chunk in chunks.push(place, found))
                if isinstance(found.delta, PromptRead):  # it may be megabytes
                    made = iter(await asyncio.to_thread(list, made))
                for one in made:
                    yield one
    for chunk in chunks.end():
        yield event(chunk)
    yield DONE
