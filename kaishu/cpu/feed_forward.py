"""SwiGLU on the CPU: reference/feed_forward.py for packed weights.

Owns the gate's arithmetic and the fusion: a rank that claimed rows of the gate computes the same rows of `up` and
multiplies them at once, while both are in its cache.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from kaishu.cpu.linear import linear_blocks
from kaishu.cpu.vector import KERNEL, exponential, lanes, load, pointer, splat, store


@njit(**KERNEL)
def gated_blocks(model, gate, up, first, last, x, tokens, gates, inner):  # type: ignore[no-untyped-def]
    """inner[t, n] = silu(gate[n] · x[t]) · (up[n] · x[t]) for the rows n of blocks `first` to `last`.

    gate, up: places in model.linears
    gates:    [T, ≥ F] float32, scratch
    inner:    [T, ≥ F] float32
    """
    linear_blocks(model, gate, first, last, x, tokens, gates, 0)
    linear_blocks(model, up, first, last, x, tokens, inner, 0)
    width = lanes()
    for token in range(tokens):
        row, other = token * gates.shape[1], token * inner.shape[1]
        for n in range(first * width, last * width, width):
            store(pointer(inner), other + n, silu(load(pointer(gates), row + n)) * load(pointer(inner), other + n))


@njit(**KERNEL)
def silu(x: Any) -> Any:
    """x / (1 + e**-x) in every lane."""
    return x / (splat(np.float32(1.0)) + exponential(splat(np.float32(0.0)) - x))
