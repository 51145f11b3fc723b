"""The application as a whole: what is where, errors in the form that clients read, and one life from load to close."""

from __future__ import annotations

import threading

import pytest
from fastapi.routing import APIRoute

from kaishu.errors import ConfigError
from kaishu.server.app import ROUTERS, create_app
from kaishu.server.settings import ServerSettings
from tests.server.conftest import live, service_on

CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}]}


def routes() -> set[tuple[str, str]]:
    found = [route for router in ROUTERS for route in router.routes if isinstance(route, APIRoute)]
    return {(method, route.path) for route in found for method in route.methods}


def test_everything_that_is_asked_for_has_a_route():
    paths = {path for _, path in routes()}
    assert paths >= {
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/responses",
        "/v1/embeddings",
        "/v1/rerank",
        "/v1/models",
        "/v1/messages",
        "/v1/messages/count_tokens",
        "/tokenize",
        "/detokenize",
        "/health",
        "/ready",
        "/metrics",
    }


def test_routes_read_their_bodies_themselves_so_there_is_no_422():
    for router in ROUTERS:
        for route in router.routes:
            if isinstance(route, APIRoute):
                assert route.body_field is None, route.path
                kinds = {field.field_info.annotation for field in route.dependant.path_params}
                assert kinds <= {str} and not route.dependant.query_params, route.path


@pytest.mark.parametrize(
    "path", ["/nope", "/tokenize/", "/health/", "/v1", "/v1/chat", "/v1/models/x/../../etc", "/" + "x" * 5000, "/docs"]
)
def test_what_is_not_there_is_a_404_in_openais_form(tiny, path):
    response = tiny.client.get(path)
    error = response.json()["error"]
    assert response.status_code == 404 and set(error) == {"message", "type", "param", "code"}
    assert len(response.text) < 500


@pytest.mark.parametrize(
    "method, path", [("GET", "/v1/chat/completions"), ("POST", "/v1/models"), ("PUT", "/tokenize")]
)
def test_another_method_is_405_with_those_that_are_allowed(tiny, method, path):
    response = tiny.client.request(method, path, json={})
    assert response.status_code == 405 and response.json()["error"]["code"] == "method_not_allowed"
    assert response.headers["Allow"]


def test_a_bug_is_a_500_without_its_details_and_the_next_request_works(steady, log):
    server, executor = steady()
    executor.fails = ZeroDivisionError("secret")
    response = server.client.post("/v1/chat/completions", json=CHAT)
    assert response.status_code == 500 and "secret" not in response.text and "Traceback" not in response.text
    assert response.json()["error"]["type"] == "server_error" and "secret" in log.text
    assert server.client.post("/v1/chat/completions", json={**CHAT, "max_tokens": 1}).status_code == 200


def test_while_the_model_is_loaded_every_route_that_needs_it_says_so(tiny_model, serve):
    may_load = threading.Event()

    def load(settings, metrics):
        assert may_load.wait(60)
        return service_on(tiny_model)(settings, metrics)

    server = serve(load, waits=False)
    try:
        for path in ("/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/rerank", "/tokenize"):
            response = server.client.post(path, json={})
            assert (response.status_code, response.json()["error"]["code"]) == (503, "loading"), path
            assert response.headers["Retry-After"]
        assert server.client.get("/v1/models").status_code == 503 and server.client.get("/health").status_code == 200
    finally:
        may_load.set()
    server.wait_until(lambda: server.life.state == "ready")
    assert server.client.get("/v1/models").status_code == 200


def test_no_other_site_may_read_answers_unless_it_is_allowed(scripted):
    origin = {"Origin": "https://example.org"}
    closed, opened = scripted("a"), scripted("a", cors_origins=("https://example.org",))
    assert "access-control-allow-origin" not in closed.client.get("/v1/models", headers=origin).headers
    assert opened.client.get("/v1/models", headers=origin).headers["access-control-allow-origin"] == origin["Origin"]
    other = opened.client.get("/v1/models", headers={"Origin": "https://evil.example"})
    assert "access-control-allow-origin" not in other.headers


def test_keys_of_the_environment_are_asked_for(tiny_model):
    app = create_app(ServerSettings(), service_on(tiny_model), environment={"KAISHU_API_KEYS": "a-key-that-is-long"})
    assert app.state.life.state == "loading"
    with pytest.raises(ConfigError):
        create_app(ServerSettings(), service_on(tiny_model), environment={"KAISHU_API_KEYS": "no\x00key"})


def test_closing_ends_the_engine(tiny_model):
    with live(service_on(tiny_model), ServerSettings(port=0)) as server:
        engine = server.engine
        assert engine._thread.is_alive()
    assert not engine._thread.is_alive() and server.life.state == "draining"
