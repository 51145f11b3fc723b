"""The process of a server: where it listens, what it says, and how it ends."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
import trustme
import uvicorn

from kaishu.errors import ListenError
from kaishu.server.metrics import Metrics
from kaishu.server.run import (
    GRACE_S,
    DrainingServer,
    bound_unread,
    check_certificate,
    listening_sockets,
    shown_url,
)
from kaishu.server.service import Life
from kaishu.server.settings import ServerSettings

ROOT = Path(__file__).parents[2]
CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "Count"}], "stream": True}


class Process:
    """A server's process, its output read as it comes."""

    def __init__(self, arguments: list[str], environment: dict[str, str]) -> None:
        clean = {name: value for name, value in os.environ.items() if not name.startswith("KAISHU_")}
        self.process = subprocess.Popen(
            [sys.executable, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={**clean, **{k: v for k, v in os.environ.items() if k == "KAISHU_CACHE"}, **environment},
        )
        self.log: list[str] = []
        self._reader = threading.Thread(target=lambda: self.log.extend(self.process.stderr), daemon=True)
        self._reader.start()

    def line(self, pattern: str) -> re.Match[str]:
        """The first line of stdout that has this."""
        for line in self.process.stdout:
            if found := re.search(pattern, line):
                return found
        raise AssertionError(f"it ended without: {pattern}\n{self.ended()[1]}")

    def listening_at(self) -> str:
        """The address in its log."""
        wait_until(lambda: any("Listening at " in line for line in self.log))
        return re.search(r"Listening at (\S+);", "".join(self.log))[1]

    def end(self, number: int = signal.SIGTERM) -> None:
        self.process.send_signal(number)

    def ended(self, seconds: float = 60) -> tuple[int, str]:
        """Its exit code and its log."""
        code = self.process.wait(seconds)
        self._reader.join(10)
        return code, "".join(self.log)


@pytest.fixture
def start() -> Iterator[Callable[..., Process]]:
    """`start(*arguments of python, VARIABLE=value)`"""
    with ExitStack() as stack:

        def started(*arguments: str, **environment: str) -> Process:
            made = Process([*arguments], environment)
            stack.callback(made.process.kill)
            return made

        yield started


@pytest.fixture
def slow(start) -> Callable[..., tuple[Process, str]]:
    """`slow(step_s=…, drain_s=…)`: a server that is ready, and its address"""

    def started(**options: float) -> tuple[Process, str]:
        process = start("-m", "tests.server.slow_server", json.dumps(options))
        return process, process.line("http.*")[0]

    return started


def test_serve_says_where_it_is_answers_and_ends_with_0(start):
    process = start("-m", "kaishu", "serve", "tiny", "--port", "0", "--threads", "1")
    url = process.line(r"Kaishu serves tiny at (http://127\.0\.0\.1:\d+)$")[1]
    assert url in process.line("in a terminal: .*")[0]
    process.line("Ctrl-C")
    assert httpx.get(f"{url}/v1/models").json()["data"][0]["id"] == "tiny"
    process.end()
    code, log = process.ended()
    assert code == 0
    assert "Traceback" not in log


def test_a_server_outlives_whoever_read_what_it_says(start):
    process = start("-m", "kaishu", "serve", "tiny", "--port", "0", "--threads", "1")
    process.process.stdout.close()
    url = process.listening_at()
    wait_until(lambda: httpx.get(f"{url}/ready").status_code == 200)
    assert httpx.post(f"{url}/v1/chat/completions", json={**CHAT, "max_tokens": 1}).status_code == 200
    process.end()
    code, log = process.ended()
    assert code == 0 and "Traceback" not in log


def test_what_was_begun_is_finished_and_nothing_new_is_begun(slow):
    process, url = slow(step_s=0.02)
    with httpx.stream("POST", f"{url}/v1/chat/completions", json={**CHAT, "max_tokens": 60}) as response:
        lines = response.iter_lines()
        next(lines)
        process.end()
        found = wait_for_draining(url)
        assert found.status_code == 503 and found.json()["error"]["code"] == "draining"
        assert "retry-after" in found.headers
        rest = [line for line in lines if line]
    assert rest[-1] == "data: [DONE]"
    assert '"finish_reason":"length"' in rest[-2]
    code, log = process.ended()
    assert code == 0
    assert "1 requests may go on for 30 s" in log


def wait_for_draining(url: str) -> httpx.Response:
    """The answer to a new request, from the first that is refused on."""
    for _ in range(200):
        found = httpx.post(f"{url}/v1/chat/completions", json={**CHAT, "max_tokens": 1, "stream": False})
        if found.status_code != 200:
            return found
    raise AssertionError("new requests are still let in")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_what_takes_too_long_is_cut_off_with_an_error(slow, number):
    process, url = slow(step_s=0.02, drain_s=0.3)
    with httpx.stream("POST", f"{url}/v1/chat/completions", json={**CHAT, "max_tokens": 900}) as response:
        lines = response.iter_lines()
        next(lines)
        process.end(number)
        rest = [line for line in lines if line]
    assert json.loads(rest[-1].removeprefix("data: "))["error"]["code"] == "engine_closed"
    code, log = process.ended(0.3 + GRACE_S + 5)
    assert code == 0
    assert "1 requests were cut off, 0.3 s after the signal" in log
    assert "Traceback" not in log


def test_a_step_that_never_ends_does_not_keep_the_process(slow):
    process, url = slow(step_s=600, drain_s=0.2, grace_s=0.5)
    threading.Timer(0.5, process.end).start()
    with pytest.raises(httpx.HTTPError):
        httpx.post(f"{url}/v1/chat/completions", json={**CHAT, "max_tokens": 9}, timeout=60)
    assert process.ended(20)[0] == 0


def test_a_second_ctrl_c_leaves_at_once(slow):
    process, url = slow(step_s=0.02)
    with httpx.stream("POST", f"{url}/v1/chat/completions", json={**CHAT, "max_tokens": 900}) as response:
        lines = response.iter_lines()
        next(lines)
        process.end(signal.SIGINT)
        wait_for_draining(url)
        process.end(signal.SIGINT)
        with pytest.raises(httpx.HTTPError):
            list(lines)
    assert process.ended(10)[0] == 130


def test_while_the_model_is_loaded_the_server_answers_and_can_be_ended(start):
    process = start("-m", "tests.server.slow_server", '{"load_s": 600}')
    process.line("loading")
    url = process.listening_at()
    assert httpx.get(f"{url}/health").json() == {"status": "ok", "state": "loading"}
    refused = httpx.post(f"{url}/v1/chat/completions", json=CHAT)
    assert refused.status_code == 503 and refused.json()["error"]["code"] == "loading"
    process.end()
    assert process.ended(20)[0] == 0


def test_settings_come_from_the_file_the_environment_and_the_command_line_over_https(start, tmp_path):
    authority = trustme.CA()
    certificate = authority.issue_cert("127.0.0.1")
    certificate.private_key_pem.write_to_path(str(tmp_path / "key.pem"))
    certificate.cert_chain_pems[0].write_to_path(str(tmp_path / "cert.pem"))
    settings = tmp_path / "kaishu.toml"
    settings.write_text(
        'model = "tiny"\nthreads = 1\nport = 1\nnames = ["file"]\nmax_messages = 1\nmax_body_bytes = 900\n'
        'tls_certificate = "cert.pem"\ntls_key = "key.pem"\n'
    )
    process = start(
        "-m", "kaishu", "serve", "--config", str(settings), "--port", "0",
        KAISHU_NAMES="environment, second", KAISHU_PORT="2", KAISHU_MAX_BODY_BYTES="500",
    )  # fmt: skip
    url = process.line(r"Kaishu serves environment at (https://\S+)")[1]
    context = ssl.create_default_context()
    authority.configure_trust(context)
    with httpx.Client(base_url=url, verify=context) as client:
        assert [entry["id"] for entry in client.get("/v1/models").json()["data"]] == ["environment", "second"]
        twice = {"model": "second", "messages": [{"role": "user", "content": "Hi"}] * 2}
        assert "at most 1 messages" in client.post("/v1/chat/completions", json=twice).json()["error"]["message"]
        assert client.post("/v1/chat/completions", content=b" " * 600).status_code in (413, 415)
    process.end(signal.SIGINT)
    assert process.ended()[0] == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["/nowhere/model"], "There is no such folder: /nowhere/model."),
        (["tiny", "--weights", "int3"], "--weights is 'int3'"),
    ],
)
def test_a_model_that_cannot_be_loaded_ends_the_server_with_words(start, arguments, said):
    code, log = start("-m", "kaishu", "serve", *arguments, "--port", "0").ended()
    assert code == 2
    assert f"kaishu: error: {said}" in log
    assert "Traceback" not in log


