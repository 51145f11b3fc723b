"""One request that is several jobs of the engine: prompts to complete, texts to read.

Owns how many of them are in the engine at once, so that one request doesn't fill the queue; that a full queue refuses
all of them or none; and that all end when one fails or the client leaves. Knows nothing of what the jobs are for.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from typing import Any, TypeVar

from kaishu.async_engine import Engine
from kaishu.deltas import ChoiceDelta, CompletionDeltas
from kaishu.engine.jobs import Generate, Read
from kaishu.server.settings import ServerSettings

AT_ONCE = 32  # jobs of one request
Result = TypeVar("Result")


def at_once(settings: ServerSettings) -> int:
    """How many jobs of one request may be in the engine: no more than may wait there, or it would refuse its own."""
    return min(AT_ONCE, settings.max_waiting)


async def rows_of(
    engine: Engine, jobs: Sequence[Read], settings: ServerSettings, keep: Callable[[Any], Result]
) -> list[Result]:
    """What Engine.read gives for each job, or what is kept of it: a row of logits is 600 KB.

    raises: as Engine.read
    """

    async def one(job: Read, let_in: asyncio.Event) -> Result:
        return keep(await engine.read(job, let_in=let_in))

    return await _each(jobs, one, at_once(settings))


async def merged(
    engine: Engine,
    jobs: Sequence[Generate],
    settings: ServerSettings,
    new_deltas: Callable[[], CompletionDeltas] = CompletionDeltas,
) -> AsyncGenerator[tuple[int, ChoiceDelta], None]:
    """The deltas of all jobs as they come, each with its job's place.

    new_deltas: makes what reads one job's events
    raises: as Engine.start and its requests do
    """
    found: asyncio.Queue[tuple[int, ChoiceDelta] | None] = asyncio.Queue(1)  # a slow reader holds all of them up
    numbered = list(enumerate(jobs))

    async def one(numbered_job: tuple[int, Generate], let_in: asyncio.Event) -> None:
        place, job = numbered_job
        started = await engine.start(job, new_deltas(), let_in=let_in)
        async with aclosing(started.__aiter__()) as deltas:
            async for delta in deltas:
                await found.put((place, delta))

    async def all_of_them() -> None:
        try:
            await _each(numbered, one, at_once(settings))
        finally:
            await found.put(None)

    running = asyncio.create_task(all_of_them())
    try:
        while (delta := await found.get()) is not None:
            yield delta
        await running
    finally:
        running.cancel()
        while not running.done():  # it may still want to say that it is over
            if found.full():
                found.get_nowait()
            await asyncio.sleep(0)
        if not running.cancelled():
            running.exception()  # nobody is left to be told


async def _each(
    jobs: Sequence[Any], call: Callable[[Any, asyncio.Event], Awaitable[Result]], most: int
) -> list[Result]:
    """Results in the order of the jobs, `most` of them at once; the first failure ends all others and is raised.

    call: given a job and what it sets when the engine has let the job in. Nobody begins before the first is in, so that
          a full queue refuses the request before anything of it is done, and none afterwards
    """
    limit, let_in = asyncio.Semaphore(most), asyncio.Event()

    async def one(place: int, job: Any) -> Result:
        if place:
            await let_in.wait()
        async with limit:
            return await call(job, let_in)

    tasks = [asyncio.ensure_future(one(place, job)) for place, job in enumerate(jobs)]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
