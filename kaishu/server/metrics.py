"""What is counted, in Prometheus's form.

Owns the names. Those that begin with `vllm:` are the ones that vLLM's dashboards ask for, and mean the same here; what
vLLM has no name for begins with `kaishu_`. The engine counts for itself: its numbers are read when somebody looks
(engine/statistics.py), so nothing is done for them while it works. Shown by health.py, filled by access.py.

Where a request has n choices, vLLM makes n requests of it; here how it ended and how long its answers are is counted
for each choice, everything else once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import accumulate

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from kaishu import __version__
from kaishu.engine import histograms
from kaishu.engine.statistics import STEP_BOUNDS_MS, Statistics

_GAUGES: tuple[tuple[str, str, Callable[[Statistics], float]], ...] = (
    ("vllm:num_requests_running", "Requests that are being computed.", lambda now: now.running),
    ("vllm:num_requests_waiting", "Requests that wait to be computed.", lambda now: now.waiting),
    ("vllm:kv_cache_usage_perc", "Share of KV cache pages in use, 0 to 1.", lambda now: now.held_pages / now.pages),
    ("kaishu_kv_pages", "Pages of the KV cache.", lambda now: now.pages),
    ("kaishu_kv_pages_held", "Pages that requests hold.", lambda now: now.held_pages),
    ("kaishu_kv_pages_cached", "Pages that nobody holds and that can be found again.", lambda now: now.cached_pages),
)
_COUNTERS: tuple[tuple[str, str, Callable[[Statistics], float]], ...] = (
    ("vllm:prompt_tokens", "Tokens of prompts.", lambda now: now.prompt_tokens),
    ("vllm:generation_tokens", "Tokens that were generated.", lambda now: now.output_tokens),
    ("vllm:prefix_cache_queries", "Tokens that were looked for in the cache.", lambda now: now.prompt_tokens),
    ("vllm:prefix_cache_hits", "Tokens that were found in the cache.", lambda now: now.cached_tokens),
    ("vllm:num_preemptions", "Requests that had to give their pages back.", lambda now: now.preemptions),
    ("vllm:spec_decode_num_draft_tokens", "Tokens that were guessed.", lambda now: now.guessed),
    ("vllm:spec_decode_num_accepted_tokens", "Tokens that were guessed right.", lambda now: now.accepted),
    ("kaishu_steps", "Steps of the engine.", lambda now: now.steps),
    ("kaishu_own_seconds", "Time of steps outside of the executor.", lambda now: now.own_seconds),
    ("kaishu_engine_requests_finished", "Requests that were answered to their end.", lambda now: now.finished),
    ("kaishu_engine_requests_failed", "Requests that failed in the engine.", lambda now: now.failed),
    ("kaishu_engine_requests_aborted", "Requests that were ended early.", lambda now: now.aborted),
)
_JOBS: tuple[tuple[str, str, str], ...] = (  # name, what it is, field of JobHistograms
    ("vllm:time_to_first_token_seconds", "From arrival to the first token.", "first_token"),
    ("vllm:inter_token_latency_seconds", "Between the tokens of two steps of a request.", "gaps"),
    ("vllm:time_per_output_token_seconds", "The same under its older name.", "gaps"),
    ("vllm:request_time_per_output_token_seconds", "Mean time of a request's tokens after the first.", "token"),
    ("vllm:e2e_request_latency_seconds", "From arrival to the last token.", "whole"),
    ("vllm:request_queue_time_seconds", "From arrival to the first step.", "queue"),
    ("vllm:request_prefill_time_seconds", "From the first step to the first token.", "prefill"),
    ("vllm:request_decode_time_seconds", "From the first token to the last.", "decode"),
    ("vllm:request_prompt_tokens", "Tokens of a prompt.", "prompt_tokens"),
    ("vllm:request_generation_tokens", "Tokens of an answer.", "answer_tokens"),
)


class Metrics:
    """All of a server's numbers."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._requests = Counter(
            "kaishu_http_requests", "Requests by path and status.", ("method", "path", "status"), registry=self.registry
        )
        self._seconds = Histogram(
            "kaishu_http_request_seconds",
            "From a request's head to the end of its answer.",
            ("path",),
            buckets=histograms.SECONDS,
            registry=self.registry,
        )

    def show_engine(self, model: str, statistics: Callable[[], Statistics]) -> None:
        """From now on show an engine's numbers, too.

        model: the label model_name
        """
        self.registry.register(_EngineNumbers(model, statistics))

    def count_http(self, method: str, path: str, status: int, seconds: float) -> None:
        """One more request was answered."""
        self._requests.labels(method, path, str(status)).inc()
        self._seconds.labels(path).observe(seconds)

    def text(self) -> bytes:
        """Everything, in Prometheus's text form 0.0.4."""
        return generate_latest(self.registry)


class _EngineNumbers(Collector):
    def __init__(self, model: str, statistics: Callable[[], Statistics]) -> None:
        self._labels, self._values, self._statistics = ["model_name"], [model], statistics

    def describe(self) -> list[Metric]:
        """Nothing is read when the collector is registered."""
        return []

    def collect(self) -> Iterator[Metric]:
        """The numbers of this moment."""
        now = self._statistics()
        yield InfoMetricFamily("kaishu_build", "What is running.", value={"version": __version__})
        for name, said, value_of in _GAUGES:
            gauge = GaugeMetricFamily(name, said, labels=self._labels)
            gauge.add_metric(self._values, value_of(now))
            yield gauge
        for name, said, value_of in _COUNTERS:
            counter = CounterMetricFamily(name, said, labels=self._labels)
            counter.add_metric(self._values, value_of(now))
            yield counter
        ends = CounterMetricFamily(
            "vllm:request_success", "Answers by how they ended.", labels=[*self._labels, "finished_reason"]
        )
        for reason, count in now.ends.items():
            ends.add_metric([*self._values, reason], count)
        yield ends
        for name, said, field in _JOBS:
            found: histograms.Histogram = getattr(now.jobs, field)
            yield self._histogram(name, said, found)
        bounds = tuple(bound / 1000 for bound in STEP_BOUNDS_MS)
        steps = histograms.Histogram(bounds, list(now.step_histogram), now.step_seconds)
        yield self._histogram("kaishu_step_seconds", "Time of a step in the executor.", steps)

    def _histogram(self, name: str, said: str, found: histograms.Histogram) -> Metric:
        upper_ends = [*(str(float(bound)) for bound in found.bounds), "+Inf"]
        buckets = list(zip(upper_ends, accumulate(found.counts), strict=True))
        made = HistogramMetricFamily(name, said, labels=self._labels)
        made.add_metric(self._values, buckets, found.total)
        return made