def test_listening_beyond_this_machine_without_keys_is_warned_of(start):
    for environment, is_warned in (({}, True), ({"KAISHU_API_KEYS": "a-key-of-enough-letters"}, False)):
        process = start("-m", "kaishu", "serve", "tiny", "--port", "0", "--host", "0.0.0.0", **environment)
        process.line("Kaishu serves tiny at http://127")
        process.end()
        code, log = process.ended()
        assert code == 0
        assert ("asks for no key" in log) == is_warned


def test_a_port_in_use_is_said():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ListenError, match=rf"Port {port} of 127\.0\.0\.1 is in use already\."):
            listening_sockets("127.0.0.1", port)


def test_an_address_of_another_machine_and_an_unknown_name_are_said():
    with pytest.raises(ListenError, match=r"192\.0\.2\.1 is no address of this machine"):  # RFC 5737: nobody's
        listening_sockets("192.0.2.1", 0)
    with pytest.raises(ListenError, match="There is no address no such name"):
        listening_sockets("no such name", 0)


def test_all_addresses_of_a_name_have_the_same_port():
    sockets = listening_sockets("localhost", 0)
    try:
        assert len({made.getsockname()[1] for made in sockets}) == 1
        assert all(made.getsockname()[0] in ("127.0.0.1", "::1") for made in sockets)
    finally:
        for made in sockets:
            made.close()


