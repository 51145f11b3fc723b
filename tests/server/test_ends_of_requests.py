"""Whatever ends a request before its answer is whole, over live servers: it ends the work, and nobody else's."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from tests.server.conftest import LiveServer, LogLines
from tests.server.steady import SteadyExecutor

CHAT = "/v1/chat/completions"
HEAD = f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
Steady = Callable[..., tuple[LiveServer, SteadyExecutor]]


def asked(content: str = "Hi", **fields: Any) -> dict[str, Any]:
    return {"model": "tiny", "messages": [{"role": "user", "content": content}], "temperature": 0, **fields}


@contextmanager
def connection(server: LiveServer, receive_bytes: int | None = None) -> Iterator[socket.socket]:
    address = ("127.0.0.1", int(server.url.rpartition(":")[2]))
    with socket.socket() as made:
        if receive_bytes is not None:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        made.settimeout(30)
        made.connect(address)
        yield made


def send(made: socket.socket, body: dict[str, Any]) -> None:
    content = json.dumps(body).encode()
    made.sendall(f"{HEAD}Content-Length: {len(content)}\r\n\r\n".encode() + content)


class Neighbour:
    """A stream that goes on beside what is tested."""

    def __init__(self, server: LiveServer, **fields: Any) -> None:
        self.text, self.reason, self.error = "", None, None
        self._server, self._fields = server, fields
        self.thread = threading.Thread(target=self._read, daemon=True)
        self.thread.start()
        server.wait_until(lambda: len(self.text) > 3)

    def _read(self) -> None:
        body = asked("The neighbour", stream=True, **self._fields)
        with httpx.Client(timeout=60) as client, client.stream("POST", self._server.url + CHAT, json=body) as answer:
            for line in answer.iter_lines():
                if line.startswith("data: {"):
                    found = json.loads(line.removeprefix("data: "))
                    self.error = found.get("error")
                    for choice in found.get("choices", ()):
                        self.text += choice["delta"].get("content") or ""
                        self.reason = choice["finish_reason"] or self.reason


@pytest.mark.parametrize(
    "fields", [{"stream": True}, {"stream": False}, {"stream": True, "n": 3}, {"stream": False, "n": 3}], ids=str
)
def test_a_client_that_leaves_frees_its_work_within_a_step_and_changes_nobody(
    log: LogLines, steady: Steady, fields: dict[str, Any]
) -> None:
    server, executor = steady()
    alone = server.client.post(CHAT, json=asked("The neighbour", max_tokens=200)).json()["choices"][0]["message"]
    neighbour = Neighbour(server, max_tokens=200)
    with connection(server) as leaving:
        send(leaving, asked("I won't wait", max_tokens=900, **fields))
        server.wait_until(lambda: server.engine.statistics().running == 1 + fields.get("n", 1))
        executor.may_step.clear()
        time.sleep(3 * executor.step_seconds)
    server.wait_until(lambda: [line["status"] for line in log.requests] == [200, 499])
    before = len(executor.steps)  # one more, with the work of the client that has left, is held
    executor.may_step.set()
    neighbour.thread.join(30)
    assert neighbour.text == alone["content"] and len(neighbour.text) == 200
    after = [batch.num_sequences for batch in executor.steps[before:]]
    assert set(after[1:]) == {1} and len(after) > 10, after[:5]
    server.wait_until_idle()
    server.wait_until(lambda: len(log.requests) == 3)
    assert server.engine.statistics().ends["abort"] == fields.get("n", 1)


def test_a_client_that_leaves_the_queue_is_never_begun_with(log: LogLines, steady: Steady) -> None:
    server, _ = steady(max_running=1)
    neighbour = Neighbour(server, max_tokens=300)
    begun = server.engine.statistics().prompt_tokens
    for stream in (True, False):
        with connection(server) as leaving:
            send(leaving, asked("I won't wait", stream=stream))
            server.wait_until(lambda: server.engine.statistics().waiting == 1)
        server.wait_until(lambda: server.engine.statistics().waiting == 0)
    assert neighbour.thread.is_alive() and server.engine.statistics().prompt_tokens == begun
    neighbour.thread.join(30)
    assert neighbour.reason == "length" and len(neighbour.text) == 300
    server.wait_until(lambda: sorted(line["status"] for line in log.requests) == [200, 499, 499])
    server.wait_until_idle()


def test_a_client_that_leaves_while_its_body_is_read_is_no_error(log: LogLines, steady: Steady) -> None:
    server, _ = steady()
    with connection(server) as leaving:
        leaving.sendall(f'{HEAD}Content-Length: 1000\r\n\r\n{{"model": '.encode())
        time.sleep(0.05)
    server.wait_until(lambda: len(log.requests) == 1)
    assert log.requests[0]["status"] == 499 and "ERROR" not in log.text
    assert server.client.post(CHAT, json=asked(max_tokens=2)).status_code == 200


def test_a_client_that_reads_nothing_is_cut_off_and_its_pages_return(log: LogLines, steady: Steady) -> None:
    server, executor = steady(send_timeout_s=0.3)
    executor.step_seconds = 0.0
    with connection(server, receive_bytes=2048) as lazy:
        send(lazy, asked("I read nothing", max_tokens=900, stream=True, logprobs=True, top_logprobs=20))
        server.wait_until(lambda: bool(log.requests))
        assert log.requests[0]["status"] == 499
        assert server.client.post(CHAT, json=asked(max_tokens=2)).status_code == 200
        server.wait_until_idle()
    assert server.engine.statistics().ends["abort"] == 1


def test_a_client_that_reads_slowly_gets_everything(steady: Steady) -> None:
    server, _ = steady(send_timeout_s=1.0)
    with server.client.stream("POST", CHAT, json=asked(max_tokens=300, stream=True)) as answer:
        lines = answer.iter_lines()
        for _ in range(10):
            next(lines)
            time.sleep(0.02)
        assert list(lines)[-2:] == ["data: [DONE]", ""]


def test_a_body_that_does_not_come_is_not_waited_for(log: LogLines, steady: Steady) -> None:
    server, _ = steady(body_timeout_s=0.2)
    with connection(server) as slow:
        slow.sendall(f'{HEAD}Content-Length: 1000\r\n\r\n{{"model": '.encode())
        answer = b""
        while part := slow.recv(65_536):
            answer += part  # until the server closes the connection
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 408 ") and b"connection: close" in head.lower()
    assert json.loads(body)["error"]["code"] == "body_timeout"
    assert [line["status"] for line in log.requests] == [408]


def test_a_full_queue_refuses_and_says_when_to_come_again(steady: Steady) -> None:
    server, _ = steady(max_running=1, max_waiting=1)
    neighbour = Neighbour(server, max_tokens=300)
    with connection(server) as waiting:
        send(waiting, asked(max_tokens=1))
        server.wait_until(lambda: server.engine.statistics().waiting == 1)
        for stream in (True, False):
            refused = server.client.post(CHAT, json=asked(stream=stream))
            assert refused.status_code == 429 and refused.headers["Retry-After"] == "1"
            assert refused.json()["error"]["code"] == "queue_full"
            assert refused.json()["error"]["type"] == "rate_limit_error"
    server.wait_until(lambda: server.engine.statistics().waiting == 0)
    assert neighbour.thread.is_alive()
    neighbour.thread.join(30)
    assert neighbour.reason == "length"


@pytest.mark.parametrize("stream", [True, False])
def test_whoever_waits_too_long_in_the_queue_is_told_so(log: LogLines, steady: Steady, stream: bool) -> None:
    server, _ = steady(max_running=1, queue_timeout_s=0.2)
    neighbour = Neighbour(server, max_tokens=300)
    refused = server.client.post(CHAT, json=asked(stream=stream))
    assert refused.status_code == 503 and refused.headers["Retry-After"] == "1"
    error = refused.json()["error"]
    assert (error["code"], error["type"]) == ("queue_timeout", "server_error") and "0.2 s" in error["message"]
    assert neighbour.thread.is_alive() and [line["status"] for line in log.requests] == [503]
    neighbour.thread.join(30)
    assert neighbour.reason == "length" and len(neighbour.text) == 300, "who was begun with goes on"
    server.wait_until_idle()


def test_an_answer_that_takes_too_long_is_given_up(log: LogLines, steady: Steady) -> None:
    server, executor = steady(request_timeout_s=0.3)
    executor.step_seconds = 0.01
    late = server.client.post(CHAT, json=asked(max_tokens=900))
    assert late.status_code == 504 and late.json()["error"]["code"] == "request_timeout"
    server.wait_until_idle()
    assert log.requests[-1]["status"] == 504


def test_a_stream_that_takes_too_long_ends_with_an_error(log: LogLines, steady: Steady) -> None:
    server, executor = steady(request_timeout_s=0.3)
    executor.step_seconds = 0.01
    late = server.client.post(CHAT, json=asked(max_tokens=900, stream=True))
    events = late.text.strip().split("\n\n")
    assert late.status_code == 200 and len(events) > 3
    assert json.loads(events[-1].removeprefix("data: "))["error"]["code"] == "request_timeout"
    server.wait_until_idle()
    server.wait_until(lambda: bool(log.requests))
    assert log.requests[-1]["status"] == 504


def test_a_stream_whose_turn_never_comes_is_refused_with_a_status(steady: Steady) -> None:
    server, executor = steady(max_running=1, request_timeout_s=0.5)
    neighbour = Neighbour(server, max_tokens=900)
    executor.may_step.clear()
    late = server.client.post(CHAT, json=asked(stream=True))
    assert late.status_code == 504 and late.json()["error"]["code"] == "request_timeout"
    neighbour.thread.join(30)
    assert neighbour.error is not None and neighbour.error["code"] == "request_timeout"
    executor.may_step.set()
    server.wait_until_idle()


@pytest.mark.parametrize("stream", [True, False])
def test_a_step_that_fails_is_its_requests_500_and_the_next_works(log: LogLines, steady: Steady, stream: bool) -> None:
    server, executor = steady()
    executor.fails = RuntimeError("/home/somebody/secret")
    failed = server.client.post(CHAT, json=asked("A prompt that is private", stream=stream))
    assert failed.status_code == 500 and "secret" not in failed.text and "RuntimeError" not in failed.text
    assert failed.json()["error"]["type"] == "server_error"
    assert server.client.post(CHAT, json=asked(max_tokens=2)).status_code == 200
    server.wait_until_idle()
    (told,) = [line for line in log.of("kaishu.access") if "traceback" in line]
    assert "/home/somebody/secret" in told["traceback"] and told["id"] == failed.headers["X-Request-Id"]
    assert "A prompt that is private" not in log.text
    assert [line["status"] for line in log.requests] == [500, 200]


def test_a_step_that_fails_in_the_middle_of_a_stream_is_told_in_it(log: LogLines, steady: Steady) -> None:
    server, executor = steady()
    with server.client.stream("POST", CHAT, json=asked(stream=True)) as answer:
        lines = answer.iter_lines()
        next(lines)
        executor.fails = RuntimeError("/home/somebody/secret")
        events = [line for line in lines if line]
    error = json.loads(events[-1].removeprefix("data: "))["error"]
    assert error["type"] == "server_error" and "secret" not in events[-1]
    server.wait_until_idle()
    server.wait_until(lambda: bool(log.requests))
    assert [line["status"] for line in log.requests] == [500] and "/home/somebody/secret" in log.text
