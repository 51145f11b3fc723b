"""POST /v1/responses over a live server, through OpenAI's own client."""

from __future__ import annotations

import json
from dataclasses import replace

import openai
import pytest
from openai import OpenAI
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import BaseModel, TypeAdapter

from tests.scripted import ScriptedExecutor
from tests.server.conftest import service_on

EVENT = TypeAdapter(ResponseStreamEvent)
QUESTION = "What is 17 + 5?"
ASKED = {"model": "tiny", "input": QUESTION, "temperature": 0}
ADD = {
    "type": "function",
    "name": "add",
    "description": "Add two numbers.",
    "parameters": {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
        "required": ["a", "b"],
        "additionalProperties": False,
    },
    "strict": True,
}
CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 17, "b": 5}}\n</tool_call>'
THOUGHT = "<think>\nI need to add.\n</think>\n\n"


def client_of(server) -> OpenAI:
    return OpenAI(base_url=f"{server.url}/v1", api_key="any", max_retries=0, timeout=60)


@pytest.fixture(scope="module")
def client(tiny):
    with client_of(tiny) as made:
        yield made


def said(response):
    """A response without what differs from one to the next, nor what the client added to it."""
    items = [{key: value for key, value in item.to_dict().items() if key != "id"} for item in response.output]
    for part in (part for item in items for part in item.get("content", ())):
        part.pop("parsed", None)
    return {**response.to_dict(), "output": items, "id": None, "created_at": None, "completed_at": None, "usage": None}


def events_of(answer):
    """The events of a stream, each checked strictly against the client's types, and named as its type says."""
    assert answer.headers["content-type"].startswith("text/event-stream")
    *events, rest = answer.text.split("\n\n")
    assert rest == ""
    found = []
    for event in events:
        name, data = event.split("\n")
        made = EVENT.validate_json(data.removeprefix("data: "), strict=True)
        assert name == f"event: {made.type}"
        found.append(made)
    assert [event.sequence_number for event in found] == list(range(len(found)))
    return found


def test_an_answer_is_what_the_chat_gives_and_is_counted_as_there(tiny, client):
    system = "You are brief."
    answer = client.responses.create(**ASKED, instructions=system)
    messages = [{"role": "system", "content": system}, {"role": "user", "content": QUESTION}]
    body = {"model": "tiny", "messages": messages, "temperature": 0}
    chat = tiny.client.post("/v1/chat/completions", json=body).json()
    message = chat["choices"][0]["message"]
    assert answer.output_text == message["content"] != ""
    thought = [part.text for item in answer.output if item.type == "reasoning" for part in item.content]
    assert "".join(thought) == message["reasoning_content"] != ""
    assert (answer.status, answer.instructions, answer.temperature) == ("completed", system, 0)
    assert answer.usage.input_tokens == chat["usage"]["prompt_tokens"]
    assert answer.usage.output_tokens == chat["usage"]["completion_tokens"]
    reasoning_tokens = chat["usage"]["completion_tokens_details"]["reasoning_tokens"]
    assert answer.usage.output_tokens_details.reasoning_tokens == reasoning_tokens > 0
    assert answer.usage.total_tokens == answer.usage.input_tokens + answer.usage.output_tokens


def test_a_whole_answer_is_a_response_in_the_clients_types(tiny):
    raw = tiny.client.post("/v1/responses", json={**ASKED, "tools": [ADD], "metadata": {"a": "b"}, "user": "me"})
    read = Response.model_validate_json(raw.text, strict=True)
    assert raw.json()["object"] == "response" and raw.json()["store"] is False
    assert read.metadata == {"a": "b"} and read.user == "me" and read.tools[0].to_dict() == ADD


def test_a_stream_ends_with_the_whole_answer(client):
    whole = client.responses.create(**ASKED)
    with client.responses.stream(**ASKED) as stream:
        text = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
        final = stream.get_final_response()
    assert text == whole.output_text == final.output_text
    assert said(final) == said(whole)


def test_every_event_is_one_of_the_clients_types(tiny):
    events = events_of(tiny.client.post("/v1/responses", json={**ASKED, "stream": True}))
    assert [event.type for event in events[:2]] == ["response.created", "response.in_progress"]
    assert events[-1].type == "response.completed" and events[-1].response.usage.output_tokens > 0
    assert {"response.reasoning_text.delta", "response.output_text.delta"} <= {event.type for event in events}


