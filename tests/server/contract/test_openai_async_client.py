"""OpenAI's asynchronous Python client against a live server: many at once, streams, cancellation, errors."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import openai
import pytest

from tests.server.conftest import LiveServer
from tests.server.contract.conftest import ASKED, CALLS, TOOLS

PROMPTS = ["What is 17 + 5?", "Hi", "你好", "Tell me a story.", "What is 3 * 4?", "北京在哪里？"]


@asynccontextmanager
async def client_of(server: LiveServer) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="x", max_retries=0, timeout=60) as client:
        yield client


def run(server: LiveServer, test: Callable[[openai.AsyncOpenAI], Awaitable[Any]]) -> Any:
    async def main() -> Any:
        async with client_of(server) as client:
            return await test(client)

    return asyncio.run(main())


def asked(prompt: str, **fields: Any) -> dict[str, Any]:
    return {**ASKED, "messages": [{"role": "user", "content": prompt}], "max_tokens": 40, **fields}


def test_chats_at_the_same_time_get_what_each_gets_alone(tiny):
    async def one(client: openai.AsyncOpenAI, prompt: str, stream: bool) -> tuple[str, str]:
        answer = await client.chat.completions.create(**asked(prompt), stream=stream)
        if not stream:
            message = answer.choices[0].message
            return getattr(message, "reasoning_content", ""), message.content
        thought = content = ""
        async for chunk in answer:
            delta = chunk.choices[0].delta
            thought += getattr(delta, "reasoning_content", None) or ""
            content += delta.content or ""
        return thought, content

    async def test(client: openai.AsyncOpenAI) -> None:
        alone = [await one(client, prompt, stream=False) for prompt in PROMPTS]
        for stream in (False, True):
            together = await asyncio.gather(*(one(client, prompt, stream) for prompt in PROMPTS * 3))
            assert together == alone * 3

    run(tiny, test)
    tiny.wait_until_idle()


def test_streamed_calls_add_up(scripted):
    async def test(client: openai.AsyncOpenAI) -> None:
        async with client.chat.completions.stream(**ASKED, tools=TOOLS) as stream:
            async for _ in stream:
                pass
            answer = await stream.get_final_completion()
        names = [call.function.name for call in answer.choices[0].message.tool_calls]
        assert names == ["get_weather", "get_time"]

    run(scripted(CALLS), test)


@pytest.mark.parametrize("stream", [False, True])
def test_a_task_that_is_cancelled_frees_its_work(steady, stream):
    server, executor = steady()

    async def test(client: openai.AsyncOpenAI) -> None:
        async def read() -> None:
            answer = await client.chat.completions.create(**ASKED, stream=stream)
            async for _ in answer:
                pass

        task = asyncio.create_task(read())
        while not server.engine.statistics().running:
            await asyncio.sleep(0.005)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    run(server, test)
    server.wait_until_idle()
    assert len(executor.steps) < 800, "it ended early"


def test_a_time_limit_of_the_client_frees_its_work(steady):
    server, executor = steady()

    async def test(client: openai.AsyncOpenAI) -> None:
        with pytest.raises(openai.APITimeoutError):
            await client.with_options(timeout=0.2).chat.completions.create(**ASKED)

    run(server, test)
    server.wait_until_idle()
    assert len(executor.steps) < 800, "it ended early"


def test_errors_are_the_clients_own_types(tiny):
    async def test(client: openai.AsyncOpenAI) -> None:
        with pytest.raises(openai.BadRequestError) as caught:
            await client.chat.completions.create(**asked("Hi", n=5_000_000))
        assert caught.value.param == "n"
        with pytest.raises(openai.NotFoundError):
            await client.embeddings.create(model="other", input="a")

    run(tiny, test)


def test_models_completions_and_embeddings(tiny):
    async def test(client: openai.AsyncOpenAI) -> None:
        assert [model.id async for model in client.models.list()] == ["tiny"]
        answer = await client.completions.create(model="tiny", prompt="Once", max_tokens=3)
        assert answer.choices[0].text
        found = await client.embeddings.create(model="tiny", input=["a", "b"], dimensions=8)
        assert [len(one.embedding) for one in found.data] == [8, 8]

    run(tiny, test)
