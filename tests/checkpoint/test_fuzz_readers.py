"""Thousands of damaged model files in a process of its own: typed errors only, each soon, and without memory.

KAISHU_LONG_TESTS=1 python -m pytest -s tests/checkpoint/test_fuzz_readers.py opens 1,000,000 of them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
from safetensors.numpy import save_file

from tests.checkpoint.gguf_files import WIDE, as_f32, write_gguf
from tests.checkpoint.gguf_scalars import random_blocks

COUNT = 1_000_000 if os.environ.get("KAISHU_LONG_TESTS") else 3_000
SEED = int(os.environ.get("KAISHU_FUZZ_SEED", "1"))


def test_damaged_files_are_typed_errors_in_bounded_time_and_memory(
    tiny_checkpoint: Callable[..., Path], tmp_path: Path, rng: np.random.Generator
) -> None:
    def as_type(kind: str) -> Callable[[str, np.ndarray], tuple[np.ndarray, str]]:
        def encode(name: str, values: np.ndarray) -> tuple[np.ndarray, str]:
            if values.ndim == 1 or "ffn_gate_inp" in name:
                return as_f32(name, values)
            if kind == "Q4_K":
                return random_blocks(rng, kind, *values.shape), kind
            return gguf.quants.quantize(values, gguf.GGMLQuantizationType[kind]), kind

        return encode

    one_layer = {"num_hidden_layers": 1}
    files = {
        "dense": (tiny_checkpoint("dense_untied", **one_layer), "Q8_0"),
        "llama": (tiny_checkpoint("llama3_rope", **one_layer), "Q4_0"),
        "moe": (tiny_checkpoint("moe", **one_layer, moe_intermediate_size=32), "Q4_1"),
        "qwen2": (tiny_checkpoint("qwen2", **WIDE), "Q4_K"),
    }
    for name, (folder, kind) in files.items():
        write_gguf(folder, tmp_path / f"{name}.gguf", as_type(kind))
    small = {f"tensor {n}": np.ones((n + 1, 3), t) for n, t in enumerate((np.float32, np.float16, np.int8, np.int64))}
    save_file(small, tmp_path / "small.safetensors", metadata={"format": "pt"})
    save_file({"a": np.ones(5, np.float32)}, tmp_path / "one.safetensors")

    command = [sys.executable, "-m", "tests.checkpoint.fuzz_readers", str(tmp_path), str(COUNT), str(SEED)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[2])
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(done.stdout)
    print(f"{COUNT:,} damaged files: {found}")
    assert found["opened"] + found["refused"] == COUNT and min(found["opened"], found["refused"]) > COUNT / 50
    assert found["slowest_cpu_seconds"] < 1 and found["megabytes"] < 100
