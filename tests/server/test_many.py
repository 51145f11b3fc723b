"""Several jobs of one request: side by side, in order, never too many, and all over when one fails or nobody waits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import aclosing, asynccontextmanager
from typing import Any

import numpy as np
import pytest

from kaishu.async_engine import Engine, EngineRequest
from kaishu.deltas import CompletionDeltas
from kaishu.engine.core import EngineSettings
from kaishu.engine.jobs import Generate, Read
from kaishu.engine.scheduler import Budget
from kaishu.errors import ContextLengthError, QueueFullError
from kaishu.loading import LoadedModel
from kaishu.results import CompletionEnd
from kaishu.sampling import SamplingParams
from kaishu.server.many import AT_ONCE, at_once, merged, rows_of
from kaishu.server.settings import ServerSettings
from tests.scripted import state_of
from tests.server.steady import SteadyExecutor, steady_model

SETTINGS = ServerSettings(port=0)
Test = Callable[[Engine, SteadyExecutor], Coroutine[Any, Any, None]]


@pytest.fixture
def run(tiny_model: LoadedModel) -> Callable[..., None]:
    """`run(test, max_running=…, max_waiting=…)`: a coroutine function, given an engine and its executor."""

    @asynccontextmanager
    async def engine_of(max_running: int, max_waiting: int) -> AsyncIterator[tuple[Engine, SteadyExecutor]]:
        model, executor = steady_model(tiny_model)
        executor.step_seconds = 0.0
        settings = EngineSettings(Budget(running=max_running), max_waiting=max_waiting, speculation=False)
        async with Engine(model, settings=settings) as engine:
            yield engine, executor

    def runs(test: Test, max_running: int = 8, max_waiting: int = 256) -> None:
        async def main() -> None:
            async with asyncio.timeout(60), engine_of(max_running, max_waiting) as (engine, executor):
                await test(engine, executor)
                tasks = asyncio.all_tasks() - {asyncio.current_task()}
                assert not tasks, "no task is left"
                await idle(engine)

        asyncio.run(main())

    return runs


async def idle(engine: Engine) -> None:
    while (now := engine.statistics()).running or now.waiting or now.held_pages:
        await asyncio.sleep(0.002)


def job(*token_ids: int, max_tokens: int = 5, n: int = 1) -> Generate:
    return Generate(list(token_ids), SamplingParams(max_tokens=max_tokens, n=n, temperature=0.0))


async def texts(engine: Engine, jobs: list[Generate], settings: ServerSettings = SETTINGS) -> dict[int, str]:
    found: dict[int, str] = {}
    async with aclosing(merged(engine, jobs, settings)) as deltas:
        async for place, delta in deltas:
            if isinstance(delta.delta, CompletionEnd):
                found[place] = delta.delta.completion.text
    return found


def test_each_job_gets_what_it_gets_alone(run):
    async def test(engine: Engine, _: SteadyExecutor) -> None:
        jobs = [job(i, i + 1, max_tokens=3 + i % 4) for i in range(50)]
        alone = {place: (await texts(engine, [one]))[0] for place, one in enumerate(jobs)}
        assert await texts(engine, jobs) == alone and len(set(alone.values())) > 10

    run(test)


def test_never_more_than_a_few_are_in_the_engine(run, monkeypatch):
    most = 0

    async def test(engine: Engine, _: SteadyExecutor) -> None:
        enter = engine._enter

        def noted(start: Any) -> Any:
            nonlocal most
            stream, now = enter(start), engine.statistics()
            most = max(most, now.running + now.waiting)
            return stream

        monkeypatch.setattr(engine, "_enter", noted)
        assert len(await texts(engine, [job(i) for i in range(100)])) == 100
        rows = await rows_of(engine, [Read([i], "last_hidden") for i in range(100)], SETTINGS, lambda row: row)
        assert len(rows) == 100

    run(test, max_running=4)
    assert 8 < most <= AT_ONCE


@pytest.mark.parametrize("max_waiting", [1, 2, 100])
def test_one_request_never_fills_the_queue_for_itself(run, max_waiting):
    settings = ServerSettings(port=0, max_waiting=max_waiting, max_running=1)
    assert at_once(settings) == min(max_waiting, AT_ONCE)

    async def test(engine: Engine, _: SteadyExecutor) -> None:
        assert len(await texts(engine, [job(i) for i in range(20)], settings)) == 20

    run(test, max_running=1, max_waiting=max_waiting)


def test_one_failure_ends_all_others_and_is_raised(run):
    async def test(engine: Engine, executor: SteadyExecutor) -> None:
        executor.step_seconds = 0.002
        jobs = [job(1, max_tokens=900), job(2, max_tokens=900), job(*range(2000)), job(3, max_tokens=900)]
        with pytest.raises(ContextLengthError):
            await texts(engine, jobs)
        await idle(engine)
        assert len(executor.steps) < 500, "nobody went on to the end"

    run(test)


def test_a_failure_in_the_middle_ends_all_others_and_is_raised(run):
    async def test(engine: Engine, executor: SteadyExecutor) -> None:
        executor.step_seconds = 0.002
        seen = 0
        with pytest.raises(ZeroDivisionError):
            async with aclosing(merged(engine, [job(i, max_tokens=900) for i in range(4)], SETTINGS)) as deltas:
                async for _ in deltas:
                    seen += 1
                    if seen == 20:
                        executor.fails = ZeroDivisionError()
        assert seen >= 20

    run(test)


def test_a_full_queue_refuses_all_of_a_request(run):
    async def test(engine: Engine, executor: SteadyExecutor) -> None:
        executor.may_step.clear()
        others: list[EngineRequest] = []
        try:
            with pytest.raises(QueueFullError):
                while len(others) < 10:
                    others.append(await engine.start(job(1, max_tokens=100), CompletionDeltas()))
            with pytest.raises(QueueFullError):
                await texts(engine, [job(5), job(6)])
            with pytest.raises(QueueFullError):
                await rows_of(engine, [Read([5], "last_hidden")] * 2, SETTINGS, lambda row: row)
        finally:
            executor.may_step.set()
        for other in others:
            other.abort()

    run(test, max_running=2, max_waiting=2)


@pytest.mark.parametrize("reads", [False, True])
def test_a_request_that_is_let_in_waits_for_room_where_others_fill_the_queue(run, monkeypatch, reads):
    refused: list[object] = []

    async def test(engine: Engine, executor: SteadyExecutor) -> None:
        enter = engine._enter

        def noted(start: Any) -> Any:
            try:
                return enter(start)
            except QueueFullError:
                refused.append(start)
                raise

        monkeypatch.setattr(engine, "_enter", noted)
        others = [await engine.start(job(1, max_tokens=100), CompletionDeltas())]
        running = aiter(others[0])
        await anext(running)
        executor.may_step.clear()
        try:
            others += [await engine.start(job(2, max_tokens=3), CompletionDeltas()) for _ in range(2)]
            asked = [Read([5], "last_hidden")] * 4 if reads else [job(5), job(6), job(7), job(8)]
            settings = ServerSettings(port=0, max_waiting=3)
            answering = asyncio.ensure_future(
                rows_of(engine, asked, settings, lambda row: row) if reads else texts(engine, asked, settings)
            )
            while len(set(refused)) < 2:
                await asyncio.sleep(0.002)
            assert not answering.done()
        finally:
            executor.may_step.set()
        assert len(await answering) == 4
        await running.aclose()
        for other in others:
            other.abort()

    run(test, max_running=1, max_waiting=3)


@pytest.mark.parametrize("num_read", [0, 1, 7])
def test_a_reader_that_leaves_ends_all(run, num_read):
    async def test(engine: Engine, executor: SteadyExecutor) -> None:
        executor.step_seconds = 0.002
        async with aclosing(merged(engine, [job(i, max_tokens=900, n=2) for i in range(40)], SETTINGS)) as deltas:
            for _ in range(num_read):
                await anext(deltas)
        await idle(engine)
        assert len(executor.steps) < 300, "nobody went on to the end"

    run(test)


def test_a_reader_that_is_cancelled_ends_all(run):
    async def test(engine: Engine, executor: SteadyExecutor) -> None:
        executor.step_seconds = 0.002
        task = asyncio.create_task(texts(engine, [job(i, max_tokens=900) for i in range(4)]))
        reading = asyncio.create_task(
            rows_of(engine, [Read([1] * 900, "last_hidden")] * 200, SETTINGS, lambda row: row)
        )
        await asyncio.sleep(0.05)
        for one in (task, reading):
            one.cancel()
            with pytest.raises(asyncio.CancelledError):
                await one
        await idle(engine)
        assert len(executor.steps) < 500, "nobody went on to the end"

    run(test)


def test_rows_come_in_the_order_of_the_texts_and_only_what_is_kept(run):
    async def test(engine: Engine, _: SteadyExecutor) -> None:
        ids = [[i, 2 * i] for i in range(50)]
        jobs = [Read(one, "last_hidden") for one in ids]
        found = await rows_of(engine, jobs, SETTINGS, lambda row: row[0, :3])
        np.testing.assert_array_equal(np.stack(found), [state_of(one)[:3] for one in ids])

    run(test)


def test_a_text_that_cannot_be_read_ends_all_others(run):
    async def test(engine: Engine, executor: SteadyExecutor) -> None:
        jobs = [*[Read([1] * 900, "last_hidden")] * 5, Read([1] * 2000, "last_hidden")]
        with pytest.raises(ContextLengthError):
            await rows_of(engine, jobs, SETTINGS, lambda row: row)
        await idle(engine)

    run(test)
