"""What this machine can do at most: how fast its threads together read memory, and how fast they multiply.

Owns the tries and their times; the clock is given, the kernels are cpu/measure.py's. Knows no model. benchmark.py
compares steps with these limits, planning's bandwidth is one of them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self, cast

if TYPE_CHECKING:
    from kaishu.cpu.measure import Arithmetic

Clock = Callable[[], float]
"""Seconds, from any start."""

_SMALLEST_MEMORY = 256_000_000
_TRY_SECONDS = 0.02  # beside which waking the threads takes no time
_FEWEST_TURNS, _MOST_TURNS = 1 << 12, 1 << 26


@dataclass(frozen=True)
class Limits:
    """What the machine can do at most, with all threads that compute.

    read_bytes_per_second:  from memory
    operations_per_second:  of the instructions for each form of weights: int4, int8, bf16; and of plain float32
    """

    read_bytes_per_second: float
    operations_per_second: Mapping[str, float]


class Machine:
    """Threads, and memory that is larger than the caches, to try the limits with; a context manager."""

    def __init__(
        self, threads: int, *, clock: Clock, cache: Path | None = None, memory_bytes: int | None = None
    ) -> None:
        """Have everything ready before any time is taken: kernels may have to be compiled.

        threads:      as many as the executor has
        cache:        where compiled kernels are kept; None for Kaishu's own folder
        memory_bytes: how much to read in one try; None for `limits_bytes`
        """
        import numpy as np

        from kaishu.cpu.kernels import Kernels
        from kaishu.cpu.measure import MULTIPLY, PIECE_FLOATS, READ
        from kaishu.cpu.store import KERNELS_FOLDER, cache_folder
        from kaishu.cpu.threads import Ranks

        self._clock, self._ranks = clock, Ranks(threads)
        self._kernels = Kernels((cache or cache_folder()) / KERNELS_FOLDER)
        for entry in (READ, MULTIPLY):
            self._kernels.load(entry)
        pieces = max(1, (memory_bytes or limits_bytes()) // (4 * PIECE_FLOATS))
        self._memory = np.ones(pieces * PIECE_FLOATS, np.float32)
        self._turns = dict[str, int]()  # of each form, how many take long enough
        self._best_reading, self._best = 0.0, dict[str, float]()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ranks.close()

    @property
    def num_bytes(self) -> int:
        """What its memory takes for as long as it is open."""
        return self._memory.nbytes

    def tried(self, forms: Collection[str]) -> Limits:
        """One try of reading, and of multiplying with the instructions of some forms of weights."""
        from kaishu.cpu.measure import read_through

        reading = self._memory.nbytes / self._seconds(lambda: read_through(self._kernels, self._ranks, self._memory))
        self._best_reading = max(self._best_reading, reading)
        operations = {form: self._operations_per_second(form) for form in forms}
        for form, rate in operations.items():
            self._best[form] = max(self._best.get(form, 0.0), rate)
        return Limits(reading, operations)

    def best(self, repeats: int) -> Limits:
        """The best of all tries so far and of some more: others can only slow the machine down."""
        for _ in range(repeats):
            self.tried(arithmetics())
        return Limits(self._best_reading, {form: self._best[form] for form in arithmetics()})

    def _operations_per_second(self, form: str) -> float:
        from kaishu.cpu.measure import multiply, turn_operations

        arithmetic = cast("Arithmetic", form)  # of the forms that step_cost counts, or all of them

        def run() -> object:
            return multiply(self._kernels, self._ranks, arithmetic, self._turns[form])

        if form not in self._turns:
            self._turns[form] = _FEWEST_TURNS
            while self._turns[form] < _MOST_TURNS and self._seconds(run) < _TRY_SECONDS:
                self._turns[form] *= 2
        return self._ranks.count * self._turns[form] * turn_operations(arithmetic) / self._seconds(run)

    def _seconds(self, run: Callable[[], object]) -> float:
        start = self._clock()
        run()
        return self._clock() - start


def arithmetics() -> tuple[str, ...]:
    """All forms of numbers whose multiplication is tried."""
    from typing import get_args

    from kaishu.cpu.measure import Arithmetic

    return get_args(Arithmetic)


def limits_bytes() -> int:
    """How much memory is read to find out how fast that is: four times the caches, and 256 MB at least."""
    return max(4 * _largest_cache_bytes(), _SMALLEST_MEMORY)


def _largest_cache_bytes() -> int:
    """Of the processor's caches, the largest, where Linux says it; else 64 MB, which few exceed."""
    sizes = []
    for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        found = re.fullmatch(r"(\d+)([KMG])\s*", path.read_text())
        if found:
            sizes.append(int(found[1]) << {"K": 10, "M": 20, "G": 30}[found[2]])
    return max(sizes, default=64 << 20)
