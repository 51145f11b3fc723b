"""The comparison with other engines: its files, its order, its clock and its arithmetic; not the engines themselves."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import kaishu_peer, peers, report, work
from benchmarks.checkpoints import prepare
from benchmarks.one_process import PEERS, Job
from benchmarks.rounds import jobs, run_apart
from benchmarks.work import Work, measure
from kaishu.batch import TokenBatch
from kaishu.checkpoint import open_checkpoint


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    """A folder with the two files; these tests only copy them."""
    folder = tmp_path / "tokenizer"
    folder.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).write_text(f'{{"this is": "{name}"}}')
    return folder


def test_the_folder_is_a_checkpoint_of_the_asked_shape_with_its_tokenizer(tmp_path: Path, tokenizer: Path) -> None:
    files = prepare(tmp_path, "tiny-test", 1, 0, tokenizer, ["folder"])
    checkpoint = open_checkpoint(files.paths["folder"])
    assert checkpoint.config.num_hidden_layers == 1 and checkpoint.config.hidden_size == 128
    assert checkpoint.tensors["model.layers.0.mlp.up_proj.weight"].read().std() > 0
    assert (checkpoint.folder / "tokenizer.json").read_text() == '{"this is": "tokenizer.json"}'


def test_files_are_made_once_and_under_one_name(tmp_path: Path, tokenizer: Path) -> None:
    first = prepare(tmp_path, "tiny-test", 1, 0, tokenizer, ["folder"]).paths["folder"] / "model.safetensors"
    before = first.stat().st_mtime_ns
    again = prepare(tmp_path, "Tiny-Test", 1, 0, tokenizer, ["folder"]).paths["folder"] / "model.safetensors"
    assert again == first and again.stat().st_mtime_ns == before
    other = prepare(tmp_path, "tiny-test", 1, 1, tokenizer, ["folder"]).paths["folder"] / "model.safetensors"
    assert other.read_bytes() != first.read_bytes()


def test_a_tokenizer_folder_that_lacks_a_file_is_named(tmp_path: Path, tokenizer: Path) -> None:
    (tokenizer / "tokenizer_config.json").unlink()
    with pytest.raises(SystemExit, match=r"has no tokenizer_config\.json"):
        prepare(tmp_path / "work", "tiny-test", 1, 0, tokenizer, ["folder"])


def test_without_the_package_gguf_its_files_are_said_to_lack(
    tmp_path: Path, tokenizer: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    files = prepare(tmp_path, "tiny-test", 1, 0, tokenizer, ["folder", "q4_0"])
    assert list(files.paths) == ["folder"] and "package gguf" in files.lacking["q4_0"]


def line(peer: str, width: str, **values: float) -> dict[str, Any]:
    return json.loads(json.dumps({"peer": peer, "width": width, "round": 1, "values": values}))


RESULTS = [
    line("llama.cpp", "int4", decode=90.0, peak_memory_mb=700.0),
    line("Kaishu", "int4", decode=120.0, peak_memory_mb=600.0),
    line("OpenVINO", "int4", decode=60.0, peak_memory_mb=1500.0),
    line("Kaishu", "bf16", decode=40.0),
    {"peer": "llama.cpp", "width": "bf16", "round": 1, "failed": "exit code 1: no such file"},
    line("Kaishu", "int4", decode=500.0, peak_memory_mb=610.0),
    line("llama.cpp", "int4", decode=95.0, peak_memory_mb=720.0),
    line("llama.cpp", "int4", decode=100.0, peak_memory_mb=710.0),
    line("Kaishu", "int4", decode=114.0, peak_memory_mb=620.0),
    line("OpenVINO", "int4", decode=62.0, peak_memory_mb=1500.0),
]


def test_values_are_medians_over_rounds_and_ratios_are_to_the_fastest_other() -> None:
    rows = {(row.measure, row.width): row for row in report.summarise(RESULTS)}
    decode = rows["decode", "int4"]
    assert decode.values == {"Kaishu": 120.0, "llama.cpp": 95.0, "OpenVINO": 61.0}
    assert decode.fastest_other == "llama.cpp" and decode.ratio == pytest.approx(120 / 95)
    assert decode.spread["Kaishu"] == (114.0, 500.0)
    memory = rows["peak_memory_mb", "int4"]
    assert memory.fastest_other == "llama.cpp" and memory.ratio == pytest.approx(610 / 710)  # the least is the best


def test_ours_alone_has_no_ratio_and_a_failure_is_said() -> None:
    rows = {(row.measure, row.width): row for row in report.summarise(RESULTS)}
    assert rows["decode", "bf16"].ratio is None and rows["decode", "bf16"].values == {"Kaishu": 40.0}
    assert report.failures(RESULTS) == ["llama.cpp at bf16, round 1: exit code 1: no such file"]


def test_the_table_has_a_line_for_each_measure_and_width() -> None:
    lines = report.table(report.summarise(RESULTS), Work()).splitlines()
    assert [cell.strip() for cell in lines[2].split("|")] == [
        "",
        "decode, 1 sequence",
        "int4",
        "120.0",
        "95.0",
        "61.0",
        "1.26× llama.cpp",
        "",
    ]
    assert len(lines) == 2 + 3


def test_every_width_is_measured_with_each_engine_in_turn_and_the_first_one_changes() -> None:
    models = {"Kaishu": {"int4": Path("a"), "bf16": Path("b")}, "llama.cpp": {"int4": Path("c"), "bf16": Path("d")}}
    models["transformers"] = {"bf16": Path("e")}
    order = list(jobs(models, ["int4", "bf16"], rounds=2, threads=1, executor="cpu", work=Work()))
    assert [(job.round, job.width, job.peer) for job in order] == [
        (1, "int4", "Kaishu"),
        (1, "int4", "llama.cpp"),
        (1, "bf16", "Kaishu"),
        (1, "bf16", "llama.cpp"),
        (1, "bf16", "transformers"),
        (2, "int4", "llama.cpp"),
        (2, "int4", "Kaishu"),
        (2, "bf16", "llama.cpp"),
        (2, "bf16", "transformers"),
        (2, "bf16", "Kaishu"),
    ]
    assert Path(order[0].path).is_absolute()
    assert all(Job.from_json(job.to_json()) == job for job in order)


class TimedEngine:
    """An engine whose clock moves by its own work only: 10 s a step, 2 s more a sequence; prompts as in `prefills`."""

    vocab_size = 100

    def __init__(self) -> None:
        self.now = 0.0
        self.contexts: list[int] = []
        self.prefills = {40: [300.0, 1.0, 2.0]}  # tokens → seconds a token, of each prompt of that length in turn

    def open(self, sequences: int, tokens: int) -> TimedSequences:
        self.now += 1000  # opening isn't part of any measure
        return TimedSequences(self, sequences, tokens)


class TimedSequences:
    def __init__(self, engine: TimedEngine, sequences: int, room: int) -> None:
        self.engine, self.sequences, self.room, self.tokens = engine, sequences, room, 0

    def prefill(self, prompts: np.ndarray) -> None:
        assert prompts.shape[0] == self.sequences and prompts.dtype == np.int32 and prompts.max() < 100
        self.tokens = prompts.shape[1]
        seconds = self.engine.prefills.get(self.tokens)
        self.engine.now += prompts.size * (seconds.pop(0) if seconds else 1.0)

    def step(self) -> None:
        self.tokens += 1
        self.engine.now += 10 + 2 * self.sequences

    def close(self) -> None:
        assert self.tokens <= self.room
        self.engine.contexts.append(self.tokens)
        self.engine.now += 1000


def test_speeds_are_tokens_of_all_sequences_over_the_time_of_the_work_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = TimedEngine()
    monkeypatch.setattr(work.time, "perf_counter", lambda: engine.now)
    asked = Work(prompt_tokens=40, short_prompt=8, settling_steps=2, steps=3, repeats=2, streams=(4,), long_prompt=90)
    values = dict(measure(engine, asked, seed=1))
    memory = values.pop("peak_memory_mb")
    assert values == {
        "decode": pytest.approx(1 / 12),
        "prefill": pytest.approx((1 + 1 / 2) / 2),  # without the first, which warms up
        "streams_4": pytest.approx(4 / 18),
        "decode_long": pytest.approx(1 / 12),
    }
    assert memory > 10
    assert engine.contexts == [16, 16, 40, 40, 40, 16, 98]  # the first of each kind warms up
    assert asked.most_tokens == 98 and Work(streams=(32,)).most_tokens == 32 * 92


class RecordingExecutor:
    page_tokens = 16
    num_pages = 64
    vocab_size = 10

    def __init__(self) -> None:
        self.batches: list[TokenBatch] = []

    def step(self, batch: TokenBatch) -> np.ndarray:
        self.batches.append(batch)
        return np.eye(10, dtype=np.float32)[batch.token_ids[batch.logit_rows] % 10]  # says the same token again


def test_ours_is_driven_by_the_executor_contract() -> None:
    executor = RecordingExecutor()
    opened = kaishu_peer.KaishuEngine(executor).open(2, 300)
    prompts = np.arange(600, dtype=np.int32).reshape(2, 300) % 7
    opened.prefill(prompts)
    opened.step()
    first, second, step = executor.batches
    assert [len(batch.token_ids) for batch in executor.batches] == [512, 88, 2]  # chunks of 512, then one a sequence
    assert first.logit_rows.tolist() == [] and second.logit_rows.tolist() == [43, 87]
    assert second.positions.tolist() == [*range(256, 300)] * 2 and step.positions.tolist() == [300, 300]
    assert step.token_ids.tolist() == prompts[:, -1].tolist()  # the most likely token
    assert not set(step.page_table[0]) & set(step.page_table[1])
    assert step.page_table.shape == (2, 19) and step.page_table.max() < 64


def test_a_process_that_fails_is_a_result_that_says_so(tmp_path: Path) -> None:
    job = Job("Kaishu", "bf16", str(tmp_path / "absent"), 1, "reference", 1, Work())
    result = run_apart(job)
    assert result["peer"] == "Kaishu" and "config.json" in result["failed"]


def test_what_is_missing_is_said_and_ours_is_reported_alone(
    tmp_path: Path, tokenizer: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("llama.cpp", "OpenVINO", "transformers"):
        monkeypatch.setattr(PEERS[name], "missing", lambda executor: "it isn't installed")
    results = tmp_path / "results.json"
    options = "--shape tiny-test --layers 1 --executor reference --threads 1 --rounds 1 --prompt 20 --streams 2"
    folders = ["--work", str(tmp_path), "--tokenizer", str(tokenizer), "--json", str(results)]
    assert peers.main([*options.split(), "--steps", "1", "--repeats", "1", *folders]) == 0
    said = capsys.readouterr()
    assert all(f"{name} is left out: it isn't installed" in said.err for name in ("llama.cpp", "OpenVINO"))
    assert "decode, 1 sequence" in said.out and "2 streams" in said.out and "failed" not in said.out
    written = json.loads(results.read_text())
    assert {row["measure"] for row in written["summary"]} == {"decode", "prefill", "peak_memory_mb", "streams_2"}
    assert set(written["left_out"]) == {"llama.cpp", "OpenVINO", "transformers"}
    assert all(value > 0 for value in written["results"][0]["values"].values())
