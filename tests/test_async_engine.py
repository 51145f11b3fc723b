"""Engine: many requests from one event loop, each with the answer that it would have alone."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from kaishu.async_engine import Engine
from kaishu.engine.core import EngineSettings
from kaishu.engine.jobs import Read
from kaishu.errors import ContextLengthError, EngineClosedError, InvalidRequestError, QueueFullError
from kaishu.llm import LLM
from kaishu.prompting import ChatRequest
from kaishu.results import ChatEnd, TextDelta
from kaishu.sampling import SamplingParams
from kaishu.text.channels import ContentDelta

QUESTIONS = ["Hi", "What is 17 + 5?", "Sort: 3, 1, 2", "你好", "Hi"]
GREEDY = SamplingParams(temperature=0.0, max_tokens=48)
ENDLESS = SamplingParams(temperature=0.0, max_tokens=900, ignore_eos=True)


def run(coroutine: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(asyncio.wait_for(coroutine, 120))


def asked(question: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": question}]


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM("tiny", threads=1, context_tokens=1024)


def test_requests_together_get_what_each_gets_alone(llm: LLM) -> None:
    async def together() -> list[Any]:
        async with Engine("tiny", threads=1, context_tokens=1024) as engine:
            requests = [await engine.add_chat(asked(question), GREEDY) for question in QUESTIONS]
            return list(await asyncio.gather(*(request.completion() for request in requests)))

    answers = run(together())
    for question, answer in zip(QUESTIONS, answers, strict=True):
        alone = llm.chat(asked(question), params=GREEDY)
        assert (answer.content, answer.reasoning, answer.token_ids) == (alone.content, alone.reasoning, alone.token_ids)


def test_deltas_add_up_to_the_answer_and_name_their_choice() -> None:
    async def collected() -> tuple[dict[int, str], Any]:
        async with Engine("tiny", threads=1, context_tokens=1024) as engine:
            request = await engine.add_chat(
                ChatRequest(asked("Hi"), thinking=False), replace(GREEDY, n=3, temperature=1.0, seed=0)
            )
            texts, end = dict.fromkeys(range(3), ""), None
            async for found in request:
                if isinstance(found.delta, ContentDelta):
                    texts[found.choice] += found.delta.text
                elif isinstance(found.delta, ChatEnd):
                    end = found.delta.completion
            return texts, end

    texts, end = run(collected())
    assert [texts[0], texts[1], texts[2]] == [end.content, *(other.content for other in end.alternatives)]


def test_a_reader_that_leaves_gives_its_pages_back_and_others_go_on(llm: LLM) -> None:
    async def left() -> tuple[Any, Any]:
        async with Engine("tiny", threads=1, context_tokens=1024) as engine:
            other = await engine.add_chat(asked("Hi"), GREEDY)
            request = await engine.add("The sun", ENDLESS)
            async for found in request:
                if isinstance(found.delta, TextDelta):
                    break
            answer = await other.completion()
            while engine.statistics().held_pages:
                await asyncio.sleep(0.01)
            return engine.statistics(), answer

    statistics, answer = run(left())
    assert (statistics.aborted, statistics.running, statistics.waiting) == (1, 0, 0)
    assert answer.content == llm.chat(asked("Hi"), params=GREEDY).content


def test_whoever_waits_for_a_request_that_somebody_else_ends_is_told() -> None:
    async def aborted() -> None:
        async with Engine("tiny", threads=1, context_tokens=1024) as engine:
            request = await engine.add("The sun", ENDLESS)
            asyncio.get_running_loop().call_later(0.02, engine.abort, request.number)
            with pytest.raises(EngineClosedError, match="aborted"):
                await request.completion()

    run(aborted())


def test_closing_ends_every_request_and_the_thread() -> None:
    async def closed() -> None:
        engine = Engine("tiny", threads=1, context_tokens=1024)
        request = await engine.add("The sun", ENDLESS)
        await engine.close()
        with pytest.raises(EngineClosedError, match="closed"):
            await request.completion()
        with pytest.raises(EngineClosedError, match="closed"):
            await engine.add("The sun")
        assert not any(thread.name == "kaishu-engine" for thread in threading.enumerate())

    run(closed())


def test_what_is_refused_is_refused_when_it_is_added() -> None:
    async def refused() -> None:
        async with Engine("tiny", threads=1, context_tokens=64, settings=EngineSettings(max_waiting=0)) as engine:
            with pytest.raises(ContextLengthError):
                await engine.add([1] * 64)
            with pytest.raises(InvalidRequestError):
                await engine.add("")
            with pytest.raises(QueueFullError, match="0 requests are waiting"):
                await engine.add("Hi")

    run(refused())


def test_a_thought_can_be_told_to_end() -> None:
    async def stopped() -> Any:
        async with Engine("tiny", threads=1, context_tokens=1024) as engine:
            request = await engine.add_chat(ChatRequest(asked("Hi"), thinking=True), replace(GREEDY, max_tokens=200))
            engine.stop_thinking(request.number)
            return await request.completion()

    answer = run(stopped())
    assert answer.content and answer.usage.reasoning_tokens < 4


def test_rows_are_those_of_the_blocking_api(llm: LLM) -> None:
    async def read() -> Any:
        async with Engine("tiny", threads=1, context_tokens=1024) as engine:
            return await engine.read(Read([5, 6, 7], "all_logits"))

    assert np.array_equal(run(read()), llm.logits([5, 6, 7]))


def test_a_bug_in_a_step_fails_requests_and_not_the_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken() -> None:
        async with Engine("tiny", threads=1, context_tokens=1024) as engine:
            with monkeypatch.context() as patched:
                patched.setattr(engine._core._scheduler, "plan", lambda: 1 / 0)
                request = await engine.add("Hi", GREEDY)
                with pytest.raises(ZeroDivisionError):
                    await request.completion()
            assert (await (await engine.add("Hi", GREEDY)).completion()).finish_reason in ("stop", "length")

    run(broken())


def test_when_a_request_is_begun_with_it_is_known_what_of_its_prompt_was_cached() -> None:
    async def begun() -> None:
        async with Engine("tiny", threads=1, context_tokens=1024) as engine:
            prompt = list(range(100, 400))
            found = []
            for _ in range(2):
                request = await engine.add(prompt, replace(GREEDY, max_tokens=2))
                found.append(await request.begun())
                assert (await request.completion()).usage.cached_tokens == found[-1] == await request.begun()
            assert found[0] == 0 and found[1] > 200
            late = await engine.add(prompt, GREEDY)
            late.abort()
            assert await late.begun() in (None, found[1]), "it waits for no request that is over"

    run(begun())
