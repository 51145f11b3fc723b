"""The gate, asked over live servers: hosts, keys, limits; and what pages of other sites may do."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from kaishu.loading import LoadedModel
from kaishu.server.gate import allowed_hosts, host_name
from kaishu.server.settings import ServerSettings
from tests.server.conftest import LiveServer, service_on

ALICE, BOB = "alice-key-0123456789", "bob-key-0123456789"
ASKED = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 3, "temperature": 0}
CHAT, MESSAGES = "/v1/chat/completions", "/v1/messages"
Start = Callable[..., LiveServer]


@pytest.fixture
def start(tiny_model: LoadedModel, serve: Start) -> Start:
    return lambda **settings: serve(service_on(tiny_model), **settings)


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    file = tmp_path / "keys"
    file.write_text(f"alice {ALICE}\nbob {BOB}\n")
    file.chmod(0o600)
    return file


# Keys


@pytest.mark.parametrize(
    "headers",
    [
        {"Authorization": f"Bearer {ALICE}"},
        {"authorization": f"bearer  {BOB}"},
        {"x-api-key": ALICE},
        {"X-Api-Key": BOB, "Authorization": "Basic YTpi"},
    ],
)
def test_a_key_opens_in_the_headers_of_both_apis(start: Start, keys: Path, headers: dict[str, str]) -> None:
    answer = start(api_keys_file=keys).client.post(CHAT, json=ASKED, headers=headers)
    assert answer.status_code == 200, answer.text


@pytest.mark.parametrize(
    ("headers", "said"),
    [
        ({}, "There is no API key."),
        ({"Authorization": "Bearer"}, "There is no API key."),
        ({"Authorization": f"Basic {ALICE}"}, "There is no API key."),
        ({"Authorization": "Bearer wrong-key-0123456789"}, "not one of this server's"),
        ({"Authorization": f"Bearer {ALICE}x"}, "not one of this server's"),
        ({"x-api-key": ALICE.upper()}, "not one of this server's"),
        ({"Authorization": f"Bearer {ALICE[:-1]}", "x-api-key": ALICE}, "not one of this server's"),
        ({"Authorization": b"Bearer \xff\xfe key-0123456789"}, "not one of this server's"),
    ],
)
def test_without_a_right_key_nothing_is_answered(start: Start, keys: Path, headers: Any, said: str) -> None:
    server = start(api_keys_file=keys)
    for method, path in (("POST", CHAT), ("GET", "/v1/models"), ("GET", "/metrics"), ("GET", "/nothing/here")):
        answer = server.client.request(method, path, json=ASKED, headers=headers)
        assert answer.status_code == 401 and answer.headers["WWW-Authenticate"] == "Bearer"
        error = answer.json()["error"]
        assert said in error["message"] and "key-0123456789" not in answer.text
        assert (error["type"], error["code"], error["param"]) == ("authentication_error", "invalid_api_key", None)
    assert server.engine.statistics().prompt_tokens == 0


def test_a_refusal_has_the_form_that_the_paths_clients_read(start: Start, keys: Path) -> None:
    answer = start(api_keys_file=keys).client.post(MESSAGES, json=ASKED)
    assert answer.status_code == 401 and answer.json()["type"] == "error"
    assert answer.json()["error"]["type"] == "authentication_error"
    assert answer.json()["request_id"] == answer.headers["X-Request-Id"]


def test_the_page_and_whether_the_server_lives_need_no_key(start: Start, keys: Path) -> None:
    client = start(api_keys_file=keys).client
    assert client.get("/health").status_code == client.get("/ready").status_code == 200
    for path in ("/", "/page/nothing.js"):
        assert client.get(path).status_code != 401
    for path in ("/health/", "/health//", "/page", "/%2e/health", "/pages/x"):
        assert client.get(path).status_code == 401, path


def test_keys_come_from_the_environment_too(
    start: Start, tiny_model: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KAISHU_API_KEYS", f"{ALICE},{BOB}")
    client = start().client
    assert client.get("/v1/models").status_code == 401
    assert client.get("/v1/models", headers={"x-api-key": BOB}).status_code == 200


# Hosts


@pytest.mark.parametrize(
    ("host", "is_let_in"),
    [
        ("localhost", True),
        ("LOCALHOST:8000", True),
        ("127.0.0.1", True),
        ("[::1]:8000", True),
        ("localhost.", True),
        ("evil.example", False),
        ("evil.example:8000", False),
        ("127.0.0.1.evil.example", False),
        ("localhost@evil.example", False),
        ("127.0.0.2", False),
        ("0.0.0.0", False),
        ("", False),
    ],
)
def test_a_page_of_another_site_cannot_make_its_name_mean_this_server(
    tiny: LiveServer, host: str, is_let_in: bool
) -> None:
    for method, path in (("POST", CHAT), ("GET", "/"), ("GET", "/health"), ("GET", "/page/x.js")):
        answer = tiny.client.request(method, path, json=ASKED, headers={"Host": host})
        assert (answer.status_code != 403) == is_let_in, (path, answer.text)
    if not is_let_in:
        error = answer.json()["error"]
        assert error["code"] == "host_not_allowed" and "--allowed-hosts" in error["message"]


def test_further_names_can_be_allowed(start: Start) -> None:
    client = start(allowed_hosts=("Kaishu.example", "10.0.0.7")).client
    for host, status in (("kaishu.example:443", 200), ("10.0.0.7", 200), ("localhost", 200), ("other.example", 403)):
        assert client.get("/v1/models", headers={"Host": host}).status_code == status


@pytest.mark.parametrize(
    ("host", "allowed", "expected"),
    [
        ("127.0.0.1", (), {"localhost", "127.0.0.1", "::1"}),
        ("::1", (), {"localhost", "127.0.0.1", "::1"}),
        ("127.0.0.5", (), {"localhost", "127.0.0.1", "::1", "127.0.0.5"}),
        ("0.0.0.0", (), None),
        ("0.0.0.0", ("kaishu.example",), {"localhost", "127.0.0.1", "::1", "0.0.0.0", "kaishu.example"}),
    ],
)
def test_beyond_loopback_any_name_will_do_unless_some_are_given(
    host: str, allowed: tuple[str, ...], expected: set[str] | None
) -> None:
    assert allowed_hosts(ServerSettings(host=host, allowed_hosts=allowed)) == expected


@pytest.mark.parametrize(
    ("said", "name"),
    [
        ("A.b:1", "a.b"),
        ("[::1]", "::1"),
        ("[::1]:80", "::1"),
        ("::1", "::1"),
        (" a ", "a"),
        ("a.:80", "a"),
        (":80", ""),
    ],
)
def test_a_host_is_a_name_without_port(said: str, name: str) -> None:
    assert host_name(said) == name


# Limits


def test_requests_of_a_minute_are_counted_for_each_key(start: Start, keys: Path) -> None:
    client = start(api_keys_file=keys, key_requests_per_minute=2).client
    for name, key in (("alice", ALICE), ("bob", BOB)):
        headers = {"Authorization": f"Bearer {key}"}
        assert [client.get("/v1/models", headers=headers).status_code for _ in range(3)] == [200, 200, 429], name
    refused = client.post(CHAT, json=ASKED, headers=headers)
    assert refused.json()["error"]["type"] == "rate_limit_error" and 1 <= int(refused.headers["Retry-After"]) <= 30
    assert client.get("/health").status_code == 200
    assert client.get("/v1/models").status_code == 401, "who has no key is told so, and uses nobody's share"


def test_without_keys_requests_are_counted_for_each_address(start: Start) -> None:
    server = start(key_requests_per_minute=3)
    assert [server.client.get("/v1/models").status_code for _ in range(4)] == [200, 200, 200, 429]
    with httpx.Client(base_url=server.url, transport=httpx.HTTPTransport(local_address="127.0.0.9")) as other:
        assert other.get("/v1/models").status_code == 200
        assert other.get("/v1/models", headers={"X-Forwarded-For": "10.1.1.1"}).status_code == 200
        assert other.get("/v1/models", headers={"X-Forwarded-For": "10.1.1.2"}).status_code == 200
        assert other.get("/v1/models", headers={"X-Forwarded-For": "10.1.1.3"}).status_code == 429


def test_requests_at_the_same_time_are_limited_until_one_is_over(steady: Callable[..., Any]) -> None:
    server, _ = steady(key_concurrent_requests=1)
    asked = {**ASKED, "max_tokens": 900, "stream": True}
    with server.client.stream("POST", CHAT, json=asked) as first:
        lines = first.iter_lines()
        next(lines)
        refused = server.client.post(CHAT, json=ASKED)
        assert refused.status_code == 429 and refused.headers["Retry-After"] == "1"
        assert refused.json()["error"]["code"] == "too_many_concurrent_requests"
    server.wait_until(lambda: server.client.post(CHAT, json=ASKED).status_code == 200)  # its place is free again
    server.wait_until_idle()


# Pages of other sites

PREFLIGHT = {
    "Origin": "https://app.example",
    "Access-Control-Request-Method": "POST",
    "Access-Control-Request-Headers": "authorization,content-type",
}


def test_pages_of_other_sites_may_not_ask_by_default(start: Start) -> None:
    client = start().client
    preflight = client.options(CHAT, headers=PREFLIGHT)
    answer = client.post(CHAT, json=ASKED, headers={"Origin": "https://app.example"})
    assert preflight.status_code >= 400
    for one in (preflight, answer):
        assert not [name for name in one.headers if name.startswith("access-control-")]
    # What a page may send without asking first isn't JSON by its type, and is refused.
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data"):
        plain = client.post(CHAT, content=b'{"model": "tiny"}', headers={"Content-Type": kind})
        assert plain.status_code == 415


def test_pages_of_sites_that_are_named_may_ask(start: Start, keys: Path) -> None:
    client = start(cors_origins=("https://app.example",), api_keys_file=keys).client
    preflight = client.options(CHAT, headers=PREFLIGHT)
    assert preflight.status_code == 200, "without a key: browsers send none with this question"
    assert preflight.headers["Access-Control-Allow-Origin"] == "https://app.example"
    assert "authorization" in preflight.headers["Access-Control-Allow-Headers"].lower()
    assert "Access-Control-Allow-Credentials" not in preflight.headers
    assert client.options(CHAT, headers={**PREFLIGHT, "Origin": "https://other.example"}).status_code == 400
    refused = client.post(CHAT, json=ASKED, headers={"Origin": "https://app.example"})
    assert refused.status_code == 401
    assert refused.headers["Access-Control-Allow-Origin"] == "https://app.example", "so that the page can read why"
    answer = client.post(CHAT, json=ASKED, headers={"Origin": "https://app.example", "x-api-key": ALICE})
    exposed = answer.headers["Access-Control-Expose-Headers"].lower()
    expected = {"x-request-id", "request-id", "x-kaishu-ignored-fields", "retry-after"}
    assert answer.status_code == 200 and set(exposed.split(", ")) == expected


def test_a_preflight_is_answered_by_any_name_and_what_follows_is_not(start: Start) -> None:
    client = start(cors_origins=("https://app.example",)).client
    named = {"Host": "evil.example", "Origin": "https://app.example"}
    preflight = client.options(CHAT, headers={**PREFLIGHT, **named})
    assert preflight.status_code == 200 and preflight.text == "OK", "it says no more than that the site may ask"
    refused = client.post(CHAT, json=ASKED, headers=named)
    assert refused.status_code == 403 and "access-control-allow-origin" in refused.headers


def test_a_page_that_may_ask_can_read_every_error(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    server = start(cors_origins=("https://app.example",))
    monkeypatch.setattr(server.engine.prompting, "chat", None)  # a bug
    failed = server.client.post(CHAT, json=ASKED, headers={"Origin": "https://app.example"})
    assert failed.status_code == 500 and failed.headers["Access-Control-Allow-Origin"] == "https://app.example"
    assert failed.json()["error"]["type"] == "server_error" and failed.headers["X-Request-Id"]


def test_any_site_may_be_named_and_then_without_credentials(start: Start) -> None:
    answer = start(cors_origins=("*",)).client.options(CHAT, headers=PREFLIGHT)
    assert answer.headers["Access-Control-Allow-Origin"] == "*"
    assert "Access-Control-Allow-Credentials" not in answer.headers


def test_what_is_refused_is_not_read(start: Start, keys: Path) -> None:
    """A body that never comes keeps nobody waiting for the refusal."""
    server = start(api_keys_file=keys)
    never = threading.Event()

    def body() -> Any:
        yield b'{"model": '
        never.wait(20)

    answers: list[int] = []

    def ask() -> None:
        with server.client.stream("POST", CHAT, content=body(), headers={"Content-Type": "application/json"}) as one:
            answers.append(one.status_code)

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    refusals = 'kaishu_http_requests_total{method="POST",path="other",status="401"}'
    try:
        server.wait_until(lambda: refusals in server.life.metrics.text().decode())
    finally:
        never.set()
        asking.join(20)
    assert answers in ([401], [])  # httpx may give up sending before it reads
