"""POST /v1/messages and its token counting over a live server, asked by Anthropic's own client."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import anthropic
import httpx
import jsonschema
import numpy as np
import pytest
from anthropic.types import RawMessageStreamEvent
from numpy.typing import NDArray
from pydantic import TypeAdapter

from kaishu.batch import TokenBatch
from kaishu.loading import LoadedModel
from kaishu.text.template import ChatTemplate
from tests.scripted import Script, ScriptedExecutor
from tests.server.conftest import LiveServer, service_on
from tests.server.steady import SteadyExecutor

EVENT: TypeAdapter[Any] = TypeAdapter(RawMessageStreamEvent)
ASKED: dict[str, Any] = {
    "model": "tiny",
    "max_tokens": 64,
    "messages": [{"role": "user", "content": "What is 17 + 5?"}],
    "extra_body": {"temperature": 0},
}
WEATHER = {
    "name": "weather",
    "description": "The weather of a city",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 12}, "days": {"type": "integer"}},
        "required": ["city", "days"],
    },
}
TIME = {"name": "time", "input_schema": {"type": "object", "properties": {"zone": {"enum": ["UTC", "CET"]}}}}
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "北京", "days": 3}}\n</tool_call>'
CALL_OF_TIME = '<tool_call>\n{"name": "time", "arguments": {"zone": "UTC"}}\n</tool_call>'
Scripted = Callable[..., LiveServer]


def client_of(server: LiveServer, **options: Any) -> anthropic.Anthropic:
    return anthropic.Anthropic(
        **{"base_url": server.url, "api_key": "none", "max_retries": 0, "timeout": 60, **options}
    )


@pytest.fixture
def client(tiny: LiveServer) -> Iterator[anthropic.Anthropic]:
    with client_of(tiny) as made:
        yield made


def final(client: anthropic.Anthropic, **fields: Any) -> Any:
    """The message that the client adds up from a stream."""
    with client.messages.stream(**fields) as stream:
        return stream.get_final_message()


def said(message: Any) -> dict[str, Any]:
    """A message without what is another's each time, or depends on what was cached."""
    found = message.to_dict()
    usage = found["usage"]
    prompt_tokens = usage["input_tokens"] + usage["cache_read_input_tokens"]
    wanted = ("role", "model", "content", "stop_reason", "stop_sequence")
    return {name: found[name] for name in wanted} | {"usage": (prompt_tokens, usage["output_tokens"])}


def test_a_chat_is_answered_and_a_stream_adds_up_to_it(client: anthropic.Anthropic) -> None:
    whole = client.messages.create(**ASKED)
    assert [block.type for block in whole.content] == ["text"] and "22" in whole.content[0].text
    assert (whole.role, whole.model, whole.stop_reason, whole.stop_sequence) == ("assistant", "tiny", "end_turn", None)
    assert whole.id.startswith("msg_") and whole.usage.output_tokens > 0
    assert said(final(client, **ASKED)) == said(whole)


def test_max_tokens_ends_an_answer(client: anthropic.Anthropic) -> None:
    whole = client.messages.create(**{**ASKED, "max_tokens": 2})
    assert (whole.stop_reason, whole.usage.output_tokens) == ("max_tokens", 2)


def test_system_is_the_first_turn_of_the_prompt(tiny: LiveServer, client: anthropic.Anthropic) -> None:
    text, blocks = "Answer in one word.", [{"type": "text", "text": "Answer in one word."}]
    counts = [
        client.messages.count_tokens(model="tiny", messages=ASKED["messages"], system=system).input_tokens
        for system in (text, blocks)
    ]
    tokenizer = tiny.engine.loaded.tokenizer
    own = len(tokenizer.encode(f"<|im_start|>system\n{text}<|im_end|>\n", allow_control=True))
    bare = client.messages.count_tokens(model="tiny", messages=ASKED["messages"]).input_tokens
    assert counts == [bare + own, bare + own]


