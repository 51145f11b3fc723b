"""LangChain's OpenAI chat model against a live server: invoke, stream, batch, tools, structured output, errors."""

from __future__ import annotations

import asyncio
from typing import Any, Literal

import openai
import pytest
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from pydantic import BaseModel, Field

from tests.server.contract.conftest import CALLS

QUESTION = "What is 17 + 5?"


class Weather(BaseModel):
    """The weather somewhere."""

    city: Literal["Rome", "北京"] = Field(description="where")
    is_sunny: bool


@tool
def get_weather(city: str, days: int = 1) -> str:
    """The weather in a city."""
    return f"{city}: sunny for {days} days"


@tool
def get_time(zone: str) -> str:
    """The time in a zone."""
    return f"noon in {zone}"


def model_of(server, **options: Any) -> ChatOpenAI:
    options = {"model": "tiny", "temperature": 0, "max_retries": 0, "timeout": 60, **options}
    return ChatOpenAI(base_url=f"{server.url}/v1", api_key="x", **options)


def quick(server, **options: Any) -> ChatOpenAI:
    """Without thoughts."""
    return model_of(server, extra_body={"enable_thinking": False}, **options)


def test_a_question_is_answered_and_usage_told(tiny):
    answer = model_of(tiny).invoke(QUESTION)
    assert isinstance(answer, AIMessage) and "22" in answer.content
    assert answer.usage_metadata["output_tokens"] > 0 and answer.response_metadata["finish_reason"] == "stop"
    assert answer.usage_metadata["output_token_details"]["reasoning"] > 0


def test_a_conversation_is_understood(tiny):
    messages = [SystemMessage("Be short."), HumanMessage("Hi"), AIMessage("Hello!"), HumanMessage(QUESTION)]
    assert quick(tiny).invoke(messages).content
    parts = [{"type": "text", "text": "What is "}, {"type": "text", "text": "17 + 5?"}]
    assert quick(tiny).invoke([HumanMessage(parts)]).content == quick(tiny).invoke(QUESTION).content


def test_a_stream_adds_up_to_the_answer(tiny):
    chunks = list(quick(tiny, stream_usage=True).stream(QUESTION))
    whole = chunks[0]
    for chunk in chunks[1:]:
        whole += chunk
    answer = quick(tiny).invoke(QUESTION)
    assert whole.content == answer.content and len(chunks) > 3
    assert whole.usage_metadata["output_tokens"] == answer.usage_metadata["output_tokens"]


def test_batches_and_asynchronous_calls(tiny):
    questions = [QUESTION, "Hi", "你好"]
    alone = [quick(tiny).invoke(question).content for question in questions]
    assert [answer.content for answer in quick(tiny).batch(questions)] == alone

    async def main() -> list[str]:
        model = quick(tiny)
        answers = await model.abatch(questions)
        streamed = "".join([chunk.content async for chunk in model.astream(QUESTION)])
        assert streamed == alone[0]
        return [answer.content for answer in answers]

    assert asyncio.run(main()) == alone


def test_tools_are_called_and_their_results_go_back(scripted):
    model = model_of(scripted(CALLS, "It is sunny.")).bind_tools([get_weather, get_time])
    answer = model.invoke("How is the weather?")
    assert [(call["name"], call["args"]) for call in answer.tool_calls] == [
        ("get_weather", {"city": "北京", "days": 2}),
        ("get_time", {"zone": "UTC", "o": {"k": [1, None]}}),
    ]
    assert answer.invalid_tool_calls == []
    results = [ToolMessage("sunny", tool_call_id=call["id"]) for call in answer.tool_calls]
    final = model.invoke([HumanMessage("How is the weather?"), answer, *results])
    assert final.content == "It is sunny." and final.tool_calls == []


def test_streamed_calls_add_up(scripted):
    chunks = list(model_of(scripted(CALLS)).bind_tools([get_weather, get_time]).stream("How is the weather?"))
    whole = chunks[0]
    for chunk in chunks[1:]:
        whole += chunk
    assert [call["args"] for call in whole.tool_calls] == [
        {"city": "北京", "days": 2},
        {"zone": "UTC", "o": {"k": [1, None]}},
    ]


@pytest.mark.parametrize("choice, names", [("required", {"get_weather", "get_time"}), ("get_time", {"get_time"})])
def test_a_call_that_must_be_is_made(tiny, choice, names):
    model = quick(tiny, max_tokens=100).bind_tools(
        [get_weather, get_time], tool_choice=choice, parallel_tool_calls=False
    )
    (call,) = model.invoke("How is the weather in Rome?").tool_calls
    assert call["name"] in names


@pytest.mark.parametrize("method", ["json_schema", "function_calling"])
def test_structured_output_is_what_was_asked_for(tiny, method):
    found = quick(tiny).with_structured_output(Weather, method=method).invoke("How is the weather in Rome?")
    assert isinstance(found, Weather)


def test_structured_output_by_json_mode(scripted):
    model = quick(scripted('{"city": "北京", "is_sunny": true}')).with_structured_output(Weather, method="json_mode")
    assert model.invoke("How is the weather in 北京? Answer in JSON.") == Weather(city="北京", is_sunny=True)


def test_stop_seed_and_log_probabilities(scripted, tiny):
    assert quick(scripted("alpha, b,c tail")).invoke("x", stop=["b,c"]).content == "alpha, "
    free = quick(tiny, temperature=2, seed=4, max_tokens=10)
    assert free.invoke(QUESTION).content == free.invoke(QUESTION).content
    answer = quick(tiny, logprobs=True, top_logprobs=2).invoke(QUESTION)
    entries = answer.response_metadata["logprobs"]["content"]
    assert b"".join(bytes(entry["bytes"]) for entry in entries).decode() == answer.content


def test_errors_are_the_clients(tiny):
    with pytest.raises(openai.NotFoundError):
        model_of(tiny, model="gpt-4o").invoke("Hi")
    with pytest.raises(openai.BadRequestError):
        model_of(tiny).invoke("x " * 5000)


def test_embeddings(tiny):
    model = OpenAIEmbeddings(
        base_url=f"{tiny.url}/v1", api_key="x", model="tiny", check_embedding_ctx_length=False, max_retries=0
    )
    one, two = model.embed_documents(["Once", "从前"])
    assert one == pytest.approx(model.embed_query("Once")) and one != two
