"""Engines beside each other serving many requests: the load, the loop, the adapters; not the engines themselves."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kaishu
from benchmarks import (
    peers,
    serving,
    serving_kaishu,
    serving_kaishu_http,
    serving_llama_cpp,
    serving_load,
    serving_openvino,
)
from benchmarks.checkpoints import ModelFiles
from benchmarks.http_server import HttpServer, free_port
from benchmarks.serving_llama_cpp import LlamaCppServer
from benchmarks.serving_load import Load, Request, serve
from benchmarks.serving_process import HTTP_SERVERS, SERVERS, ServingJob
from kaishu.loading import load_model

LOAD = Load(requests=6, prompt=(3, 9), output=(2, 5), rate=0.5)


def test_a_load_is_the_same_every_time_and_keeps_to_its_lengths() -> None:
    requests = LOAD.draw(100, seed=3)
    assert requests == LOAD.draw(100, seed=3) != LOAD.draw(100, seed=4)
    assert [r.number for r in requests] == [0, 1, 2, 3, 4, 5]
    many = Load(requests=2000, prompt=(3, 9), output=(2, 5), rate=0.5).draw(100, seed=1)
    assert {len(r.prompt) for r in many} == set(range(3, 10)) and {r.output_tokens for r in many} == {2, 3, 4, 5}
    assert {token for r in many for token in r.prompt} == set(range(100))
    gaps = np.diff([r.arrival for r in many])
    assert many[0].arrival == 0 and gaps.min() >= 0
    # Exponential gaps have a mean and a standard deviation of 1 / rate.
    assert gaps.mean() == pytest.approx(2, rel=0.1) and gaps.std() == pytest.approx(2, rel=0.1)


def test_the_same_requests_can_come_at_once_or_behind_a_shared_prompt() -> None:
    requests = LOAD.draw(100, seed=3)
    at_once = replace(LOAD, rate=None).draw(100, seed=3)
    assert [replace(r, arrival=0.0) for r in requests] == at_once
    behind = replace(LOAD, shared_prompt=20).draw(100, seed=3)
    assert len({r.prompt[:20] for r in behind}) == 1 and len({r.prompt[20:] for r in behind}) == 6
    assert all(20 + 3 <= len(r.prompt) <= 20 + 9 for r in behind)
    assert max(r.tokens for r in behind) <= replace(LOAD, shared_prompt=20).most_tokens == 34


def test_warming_up_has_nothing_in_common_with_the_load() -> None:
    load = replace(LOAD, shared_prompt=20)
    warm_up, requests = load.draw_warm_up(10_000, seed=3), load.draw(10_000, seed=3)
    assert not {r.number for r in warm_up} & {r.number for r in requests}
    assert not {r.prompt[0] for r in warm_up} & {r.prompt[0] for r in requests}
    assert all(r.arrival == 0 for r in warm_up)


class TimedServer:
    """A server whose clock moves by its own work: 10 s a step; a token of each request a step, two of number 1."""

    vocab_size = 100

    def __init__(self) -> None:
        self.now = 100.0
        self.slept: list[float] = []
        self.added: list[tuple[int, float]] = []
        self.lacking: dict[int, int] = {}

    def add(self, request: Request) -> None:
        self.added.append((request.number, self.now - 100))
        self.lacking[request.number] = request.output_tokens

    def step(self) -> list[tuple[int, int]]:
        assert self.lacking, "an engine with nothing to do isn't stepped"
        self.now += 10
        made = [(number, min(2 if number == 1 else 1, lacking)) for number, lacking in self.lacking.items()]
        for number, tokens in made:
            self.lacking[number] -= tokens
        self.lacking = {number: lacking for number, lacking in self.lacking.items() if lacking}
        return made

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> TimedServer:
    server = TimedServer()
    monkeypatch.setattr(serving_load.time, "perf_counter", lambda: server.now)
    monkeypatch.setattr(serving_load.time, "sleep", server.sleep)
    return server


def test_requests_are_handed_over_when_they_have_arrived_and_their_wait_counts(server: TimedServer) -> None:
    requests = [Request(0, 0.0, (5,) * 4, 3), Request(1, 12.0, (5,) * 8, 4), Request(2, 100.0, (5,), 1)]
    record = serve(server, requests)
    assert server.added == [(0, 0.0), (1, 20.0), (2, 100.0)]  # number 1 came in the middle of a step
    assert server.slept == [60.0] and record.idle_seconds == 60.0 and record.steps == 5
    assert record.deliveries == {0: [(10, 1), (20, 1), (30, 1)], 1: [(30, 2), (40, 2)], 2: [(110, 1)]}
    assert serving_load.values(requests, record) == {
        "output_tokens_per_second": pytest.approx(8 / 110),
        "total_tokens_per_second": pytest.approx(21 / 110),
        "first_token_median_seconds": 10,
        "first_token_p95_seconds": pytest.approx(10 + 0.9 * 8),  # of 10, 10 and 18
        "token_median_ms": pytest.approx(20_000 / 3),  # of 20 seconds for two tokens, and 10 for three
        "token_p95_ms": pytest.approx(10_000 / 3 + 0.95 * 20_000 / 3),
        "request_speed_median": pytest.approx(0.1),  # of 3 tokens in 30 seconds, 4 in 28 and 1 in 10
        "request_speed_p5": pytest.approx(0.1),
        "gap_median_ms": 10_000,
        "gap_p95_ms": 10_000,
        "gap_max_ms": 10_000,
        "wall_seconds": 110,
    }


def test_a_request_that_gets_other_than_what_it_asked_for_is_a_failure(server: TimedServer) -> None:
    requests = [Request(1, 0.0, (5,), 4), Request(0, 0.0, (5,), 2)]
    made = iter([[(1, 4), (0, 1)], [(0, 1), (1, 1)]])
    server.step = lambda: next(made)  # type: ignore[method-assign]
    with pytest.raises(AssertionError, match=r"requests \[1\] got more"):
        serve(server, requests)


class RecordingContext:
    """Stands for llama.cpp's: holds what each sequence has computed; the next token is the last plus 1."""

    def __init__(self, room: int) -> None:
        self.room = room
        self.sequences: dict[int, list[int]] = {}
        self.batches: list[list[tuple[int, int, int, bool]]] = []
        self.copies: list[tuple[int, int]] = []

    def run(self, rows: Sequence[tuple[int, int, int, bool]]) -> None:
        assert 0 < len(rows) <= self.room
        for token, position, sequence, _ in rows:
            assert position == len(self.sequences.setdefault(sequence, [])), "what comes before is there"
            self.sequences[sequence].append(token)
        self.batches.append(list(rows))

    def most_likely(self, at: int) -> int:
        token, _, _, wants_logits = self.batches[-1][at]
        assert wants_logits
        return token + 1

    def keep(self, sequence: int, tokens: int) -> None:
        del self.sequences.setdefault(sequence, [])[tokens:]

    def copy(self, source: int, target: int) -> None:
        self.copies.append((source, target))
        self.sequences[target] = list(self.sequences[source])