def test_counted_tokens_are_what_the_answer_says_it_read(client: anthropic.Anthropic) -> None:
    prompt = {
        "model": "tiny",
        "system": "You know the weather.",
        "tools": [WEATHER, TIME],
        "messages": [{"role": "user", "content": "How will the weather be?"}],
    }
    for thinking in ({"type": "disabled"}, {"type": "enabled", "budget_tokens": 4}):
        counted = client.messages.count_tokens(**prompt, thinking=thinking)
        usage = client.messages.create(**prompt, thinking=thinking, max_tokens=5).usage
        assert counted.input_tokens == usage.input_tokens + usage.cache_read_input_tokens > 20
        with client.messages.create(**prompt, thinking=thinking, max_tokens=5, stream=True) as events:
            begun = next(iter(events)).message.usage
        assert begun.input_tokens + begun.cache_read_input_tokens == counted.input_tokens, "known at the beginning"


def test_a_second_turn_reads_the_first_from_the_cache(client: anthropic.Anthropic) -> None:
    asked = {**ASKED, "messages": [{"role": "user", "content": f"Say these again: {list(range(40))}"}]}
    first = client.messages.create(**asked)
    messages = [*asked["messages"], {"role": "assistant", "content": first.content}, ASKED["messages"][0]]
    second = client.messages.create(**{**asked, "messages": messages})
    assert second.usage.cache_read_input_tokens > 40 and second.usage.cache_creation_input_tokens == 0
    counted = client.messages.count_tokens(model="tiny", messages=messages).input_tokens
    assert second.usage.input_tokens + second.usage.cache_read_input_tokens == counted
    with client.messages.create(**{**asked, "messages": messages}, stream=True) as events:
        begun, *_, ended = (event for event in events if event.type in ("message_start", "message_delta"))
    assert ended.usage.input_tokens + ended.usage.cache_read_input_tokens == counted
    assert begun.message.usage.cache_read_input_tokens == ended.usage.cache_read_input_tokens > 40
    assert begun.message.usage.input_tokens == ended.usage.input_tokens


def test_thinking_comes_first_keeps_to_its_budget_and_is_off_unless_asked_for(client: anthropic.Anthropic) -> None:
    assert [block.type for block in client.messages.create(**ASKED).content] == ["text"]
    thinks = {**ASKED, "thinking": {"type": "enabled", "budget_tokens": 9}}
    whole = client.messages.create(**thinks)
    assert [block.type for block in whole.content] == ["thinking", "text"]
    assert 0 < whole.usage.output_tokens_details.thinking_tokens <= 9 and whole.content[0].signature
    assert said(final(client, **thinks)) == said(whole)
    again = [*ASKED["messages"], {"role": "assistant", "content": whole.content}, ASKED["messages"][0]]
    assert client.messages.create(**{**thinks, "messages": again}).content, "thought can be sent back"


def test_a_thought_in_the_history_is_in_the_prompt_where_the_template_has_it(scripted: Scripted) -> None:
    server = scripted("done")
    turn = [
        {"type": "thinking", "thinking": "I look.", "signature": "x"},
        {"type": "tool_use", "id": "a", "name": "weather", "input": {"city": "x", "days": 1}},
    ]
    messages = [
        *ASKED["messages"],
        {"role": "assistant", "content": turn},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": "rain"}]},
    ]
    client_of(server).messages.create(**{**ASKED, "messages": messages, "tools": [WEATHER]})
    (prompt,) = server.engine.loaded.executor._next_token.prompts
    text = server.engine.loaded.tokenizer.decode(prompt)
    assert "<think>\nI look.\n</think>" in text and "<tool_response>\nrain\n</tool_response>" in text


