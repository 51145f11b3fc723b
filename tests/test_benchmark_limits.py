"""The machine's limits are bytes and operations over the time that was taken; no real clock."""

from __future__ import annotations

import itertools
from pathlib import Path

from kaishu.benchmark_limits import Limits, Machine, arithmetics, limits_bytes
from kaishu.cpu.kernels import Kernels
from kaishu.cpu.measure import turn_operations


class Clock:
    """A try takes as many seconds as is said, and one where nothing is."""

    def __init__(self, *seconds: float) -> None:
        self.now, self.seconds, self.is_running = 0.0, itertools.chain(seconds, itertools.repeat(1.0)), False

    def __call__(self) -> float:
        if self.is_running:
            self.now += next(self.seconds)
        self.is_running = not self.is_running
        return self.now


def test_the_limits_are_bytes_and_operations_over_the_time_that_was_taken():
    with Machine(2, clock=Clock(), memory_bytes=9 << 20) as machine:
        limits = machine.tried(["int4", "float32"])
        assert machine.num_bytes == 8 << 20, "whole pieces of four megabytes"
    assert limits.read_bytes_per_second == 8 << 20
    assert limits.operations_per_second == {form: 2 * 4096 * turn_operations(form) for form in ("int4", "float32")}


def test_a_try_of_multiplying_takes_long_enough_beside_waking_the_threads():
    """Once for each form, turns are doubled until a try takes a fiftieth of a second."""
    reading, looking = (1.0,), (0.005, 0.01, 0.02)  # with 4,096 turns, 8,192 and 16,384
    with Machine(1, clock=Clock(*reading, *looking, 0.5, *reading, 0.25), memory_bytes=4 << 20) as machine:
        turns = 4 * 4096
        assert machine.tried(["int8"]).operations_per_second["int8"] == turns * turn_operations("int8") / 0.5
        assert machine.tried(["int8"]).operations_per_second["int8"] == turns * turn_operations("int8") / 0.25


def test_the_best_is_of_all_tries_and_of_every_form():
    with Machine(1, clock=Clock(0.5), memory_bytes=4 << 20) as machine:
        machine.tried([])
        best = machine.best(repeats=1)
    expected = {form: 4096 * turn_operations(form) for form in arithmetics()}
    assert best == Limits((4 << 20) / 0.5, expected)
    assert arithmetics() == ("int4", "int8", "bf16", "float32")


def test_kernels_are_compiled_and_memory_is_written_before_any_time_is_taken(monkeypatch):
    events, load, clock = [], Kernels.load, Clock()
    monkeypatch.setattr(Kernels, "load", lambda self, entry: (events.append(entry.name), load(self, entry))[1])
    with Machine(1, clock=lambda: (events.append("clock"), clock())[1], memory_bytes=4 << 20) as machine:
        assert events == ["read", "multiply"]
        machine.tried([])
    assert "clock" in events


def test_more_memory_is_read_than_any_cache_holds():
    folder = Path("/sys/devices/system/cpu/cpu0/cache")
    units = {"K": 1 << 10, "M": 1 << 20}
    texts = [path.read_text().strip() for path in folder.glob("index*/size")] or ["64M"]  # where nobody says
    assert limits_bytes() >= 4 * max(int(text[:-1]) * units[text[-1]] for text in texts)
    assert limits_bytes() >= 256_000_000
