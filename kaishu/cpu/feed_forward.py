"""SwiGLU on the CPU: reference/feed_forward.py for packed weights.

Owns the gate's arithmetic and the fusion: a rank that claimed rows of the gate computes the same rows of `up` and
multiplies them at once, while both are in its cache.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from kaishu.cpu.exponential import exponential
from kaishu.cpu.linear import linear_runs
from kaishu.cpu.vector import KERNEL, floats_at, lanes, load, splat, store


@njit(**KERNEL)
def gated_blocks(model, gate, up, first, last, x, first_row, last_row, gates, values, inner):
    """inner[t, n] = silu(gate[n] · x[t]) · (up[n] · x[t]) for the rows n of blocks `first` to `last`.

    gate, up: places in the layout
    x:        Activations; tokens are its rows `first_row` to `last_row`, and of the matrices
    gates:    MATRIX [T, ≥ F], scratch
    values:   MATRIX [T, ≥ F], scratch
    inner:    Activations whose words are written
    """
    linear_runs(
        model, (gate, first, last, np.int64(0)), (up, first, last, np.int64(0)), x, first_row, last_row, gates, values
    )
    gated, passed, out = floats_at(gates.at), floats_at(values.at), floats_at(inner.words)
    for token in range(first_row, last_row):
        for n in range(first * lanes(), last * lanes(), lanes()):
            value = silu(load(gated, token * gates.width + n)) * load(passed, token * values.width + n)
            store(out, token * inner.width + n, value)


@njit(**KERNEL)
def silu(x):
    """x / (1 + e**-x) in every lane."""
    return x / (splat(np.float32(1.0)) + exponential(splat(np.float32(0.0)) - x))
