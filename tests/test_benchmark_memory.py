"""What `kaishu bench` is said to take is what a process that measured took, and a bound leaves what fits."""

from __future__ import annotations

from itertools import pairwise

import pytest

from kaishu.benchmark import Work, plan
from kaishu.benchmark_limits import limits_bytes
from kaishu.benchmark_memory import NUMBA_BYTES, working_bytes, works_within
from kaishu.checkpoint import Checkpoint, open_checkpoint
from kaishu.checkpoint.hub import resolve
from kaishu.errors import InvalidParameterError, OutOfMemoryError
from kaishu.executors import choose, quantised_formats
from kaishu.planning import Plan, plan_model
from tests.memory import run_measured

WORKS, _ = plan((1, 500, 2000), (1, 16), 40, longest=2048, most_tokens=100_000)


@pytest.fixture(scope="module")
def tiny() -> Checkpoint:
    return open_checkpoint(resolve("tiny"))


def choice_of(checkpoint: Checkpoint, weights: str = "auto"):
    return choose(checkpoint.config, "cpu", weights, "auto", "cpu", formats=quantised_formats(checkpoint))


def planned(checkpoint: Checkpoint) -> Plan:
    return plan_model(checkpoint, choice_of(checkpoint), context_tokens=2048, threads=1)


def within(checkpoint: Checkpoint, bound: object) -> tuple[list[Work], list[Work]]:
    return works_within(bound, checkpoint, choice_of(checkpoint), WORKS, threads=1)


@pytest.fixture(autouse=True)
def quickly_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine whose caches are so small that the model is what takes memory."""
    monkeypatch.setattr("kaishu.benchmark_memory.limits_bytes", lambda: 0)
    monkeypatch.setattr("kaishu.benchmark_memory.COMPILING_BYTES", 0)


def test_what_fits_is_measured_and_the_largest_work_is_left_out_first(tiny):
    assert within(tiny, "8GB") == (WORKS, [])
    whole = planned(tiny).process_bytes + planned(tiny).packed_bytes + NUMBA_BYTES + working_bytes(planned(tiny), WORKS)
    assert within(tiny, whole)[1] == []
    counts = []
    for bound in range(whole, planned(tiny).loading_peak_bytes + NUMBA_BYTES, -4_000_000):
        kept, left_out = within(tiny, bound)
        assert kept + left_out and [work for work in WORKS if work in kept] == kept
        assert len(kept) + len(left_out) == len(WORKS) and not set(kept) & set(left_out)
        used = (
            planned(tiny).process_bytes + planned(tiny).packed_bytes + NUMBA_BYTES + working_bytes(planned(tiny), kept)
        )
        assert used <= bound
        counts.append(len(kept))
    assert len(counts) > 3 and all(more >= fewer for more, fewer in pairwise(counts))
    assert counts[0] == len(WORKS) > counts[-1]


def test_no_room_for_any_work_is_an_error_that_says_what_takes_how_much(tiny):
    with pytest.raises(
        OutOfMemoryError, match=r"Python and libraries .* packed weights 5\.1 MB.*max_memory is 50\.0 MB"
    ):
        within(tiny, "50MB")


def test_reading_the_machines_memory_counts(tiny, monkeypatch):
    whole = planned(tiny).process_bytes + planned(tiny).packed_bytes + NUMBA_BYTES + working_bytes(planned(tiny), WORKS)
    monkeypatch.setattr("kaishu.benchmark_memory.limits_bytes", lambda: 10**9)
    with pytest.raises(OutOfMemoryError, match=r"1\.0 GB to measure how fast this machine reads memory"):
        within(tiny, "1GB")
    assert within(tiny, 10**9 + whole) == (WORKS, [])
    assert within(tiny, 10**9 + whole - 1)[1] != []


def test_a_bound_that_is_no_size_is_an_error(tiny):
    with pytest.raises(InvalidParameterError, match="max_memory is 'much'"):
        within(tiny, "much")


PROGRAM = """
from kaishu.cli.main import main
import kaishu.cli.bench as bench
bench._show = lambda report, **_: print(len(report.measurements), len(report.left_out))
try:
    main(["bench", "tiny", "--contexts", "1,500", "--batch-sizes", "1,8", "--prefill", "40", "--seconds", "0.001",
          "--threads", "1", "--most-tokens", "100000", *{options}])
except SystemExit as ended:
    assert ended.code == 0
print(round(peak_mb() * 2**20))
"""


def test_a_process_that_is_held_to_a_bound_stays_within_it(tiny):
    run_measured(PROGRAM.format(options=[]))  # compiles what isn't compiled
    works, _ = plan((1, 500), (1, 8), 40, longest=2048, most_tokens=100_000)
    model = plan_model(tiny, choice_of(tiny), context_tokens=2048, threads=1)
    least = model.loading_peak_bytes + NUMBA_BYTES + limits_bytes() + 8_000_000
    measured, left_out, peak = map(int, run_measured(PROGRAM.format(options=["--max-memory", str(least)])))
    assert measured + left_out == len(works) and 0.7 * least < peak <= least


def test_pages_and_buffers_are_what_a_process_takes_for_its_work(tmp_path):
    """Qwen3-0.6B's layers, two of them, so that they weigh more than what differs between processes."""
    program = """
from itertools import count
from kaishu.benchmark import Work, measure, pages_needed
from kaishu.benchmark_limits import Limits
from kaishu.checkpoint import open_checkpoint
from kaishu.checkpoint.random_weights import write_random_checkpoint
from kaishu.cpu.executor import CpuExecutor
from pathlib import Path
folder = Path({folder!r})
if not folder.exists():
    write_random_checkpoint(folder, "0.6b", layers=2)
works = [Work("decode", 600, 4, 1), Work("prefill", 1, 1, 400)]
executor = CpuExecutor.from_checkpoint(open_checkpoint(folder), weights="int4", head="int8", threads=1,
    num_pages=pages_needed(works, 16), packed_folder=folder.parent / "packed")
before = peak_mb()
for _ in measure(executor, executor.layout, executor.kv_bytes_per_token, works[:{count}], seconds=0,
                 clock=count().__next__, limits=lambda _: Limits(1.0, dict.fromkeys(["int4", "int8", "bf16"], 1.0))):
    pass
print(round((peak_mb() - before) * 2**20), round(before * 2**20))
"""
    folder = tmp_path / "model"
    run_measured(program.format(folder=str(folder), count=1))  # packs, which takes more than what is looked for
    used, before = map(int, run_measured(program.format(folder=str(folder), count=2)))
    checkpoint = open_checkpoint(folder)
    model = plan_model(checkpoint, choice_of(checkpoint, "int4"), context_tokens=600, threads=1)
    works = [Work("decode", 600, 4, 1), Work("prefill", 1, 1, 400)]
    wanted = working_bytes(model, works)
    assert wanted > 50e6
    # What is mapped of the packed weights, and not read before the first step, comes in beside.
    assert 0.8 * wanted < used + before - (model.process_bytes - 600 * 151_936) < 1.05 * (wanted + model.packed_bytes)
