"""What another process does with the store, step by step as the test tells it through a pipe.

Started with multiprocessing's spawn; imports little, so that it starts soon.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
from numpy.random import default_rng  # now, because nobody may not read Python's own files later
from numpy.typing import NDArray

from kaishu.cpu.store import PackedFile, PackedStore

NUM_BYTES = 300_000


def contents(seed: int, num_bytes: int = NUM_BYTES) -> NDArray[np.uint8]:
    return default_rng(seed).integers(0, 256, num_bytes, dtype=np.uint8)


def open_packed(
    store: PackedStore, seed: int = 0, num_bytes: int = NUM_BYTES, before_packing: Callable[[], object] = lambda: None
) -> tuple[PackedFile, int]:
    """Open what belongs to a seed. return: the file, whose data was checked, and how often it was packed for that"""
    calls = []

    def pack(data: NDArray[np.uint8]) -> None:
        assert not data.any(), "begins as zeros"
        calls.append(before_packing())
        data[:] = contents(seed, num_bytes)

    file = store.open_or_pack({"seed": seed, "layout": 1}, num_bytes, pack, describe=f"seed {seed}\nmore".encode())
    assert np.array_equal(file.data, contents(seed, num_bytes))
    return file, len(calls)


class PackingProcess:
    """A process that opens the weights of a seed when it is told to, and may be held while it packs."""

    def __init__(
        self, folder: Path, seed: int = 0, *, held: bool = False, before: Callable[[], object] | None = None
    ) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, end = context.Pipe()
        self.process = context.Process(target=_run, args=(end, folder, seed, held, before), daemon=True)
        self.process.start()
        end.close()
        assert self.heard() == "ready"

    def say(self, word: str) -> None:
        self._pipe.send(word)

    def heard(self) -> Any:
        assert self._pipe.poll(60), "the process says nothing"
        return self._pipe.recv()

    def kill(self) -> None:
        self.process.kill()
        self.process.join()


def _run(pipe: Connection, folder: Path, seed: int, held: bool, before: Callable[[], object] | None) -> None:
    if before is not None:
        before()
    pipe.send("ready")
    pipe.recv()

    def wait() -> None:
        if held:
            pipe.send("packing")
            pipe.recv()
        else:
            time.sleep(0.1)  # so that others come meanwhile

    file, packed_times = open_packed(PackedStore(folder), seed, before_packing=wait)
    pipe.send({"packed": packed_times, "cached": file.came_from_cache, "path": file.path, "note": file.note})


def become_nobody() -> None:
    """Root may write everywhere; nobody may not."""
    if os.geteuid() == 0:
        os.setgid(65534)
        os.setuid(65534)


def allow_small_files_only() -> None:
    """Let the kernel refuse files of more than 100 kB, as a full disk would."""
    import resource

    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
