"""Each request's record: its id, its line in the log, and what becomes of bugs."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import re
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from kaishu.loading import LoadedModel
from kaishu.server import tokens
from kaishu.server.access import MOST_LOGGED_BYTES, REQUEST_ID, Access
from kaishu.server.logs import TextLines
from kaishu.server.metrics import Metrics
from tests.server.conftest import LiveServer, LogLines, service_on

CHAT, TOKENIZE = "/v1/chat/completions", "/tokenize"
KEY = "alice-key-0123456789"
PRIVATE = "What nobody else may know: 4711"
Start = Callable[..., LiveServer]


@pytest.fixture
def start(log: LogLines, tiny_model: LoadedModel, serve: Start) -> Start:
    return lambda **settings: serve(service_on(tiny_model), **settings)


def asked(**fields: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": PRIVATE}]
    return {"model": "tiny", "messages": messages, "max_tokens": 5, "temperature": 0, **fields}


def only(log: LogLines, server: LiveServer) -> dict[str, Any]:
    server.wait_until(lambda: bool(log.requests))
    (line,) = log.requests
    return line


# Ids


def test_each_request_gets_an_id_of_its_own(start: Start, log: LogLines) -> None:
    server = start()
    made = [
        server.client.get(path).headers[REQUEST_ID] for path in ("/tokenize", "/v1/models", "/nothing") for _ in "ab"
    ]
    assert len(set(made)) == 6 and all(re.fullmatch(r"[0-9a-f]{32}", one) for one in made)
    assert [line["id"] for line in log.requests] == made


@pytest.mark.parametrize("said", ["abc-DEF_123", "x", "a" * 64])
def test_a_sane_id_is_taken_over(start: Start, log: LogLines, said: str) -> None:
    server = start()
    assert server.client.get("/v1/models", headers={"X-Request-Id": said}).headers[REQUEST_ID] == said
    assert only(log, server)["id"] == said


@pytest.mark.parametrize("said", ["", "a" * 65, "a b", "../x", "a;b", "<script>", b"\xe5\xae\xa2", "a\tb"])
def test_any_other_id_is_not(start: Start, said: str | bytes) -> None:
    answer = start().client.get("/health", headers={"X-Request-Id": said})
    assert re.fullmatch(r"[0-9a-f]{32}", answer.headers[REQUEST_ID])


# Lines


@pytest.mark.parametrize("stream", [True, False])
def test_a_line_says_what_was_answered_to_whom_and_never_what(
    start: Start, log: LogLines, tmp_path: Path, stream: bool
) -> None:
    (tmp_path / "keys").write_text(f"alice {KEY}\n")
    server = start(api_keys_file=tmp_path / "keys")
    answer = server.client.post(CHAT, json=asked(stream=stream), headers={"Authorization": f"Bearer {KEY}"})
    line = only(log, server)
    expected = {
        "status": 200,
        "method": "POST",
        "path": CHAT,
        "bytes": len(answer.content),
        "model": "tiny",
        "key": "alice",
        "client": "127.0.0.1",
        "id": answer.headers[REQUEST_ID],
    }
    assert expected.items() <= line.items() and line["ms"] > 0
    assert line["message"].startswith(f"200 POST {CHAT} {line['ms']} ms {len(answer.content)} bytes model=tiny")
    assert "key=alice" in line["message"]
    assert PRIVATE not in log.text and KEY not in log.text
    assert "request" not in line and "answer" not in line


def test_wrong_keys_are_not_in_the_log_either(start: Start, log: LogLines, tmp_path: Path) -> None:
    (tmp_path / "keys").write_text(f"{KEY}\n")
    server = start(api_keys_file=tmp_path / "keys")
    for headers in ({"Authorization": "Bearer wrong-key-0123456789"}, {"x-api-key": "wrong-key-0123456789"}):
        server.client.get("/v1/models?key=wrong-key-0123456789", headers=headers)
    assert [line["status"] for line in log.requests] == [401, 401]
    assert "key-0123456789" not in log.text


def test_bodies_are_in_the_log_if_that_was_asked_for(start: Start, log: LogLines) -> None:
    server = start(log_prompts=True)
    answer = server.client.post(CHAT, json=asked())
    line = only(log, server)
    assert json.loads(line["request"]) == asked() and json.loads(line["answer"]) == answer.json()


def test_of_a_long_body_the_beginning_is_logged(start: Start, log: LogLines) -> None:
    server = start(log_prompts=True)
    server.client.post(TOKENIZE, json={"prompt": "a" * 100_000})
    line = only(log, server)
    assert line["request"].startswith('{"prompt":"aaa') and line["request"].endswith("a…")
    assert len(line["request"]) == MOST_LOGGED_BYTES + 1


def test_what_a_client_sends_cannot_forge_a_line(start: Start, log: LogLines) -> None:
    server, text = start(), io.StringIO()
    handler = logging.StreamHandler(text)
    handler.setFormatter(TextLines())
    logging.getLogger("kaishu").addHandler(handler)
    forged = "x\r\n2026-01-01 00:00:00.000 INFO  access: 200 GET /forged\x1b[2J\u2028\u202e"
    try:
        server.client.post(CHAT, json=asked(model=forged))
        server.client.get("/x%0A2026-01-01%2000:00:00.000%20INFO%20access:%20200%20GET%20/forged%1b%5b2J")
        server.client.get("/x 1 ms 2 bytes key=admin", headers={"X-Request-Id": "x key=admin"})
        server.client.request("PROPFIND", "/v1/models")
        with socket.create_connection(("127.0.0.1", int(server.url.rpartition(":")[2]))) as raw:
            raw.sendall(b"GET /a\tb HTTP/1.1\r\nHost: local\x1b[2Jhost\r\n\r\n")
            raw.settimeout(10)
            raw.recv(1000)
        server.wait_until(lambda: len(log.requests) == 4)
    finally:
        logging.getLogger("kaishu").removeHandler(handler)
    lines = text.getvalue().split("\n")[:-1]
    assert len(lines) == len(log.requests) and all(line.isprintable() for line in lines)
    assert not any(" key=" in line for line in lines)
    assert all(re.match(r"\d{4}-\d\d-\d\d [\d:.]{12} INFO  access: \d{3} [A-Za-z]+ /", line) for line in lines)
    assert not any("2026-01-01" in line[:20] for line in lines)
    assert all(line.isascii() and json.loads(line) for line in log.text.splitlines())


def test_probes_have_a_line_only_if_they_fail(start: Start, log: LogLines) -> None:
    server = start()
    for path in ("/health", "/ready"):
        assert server.client.get(path).status_code == 200
        assert server.client.post(path).status_code == 405
    server.life.state = "draining"
    assert server.client.get("/health").status_code == 200 and server.client.get("/ready").status_code == 503
    assert [(line["method"], line["path"], line["status"]) for line in log.requests] == [
        ("POST", "/health", 405),
        ("POST", "/ready", 405),
        ("GET", "/ready", 503),
    ]
    counted = server.life.metrics.text().decode()
    assert 'kaishu_http_requests_total{method="GET",path="/health",status="200"} 2.0' in counted


# Bugs


@pytest.mark.parametrize("path", [TOKENIZE, "/v1/messages/count_tokens"])
def test_a_bug_is_its_requests_500_without_what_is_inside_and_the_next_works(
    start: Start, log: LogLines, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    server = start()

    def broken(*_: Any, **__: Any) -> Any:
        raise RuntimeError("/home/somebody/secret")

    with monkeypatch.context() as patch:
        patch.setattr(tokens, "_tokenized", broken)
        patch.setattr(server.engine.prompting, "render", broken)
        patch.setattr(server.engine.prompting, "chat", broken)
        failed = server.client.post(path, json={"model": "tiny", "prompt": PRIVATE} if path == TOKENIZE else asked())
    if path != TOKENIZE and failed.status_code < 500:
        pytest.fail(f"the test breaks nothing: {failed.text}")
    assert failed.status_code == 500 and "secret" not in failed.text and "Traceback" not in failed.text
    error = failed.json()["error"]
    assert error["type"] == ("server_error" if path == TOKENIZE else "api_error")
    assert server.client.post(TOKENIZE, json={"prompt": "a"}).status_code == 200
    (told,) = [line for line in log.of("kaishu.access") if "traceback" in line]
    assert "/home/somebody/secret" in told["traceback"] and told["id"] == failed.headers[REQUEST_ID]
    assert [line["status"] for line in log.requests] == [500, 200] and PRIVATE not in log.text


def test_a_bug_after_an_answers_beginning_breaks_the_connection_off(log: LogLines) -> None:
    async def broken(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"half", "more_body": True})
        raise RuntimeError("secret")

    sent: list[dict[str, Any]] = []

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    async def receive() -> dict[str, Any]:
        return {"type": "http.disconnect"}

    scope = {"type": "http", "method": "GET", "path": "/x", "headers": []}
    asyncio.run(Access(broken, metrics=Metrics(), log_prompts=False)(scope, receive, send))  # type: ignore[arg-type]
    assert [message["type"] for message in sent] == ["http.response.start", "http.response.body"], "and no end"
    (line,) = log.requests
    assert (line["status"], line["bytes"], line["client"]) == (500, 4, "unknown")


# What isn't a request


def test_the_servers_life_passes_through_and_websockets_are_closed() -> None:
    seen, sent = [], []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append(scope["type"])

    async def send(message: Any) -> None:
        sent.append(message["type"])

    layer = Access(app, metrics=Metrics(), log_prompts=False)
    for kind in ("lifespan", "websocket"):
        asyncio.run(layer({"type": kind, "path": "/v1/realtime"}, None, send))  # type: ignore[arg-type]
    assert seen == ["lifespan"] and sent == ["websocket.close"]


def test_a_websocket_gets_no_answer_from_a_live_server(start: Start) -> None:
    answer = httpx.get(
        f"{start().url}/v1/realtime",
        headers={
            "Connection": "Upgrade",
            "Upgrade": "websocket",
            "Sec-WebSocket-Version": "13",
            "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
        },
    )
    assert answer.status_code in (403, 404)


def test_the_id_is_also_where_anthropics_clients_look_for_it(tiny) -> None:
    answer = tiny.client.get("/health", headers={"X-Request-Id": "mine-1"})
    assert answer.headers["x-request-id"] == answer.headers["request-id"] == "mine-1"
