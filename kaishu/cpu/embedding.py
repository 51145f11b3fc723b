"""The embedding on the CPU: a token's row of the table, or of the packed head where the two are tied.

Owns the way back from packed weights to numbers, one row at a time. Called by forward.py for every token of a step.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from kaishu.cpu.layout import BF16, GROUP, INPUTS, INT4, INT8, KIND, MINIMUMS, SCALES, WEIGHTS
from kaishu.cpu.linear import linear_field
from kaishu.cpu.scalars import bfloat_value, half_value
from kaishu.cpu.vector import KERNEL, bytes_at, halves_at, lanes


@njit(**KERNEL)
def embed_token(model, token_id, out, index):
    """A token's row of the embedding: stored as it is, or a row of the packed head.

    out: pointer to float32; the row's D start at `index`
    """
    size, width = model.hidden_size, lanes()
    if model.embedding >= 0:
        source = halves_at(model.address + model.embedding)
        for k in range(size):
            out[index + k] = bfloat_value(source[token_id * size + k])
        return
    kind, inputs = linear_field(model, model.head, KIND), linear_field(model, model.head, INPUTS)
    block, lane = token_id // width, token_id % width
    if kind != BF16:
        _dequantise_row(model, kind, inputs // GROUP, block, lane, out, index)
        return
    pairs = halves_at(model.address + linear_field(model, model.head, WEIGHTS) + block * width * inputs * 2)
    for k in range(size):
        out[index + k] = bfloat_value(pairs[(k // 2 * width + lane) * 2 + k % 2])


@njit(**KERNEL)
def _dequantise_row(model, kind, groups, block, lane, out, index):
    width, parts = lanes(), 8 if kind == INT8 else 4
    packed = bytes_at(model.address + linear_field(model, model.head, WEIGHTS) + block * groups * parts * 4 * width)
    place = block * groups * width + lane
    scales = halves_at(model.address + linear_field(model, model.head, SCALES))
    minimums = halves_at(model.address + linear_field(model, model.head, MINIMUMS))
    for k in range(model.hidden_size):
        group, inside = k // GROUP, k % GROUP
        scale = half_value(scales[place + group * width])
        within = inside if kind == INT8 else inside % 16
        byte = packed[((group * parts + within // 4) * width + lane) * 4 + within % 4]
        if kind == INT8:
            out[index + k] = np.float32(np.int8(byte)) * scale
            continue
        whole = np.float32(byte & 15 if inside < 16 else byte >> 4)
        if kind == INT4:
            out[index + k] = (whole - np.float32(8.0)) * scale
        else:
            out[index + k] = whole * scale + half_value(minimums[place + group * width])
