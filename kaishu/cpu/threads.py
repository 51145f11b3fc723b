"""Ranks: the threads that compute a step together, how they divide work, and how they wait for each other.

Owns the number of threads, the threads themselves, the barrier and the shared counters. Knows nothing of models.
executor.py starts the ranks once and wakes them for every step; the kernels call `barrier` and `claim`.

Work is claimed, not assigned: a rank takes the next piece when it is done with its last, so a core that is slow or busy
with something else gets less. Which rank computes a piece never changes its result.
"""

from __future__ import annotations

import os
import queue
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from kaishu.cpu.vector import INLINE

ARRIVED, GENERATION, COUNTERS = 0, 8, 16  # places in the shared array; each on a cache line of its own
LINE = 8  # int64 in a cache line
SPINS = 2000  # turns of waiting, some microseconds, before a waiting rank lets others run
_YIELD = "SwitchToThread" if sys.platform == "win32" else "sched_yield"


@intrinsic
def _add(typing: Any, shared: Any, place: Any, amount: Any) -> Any:
    """Atomically add to shared[place]; return: what it was before."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        return builder.atomic_rmw("add", builder.gep(data, [arguments[1]]), arguments[2], "seq_cst")

    return types.int64(shared, types.int64, types.int64), generate


@intrinsic
def _read(typing: Any, shared: Any, place: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        return builder.load_atomic(builder.gep(data, [arguments[1]]), "acquire", 8)

    return types.int64(shared, types.int64), generate


@intrinsic
def _let_others_run(typing: Any) -> Any:
    """Give the core to another thread that wants it."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        function_type = ir.FunctionType(ir.IntType(32), [])
        builder.call(cgutils.get_or_insert_function(builder.module, function_type, _YIELD), [])
        return context.get_dummy_value()

    return types.void(), generate


@njit(**INLINE)
def barrier(shared, ranks):
    """Wait until every rank is here. Spins a little, then yields: a rank without a core isn't kept from it."""
    if ranks == 1:
        return
    generation = _read(shared, GENERATION)
    if _add(shared, ARRIVED, 1) == ranks - 1:
        _add(shared, ARRIVED, -ranks)
        _add(shared, GENERATION, 1)
        return
    turns = 0
    while _read(shared, GENERATION) == generation:
        turns += 1
        if turns > SPINS:
            _let_others_run()


@njit(**INLINE)
def claim(shared, stage, pieces):
    """The next `pieces` pieces of a stage, which are this rank's alone; return: the first of them."""
    return _add(shared, COUNTERS + stage * LINE, pieces)


def shared_state(stages: int) -> Any:
    """The barrier and a counter for each stage of a step; int64, zero before every step."""
    import numpy as np

    return np.zeros(COUNTERS + stages * LINE, np.int64)


def available_threads() -> int:
    """How many threads can really run at once: the smallest of affinity, physical cores and the cgroup's quota."""
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(affinity, _physical_cores() or affinity, _quota() or affinity))


def _physical_cores() -> int | None:
    """Cores without their second hardware threads, which share the vector units; None where it can't be known."""
    cores = set()
    for folder in Path("/sys/devices/system/cpu").glob("cpu[0-9]*/topology"):
        try:
            cores.add((folder / "thread_siblings_list").read_text())
        except OSError:
            return None
    return len(cores) or None


def _quota() -> int | None:
    """CPUs that the control group allows, rounded up; None without a limit."""
    try:
        group = Path("/proc/self/cgroup").read_text().strip().splitlines()[-1].rpartition(":")[2].lstrip("/")
    except (OSError, IndexError):
        return None
    limits = []
    folder = Path("/sys/fs/cgroup")
    for part in ("", *Path(group).parts):
        folder = folder / part
        try:
            quota, period = (folder / "cpu.max").read_text().split()
        except (OSError, ValueError):
            continue
        if quota != "max":
            limits.append(-(-int(quota) // int(period)))
    return min(limits, default=None)


class Ranks:
    """Threads 1 to n - 1, waiting for work; rank 0 is whoever calls."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._work: list[queue.SimpleQueue[Callable[[int], None] | None]] = [
            queue.SimpleQueue() for _ in range(count - 1)
        ]
        self._done: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()
        for rank, work in enumerate(self._work, start=1):
            threading.Thread(target=self._serve, args=(rank, work), daemon=True, name=f"kaishu-rank-{rank}").start()

    def run(self, work: Callable[[int], None]) -> None:
        """Have every rank do its part of `work` at the same time; return when all have."""
        for waiting in self._work:
            waiting.put(work)
        work(0)
        problems = [self._done.get() for _ in self._work]
        for problem in problems:
            if problem is not None:
                raise problem

    def close(self) -> None:
        """End the threads."""
        for waiting in self._work:
            waiting.put(None)

    def _serve(self, rank: int, work: queue.SimpleQueue[Callable[[int], None] | None]) -> None:
        while (job := work.get()) is not None:
            try:
                job(rank)
            except BaseException as problem:
                self._done.put(problem)
            else:
                self._done.put(None)
