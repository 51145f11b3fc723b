"""Metrics as Prometheus reads them: names and kinds that vLLM's dashboards ask for, and counts of what was asked."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from kaishu.loading import LoadedModel
from kaishu.server.metrics import Metrics
from tests.server.conftest import LiveServer, service_on

# As vLLM's documentation lists them ("Production metrics"), those that mean something here.
VLLM = {
    "gauge": ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc"),
    "counter": (
        "prefix_cache_queries",
        "prefix_cache_hits",
        "num_preemptions",
        "prompt_tokens",
        "generation_tokens",
        "request_success",
        "spec_decode_num_draft_tokens",
        "spec_decode_num_accepted_tokens",
    ),
    "histogram": (
        "time_to_first_token_seconds",
        "inter_token_latency_seconds",
        "time_per_output_token_seconds",
        "request_time_per_output_token_seconds",
        "e2e_request_latency_seconds",
        "request_queue_time_seconds",
        "request_prefill_time_seconds",
        "request_decode_time_seconds",
        "request_prompt_tokens",
        "request_generation_tokens",
    ),
}
CHAT = "/v1/chat/completions"


def chat(content: str, **fields: Any) -> dict[str, Any]:
    return {"model": "tiny", "messages": [{"role": "user", "content": content}], "temperature": 0, **fields}


class Scrape:
    """One look at a server's metrics."""

    def __init__(self, server: LiveServer) -> None:
        text = server.client.get("/metrics").text
        self.families: dict[str, Metric] = {one.name: one for one in text_string_to_metric_families(text)}

    def __call__(self, name: str, **labels: str) -> float:
        return sum(value for found, value in self.samples(name) if labels.items() <= found.items())

    def samples(self, name: str) -> Iterator[tuple[dict[str, str], float]]:
        for family in self.families.values():
            yield from ((one.labels, one.value) for one in family.samples if one.name == name)


@pytest.fixture
def server(tiny_model: LoadedModel, serve: Callable[..., LiveServer]) -> LiveServer:
    return serve(service_on(tiny_model), names=("tiny", "another-name"))


def test_the_names_are_those_of_vllms_dashboards_and_of_their_kind(server: LiveServer) -> None:
    families = Scrape(server).families
    for kind, names in VLLM.items():
        for name in names:
            family = families[f"vllm:{name}"]
            assert family.type == kind, name
            assert family.samples and all(one.labels["model_name"] == "tiny" for one in family.samples), name
    assert all(name.startswith(("vllm:", "kaishu_")) for name in families)
    assert all(family.documentation.endswith(".") for family in families.values())


def test_what_was_asked_is_what_is_counted(server: LiveServer) -> None:
    one = server.client.post(CHAT, json=chat("Tell me something about the sea.", max_tokens=5, min_tokens=5)).json()
    two = server.client.post(CHAT, json=chat("Tell me", stream=True, max_tokens=3, min_tokens=3, n=2))
    assert two.status_code == 200
    assert server.client.post(CHAT, json=chat("Hi", temperature=-1)).status_code == 400
    assert server.client.get("/nowhere/at/all").status_code == 404
    server.wait_until_idle()
    now = Scrape(server)
    prompts = server.engine.statistics().prompt_tokens
    assert now("vllm:prompt_tokens_total") == now("vllm:prefix_cache_queries_total") == prompts
    assert now("vllm:generation_tokens_total") == 11
    assert now("vllm:request_success_total", finished_reason="length") == 3
    assert now("vllm:request_success_total", finished_reason="stop") == 0
    assert now("vllm:request_generation_tokens_count") == 3 and now("vllm:request_generation_tokens_sum") == 11
    assert now("vllm:request_prompt_tokens_sum") == prompts > one["usage"]["prompt_tokens"]
    for name in ("time_to_first_token_seconds", "e2e_request_latency_seconds", "request_queue_time_seconds"):
        assert now(f"vllm:{name}_count") == 2
    assert now("vllm:inter_token_latency_seconds_count") == 4 + 2 * 2
    parts = ("queue_time", "prefill_time", "decode_time")
    whole = sum(now(f"vllm:request_{part}_seconds_sum") for part in parts)
    assert now("vllm:e2e_request_latency_seconds_sum") == pytest.approx(whole)
    assert now("vllm:num_requests_running") == now("vllm:num_requests_waiting") == 0
    assert now("kaishu_steps_total") == now("kaishu_step_seconds_count") == server.engine.statistics().steps
    assert now("kaishu_http_requests_total", path=CHAT, status="200", method="POST") == 2
    assert now("kaishu_http_requests_total", path=CHAT, status="400") == 1
    assert now("kaishu_http_requests_total", status="404", path="other") == 1
    assert now("kaishu_http_request_seconds_count", path=CHAT) == 3