def test_a_conversation_goes_on_with_the_items_of_the_answer(tiny, client):
    first = client.responses.create(**ASKED)
    items = [{"role": "user", "content": QUESTION}, *first.output, {"role": "user", "content": "And 3 + 4?"}]
    second = client.responses.create(**{**ASKED, "input": items})
    thought, answer = first.output
    messages = [
        {"role": "user", "content": QUESTION},
        {"role": "assistant", "content": answer.content[0].text, "reasoning_content": thought.content[0].text},
        {"role": "user", "content": "And 3 + 4?"},
    ]
    body = {"model": "tiny", "messages": messages, "temperature": 0}
    chat = tiny.client.post("/v1/chat/completions", json=body).json()
    assert second.output_text == chat["choices"][0]["message"]["content"]
    assert second.usage.input_tokens == chat["usage"]["prompt_tokens"]
    assert second.usage.input_tokens_details.cached_tokens >= 0


def test_a_thought_can_be_sent_back_as_what_the_api_calls_its_encrypted_content(scripted):
    server = scripted(THOUGHT + CALL, "It is 22.")
    asked = {"model": "tiny", "tools": [ADD], "include": ["reasoning.encrypted_content"], "store": False}
    first = client_of(server).responses.create(**asked, input=QUESTION)
    thought, call = first.output
    kept = {"type": "reasoning", "summary": [], "encrypted_content": thought.encrypted_content}
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "22"}
    client_of(server).responses.create(**asked, input=[{"role": "user", "content": QUESTION}, kept, call, result])
    loaded = server.engine.loaded
    assert THOUGHT + CALL in loaded.tokenizer.decode(loaded.executor._next_token.prompts[-1], skip_control=False)


@pytest.mark.parametrize("include", [[], ["reasoning.encrypted_content"]])
def test_a_thought_is_packed_once_it_is_whole_if_that_was_asked_for(tiny, client, include):
    whole = client.responses.create(**ASKED, include=include)
    assert (whole.output[0].encrypted_content is not None) == bool(include)
    events = events_of(tiny.client.post("/v1/responses", json={**ASKED, "include": include, "stream": True}))
    assert said(events[-1].response) == said(whole)
    assert next(event for event in events if event.type == "response.output_item.added").item.encrypted_content is None


def test_without_effort_there_is_no_thought(client):
    answer = client.responses.create(**ASKED, reasoning={"effort": "none"})
    assert [item.type for item in answer.output] == ["message"] and answer.reasoning.effort == "none"
    assert answer.usage.output_tokens_details.reasoning_tokens == 0


class Sum(BaseModel):
    left: int
    right: int


def test_an_answer_is_parsed_into_the_callers_type(client):
    for effort in ("none", "low"):
        parsed = client.responses.parse(**ASKED, text_format=Sum, reasoning={"effort": effort})
        assert isinstance(parsed.output_parsed, Sum)
        assert Sum.model_validate_json(parsed.output_text) == parsed.output_parsed


def test_a_streamed_answer_is_parsed_into_the_callers_type(client):
    with client.responses.stream(**ASKED, text_format=Sum, reasoning={"effort": "none"}) as stream:
        done = [event.parsed for event in stream if event.type == "response.output_text.done"]
        assert done == [stream.get_final_response().output_parsed] and isinstance(done[0], Sum)


def test_an_answer_that_was_cut_off_is_incomplete(tiny, client):
    answer = client.responses.create(**ASKED, max_output_tokens=3)
    assert answer.status == "incomplete" and answer.incomplete_details.reason == "max_output_tokens"
    assert answer.usage.output_tokens == answer.max_output_tokens == 3
    streamed = events_of(tiny.client.post("/v1/responses", json={**ASKED, "max_output_tokens": 3, "stream": True}))
    assert streamed[-1].type == "response.incomplete"
    assert said(streamed[-1].response) == said(answer)


def test_log_probabilities_spell_the_text(client):
    asked = {**ASKED, "include": ["message.output_text.logprobs"], "top_logprobs": 2}
    (part,) = client.responses.create(**asked).output[-1].content
    assert b"".join(bytes(entry.bytes) for entry in part.logprobs).decode() == part.text != ""
    for entry in part.logprobs:
        assert len(entry.top_logprobs) == 2
        assert entry.top_logprobs[0].logprob == entry.logprob <= 0, "at temperature 0 the likeliest is chosen"
    with client.responses.stream(**asked) as stream:
        streamed = [entry for event in stream if event.type == "response.output_text.delta" for entry in event.logprobs]
    assert [entry.token for entry in streamed] == [entry.token for entry in part.logprobs]


def test_a_seed_repeats_an_answer_and_sampling_is_what_was_asked(client):
    asked = {**ASKED, "temperature": 1.5, "top_p": 0.9, "extra_body": {"seed": 7, "top_k": 50}, "max_output_tokens": 40}
    first, second = client.responses.create(**asked), client.responses.create(**asked)
    assert said(first) == said(second) and (first.temperature, first.top_p) == (1.5, 0.9)