@pytest.mark.parametrize("stops", [["END"], ["nothing", "END", "two"]])
def test_the_stop_sequence_that_was_written_is_named_and_left_out(scripted: Scripted, stops: list[str]) -> None:
    server = scripted("one END two", "one END two")
    asked = {**ASKED, "stop_sequences": stops}
    whole = client_of(server).messages.create(**asked)
    assert (whole.stop_reason, whole.stop_sequence, whole.content[0].text) == ("stop_sequence", "END", "one ")
    other = {**asked, "messages": [{"role": "user", "content": "Another prompt"}]}
    assert said(final(client_of(server), **other))["stop_sequence"] == "END"


def test_an_answer_that_was_begun_is_gone_on_with(scripted: Scripted) -> None:
    server = scripted(" 22.")
    prefill = [*ASKED["messages"], {"role": "assistant", "content": "17 + 5 ="}]
    whole = client_of(server).messages.create(**{**ASKED, "messages": prefill})
    assert whole.content[0].text == " 22."
    (prompt,) = server.engine.loaded.executor._next_token.prompts
    assert server.engine.loaded.tokenizer.decode(prompt).endswith("17 + 5 =")


def test_calls_are_streamed_and_their_results_are_read(scripted: Scripted) -> None:
    answers = [f"I look.\n{CALL}\n{CALL_OF_TIME}"] * 2
    server = scripted(*answers, "Three days of sun.")
    client = client_of(server)
    asked = {**ASKED, "tools": [WEATHER, TIME], "tool_choice": {"type": "auto"}}
    whole = client.messages.create(**asked)
    assert whole.stop_reason == "tool_use"
    assert [block.type for block in whole.content] == ["text", "tool_use", "tool_use"]
    assert (whole.content[1].name, whole.content[1].input) == ("weather", {"city": "北京", "days": 3})
    again = {**asked, "messages": [{"role": "user", "content": "Once more"}]}
    streamed = final(client, **again)
    assert [block.to_dict() | {"id": ""} for block in streamed.content] == [
        block.to_dict() | {"id": ""} for block in whole.content
    ]
    results = [
        {"type": "tool_result", "tool_use_id": whole.content[2].id, "content": "noon"},
        {"type": "tool_result", "tool_use_id": whole.content[1].id, "content": [{"type": "text", "text": "sun"}]},
    ]
    messages = [
        *ASKED["messages"],
        {"role": "assistant", "content": whole.content},
        {"role": "user", "content": results},
    ]
    assert client.messages.create(**{**asked, "messages": messages}).content[0].text == "Three days of sun."
    prompt = server.engine.loaded.tokenizer.decode(server.engine.loaded.executor._next_token.prompts[-1])
    assert prompt.index("sun") < prompt.index("noon"), "results stand in the order of the calls"


def test_the_client_runs_tools_until_there_is_an_answer(scripted: Scripted) -> None:
    server = scripted(CALL_OF_TIME, "It is noon.")

    @anthropic.beta_tool
    def time(zone: str) -> str:
        """The time of a zone."""
        return f"noon in {zone}"

    runner = client_of(server).beta.messages.tool_runner(
        model="tiny", max_tokens=60, messages=ASKED["messages"], tools=[time]
    )
    called, answered = runner
    assert (called.stop_reason, answered.content[0].text) == ("tool_use", "It is noon.")
    prompt = server.engine.loaded.tokenizer.decode(server.engine.loaded.executor._next_token.prompts[-1])
    assert ASKED["messages"][0]["content"] in prompt and "noon in UTC" in prompt


def test_input_is_streamed_while_it_is_written(scripted: Scripted) -> None:
    server = scripted(CALL)
    kinds: list[str] = []
    with client_of(server).messages.stream(**{**ASKED, "tools": [WEATHER]}) as stream:
        for event in stream:
            if event.type == "input_json":
                kinds.append(event.partial_json)
    assert json.loads("".join(kinds)) == {"city": "北京", "days": 3} and len(kinds) > 3


