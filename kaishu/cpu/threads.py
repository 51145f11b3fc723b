"""Ranks: the threads that compute a step together.

Owns the number of threads, the threads themselves, and the memory through which they divide work and wait for each
other; how the kernels use that is barriers.py. Knows nothing of models. executor.py starts the ranks once and wakes
them for every step.
"""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

ARRIVED, GENERATION, OWN_START, COUNTERS = 0, 8, 16, 24  # places in the shared array; each on a line of its own
OWN_SIZE = OWN_START + 1
LINE = 8  # int64 in a cache line


def shared_state(stages: int, ranks: int) -> NDArray[np.int64]:
    """The barrier, a counter for each stage of a step, and for each rank counters of its own. Kernels get its address.

    return: int64; everything from COUNTERS on is zero, and has to be again before every step
    """
    own_start, own_size = COUNTERS + stages * LINE, -(-stages // LINE) * LINE
    shared = np.zeros(own_start + ranks * own_size, np.int64)
    shared[OWN_START], shared[OWN_SIZE] = own_start, own_size
    return shared


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
    """CPUs that the control groups allow, rounded up: the least of our own and those above; None without a limit."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return None
    limits = []
    for line in lines:
        _, controllers, group = [*line.split(":", 2), "", ""][:3]
        if controllers and "cpu" not in controllers.split(","):
            continue
        folder = root / "sys/fs/cgroup" / controllers  # version 2 has one tree and names no controllers
        for part in ("", *Path(group.lstrip("/")).parts):
            folder = folder / part
            limits.append(_limit(folder))
    return min((limit for limit in limits if limit), default=None)


def _limit(group: Path) -> int | None:
    """What one control group allows, in version 2's file or version 1's two."""
    try:
        if (group / "cpu.max").exists():
            quota, period = (group / "cpu.max").read_text().split()
        else:
            quota, period = ((group / f"cpu.cfs_{name}_us").read_text().strip() for name in ("quota", "period"))
        return -(-int(quota) // int(period)) if quota not in ("max", "-1") else None
    except (OSError, ValueError, ZeroDivisionError):
        return None


Work = Callable[[int], object]


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
