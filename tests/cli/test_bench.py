"""`kaishu bench`: what is measured, what is left out, and what doesn't go together."""

from __future__ import annotations

import json
import re
import tempfile

import pytest

from kaishu.benchmark_limits import Limits, Machine
from kaishu.cli.main import main
from kaishu.cpu.store import PACKED_FOLDER, cache_folder
from tests.cli.adapters import adapter_of_queries

QUICK = ("--seconds", 0.001, "--threads", 1)
LIMITS = Limits(50e9, {"int4": 400e9, "int8": 200e9, "bf16": 100e9, "float32": 90e9})


@pytest.fixture(autouse=True)
def machine(monkeypatch) -> None:
    """A machine of known speed; tests/test_benchmark_limits.py measures the real one."""
    monkeypatch.setattr(Machine, "tried", lambda self, forms: LIMITS)
    monkeypatch.setattr(Machine, "best", lambda self, repeats: LIMITS)
    monkeypatch.setattr("kaishu.benchmark.ROUND_SECONDS", 1000.0)  # one round, whose share is that of all steps


def run(capsys, *arguments: object) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main(["bench", *map(str, arguments)])
    captured = capsys.readouterr()
    return ended.value.code, captured.out, captured.err


def test_a_model_is_measured_and_each_number_follows_from_the_others(tiny_checkpoint, capsys):
    folder = tiny_checkpoint("dense_tied")
    grid = ("--contexts", "1,40", "--batch-sizes", "1,3", "--prefill", 20)
    code, out, err = run(capsys, folder, *QUICK, *grid, "--weights", "int4", "--head", "bf16", "--json")
    assert code == 0
    assert "Measuring 7 kinds of steps" in err
    report = json.loads(out)
    assert report["model"] == str(folder) and "int4 weights, bf16 head" in report["executor"] and report["threads"] == 1
    assert report["kv_bytes_per_token"] == 3 * 2 * 2 * 32 * 2  # layers, keys and values, heads, channels, bf16
    assert report["limits"]["read_bytes_per_second"] == 50e9
    assert report["peak_memory_bytes"] > report["packed_bytes"] > 0
    found = report["measurements"]
    assert [(row["kind"], row["context"], row["sequences"], row["new_tokens"]) for row in found] == [
        ("decode", 1, 1, 1),
        ("decode", 1, 3, 1),
        ("decode", 40, 1, 1),
        ("decode", 40, 3, 1),
        ("prefill", 1, 1, 16),
        ("prefill", 1, 1, 20),
        ("prefill", 40, 1, 20),
    ]
    for row in found:
        tokens, seconds = row["sequences"] * row["new_tokens"], row["step_seconds"]
        assert row["tokens_per_second"] == pytest.approx(tokens / seconds)
        assert row["read_bytes_per_second"] == pytest.approx(row["read_bytes"] / seconds)
        assert row["operations_per_second"] == pytest.approx(sum(row["operations"].values()) / seconds)
        computing = row["operations"]["int4"] / 400e9 + row["operations"]["bf16"] / 100e9
        assert row["share_of_floor"] == pytest.approx(max(row["read_bytes"] / 50e9, computing) / seconds)
    assert found[2]["read_bytes"] - found[0]["read_bytes"] == 39 * report["kv_bytes_per_token"]


def test_the_table_has_a_row_for_each_and_says_what_is_left_out(tiny_checkpoint, capsys):
    grid = ("--contexts", "1,500", "--batch-sizes", "1,4", "--prefill", 32, "--most-tokens", 100)
    code, out, _ = run(capsys, tiny_checkpoint("moe"), *QUICK, *grid)
    assert code == 0
    rows = re.findall(r"^(decode|prefill) +([\d,]+) +(\d+) +(\d+) +[\d.,]+ +[\d.]+ ms", out, re.MULTILINE)
    assert rows == [
        ("decode", "1", "1", "1"),
        ("decode", "1", "4", "4"),
        ("decode", "500", "1", "1"),
        ("prefill", "1", "1", "16"),
        ("prefill", "1", "1", "32"),
    ]
    assert (
        "machine  at best, reads 50.0 GB/s; multiplies and adds, in GFLOP/s: int4 400, int8 200, bf16 100, float32 90"
        in out
    )
    assert (
        "Left out, as over the model's context, --most-tokens or --max-memory: decode 500 × 4, prefill 500 × 1." in out
    )
    assert re.search(r"first token after [\d.]+ s of a prompt of 32 tokens", out)