@pytest.mark.parametrize(
    "choice",
    [{"type": "any"}, {"type": "tool", "name": "time"}, {"type": "any", "disable_parallel_tool_use": True}],
)
def test_a_call_that_is_required_is_made_and_its_input_is_valid(client: anthropic.Anthropic, choice: Any) -> None:
    asked = {**ASKED, "max_tokens": 300, "tools": [WEATHER, TIME], "tool_choice": choice}
    whole = client.messages.create(**asked)
    assert whole.stop_reason in ("tool_use", "max_tokens") and whole.content[0].type == "tool_use"
    schemas = {tool["name"]: tool["input_schema"] for tool in (WEATHER, TIME)}
    jsonschema.validate(whole.content[0].input, schemas[whole.content[0].name])
    if "name" in choice:
        assert [block.name for block in whole.content] == ["time"]
    if choice.get("disable_parallel_tool_use"):
        assert len(whole.content) == 1
    streamed = final(client, **asked)
    assert [(block.name, block.input) for block in streamed.content] == [
        (block.name, block.input) for block in whole.content
    ]


def test_without_parallel_calls_the_first_remains_and_none_is_text(scripted: Scripted) -> None:
    client = client_of(scripted(CALL + "\n" + CALL_OF_TIME, CALL))
    single = {"type": "auto", "disable_parallel_tool_use": True}
    whole = client.messages.create(**{**ASKED, "tools": [WEATHER, TIME], "tool_choice": single})
    assert [block.name for block in whole.content] == ["weather"]
    other = {**ASKED, "messages": [{"role": "user", "content": "Other"}]}
    none = client.messages.create(**{**other, "tools": [WEATHER], "tool_choice": {"type": "none"}})
    assert none.content[0].type == "text" and none.content[0].text == CALL and none.stop_reason == "end_turn"


def test_an_answer_keeps_to_a_schema(client: anthropic.Anthropic) -> None:
    schema = {
        "type": "object",
        "properties": {"sum": {"enum": [21, 22, 23]}},
        "required": ["sum"],
        "additionalProperties": False,
    }
    config = {"format": {"type": "json_schema", "schema": schema}}
    whole = client.messages.create(**{**ASKED, "output_config": config})
    jsonschema.validate(json.loads(whole.content[0].text), schema)


def test_a_model_that_always_thinks_is_not_asked_not_to(
    tiny_model: LoadedModel, serve: Callable[..., LiveServer]
) -> None:
    source = "{%- for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    source += "{%- endfor %}<|im_start|>assistant\n<think>\n"
    template = ChatTemplate({"default": source}, control_tokens=tiny_model.tokenizer.control_tokens)
    server = serve(service_on(replace(tiny_model, template=template)))
    client = client_of(server)
    whole = client.messages.create(**{**ASKED, "max_tokens": 8})
    assert whole.content[0].type == "thinking"
    counted = client.messages.count_tokens(model="tiny", messages=ASKED["messages"]).input_tokens
    assert counted == whole.usage.input_tokens + whole.usage.cache_read_input_tokens
    with pytest.raises(anthropic.BadRequestError, match="always begins with a thought"):
        client.messages.create(**ASKED, thinking={"type": "disabled"})


@pytest.mark.parametrize(
    ("fields", "kind", "status", "type_"),
    [
        ({"model": "claude"}, anthropic.NotFoundError, 404, "not_found_error"),
        ({"max_tokens": 0}, anthropic.BadRequestError, 400, "invalid_request_error"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]},
            anthropic.BadRequestError,
            400,
            "invalid_request_error",
        ),
        (
            {"messages": [{"role": "user", "content": "x " * 3000}]},
            anthropic.BadRequestError,
            400,
            "invalid_request_error",
        ),
        (
            {"tools": [WEATHER], "tool_choice": {"type": "tool", "name": "none"}},
            anthropic.BadRequestError,
            400,
            "invalid_request_error",
        ),
    ],
)
def test_errors_are_those_of_the_client(
    client: anthropic.Anthropic, fields: dict[str, Any], kind: type[anthropic.APIStatusError], status: int, type_: str
) -> None:
    for ask in (client.messages.create, lambda **named: final(client, **named)):
        with pytest.raises(kind) as found:
            ask(**{**ASKED, **fields})
        assert (found.value.status_code, found.value.type) == (status, type_)
        assert isinstance(found.value.body, dict) and found.value.body["type"] == "error"


