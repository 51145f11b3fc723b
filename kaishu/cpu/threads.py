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
from collections.abc import Callable, Iterable
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


def available_threads(root: Path = Path("/")) -> int:
    """How many threads can really run at once: the smallest of affinity, physical cores and the cgroup's quota.

    root: where /sys and /proc are
    """
    cpus = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))
    return max(1, min(len(cpus), _physical_cores(root, cpus) or len(cpus), _quota(root) or len(cpus)))


def _physical_cores(root: Path, cpus: Iterable[int]) -> int | None:
    """The cores that these CPUs are on: hardware threads of one core share its vector units. None if unknown."""
    cores = set()
    for cpu in cpus:
        try:
            cores.add((root / f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list").read_text())
        except OSError:
            return None
    return len(cores) or None


def _quota(root: Path) -> int | None:
    """CPUs that the control group allows, rounded up; None without a limit."""
    try:
        group = (root / "proc/self/cgroup").read_text().strip().splitlines()[-1].rpartition(":")[2].lstrip("/")
    except (OSError, IndexError):
        return None
    limits = []
    folder = root / "sys/fs/cgroup"
    for part in ("", *Path(group).parts):
        folder = folder / part
        try:
            quota, period = (folder / "cpu.max").read_text().split()
        except (OSError, ValueError):
            continue
        if quota != "max":
            limits.append(-(-int(quota) // int(period)))
    return min(limits, default=None)


Work = Callable[[int], None]


class _Run:
    """What the other ranks say of one piece of work: a problem or None, from each when it is done."""

    def __init__(self, work: Work) -> None:
        self.work = work
        self.said: list[BaseException | None] = []
        self._one_is_done: queue.SimpleQueue[None] = queue.SimpleQueue()

    def do(self, rank: int) -> None:
        """A rank's part, and then its word."""
        self.said.append(_problem_in(self.work, rank))
        self._one_is_done.put(None)

    def wait(self, ranks: int) -> BaseException | None:
        """Wait until so many have done their part. They can't be interrupted, and use the caller's memory: so neither
        can the wait, unless somebody tries a second time. return: the interrupt, or else some rank's problem"""
        interrupt: BaseException | None = None
        while True:
            try:
                while len(self.said) < ranks:  # counted here, because an interrupt can come with what `get` returns
                    self._one_is_done.get()
                return interrupt or next((problem for problem in self.said if problem is not None), None)
            except KeyboardInterrupt as problem:
                if interrupt is not None:
                    raise
                interrupt = problem


class Ranks:
    """Threads 1 to n - 1, waiting for work; rank 0 is whoever calls."""

    def __init__(self, count: int) -> None:
        self.count, self._is_closed = count, False
        self._waiting: list[queue.SimpleQueue[_Run | None]] = [queue.SimpleQueue() for _ in range(count - 1)]
        for rank, waiting in enumerate(self._waiting, start=1):
            threading.Thread(target=_serve, args=(rank, waiting), daemon=True, name=f"kaishu-rank-{rank}").start()

    def run(self, work: Work) -> None:
        """Have every rank do its part of `work` at the same time; return when all have.

        raises: what a rank raised, but not before all are done
        """
        assert not self._is_closed, "the threads have ended"
        run = _Run(work)
        for waiting in self._waiting:
            waiting.put(run)
        own = _problem_in(work, 0)
        problem = run.wait(len(self._waiting)) or own
        if problem is not None:
            raise problem

    def close(self) -> None:
        """End the threads; once more does nothing."""
        self._is_closed = True
        for waiting in self._waiting:
            waiting.put(None)


def _serve(rank: int, waiting: queue.SimpleQueue[_Run | None]) -> None:
    while (run := waiting.get()) is not None:
        run.do(rank)
        del run  # or the last step's memory would be kept until the next


def _problem_in(work: Work, rank: int) -> BaseException | None:
    """Do a rank's part; return: what it raised"""
    try:
        work(rank)
    except BaseException as problem:
        return problem
    return None