def test_work_that_takes_more_memory_than_allowed_is_left_out(capsys, monkeypatch):
    from kaishu.benchmark_limits import limits_bytes
    from kaishu.benchmark_memory import working_bytes

    def slimmer(plan, works):  # so that the bound needs no thousands of tokens
        return working_bytes(plan, works) + 10**9 * sum(work.sequences > 1 for work in works)

    monkeypatch.setattr("kaishu.benchmark_memory.working_bytes", slimmer)
    bound = 10**9 + limits_bytes()  # which is several times the caches, and may alone be more than a gigabyte
    grid = ("--contexts", 1, "--batch-sizes", "1,3", "--prefill", 4, "--max-memory", bound)
    code, out, _ = run(capsys, "tiny", *QUICK, *grid)
    assert code == 0 and "Left out, as over the model's context, --most-tokens or --max-memory: decode 1 × 3." in out
    assert re.findall(r"^(decode|prefill) +1 +(\d+) ", out, re.MULTILINE) == [("decode", "1"), ("prefill", "1")]


def test_an_adapter_is_merged_and_one_that_is_missing_is_named(tiny_checkpoint, tmp_path, capsys):
    options = ("--contexts", 1, "--batch-sizes", 1, "--prefill", 4, "--seconds", 0.01, "--threads", 1, "--json")
    folder = tiny_checkpoint("dense_tied")
    code, out, _ = run(capsys, folder, *options, "--lora", adapter_of_queries(tmp_path / "adapter"))
    assert code == 0 and json.loads(out)["measurements"]
    code, _, error = run(capsys, folder, *options, "--lora", tmp_path)
    assert code == 2 and "has no adapter_config.json, so it is no adapter" in error


def test_a_shape_is_drawn_at_random_and_nothing_of_it_stays(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    packed = cache_folder() / PACKED_FOLDER
    before = sorted(packed.glob("*")) if packed.exists() else []
    grid = ("--contexts", 1, "--batch-sizes", 1, "--prefill", 1)
    code, out, err = run(capsys, "--shape", "tiny-test", "--layers", 1, "--weights", "int8", *QUICK, *grid)
    assert code == 0
    assert out.startswith("tiny-test: CPU kernels")
    assert re.search(rf"Writing 39\.4 MB of random weights to {tmp_path}/\S+; they are removed at the end", err)
    assert list(tmp_path.iterdir()) == []
    assert (sorted(packed.glob("*")) if packed.exists() else []) == before


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["tiny", "--shape", "0.6b"], "There is a MODEL and a --shape.\n"),
        (["tiny", "--layers", "2"], "--layers goes with --shape only.\n"),
        (["--shape", "7b"], "--shape is '7b'; allowed: 0.6b, 1.7b"),
        (["--shape", "0.6b", "--layers", "0"], "--layers is 0; allowed: 1 to 10,000."),
        (["tiny", "--weights", "float32"], "--weights is 'float32'"),
        (["tiny", "--head", "int2"], "--head is 'int2'"),
        (["tiny", "--contexts", "1,2049"], "--contexts is '2049'; allowed: whole numbers from 1 to 2,048"),
        (["tiny", "--batch-sizes", "0"], "--batch-sizes is '0'; allowed: whole numbers from 1 to 1,024"),
        (["tiny", "--prefill", "4000"], "--prefill is 4000; allowed: 1 to the model's context of 2,048."),
        (["tiny", "--seconds", "0"], "--seconds is 0.0; allowed: more than 0, at most 3,600."),
        (["tiny", "--seconds", "nan"], "--seconds is nan; allowed"),
        (["tiny", "--threads", "0"], "--threads is 0; allowed: a whole number from 1 to 1,024."),
        (["tiny", "--most-tokens", "-1"], "--most-tokens is -1; allowed: at least 0."),
        (["tiny", "--max-memory", "lots"], "--max-memory is 'lots'; allowed: a number of bytes, or one with a unit"),
        (["tiny", "--max-memory", "40MB"], "Not even the smallest step can be measured: Python and libraries "),
    ],
)
def test_what_cannot_be_is_an_error_in_the_words_that_were_typed(capsys, arguments, message):
    code, out, err = run(capsys, *arguments)
    assert (code, out) == (2, "")
    assert err.startswith(f"kaishu: error: {message}")