def test_llama_cpp_continues_sequences_first_and_fills_the_batch_with_prompts() -> None:
    context = RecordingContext(8)
    server = LlamaCppServer(context, 100, 2, 8, shares=False)
    requests = [Request(0, 0.0, tuple(range(10, 16)), 3), Request(1, 0.0, tuple(range(20, 31)), 2)]
    requests.append(Request(2, 0.0, (40, 41), 1))
    for request in requests:
        server.add(request)
    assert list(server.step()) == [(0, 1)]  # six of the first, two of the second; the third waits for a sequence
    assert list(server.step()) == [(0, 1)]
    assert list(server.step()) == [(0, 1), (1, 1)]
    assert list(server.step()) == [(1, 1), (2, 1)]
    shapes = [[(token, sequence) for token, _, sequence, _ in batch] for batch in context.batches]
    assert shapes[0] == [(token, 0) for token in range(10, 16)] + [(20, 1), (21, 1)]
    assert shapes[1] == [(16, 0), *((token, 1) for token in range(22, 29))]
    assert shapes[2] == [(17, 0), (29, 1), (30, 1)]
    assert shapes[3] == [(31, 1), (40, 0), (41, 0)]
    assert [sum(wants for *_, wants in batch) for batch in context.batches] == [1, 1, 2, 2]
    assert context.copies == []


def test_llama_cpp_computes_a_shared_prompt_once() -> None:
    context = RecordingContext(64)
    server = LlamaCppServer(context, 100, 2, 64, shares=True)
    shared = tuple(range(30))
    requests = [Request(number, 0.0, (*shared, 50 + number, 60), 2) for number in range(4)]
    serve(server, requests[:1])
    serve(server, requests[1:])
    tokens = [token for batch in context.batches for token, *_ in batch]
    assert all(tokens.count(token) == 1 for token in shared)
    assert context.copies == [(0, 1)]  # sequence 0 keeps what it has


def test_llama_cpp_computes_the_last_token_of_a_prompt_that_it_has_already() -> None:
    context = RecordingContext(64)
    server = LlamaCppServer(context, 100, 1, 64, shares=True)
    for number in range(2):
        serve(server, [Request(number, 0.0, (7, 8, 9), 3)])
    assert [row[:3] for row in context.batches[3]] == [(9, 2, 0)]


def test_ours_serves_with_the_core_of_its_engine() -> None:
    loaded = load_model("tiny", context_tokens=128, threads=1)
    server = serving_kaishu.KaishuServer(loaded.start_engine(), loaded.executor.vocab_size)
    record = serve(server, [Request(7, 0.0, (1, 2, 3), 2), Request(9, 0.0, (4, 5), 5)])
    assert {number: sum(tokens for _, tokens in made) for number, made in record.deliveries.items()} == {7: 2, 9: 5}


def test_a_serving_job_travels_as_one_line() -> None:
    job = ServingJob("Kaishu", "int4", "/model", 2, "cpu", 1, replace(LOAD, rate=None), {"most": 3})
    assert "\n" not in job.to_json() and ServingJob.from_json(job.to_json()) == job