def test_without_a_name_it_is_every_address():
    sockets = listening_sockets("", 0)
    try:
        assert {made.getsockname()[0] for made in sockets} >= {"0.0.0.0"}
        assert len({made.getsockname()[1] for made in sockets}) == 1
    finally:
        for made in sockets:
            made.close()


def test_the_address_that_is_shown_can_be_opened():
    pem = Path("x.pem")
    assert shown_url(ServerSettings(host="0.0.0.0"), 80) == "http://127.0.0.1:80"
    assert shown_url(ServerSettings(host="::1"), 80) == "http://[::1]:80"
    assert shown_url(ServerSettings(tls_certificate=pem, tls_key=pem), 443) == "https://127.0.0.1:443"


def test_certificates_that_cannot_be_used_are_said(tmp_path):
    def checked(certificate: Path, key: Path) -> None:
        check_certificate(ServerSettings(tls_certificate=certificate, tls_key=key))

    one, other = (trustme.CA().issue_cert("127.0.0.1") for _ in range(2))
    certificate, key, foreign, text = (tmp_path / name for name in ("cert.pem", "key.pem", "other.pem", "text"))
    one.cert_chain_pems[0].write_to_path(str(certificate))
    one.private_key_pem.write_to_path(str(key))
    other.private_key_pem.write_to_path(str(foreign))
    text.write_text("no certificate")
    checked(certificate, key)
    with pytest.raises(ListenError, match=r"absent can't be read: No such file"):
        checked(certificate, tmp_path / "absent")
    with pytest.raises(ListenError, match="KEY_VALUES_MISMATCH"):
        checked(certificate, foreign)
    with pytest.raises(ListenError, match="are not a certificate and its key"):
        checked(text, key)


def test_the_connection_of_a_client_that_reads_nothing_does_not_stay_for_ever() -> None:
    async def endless(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        with suppress(TimeoutError):
            while True:
                async with asyncio.timeout(0.2):
                    await send({"type": "http.response.body", "body": b"x" * 1000, "more_body": True})

    with listening_sockets("127.0.0.1", 0)[0] as listening, socket.socket() as client:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 32 << 10)
        bound_unread(listening, 0.5)
        server = uvicorn.Server(uvicorn.Config(endless, lifespan="off", log_config=None))
        thread = threading.Thread(target=server.run, args=([listening],), daemon=True)
        thread.start()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        client.connect(listening.getsockname())
        client.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        wait_until(lambda: len(server.server_state.connections) == 1)
        wait_until(lambda: not server.server_state.connections)
        server.should_exit = True
        thread.join(30)


@pytest.mark.parametrize("protocol", ["h11", "httptools"])
def test_connections_on_which_no_request_comes_are_ended_and_no_others(protocol: str) -> None:
    may_answer = threading.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["path"] == "/slow":
            await asyncio.to_thread(may_answer.wait, 60)
        headers = [(b"content-length", b"0")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body"})

    life = Life(ServerSettings(body_timeout_s=0.2), Metrics(), lambda *_: None)
    config = uvicorn.Config(app, lifespan="off", log_config=None, http=protocol)
    server = DrainingServer(config, life, on_ready=lambda _: None)
    with ExitStack() as stack:
        listening = stack.enter_context(listening_sockets("127.0.0.1", 0)[0])
        thread = threading.Thread(target=server.run, args=([listening],), daemon=True)
        thread.start()

        def client(sent: bytes) -> socket.socket:
            made = stack.enter_context(socket.create_connection(listening.getsockname(), timeout=30))
            made.sendall(sent)
            return made

        head = b"GET %s HTTP/1.1\r\nHost: localhost\r\n\r\n"
        working, idle = client(head % b"/slow"), client(head % b"/")
        assert b" 200 " in idle.recv(1000)
        again = client(head % b"/")
        assert b" 200 " in again.recv(1000)
        again.sendall(b"GET / HT")
        for silent in (client(b""), client(b"GET / HTTP/1.1\r\nHost: "), again):
            assert silent.recv(1000) == b"", "the server has closed it"
        may_answer.set()
        assert b" 200 " in working.recv(1000)
        idle.sendall(head % b"/")
        assert b" 200 " in idle.recv(1000)
        server.should_exit = True
        thread.join(30)
        assert not thread.is_alive()


def wait_until(condition: Callable[[], bool], seconds: float = 30) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it didn't come about"
        time.sleep(0.01)


def test_listening_sockets_are_known_to_be_of_tcp():
    """Else asyncio lets the system collect small packets, and each answer takes 40 ms."""
    sockets = listening_sockets("127.0.0.1", 0)
    try:
        assert [one.proto for one in sockets] == [socket.IPPROTO_TCP]
    finally:
        for one in sockets:
            one.close()
