"""A request and its answer: proxies, and that a connection ends when nobody reads on."""

from __future__ import annotations

import http.client
import socket
import threading

import pytest

from kaishu.cli.http_answer import asked, proxy_for

LIMITS = {"connect_s": 10.0, "silence_s": 10.0}


class OneAnswer:
    """Listens once: keeps what it is asked, and says this."""

    def __init__(self, answer: bytes) -> None:
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        self._answer, self.asked, self.is_left = answer, b"", threading.Event()
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        with self._listening, self._listening.accept()[0] as connection:
            while b"\r\n\r\n" not in self.asked:
                self.asked += connection.recv(4096)
            connection.sendall(self._answer)
            connection.settimeout(30)
            while connection.recv(4096):
                pass
            self.is_left.set()


@pytest.fixture
def no_proxy(monkeypatch):
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    return monkeypatch


def test_a_body_comes_in_pieces_and_the_connection_ends_with_the_context(no_proxy):
    server = OneAnswer(
        b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Type: a/b\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n"
    )
    url = f"http://127.0.0.1:{server.port}/v1/%7Ex y"
    with asked("POST", url, headers={"Connection": "close"}, body=b"{}", **LIMITS) as answer:
        assert (answer.status, answer.reason, answer.kind, answer.location) == (200, "OK", "a/b", None)
        assert next(answer.chunks()) == b"abc"
    assert server.is_left.wait(30)
    assert server.asked.startswith(b"POST /v1/%7Ex%20y HTTP/1.1\r\n")


def test_a_body_that_breaks_off_is_an_error(no_proxy):
    listening = socket.create_server(("127.0.0.1", 0))

    def run() -> None:
        with listening, listening.accept()[0] as connection:
            connection.recv(4096)
            connection.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nabc")

    threading.Thread(target=run, daemon=True).start()
    url = f"http://127.0.0.1:{listening.getsockname()[1]}/"
    with asked("GET", url, headers={}, **LIMITS) as answer, pytest.raises((http.client.HTTPException, OSError)):
        list(answer.chunks())


def test_a_proxy_of_the_environment_is_asked_for_others_but_not_for_this_machine(no_proxy):
    proxy = OneAnswer(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
    no_proxy.setenv("http_proxy", f"http://user:p%40ss@127.0.0.1:{proxy.port}")
    assert proxy_for("localhost", "http") is proxy_for("127.0.0.1", "http") is proxy_for("::1", "http") is None
    with asked("GET", "http://a.invalid/v1/models", headers={}, **LIMITS) as answer:
        assert answer.read(9) == b"ok"
    assert proxy.asked.startswith(b"GET http://a.invalid/v1/models HTTP/1.1\r\nHost: a.invalid\r\n")
    assert b"Proxy-Authorization: Basic dXNlcjpwQHNz" in proxy.asked
    no_proxy.setenv("no_proxy", "a.invalid")
    assert proxy_for("a.invalid", "http") is None


def test_https_goes_through_a_proxy_as_a_tunnel_with_the_proxys_permission(no_proxy):
    proxy = OneAnswer(b"HTTP/1.1 403 No\r\n\r\n")
    no_proxy.setenv("https_proxy", f"user:p%40ss@127.0.0.1:{proxy.port}")
    with pytest.raises(OSError, match="403"), asked("GET", "https://a.invalid/v1", headers={}, **LIMITS):
        pass
    assert b"CONNECT a.invalid:443 HTTP/1." in proxy.asked
    assert b"Proxy-Authorization: Basic dXNlcjpwQHNz" in proxy.asked  # user:p@ss
