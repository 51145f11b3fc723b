"""Official clients against live servers on loopback."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import openai
import pytest

from kaishu.errors import QueueFullError
from kaishu.sampling import SamplingParams
from tests.server.conftest import LiveServer
from tests.server.steady import SteadyExecutor

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "enum": ["Rome", "北京"]}, "days": {"type": "integer"}},
            "required": ["city", "days"],
            "additionalProperties": False,
        },
    },
}
TIME = {
    "type": "function",
    "function": {
        "name": "get_time",
        "description": "The time in a zone",
        "parameters": {
            "type": "object",
            "properties": {"zone": {"type": "string", "maxLength": 5}},
            "required": ["zone"],
        },
    },
}
TOOLS = [WEATHER, TIME]
HI: list[Any] = [{"role": "user", "content": "What is 17 + 5?"}]
ASKED: dict[str, Any] = {"model": "tiny", "messages": HI, "temperature": 0}
NO_THOUGHT: dict[str, Any] = {"extra_body": {"enable_thinking": False}}
CALLS = (
    "<think>\nWhich city?\n</think>\n\nLet me look.\n"
    '<tool_call>\n{"name": "get_weather", "arguments": {"city": "北京", "days": 2}}\n</tool_call>\n'
    '<tool_call>\n{"name": "get_time", "arguments": {"zone": "UTC", "o": {"k": [1, null]}}}\n</tool_call>'
)


def streamed(stream) -> dict[str, Any]:
    """What a user of the client adds up."""
    said: dict[str, Any] = {"content": "", "reasoning": "", "calls": [], "reason": None, "usage": None, "logprobs": []}
    with stream:
        for chunk in stream:
            said["usage"] = chunk.usage or said["usage"]
            for choice in chunk.choices:
                said["content"] += choice.delta.content or ""
                said["reasoning"] += getattr(choice.delta, "reasoning_content", None) or ""
                said["reason"] = choice.finish_reason or said["reason"]
                said["logprobs"] += choice.logprobs.content if choice.logprobs else []
                for call in choice.delta.tool_calls or []:
                    if call.id:
                        assert call.index == len(said["calls"])
                        said["calls"].append([call.function.name, ""])
                    said["calls"][call.index][1] += call.function.arguments or ""
    return said


@contextmanager
def full(server: LiveServer, executor: SteadyExecutor) -> Iterator[None]:
    """A server whose queue takes no further request."""

    async def fill() -> None:
        while True:
            await server.engine.add([1, 2], SamplingParams(max_tokens=3))

    executor.may_step.clear()
    try:
        with pytest.raises(QueueFullError):
            asyncio.run(fill())
        yield
    finally:
        executor.may_step.set()


def client_of(server: LiveServer) -> openai.OpenAI:
    """OpenAI's client, which doesn't ask twice, so that errors are seen."""
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="not needed", max_retries=0, timeout=60)


@pytest.fixture(scope="module")
def client(tiny: LiveServer) -> Iterator[openai.OpenAI]:
    """Of the bundled model."""
    with client_of(tiny) as made:
        yield made


@pytest.fixture
def saying(scripted: Callable[..., LiveServer]) -> Iterator[Callable[..., openai.OpenAI]]:
    """`saying("first answer", …, **settings)`: a client of a model that says just that."""
    made: list[openai.OpenAI] = []

    def of(*answers: str, **settings: object) -> openai.OpenAI:
        made.append(client_of(scripted(*answers, **settings)))
        return made[-1]

    yield of
    for one in made:
        one.close()