# Functions


def test_a_call_comes_as_an_item_and_its_result_is_read_with_the_thought_before_it(scripted):
    server = scripted(THOUGHT + CALL, "It is 22.")
    client = client_of(server)
    items = [{"role": "user", "content": QUESTION}]
    first = client.responses.create(model="tiny", input=items, tools=[ADD])
    call = first.output[-1]
    assert [item.type for item in first.output] == ["reasoning", "function_call"]
    assert (call.name, json.loads(call.arguments), call.status) == ("add", {"a": 17, "b": 5}, "completed")
    items += [*first.output, {"type": "function_call_output", "call_id": call.call_id, "output": "22"}]
    second = client.responses.create(model="tiny", input=items, tools=[ADD])
    assert second.output_text == "It is 22." and second.status == "completed"
    loaded = server.engine.loaded
    prompt = loaded.tokenizer.decode(loaded.executor._next_token.prompts[-1], skip_control=False)
    assert f"{QUESTION}<|im_end|>" in prompt and f"{THOUGHT}{CALL}<|im_end|>" in prompt
    assert "<tool_response>\n22\n</tool_response>" in prompt


def test_calls_are_streamed_each_with_its_arguments(scripted):
    other = CALL.replace("17", "1")
    client = client_of(scripted(f"Two.\n{CALL}\n{other}"))
    with client.responses.stream(model="tiny", input=QUESTION, tools=[ADD], reasoning={"effort": "none"}) as stream:
        parts = {}
        for event in stream:
            if event.type == "response.function_call_arguments.delta":
                parts[event.output_index] = parts.get(event.output_index, "") + event.delta
        final = stream.get_final_response()
    assert [item.type for item in final.output] == ["message", "function_call", "function_call"]
    assert parts == {1: '{"a": 17, "b": 5}', 2: '{"a": 1, "b": 5}'}
    assert [item.arguments for item in final.output[1:]] == list(parts.values())
    assert final.output[1].parsed_arguments == {"a": 17, "b": 5}


def test_without_parallel_calls_there_is_one(scripted):
    client = client_of(scripted(f"{CALL}\n{CALL}"))
    answer = client.responses.create(model="tiny", input=QUESTION, tools=[ADD], parallel_tool_calls=False)
    assert [item.type for item in answer.output] == ["function_call"] and answer.parallel_tool_calls is False


def test_a_call_is_text_where_no_tool_may_be_called(scripted):
    client = client_of(scripted(CALL))
    answer = client.responses.create(model="tiny", input=QUESTION, tools=[ADD], tool_choice="none")
    assert answer.output_text == CALL


@pytest.mark.parametrize("choice", ["required", {"type": "function", "name": "add"}])
def test_a_call_that_was_asked_for_is_made(client, choice):
    other = {**ADD, "name": "multiply"}
    tools = [ADD] if choice == "required" else [other, ADD]
    asked = {**ASKED, "tools": tools, "tool_choice": choice, "parallel_tool_calls": False}
    answer = client.responses.create(**asked, reasoning={"effort": "none"})
    (call,) = answer.output
    assert call.type == "function_call" and call.name == "add"
    assert {key: type(value) for key, value in json.loads(call.arguments).items()} == {"a": int, "b": int}


def test_of_the_allowed_tools_one_is_called(client):
    tools = [{**ADD, "name": "multiply"}, ADD]
    choice = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "add"}]}
    asked = {**ASKED, "tools": tools, "tool_choice": choice, "parallel_tool_calls": False}
    answer = client.responses.create(**asked, reasoning={"effort": "none"})
    assert [call.name for call in answer.output] == ["add"]
    assert answer.tool_choice.to_dict() == choice and [tool.name for tool in answer.tools] == ["multiply", "add"]


# What is refused, and what goes wrong


WRONG_CALL = {"type": "function_call", "call_id": "c", "name": "add", "arguments": "[1]"}
OUTPUT = {"type": "function_call_output", "call_id": "c", "output": "1"}
REFUSED = [
    ({"previous_response_id": "resp_1"}, "previous_response_id"),
    ({"store": True}, "store"),
    ({"background": True}, "background"),
    ({"temperature": -1}, "temperature"),
    ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
    (
        {"tools": [{**ADD, "parameters": {"type": "object", "not": {}}}], "tool_choice": "required"},
        "tools[0].parameters",
    ),
    ({"tools": [ADD], "tool_choice": {"type": "function", "name": "sub"}}, "tool_choice"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]}, "input[0].content[0].type"),
    ({"input": "x " * 5000}, "input"),
    ({"input": [{"role": "user", "content": "a"}, WRONG_CALL, OUTPUT]}, "input[1].arguments"),
    ({"instructions": 7}, "instructions"),
    ({"text": {"format": {"type": "json_schema", "name": "n", "schema": {"not": {}}}}}, "text.format.schema"),
    ({"extra_body": {"chat_template_kwargs": {"x": 1}}}, "chat_template_kwargs.x"),
    ({"extra_body": {"logit_bias": {"99999999": 1}}}, "logit_bias"),
    ({"extra_body": {"stop_token_ids": [99999999]}}, "stop_token_ids"),
]