def test_an_error_names_the_place_in_the_body(client: anthropic.Anthropic) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string", "not": {}}}}
    tools = [{"name": "f", "input_schema": schema}]
    with pytest.raises(anthropic.BadRequestError, match=r"tools\[0\]\.input_schema.*properties/a"):
        client.messages.create(**ASKED, tools=tools, tool_choice={"type": "any"})
    late = [*ASKED["messages"], {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "video"}]}]
    with pytest.raises(anthropic.BadRequestError, match=r"messages\[1\]\.content\[1\]\.type"):
        client.messages.count_tokens(model="tiny", messages=late)


def test_a_key_is_asked_for_and_taken_where_the_client_puts_it(
    tiny_model: LoadedModel, serve: Callable[..., LiveServer], tmp_path: Path
) -> None:
    key = "a-key-of-this-test-0123456789"
    keys = tmp_path / "keys"
    keys.write_text(key)
    keys.chmod(0o600)
    server = serve(service_on(tiny_model), api_keys_file=keys)
    with pytest.raises(anthropic.AuthenticationError) as found:
        client_of(server).messages.create(**ASKED)
    assert (found.value.status_code, found.value.type) == (401, "authentication_error")
    assert client_of(server, api_key=key).messages.create(**ASKED).content


def test_errors_before_the_route_have_the_same_form(tiny: LiveServer) -> None:
    for response, status, kind in [
        (tiny.client.post("/v1/messages", content=b"{", headers={"content-type": "application/json"}), 400, "invalid"),
        (tiny.client.post("/v1/messages", content=b"{}"), 415, "invalid_request_error"),
        (tiny.client.get("/v1/messages"), 405, "invalid_request_error"),
        (tiny.client.post("/v1/messages/batches", json={}), 404, "not_found_error"),
    ]:
        body = response.json()
        assert response.status_code == status and body["type"] == "error"
        assert body["error"]["type"].startswith(kind) and set(body) == {"type", "error", "request_id"}
    assert (
        "error" in tiny.client.post("/v1/messagesx", json={}).json() and "type" not in tiny.client.get("/v1/x").json()
    )


def test_a_server_that_is_loading_is_overloaded_with_503(
    tiny_model: LoadedModel, serve: Callable[..., LiveServer]
) -> None:
    may_load = threading.Event()
    load = service_on(tiny_model)

    def slow(*given: Any) -> Any:
        assert may_load.wait(30)
        return load(*given)

    server = serve(slow, waits=False)
    try:
        with pytest.raises(anthropic.InternalServerError) as found:
            client_of(server).messages.create(**ASKED)
        assert (found.value.status_code, found.value.type) == (503, "overloaded_error")
    finally:
        may_load.set()
    server.wait_until(lambda: server.life.state == "ready")


def test_a_body_that_is_too_large_is_refused(tiny_model: LoadedModel, serve: Callable[..., LiveServer]) -> None:
    server = serve(service_on(tiny_model), max_body_bytes=200)
    with pytest.raises(anthropic.APIStatusError) as found:
        client_of(server).messages.create(**{**ASKED, "system": "x" * 500})
    assert (found.value.status_code, found.value.type) == (413, "request_too_large")


class Failing(ScriptedExecutor):
    """After a few steps its logits are no numbers."""

    def step(self, batch: TokenBatch) -> NDArray[np.float32]:
        logits = super().step(batch)
        return logits if len(self.steps) < 6 else np.full_like(logits, np.nan)


