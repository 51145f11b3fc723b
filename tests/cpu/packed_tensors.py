"""Single tensors, packed by way of a safetensors file, and what the packed bytes mean by layout.py's drawing.

Owns what the tests of packing.py and quantise.py have in common. Knows nothing of what they claim.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file

from kaishu.checkpoint.safetensors import open_safetensors
from kaishu.cpu.kernels import Kernels
from kaishu.cpu.layout import PackedLinear
from kaishu.cpu.packing import as_float32, pack_linear
from kaishu.cpu.threads import Ranks
from tests.cpu.drawn_weights import KINDS, WHOLE_KINDS, places, scale_places

LANES = 8
DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
every_kind = pytest.mark.parametrize("kind", KINDS)
every_whole_kind = pytest.mark.parametrize("kind", WHOLE_KINDS)
every_dtype = pytest.mark.parametrize("dtype", DTYPES)


def sized(name: str, kind: Any, rows: int, inputs: int, lanes: int = LANES) -> tuple[PackedLinear, NDArray[np.uint8]]:
    """A linear with places for all that its kind has, and memory full of garbage for it."""
    linear = PackedLinear(name, kind, rows, inputs, lanes, 0, -1, -1, -1)
    scales = linear.weight_bytes + 64
    minimums = scales + linear.scale_bytes + 64
    linear = replace(linear, scales=-1 if kind == "bf16" else scales)
    linear = replace(linear, minimums=minimums if kind == "int4_minimum" else -1)
    return linear, np.full(minimums + linear.scale_bytes, 0xA5, np.uint8)


def packer(folder: Path, kernels: Kernels) -> Callable[..., Any]:
    """`packer(…)(weights, kind, dtype="F32", ranks=1, lanes=8)`: through a file, into memory full of garbage.

    return: of a call: the PackedLinear, the memory, and the weights as the file has them, float64
    """
    numbers = itertools.count()

    def packed(weights, kind, dtype="F32", ranks=1, lanes=LANES):
        path = folder / f"{next(numbers)}.safetensors"
        save_file({"w": torch.tensor(weights).to(DTYPES[dtype])}, path)
        tensor = open_safetensors(path).tensors["w"]
        linear, memory = sized("w", kind, *tensor.shape, lanes)
        threads = Ranks(ranks)
        pack_linear(tensor, linear, memory, threads, kernels)
        threads.close()
        return linear, memory, as_float32(tensor).astype(np.float64)

    return packed


def read_back(linear, memory):
    """What is in the memory, all padding included, by the drawing in layout.py.

    return: whole numbers (of bf16: bits) [N, K], scales and minimums [N, K] float64
    """
    rows, inputs = linear.padded_rows, linear.padded_inputs
    byte, shift = places(linear.kind, rows, inputs, linear.lanes)
    weights = memory[linear.weights : linear.weights + linear.weight_bytes]
    if linear.kind == "bf16":
        return weights.view(np.uint16)[byte // 2], None, None
    whole = (
        weights.view(np.int8)[byte].astype(int) if linear.kind == "int8" else (weights[byte] >> shift & 15).astype(int)
    )
    place = scale_places(rows, inputs, linear.lanes)

    def widened(start):
        part = memory[start : start + linear.scale_bytes].view(np.float16)[place]
        return np.repeat(part.astype(np.float64), 32, axis=1)

    scale = widened(linear.scales)
    return whole, scale, widened(linear.minimums) if linear.minimums >= 0 else np.zeros_like(scale)


def values_of(linear, memory):
    """GGUF's equations: d·q for Q8_0, d·(q - 8) for Q4_0, d·q + m for Q4_1."""
    whole, scale, minimum = read_back(linear, memory)
    return scale * (whole - (8 if linear.kind == "int4" else 0)) + minimum


def ends_of(linear, memory):
    """The smallest and largest weight that each group can hold."""
    _, scale, minimum = read_back(linear, memory)
    low, high = {"int8": (-127, 127), "int4": (-8, 7), "int4_minimum": (0, 15)}[linear.kind]
    ends = np.stack([minimum + scale * low, minimum + scale * high])
    return ends.min(0)[: linear.rows, : linear.inputs], ends.max(0)[: linear.rows, : linear.inputs]


def assert_nearest(linear, memory, weights):
    """Every weight became the nearest of the values that its group's scale offers."""
    low, high = ends_of(linear, memory)
    _, scale, _ = read_back(linear, memory)
    found = values_of(linear, memory)[: linear.rows, : linear.inputs]
    half_step = np.abs(scale[: linear.rows, : linear.inputs]) / 2
    assert (np.abs(found - np.clip(weights, low, high)) <= half_step * (1 + 1e-4)).all()


def random_weights(rng, rows, inputs):
    """Rows of sizes from 1e-3 to 10, some shifted away from zero."""
    size = 10.0 ** rng.uniform(-3, 1, (rows, 1))
    return (rng.normal(size=(rows, inputs)) + rng.choice([0, 0, 3, -3], (rows, 1))) * size
