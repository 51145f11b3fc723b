"""Damages model files at random and opens them: what isn't a typed error, or takes too long, ends the run.

    python -m tests.checkpoint.fuzz_readers FOLDER COUNT SEED

opens COUNT damaged copies of the *.gguf and *.safetensors in FOLDER and prints, as one JSON object, how many opened,
how many were refused, the longest CPU time of one and how many megabytes the process grew by. test_fuzz_readers.py
makes the folder and judges the numbers.
"""

from __future__ import annotations

import json
import random
import re
import resource
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import numpy as np

from kaishu.checkpoint import open_checkpoint
from kaishu.checkpoint.gguf import open_gguf
from kaishu.checkpoint.quantised import QuantisedTensor
from kaishu.checkpoint.safetensors import open_safetensors
from kaishu.errors import KaishuError

LIARS = [
    *(0, 1, 7, 8, 9, 31, 32, 255),
    *(2**power + step for power in (16, 20, 31, 32, 40, 60, 63) for step in (-1, 0)),
    2**64 - 1,
]


def damaged(contents: bytes, header_bytes: int, chance: random.Random) -> bytes:
    """One to three edits, most of them in the header."""
    edited = bytearray(contents)
    for _ in range(chance.randint(1, 3)):
        span = header_bytes if chance.random() < 0.8 else len(edited)
        start = chance.randrange(max(1, min(span, len(edited))))
        kind = chance.randrange(7)
        if kind == 0 and edited:
            edited[start] ^= 1 << chance.randrange(8)
        elif kind == 1:
            edited[start : start + 8] = chance.choice(LIARS).to_bytes(8, "little")
        elif kind == 2:
            edited[start : start + 4] = (chance.choice(LIARS) & 0xFFFFFFFF).to_bytes(4, "little")
        elif kind == 3:
            edited[start : start + 8] = chance.randbytes(chance.randint(1, 8))
        elif kind == 4:
            del edited[start : start + chance.randint(1, 40)]
        elif kind == 5:
            edited[start:start] = edited[start : start + chance.randint(1, 40)]
        elif chance.random() < 0.2:
            del edited[start:]
    return bytes(edited)


def read(path: Path) -> None:
    """Open a file as far as it lets itself be opened, and decode some of what is in it."""
    if path.suffix == ".safetensors":
        for tensor in open_safetensors(path).tensors.values():
            tensor.read()
        return
    dict(open_gguf(path).metadata)
    for tensor in list(open_checkpoint(path).tensors.values())[::4]:
        if isinstance(tensor, QuantisedTensor):
            tensor.values(0, min(8, tensor.shape[0]))
            tensor.groups(0, min(8, tensor.shape[0]))
        else:
            tensor.read()


def header_length(path: Path) -> int:
    """Where the bytes of the first tensor are."""
    reader = open_gguf if path.suffix == ".gguf" else open_safetensors
    return min(tensor.offset for tensor in reader(path).tensors.values())  # type: ignore[operator]


def peak_mb() -> float:
    status = Path("/proc/self/status")
    if status.exists():  # a child's ru_maxrss begins with its parent's
        return int(re.search(r"VmHWM:\s+(\d+)", status.read_text())[1]) / 1024  # type: ignore[index]
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def fuzz(folder: Path, count: int, seed: int) -> dict[str, float]:
    """Open `count` damaged files. raises: whatever a reader raises that isn't a KaishuError, with the file kept"""
    chance = random.Random(seed)
    originals = [(path, path.read_bytes(), header_length(path)) for path in sorted(folder.iterdir())]
    results: Counter[str] = Counter()
    slowest = 0.0
    memory_folder = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory_folder if memory_folder.is_dir() else None) as place:
        for original, _, _ in originals:
            target = Path(place, f"undamaged{original.suffix}")
            target.write_bytes(original.read_bytes())
            read(target)
        before = peak_mb()
        for number in range(count):
            original, contents, header_bytes = chance.choice(originals)
            target = Path(place, f"damaged{original.suffix}")
            target.write_bytes(damaged(contents, header_bytes, chance))
            started = time.process_time()
            try:
                read(target)
                results["opened"] += 1
            except KaishuError:
                results["refused"] += 1
            except BaseException:
                kept = Path(tempfile.gettempdir(), f"fuzzed-{seed}-{number}{original.suffix}")
                kept.write_bytes(target.read_bytes())
                print(f"kept as {kept}", file=sys.stderr)
                raise
            slowest = max(slowest, time.process_time() - started)
        return {**results, "slowest_cpu_seconds": slowest, "megabytes": peak_mb() - before}


if __name__ == "__main__":
    np.seterr(all="ignore")
    print(json.dumps(fuzz(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))))