@pytest.mark.parametrize("said_too, field", REFUSED, ids=[field for _, field in REFUSED])
def test_what_can_not_be_done_is_refused_as_the_clients_own_error_and_names_the_field(tiny, said_too, field):
    said_too = dict(said_too)
    body = {**ASKED, **said_too.pop("extra_body", {}), **said_too}
    for streams in (False, True):
        answer = tiny.client.post("/v1/responses", json={**body, "stream": streams})
        assert answer.status_code == 400 and answer.json()["error"]["param"].startswith(field), answer.text
        assert answer.json()["error"]["type"] == "invalid_request_error"


def test_errors_are_the_clients_own(client):
    with pytest.raises(openai.BadRequestError, match="Nothing is stored here") as caught:
        client.responses.create(**ASKED, previous_response_id="resp_1")
    assert caught.value.param == "previous_response_id"
    with pytest.raises(openai.NotFoundError, match="no model 'gpt-6'") as missing:
        client.responses.create(**{**ASKED, "model": "gpt-6"})
    assert missing.value.code == "model_not_found"


def test_nothing_is_stored_and_that_is_what_is_said(client):
    answer = client.responses.create(**ASKED, max_output_tokens=1)
    for ask in (
        client.responses.retrieve,
        client.responses.delete,
        client.responses.cancel,
        client.responses.input_items.list,
    ):
        with pytest.raises(openai.NotFoundError, match="nothing is stored here") as caught:
            ask(answer.id)
        assert caught.value.code == "not_stored"


def test_unknown_fields_are_warned_of_or_refused(tiny, serve, tiny_model):
    strict = serve(service_on(tiny_model), strict=True)
    for said_too, place in (
        ({"colour": "red"}, "colour"),
        ({"input": [{"role": "user", "content": "Hi", "colour": ""}]}, "input[0].colour"),
        ({"tools": [{**ADD, "colour": "red"}]}, "tools[0].colour"),
    ):
        body = {**ASKED, "max_output_tokens": 1, **said_too}
        for streams in (False, True):
            warned = tiny.client.post("/v1/responses", json={**body, "stream": streams})
            assert warned.status_code == 200 and warned.headers["X-Kaishu-Ignored-Fields"] == place
        refused = strict.client.post("/v1/responses", json=body)
        assert refused.status_code == 400 and refused.json()["error"]["param"] == place


def test_a_conversation_has_as_many_items_as_a_chat_may_have_messages(scripted):
    server = scripted("Hi", max_messages=2)
    body = {"model": "tiny", "input": [{"role": "user", "content": "Hi"}] * 3}
    refused = server.client.post("/v1/responses", json=body)
    assert refused.status_code == 400 and refused.json()["error"]["param"] == "input"
    assert server.client.post("/v1/responses", json={**body, "input": body["input"][:2]}).status_code == 200


def test_a_client_that_leaves_ends_its_answer(tiny, client):
    stream = client.responses.create(**{**ASKED, "input": "Count."}, stream=True, extra_body={"ignore_eos": True})
    assert next(stream).type == "response.created"
    stream.close()
    tiny.wait_until_idle()
    assert client.responses.create(**ASKED).status == "completed"


def test_an_answer_that_fails_midway_ends_with_an_event_that_says_so(serve, tiny_model):
    words = tiny_model.tokenizer.encode("One two")

    def breaks(context):
        spoken = max(count for count in range(3) if context[len(context) - count :] == tuple(words[:count]))
        if spoken == 2:
            raise ZeroDivisionError("a secret")
        return words[spoken]

    executor = ScriptedExecutor(breaks, vocab_size=tiny_model.config.vocab_size)
    server = serve(service_on(replace(tiny_model, executor=executor), speculation=False))
    body = {"model": "tiny", "input": "Hi", "reasoning": {"effort": "none"}, "stream": True}
    events = events_of(server.client.post("/v1/responses", json=body))
    assert events[-1].type == "response.failed" and events[-1].response.error.code == "server_error"
    assert "secret" not in events[-1].to_json()
    assert events[-1].response.output_text and events[-1].response.output[0].status == "incomplete"
    server.wait_until_idle()