def test_tokens_that_were_found_in_the_cache_are_counted(server: LiveServer) -> None:
    asked = chat("A long question " * 20, max_tokens=1)
    first = server.client.post(CHAT, json=asked).json()["usage"]
    again = server.client.post(CHAT, json=asked).json()["usage"]
    now = Scrape(server)
    assert now("vllm:prefix_cache_queries_total") == first["prompt_tokens"] * 2
    assert now("vllm:prefix_cache_hits_total") == again["prompt_tokens_details"]["cached_tokens"] > 0
    assert now("kaishu_kv_pages_cached") > 0 and now("vllm:kv_cache_usage_perc") == 0


def test_what_runs_and_waits_is_shown(steady: Callable[..., Any]) -> None:
    server, executor = steady(max_running=1)
    asked = chat("Hi", stream=True, max_tokens=200)
    with ThreadPoolExecutor(2) as threads:
        answers = [threads.submit(server.client.post, CHAT, json=asked) for _ in range(2)]
        server.wait_until(lambda: (server.engine.statistics().running, server.engine.statistics().waiting) == (1, 1))
        executor.may_step.clear()
        now = Scrape(server)
        assert (now("vllm:num_requests_running"), now("vllm:num_requests_waiting")) == (1, 1)
        held = server.engine.statistics().held_pages
        assert now("kaishu_kv_pages_held") == held > 0
        assert now("vllm:kv_cache_usage_perc") == held / now("kaishu_kv_pages") < 1
        executor.step_seconds = 0
        executor.may_step.set()
        assert [answer.result().status_code for answer in answers] == [200, 200]


def test_clients_cannot_make_labels(server: LiveServer) -> None:
    for number in range(30):
        server.client.get(f"/made/up/{number}")
        server.client.request(f"VERB{number}", "/v1/models")
        server.client.get(f"/v1/models/made-up-{number}")
        server.client.get("/v1/models", headers={"Host": f"host-{number}"})
    labels = [found for found, _ in Scrape(server).samples("kaishu_http_requests_total")]
    assert len(labels) <= 8, labels
    assert {found["path"] for found in labels} <= {"other", "/metrics", "/v1/models", "/v1/models/{name:path}"}


def test_histograms_add_up(server: LiveServer) -> None:
    server.client.post(CHAT, json=chat("Hi", max_tokens=4))
    for family in Scrape(server).families.values():
        if family.type != "histogram":
            continue
        of_labels: dict[frozenset[tuple[str, str]], list[tuple[float, float]]] = {}
        counts = {}
        for one in family.samples:
            own = frozenset((name, value) for name, value in one.labels.items() if name != "le")
            if one.name.endswith("_bucket"):
                of_labels.setdefault(own, []).append((float(one.labels["le"]), one.value))
            elif one.name.endswith("_count"):
                counts[own] = one.value
        for own, buckets in of_labels.items():
            assert buckets == sorted(buckets) and buckets[-1][0] == float("inf"), "cumulative, to the end"
            assert buckets[-1][1] == counts[own]


def test_two_servers_count_for_themselves() -> None:
    one, other = Metrics(), Metrics()
    one.count_http("GET", "/", 200, 0.1)
    assert b'path="/"' in one.text() and b'path="/"' not in other.text()
