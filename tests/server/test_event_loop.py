"""Whatever takes time is done beside the event loop: while the test holds it, others are answered."""

from __future__ import annotations

import json
import pkgutil
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from fastapi.routing import APIRoute

from kaishu.loading import load_model
from kaishu.server.app import ROUTERS
from kaishu.server.settings import ServerSettings
from tests.embedding_models import VOCAB_SIZE, write_reranker
from tests.server.conftest import LiveServer, live, service_on

CHAT, COMPLETIONS, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
EMBEDDINGS, RERANK, MESSAGES, COUNT = "/v1/embeddings", "/v1/rerank", "/v1/messages", "/v1/messages/count_tokens"
TOKENIZE, DETOKENIZE = "/tokenize", "/detokenize"
Json = dict[str, Any]

HI = [{"role": "user", "content": "Hi"}]
BODIES: dict[str, Json] = {
    CHAT: {"messages": HI, "max_tokens": 2},
    COMPLETIONS: {"prompt": [f"Prompt {i}" for i in range(100)], "max_tokens": 2},
    RESPONSES: {"input": "Hi", "max_output_tokens": 2},
    EMBEDDINGS: {"input": [f"Text {i}" for i in range(100)]},
    RERANK: {"query": "Hi", "documents": [f"Document {i}" for i in range(100)]},
    MESSAGES: {"messages": HI, "max_tokens": 2},
    COUNT: {"messages": HI},
    TOKENIZE: {"prompt": "Hi"},
    DETOKENIZE: {"tokens": [1, 2, 3]},
}
LARGE = b" " * 20_000  # around a body: it isn't read where small ones are
SCHEMA = {"type": "object", "properties": {"a": {"enum": ["b", "c"]}}, "required": ["a"], "additionalProperties": False}
NAMED = {"type": "json_schema", "name": "x", "schema": SCHEMA}
TOOL = {"name": "f", "description": "A function.", "input_schema": SCHEMA}
FUNCTION = {"type": "function", "function": {"name": "f", "parameters": SCHEMA}}

TEMPLATE = "kaishu.text.template:ChatTemplate.render"
CHAT_TOKENS, TEXT_TOKENS = "kaishu.text.tokenizer:Tokenizer.encode_prompt", "kaishu.text.tokenizer:Tokenizer.encode"
GRAMMAR = "kaishu.engine.grammar:GrammarCompiler.compile"
CHECKS = "kaishu.engine.admission:Admission.checked"
PARSING = "kaishu.server.bodies:parsed"

CASES: list[tuple[str, str, Json]] = [  # the work that is held, the route that does it, further fields of the body
    *((TEMPLATE, path, {}) for path in (CHAT, RESPONSES, MESSAGES, COUNT)),
    (TEMPLATE, TOKENIZE, {"prompt": None, "messages": HI}),
    *((CHAT_TOKENS, path, {}) for path in (CHAT, RESPONSES, MESSAGES, COUNT)),
    (CHAT_TOKENS, TOKENIZE, {"prompt": None, "messages": HI}),
    *((TEXT_TOKENS, path, {}) for path in (COMPLETIONS, EMBEDDINGS, TOKENIZE)),
    ("kaishu.server.rerank:reranking_ids", RERANK, {}),
    ("kaishu.text.tokenizer:Tokenizer.decode", DETOKENIZE, {}),
    (GRAMMAR, CHAT, {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}}),
    (GRAMMAR, CHAT, {"tools": [FUNCTION], "tool_choice": "required"}),
    (
        GRAMMAR,
        COMPLETIONS,
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}},
    ),
    (GRAMMAR, RESPONSES, {"text": {"format": NAMED}}),
    (GRAMMAR, MESSAGES, {"tools": [TOOL], "tool_choice": {"type": "any"}}),
    *((CHECKS, path, {}) for path in (CHAT, COMPLETIONS, RESPONSES, EMBEDDINGS, RERANK, MESSAGES)),
    *((PARSING, path, {}) for path in BODIES),
    ("kaishu.server.chat_completions:read_chat", CHAT, {}),
    ("kaishu.server.completions:read_completion", COMPLETIONS, {}),
    ("kaishu.server.responses:read_response", RESPONSES, {}),
    ("kaishu.server.embeddings:read_embedding", EMBEDDINGS, {}),
    ("kaishu.server.rerank:read_rerank", RERANK, {}),
    ("kaishu.server.messages:read_messages", MESSAGES, {}),
    ("kaishu.server.messages:read_count", COUNT, {}),
    ("kaishu.server.tokens:read_fields", TOKENIZE, {}),
    ("kaishu.server.chat_completions:chat_response", CHAT, {}),
    ("kaishu.server.completions:completion_response", COMPLETIONS, {}),
    ("kaishu.server.completions:echo_of", COMPLETIONS, {"echo": True}),
    ("kaishu.server.responses:JSONResponse", RESPONSES, {}),
    ("kaishu.server.embeddings:embedding_response", EMBEDDINGS, {}),
    ("kaishu.server.rerank:rerank_response", RERANK, {}),
    ("kaishu.server.tokens:JSONResponse", TOKENIZE, {}),
    ("kaishu.server.tokens:JSONResponse", DETOKENIZE, {}),
]


