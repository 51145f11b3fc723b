"""GET /health, /ready and /metrics in every state of a server."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
from prometheus_client.parser import text_string_to_metric_families

from kaishu.errors import CheckpointError
from kaishu.loading import LoadedModel
from kaishu.server.metrics import Metrics
from kaishu.server.service import Service
from kaishu.server.settings import ServerSettings
from tests.server.conftest import LiveServer, service_on

Start = Callable[..., LiveServer]


def states(server: LiveServer) -> tuple[object, ...]:
    health, ready = server.client.get("/health"), server.client.get("/ready")
    heads = [server.client.head(path) for path in ("/health", "/ready")]
    assert [(one.status_code, one.content) for one in heads] == [(health.status_code, b""), (ready.status_code, b"")]
    code = None if ready.status_code == 200 else ready.json()["error"]["code"]
    return health.status_code, health.json(), ready.status_code, code


def test_a_server_lives_before_it_is_ready(tiny_model: LoadedModel, serve: Start) -> None:
    may_load = threading.Event()

    def load(settings: ServerSettings, metrics: Metrics) -> Service:
        assert may_load.wait(30)
        return service_on(tiny_model)(settings, metrics)

    server = serve(load, waits=False)
    assert states(server) == (200, {"status": "ok", "state": "loading"}, 503, "loading")
    assert server.client.get("/ready").headers["Retry-After"] == "1"
    assert server.client.post("/v1/chat/completions", json={}).json()["error"]["code"] == "loading"
    families = {family.name for family in text_string_to_metric_families(server.client.get("/metrics").text)}
    assert "kaishu_http_requests" in families and "vllm:num_requests_running" not in families
    may_load.set()
    server.wait_until(lambda: server.client.get("/ready").status_code == 200)
    assert states(server) == (200, {"status": "ok", "state": "ready"}, 200, None)
    assert server.client.get("/ready").json() == {"status": "ready"}
    server.life.state = "draining"
    assert states(server) == (200, {"status": "ok", "state": "draining"}, 503, "draining")
    assert server.client.post("/v1/chat/completions", json={}).status_code == 503


@pytest.mark.parametrize(
    ("problem", "said"),
    [(CheckpointError("a.safetensors is damaged."), "a.safetensors is damaged."), (ValueError("secret"), "log")],
)
def test_a_model_that_cannot_be_loaded_is_told(serve: Start, problem: Exception, said: str) -> None:
    def load(settings: ServerSettings, metrics: Metrics) -> Service:
        raise problem

    server = serve(load, waits=False)
    server.wait_until(lambda: server.life.state == "failed")
    assert states(server) == (200, {"status": "ok", "state": "failed"}, 503, "failed")
    message = server.client.get("/ready").json()["error"]["message"]
    assert said in message and "secret" not in message


def test_metrics_have_the_type_that_prometheus_asks_for(tiny: LiveServer) -> None:
    answer = tiny.client.get("/metrics", headers={"Accept": "text/plain;version=0.0.4"})
    assert answer.status_code == 200
    assert answer.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert tiny.client.post("/metrics").status_code == 405
