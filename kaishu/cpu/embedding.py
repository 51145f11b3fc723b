"""The embedding on the CPU: a token's row of the table, or of the packed head where the two are tied.

Owns the way back from packed weights to numbers, one row at a time. Called by forward.py for every token of a step.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from kaishu.cpu.layout import BF16, GROUP, INPUTS, INT4, INT8, KIND, MINIMUMS, SCALES, WEIGHTS
from kaishu.cpu.vector import KERNEL, bfloat_value, bytes_at, half_value, halves_at, lanes


@njit(**KERNEL)
def embed_token(model, token_id, out, row):  # type: ignore[no-untyped-def]
    """A token's row of the embedding: stored as it is, or a row of the packed head."""
    size = model.hidden_size
    if model.embedding >= 0:
        source = halves_at(model.address + model.embedding)
        for k in range(size):
            out[row, k] = bfloat_value(source[token_id * size + k])
        return
    described, width = model.linears[model.head], lanes()
    kind, groups = described[KIND], described[INPUTS] // GROUP
    block, lane = token_id // width, token_id % width
    if kind == BF16:
        pairs = halves_at(model.address + described[WEIGHTS] + block * width * described[INPUTS] * 2)
        for k in range(size):
            out[row, k] = bfloat_value(pairs[(k // 2 * width + lane) * 2 + k % 2])
        return
    scale_place = (block * groups * width + lane) * 2
    _dequantise_row(model, described, kind, groups, block, lane, scale_place, out, row)


@njit(**KERNEL)
def _dequantise_row(model, described, kind, groups, block, lane, scale_place, out, row):  # type: ignore[no-untyped-def]
    width, size = lanes(), model.hidden_size
    parts = 8 if kind == INT8 else 4
    packed = bytes_at(model.address + described[WEIGHTS] + block * groups * parts * 4 * width)
    for k in range(size):
        group, inside = k // GROUP, k % GROUP
        scale = half_value(halves_at(model.address + described[SCALES] + scale_place + group * width * 2)[0])
        if kind == INT8:
            byte = packed[((group * 8 + inside // 4) * width + lane) * 4 + inside % 4]
            out[row, k] = np.float32(np.int8(byte)) * scale
            continue
        byte = packed[((group * 4 + inside % 16 // 4) * width + lane) * 4 + inside % 4]
        whole = np.float32(byte & 15 if inside < 16 else byte >> 4)
        if kind == INT4:
            out[row, k] = (whole - np.float32(8.0)) * scale
        else:
            low = half_value(halves_at(model.address + described[MINIMUMS] + scale_place + group * width * 2)[0])
            out[row, k] = whole * scale + low