def test_serving_measures_every_engine_that_is_there_with_its_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: list[ServingJob] = []

    def find_models(names: Sequence[str], options: argparse.Namespace, left_out: dict[str, str]) -> Any:
        assert options.widths == ["int4"]
        return ModelFiles("model"), {name: {"int4": tmp_path} for name in names}

    def run_apart(job: ServingJob, module: str) -> dict[str, Any]:
        assert module == "benchmarks.serving_process"
        seen.append(job)
        if job.peer == "llama.cpp":
            return {"peer": job.peer, "width": job.width, "round": job.round, "failed": "exit code 1: no memory"}
        told = dict.fromkeys(serving_load.TITLES, 30.0 if job.peer == "Kaishu" else 10.0)
        return {"peer": job.peer, "width": job.width, "round": job.round, "values": told}

    monkeypatch.setattr(peers, "run_apart", run_apart)
    for engine in SERVERS.values():
        monkeypatch.setattr(engine, "missing", lambda executor: None)
    results = tmp_path / "results.json"
    monkeypatch.setattr(serving, "find_models", find_models)
    options = ["--requests", "5", "--at-once", "--setting", "llama.cpp.parallel=7", "--json", str(results)]
    assert serving.main(options) == 0
    said = capsys.readouterr().out
    assert "5 requests, all arriving at once; prompts of 128–512 tokens, outputs of 64–256" in said
    assert "failed: llama.cpp at int4, round 1: exit code 1: no memory" in said
    speed, *_, wall = [line for line in said.splitlines() if "int4  |" in line]
    assert "output tokens/s" in speed and "3.00× OpenVINO" in speed and "last token" in wall
    settings = {job.peer: job.settings for job in seen}
    assert settings["llama.cpp"] == {**serving_llama_cpp.SETTINGS, "parallel": 7}
    assert settings["OpenVINO"] == dict(serving_openvino.SETTINGS)
    written = json.loads(results.read_text())
    assert written["load"]["requests"] == 5 and written["load"]["rate"] is None and len(written["results"]) == 3
    assert {row["measure"] for row in written["summary"]} == set(serving_load.TITLES)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("--setting llama.cpp.slots=2", "there is no such setting; there are .*llama.cpp.parallel"),
        ("--setting vLLM.parallel=2", "there is no such setting"),
        ("--setting llama.cpp.parallel=many", "'many' is not a number"),
        ("--prompt 20 10", "the least before the most"),
        ("--rate 0", "the rate is more than 0"),
        ("--rate 1 --at-once", "not allowed with"),
        ("--output 0 10", "are at least 1"),
    ],
)
def test_options_that_make_no_load_are_refused(options: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        serving.parse(options.split())
    assert re.search(said, capsys.readouterr().err)


# Over HTTP


def on_the_bundled_model(load: Load) -> HttpServer:
    folder = Path(kaishu.__file__).parent / "models" / "tiny"
    return serving_kaishu_http.load(folder, "int4", 1, load, "cpu", {**serving_kaishu_http.SETTINGS, "running": 2})


def test_our_server_is_driven_through_its_chat_and_makes_every_token() -> None:
    few = Load(requests=3, prompt=(4, 9), output=(5, 7), rate=None)
    server = on_the_bundled_model(few)
    requests = few.draw(server.vocab_size, 1)
    record = serve(server, requests)
    made = [sum(count for _, count in record.deliveries[request.number]) for request in requests]
    assert made == [request.output_tokens for request in requests]
    with pytest.raises(RuntimeError, match="max_tokens"):
        serve(server, [Request(0, 0.0, (1, 2), -1)])
    server.close()


def test_a_server_that_ends_says_why() -> None:
    with pytest.raises(RuntimeError, match=r"the server ended: .*no such option"):
        HttpServer([sys.executable, "-c", "import sys; sys.exit('no such option')"], free_port(), "/ready", {})


def test_over_http_the_engine_alone_is_measured_beside_its_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run_apart(job: ServingJob, module: str) -> dict[str, Any]:
        speed = 45.0 if job.over_http else 50.0
        told = dict.fromkeys(serving_load.TITLES, speed if job.peer == "Kaishu" else 15.0)
        of = {"peer": job.peer, "width": job.width, "round": job.round, "over_http": job.over_http}
        return {**of, "values": told}

    monkeypatch.setattr(peers, "run_apart", run_apart)
    for engine in HTTP_SERVERS.values():
        monkeypatch.setattr(engine, "missing", lambda executor: None)
    found = lambda names, options, left_out: (ModelFiles("model"), {name: {"int4": tmp_path} for name in names})  # noqa: E731
    monkeypatch.setattr(serving, "find_models", found)
    assert serving.main(["--over-http", "--rounds", "2"]) == 0
    said = capsys.readouterr().out
    assert "3.00× llama.cpp" in said and "OpenVINO" not in said
    assert "Kaishu's engine alone makes 50.0 output tokens/s; HTTP takes 10.0 % of it" in said
