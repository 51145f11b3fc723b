"""`kaishu plan`: the numbers, the verdict, and what doesn't go together."""

from __future__ import annotations

import json
import re

import pytest

from kaishu.benchmark_limits import Limits, Machine
from kaishu.cli.main import main
from kaishu.memory_limits import MachineMemory

GIB = 1 << 30


@pytest.fixture
def machine(monkeypatch):
    """`machine(available, total, is_group)`: a machine of that memory that reads 50 GB/s."""

    def has(available: int = 8 * GIB, total: int = 16 * GIB, *, is_group: bool = False) -> None:
        found = MachineMemory(total, available, is_group)
        monkeypatch.setattr("kaishu.memory_limits.machine_memory", lambda: found)

    monkeypatch.setattr(Machine, "tried", lambda self, forms: Limits(50e9, {}))
    has()
    return has


def run(capsys, *arguments: object) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main(["plan", *map(str, arguments)])
    captured = capsys.readouterr()
    return ended.value.code, captured.out, captured.err


def answer(capsys, *arguments: object) -> dict:
    code, out, _ = run(capsys, *arguments, "--json")
    assert code == 0
    return json.loads(out)


def test_all_parts_add_up(capsys, machine):
    machine()
    found = answer(capsys, "tiny", "--weights", "int4", "--kv", "int8", "--threads", 1)
    assert (found["weights"], found["head"], found["kv"], found["threads"]) == ("int4", "int8", "int8", 1)
    assert found["context_tokens"] == 2048 and found["sequences"] == 1
    parts = sum(found[f"{part}_bytes"] for part in ("process", "packed", "buffer", "kv"))
    assert found["serving_peak_bytes"] == parts
    assert found["fits"] is True and found["largest_context_tokens"] == 2048
    assert found["available_bytes"] == 8 * GIB and found["is_limited_by_group"] is False
    speed = found["most_tokens_per_second"]
    assert found["read_bytes_per_second"] == 50e9 and speed["empty_context"] > speed["full_context"] > 0


def test_the_bandwidth_may_be_given_and_is_then_not_measured(capsys, machine, monkeypatch):
    monkeypatch.delattr("kaishu.benchmark_limits.Machine")
    one, two = (answer(capsys, "tiny", "--bandwidth", speed)["most_tokens_per_second"] for speed in (10, 20))
    assert two["full_context"] == pytest.approx(2 * one["full_context"])
    code, out, err = run(capsys, "tiny", "--bandwidth", 12.5)
    assert (code, err) == (0, "") and "memory is read at 12.5 GB/s" in out


def test_what_is_shown_are_the_numbers_of_the_json(capsys, machine):
    machine(is_group=True)
    code, out, err = run(capsys, "tiny", "--threads", 1)
    assert code == 0 and "Measuring how fast this machine reads memory" in err
    lines = [line.split(maxsplit=1)[0] for line in out.splitlines()]
    assert lines == ["tiny:", "weights", "keys,", "beside", "peak", "machine", "fits", "speed"]
    assert "tiny: bf16 weights (as in the checkpoint), bf16 keys and values, 1 thread" in out
    assert re.search(r"weights +5\.\d MB packed; 823\.3 kB of it embedding and output head", out)
    assert re.search(r"keys, values +1\.\d kB a token; \d\.\d MB for 1 sequence of 2,048 tokens", out)
    assert "8.6 GB available of its control group of 17.2 GB" in out
    assert re.search(r"fits +yes; the context may be all 2,048 tokens", out)
    assert re.search(r"speed +at most [\d,.]+ tok/s with an empty context, [\d,.]+ tok/s with a full one", out)


def test_too_little_memory_says_which_context_would_fit_or_that_none_does(capsys, machine, tiny_checkpoint):
    folder = tiny_checkpoint("dense_tied", max_position_embeddings=1_000_000)
    all_of_it = answer(capsys, folder)
    machine(available=all_of_it["serving_peak_bytes"] - 1)
    found = answer(capsys, folder)
    assert found["fits"] is False and 900_000 < found["largest_context_tokens"] < 1_000_000
    code, out, _ = run(capsys, folder)
    assert code == 0
    assert re.search(rf"fits +no; a context of {found['largest_context_tokens']:,} tokens would \(--context\)", out)
    assert answer(capsys, folder, "--context", found["largest_context_tokens"])["fits"] is True
    machine(available=10_000_000)
    assert answer(capsys, folder)["largest_context_tokens"] == 0
    assert re.search(r"fits +no; not even the weights do: take fewer bits", run(capsys, folder)[1])


def test_a_bound_stands_for_the_machine(capsys, machine):
    found = answer(capsys, "tiny", "--max-memory", "1MB")
    assert found["available_bytes"] == found["machine_bytes"] == 1_000_000 and found["fits"] is False
    assert answer(capsys, "tiny", "--max-memory", "2GiB")["fits"] is True
    assert "machine       2.1 GB, as given" in run(capsys, "tiny", "--max-memory", "2GiB")[1]


def test_a_system_that_says_nothing_is_not_guessed_at(capsys, machine, monkeypatch):
    monkeypatch.setattr("kaishu.memory_limits.machine_memory", lambda: None)
    found = answer(capsys, "tiny")
    assert found["available_bytes"] is found["fits"] is found["largest_context_tokens"] is None
    assert "this system doesn't say how much memory it has" in run(capsys, "tiny")[1]


def test_several_sequences_take_so_many_times_the_pages(capsys, machine):
    one, four = (answer(capsys, "tiny", "--sequences", count) for count in (1, 4))
    assert four["kv_bytes"] == 4 * one["kv_bytes"]
    assert four["most_tokens_per_second"]["empty_context"] > 2 * one["most_tokens_per_second"]["empty_context"]


def test_a_model_that_is_not_here_is_planned_from_its_config(capsys, machine, monkeypatch, tiny_checkpoint):
    folder = tiny_checkpoint("moe", dtype="bfloat16")
    config = json.loads((folder / "config.json").read_text())
    monkeypatch.setattr("kaishu.checkpoint.described.resolve_without_weights", lambda _: config)
    code, out, err = run(capsys, "Qwen/NotHere", "--json")
    assert code == 0 and "Qwen/NotHere is not here yet" in err
    monkeypatch.undo()
    assert json.loads(out)["packed_bytes"] == answer(capsys, folder, "--bandwidth", 50)["packed_bytes"]


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["./nowhere"], "There is no such folder: nowhere."),
        (["tiny", "--weights", "float32"], "--weights is 'float32'"),
        (["tiny", "--kv", "int4"], "--kv is 'int4'"),
        (["tiny", "--context", "1"], "--context is 1; allowed: a whole number from 2 to the model's limit of 2,048."),
        (["tiny", "--context", "2049"], "--context is 2049; allowed"),
        (["tiny", "--sequences", "0"], "--sequences is 0; allowed: a whole number from 1 to 1,024."),
        (["tiny", "--threads", "0"], "--threads is 0; allowed: a whole number from 1 to 1,024."),
        (["tiny", "--bandwidth", "0"], "--bandwidth is 0.0; allowed: more than 0"),
        (["tiny", "--bandwidth", "nan"], "--bandwidth is nan; allowed: more than 0"),
        (["tiny", "--max-memory", "lots"], "--max-memory is 'lots'; allowed: a number of bytes"),
    ],
)
def test_what_cannot_be_is_an_error_in_the_words_that_were_typed(capsys, machine, arguments, message):
    code, out, err = run(capsys, *arguments)
    assert (code, out) == (2, "")
    assert err.startswith(f"kaishu: error: {message}")