@pytest.fixture(scope="module")
def judge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    folder = tmp_path_factory.mktemp("reranker")
    write_reranker(folder, "dense_tied", vocab_size=VOCAB_SIZE, dtype="bfloat16", num_hidden_layers=2)
    loaded = load_model(folder, threads=1, context_tokens=512, say=lambda _: None)
    with live(service_on(loaded), ServerSettings(port=0)) as server:
        yield server


class Held:
    """A function that waits, wherever it is called, until it may go on."""

    def __init__(self, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
        module, _, inside = name.partition(":")
        owner, _, function = f"{module}.{inside}".rpartition(".")
        self._real: Callable[..., Any] = pkgutil.resolve_name(name)
        self.has_begun, self.may_go_on = threading.Event(), threading.Event()

        def waiting(*arguments: Any, **named: Any) -> Any:
            self.has_begun.set()
            assert self.may_go_on.wait(60), "the test lets it go on"
            return self._real(*arguments, **named)

        monkeypatch.setattr(pkgutil.resolve_name(owner), function, waiting)


def check_others_are_answered(server: LiveServer, held: Held, ask: Callable[[], httpx.Response]) -> None:
    with ThreadPoolExecutor(1) as threads:
        asked = threads.submit(ask)
        try:
            server.wait_until(lambda: held.has_begun.is_set() or asked.done())
            assert held.has_begun.is_set(), f"it isn't done at all: {asked.result().text[:300]}"
            for _ in range(3):
                assert server.client.get("/health", timeout=20).status_code == 200
            assert not asked.done(), "it is being done all the while"
        finally:
            held.may_go_on.set()
        assert asked.result(60).status_code == 200, asked.result().text[:300]


@pytest.mark.parametrize(("work", "path", "fields"), CASES, ids=lambda value: str(value).rpartition(":")[2][-40:])
def test_while_a_request_is_worked_on_others_are_answered(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, work: str, path: str, fields: Json
) -> None:
    server: LiveServer = request.getfixturevalue("judge" if path == RERANK else "tiny")
    body = {"model": "tiny", **BODIES[path], **fields}
    content = LARGE + json.dumps({name: value for name, value in body.items() if value is not None}).encode()
    headers = {"Content-Type": "application/json"}
    check_others_are_answered(
        server, Held(work, monkeypatch), lambda: server.client.post(path, content=content, headers=headers)
    )


@pytest.mark.parametrize(
    ("work", "path"),
    [
        ("kaishu.server.metrics:generate_latest", "/metrics"),
        ("kaishu.server.page:_content", "/"),
        ("kaishu.server.openapi:document", "/openapi.json"),
    ],
)
def test_what_is_looked_at_keeps_nobody_waiting(
    tiny: LiveServer, monkeypatch: pytest.MonkeyPatch, work: str, path: str
) -> None:
    check_others_are_answered(tiny, Held(work, monkeypatch), lambda: tiny.client.get(path))


def test_every_route_that_reads_a_body_is_tried() -> None:
    routes = [route for router in ROUTERS for route in router.routes if isinstance(route, APIRoute)]
    reading = {route.path for route in routes if "POST" in route.methods and "{" not in route.path}
    assert reading == set(BODIES) == {path for _, path, _ in CASES}