def test_an_error_in_the_middle_of_a_stream_is_an_event_that_the_client_raises(
    tiny_model: LoadedModel, serve: Callable[..., LiveServer]
) -> None:
    ids = tiny_model.tokenizer.encode("one two three four five six seven eight nine ten eleven twelve")
    executor = Failing(Script([ids], end=0), vocab_size=tiny_model.config.vocab_size)
    server = serve(service_on(replace(tiny_model, executor=executor), speculation=False))
    seen: list[str] = []
    with (
        pytest.raises(anthropic.APIStatusError) as found,
        client_of(server).messages.stream(**ASKED) as stream,
    ):
        seen += [event.type for event in stream]
    assert found.value.type == "api_error"
    server.wait_until_idle()


def test_unknown_fields_are_told_in_a_header_and_refused_by_a_strict_server(
    tiny: LiveServer, tiny_model: LoadedModel, serve: Callable[..., LiveServer]
) -> None:
    strict = serve(service_on(tiny_model), strict=True)
    counted = {"model": "tiny", "messages": ASKED["messages"]}
    for path, body in (("/v1/messages", {**counted, "max_tokens": 1}), ("/v1/messages/count_tokens", counted)):
        for said_too, place in (
            ({"ours": 1}, "ours"),
            ({"messages": [{**ASKED["messages"][0], "ours": None}]}, "messages[0].ours"),
            ({"tools": [{**WEATHER, "ours": {}}]}, "tools[0].ours"),
        ):
            answer = tiny.client.post(path, json={**body, **said_too})
            assert answer.status_code == 200 and answer.headers["x-kaishu-ignored-fields"] == place
            refused = strict.client.post(path, json={**body, **said_too})
            assert refused.status_code == 400 and '"ours"' in refused.json()["error"]["message"]


def events_of(response: httpx.Response) -> list[dict[str, Any]]:
    """The events of a stream, each named as its type says, and none but pings that the client doesn't know."""
    found = []
    for event in response.text.removesuffix("\n\n").split("\n\n"):
        name, data = event.split("\n")
        found.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {found[-1]['type']}"
        if found[-1]["type"] != "ping":
            EVENT.validate_python(found[-1], strict=True)
    return found


def test_every_event_is_one_of_the_clients_types_and_a_ping_follows_the_first(scripted: Scripted) -> None:
    server = scripted(f"<think>\nBoth.\n</think>\n\nI look.\n{CALL}\n{CALL_OF_TIME}")
    body = {"model": "tiny", "messages": ASKED["messages"], "max_tokens": 99, "tools": [WEATHER, TIME], "stream": True}
    events = events_of(server.client.post("/v1/messages", json={**body, "thinking": {"type": "adaptive"}}))
    assert [event["type"] for event in events[:3]] == ["message_start", "ping", "content_block_start"]
    blocks = [event["content_block"]["type"] for event in events if event["type"] == "content_block_start"]
    assert blocks == ["thinking", "text", "tool_use", "tool_use"]
    assert [event["type"] for event in events[-3:]] == ["content_block_stop", "message_delta", "message_stop"]


def test_while_nothing_is_said_there_are_pings_from_the_moment_on_when_the_prompt_is_read(
    steady: Callable[..., tuple[LiveServer, SteadyExecutor]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kaishu.server.messages.PING_S", 0.02)
    server, executor = steady()
    body = {"model": "tiny", "messages": ASKED["messages"], "max_tokens": 200, "stream": True}
    with server.client.stream("POST", "/v1/messages", json=body) as response:
        executor.may_step.clear()
        said = ""
        for piece in response.iter_text():
            said += piece
            if said.count("event: ping") > 5:
                executor.may_step.set()
    assert said.startswith("event: message_start") and said.count("event: ping") > 5
    assert said.endswith('event: message_stop\ndata: {"type":"message_stop"}\n\n')


def test_a_client_that_leaves_frees_what_it_held(scripted: Scripted) -> None:
    server = scripted(" ".join(["word"] * 400))
    with client_of(server).messages.stream(**{**ASKED, "max_tokens": 900}) as stream:
        next(iter(stream))
    server.wait_until_idle()
