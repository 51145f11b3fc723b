"""The order of the measurements, and the processes that do them.

In every round each width is measured with each engine in turn, so that what slows the machine for a minute slows them
all; the engine that comes first changes from round to round, so that none always runs on the coolest processor.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from benchmarks.one_process import Job
from benchmarks.work import Work

_REPOSITORY = Path(__file__).resolve().parents[1]
_LONGEST_SECONDS = 3600


class Apart(Protocol):
    """What `run_apart` has to know of a job."""

    @property
    def peer(self) -> str: ...

    @property
    def width(self) -> str: ...

    @property
    def round(self) -> int: ...

    @property
    def threads(self) -> int: ...

    def to_json(self) -> str: ...


def jobs(
    models: Mapping[str, Mapping[str, Path]],
    widths: Sequence[str],
    *,
    rounds: int,
    threads: int,
    executor: str,
    work: Work,
) -> Iterator[Job]:
    """All jobs of `benchmarks.peers`, in their order; the arguments are those of `turns`."""
    for number, width, peer, path in turns(models, widths, rounds):
        yield Job(peer, width, path, threads, executor, number, work)


def turns(
    models: Mapping[str, Mapping[str, Path]], widths: Sequence[str], rounds: int
) -> Iterator[tuple[int, str, str, str]]:
    """Who is measured when.

    models: peer → width → the model in the format that it reads; a width that isn't there is not measured
    widths: in the order wanted
    return: round (from 1), width, peer, path
    """
    peers = list(models)
    for number in range(1, rounds + 1):
        first = (number - 1) % max(1, len(peers))
        for width in widths:
            for peer in (*peers[first:], *peers[:first]):
                if width in models[peer]:
                    yield number, width, peer, str(models[peer][width].resolve())


def run_apart(job: Apart, module: str = "benchmarks.one_process") -> dict[str, Any]:
    """Run a job in a process of its own.

    module: what reads the job from its command line
    return: what it printed, or peer, width, round and `failed`: the end of what it said
    """
    environment = {**os.environ, "OMP_NUM_THREADS": str(job.threads), "HF_HUB_OFFLINE": "1"}
    failed: dict[str, Any] = {"peer": job.peer, "width": job.width, "round": job.round}
    try:
        done = subprocess.run(
            [sys.executable, "-m", module, job.to_json()],
            cwd=_REPOSITORY,
            env=environment,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_LONGEST_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return {**failed, "failed": f"took more than {_LONGEST_SECONDS} seconds"}
    said = done.stdout.strip().splitlines()  # a library may print before our line
    if done.returncode or not said:
        last = " | ".join((done.stderr.strip() or done.stdout.strip()).splitlines()[-3:])
        return {**failed, "failed": f"exit code {done.returncode}: {last}"}
    result: dict[str, Any] = json.loads(said[-1])
    return result
