"""RMS normalisation on the CPU: reference/norm.py, one row at a time, and what a linear layer needs of a row.

Owns the normalisation and the quantisation of activations to int8. A row is read twice from the first-level cache and
written once; beside a linear layer this is nothing.

Sums run in `lanes` lanes that are folded in one fixed tree, so they depend on nothing but the row.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from kaishu.cpu.activations import group_step, row_place, rows_together
from kaishu.cpu.bfloat_products import pair_words
from kaishu.cpu.layout import ROUNDED, WHOLE
from kaishu.cpu.products import group_sums
from kaishu.cpu.vector import (
    KERNEL,
    floats_at,
    fma,
    halves_at,
    int8_at,
    int32_at,
    lanes,
    larger_magnitude,
    largest_magnitude,
    load,
    magnitude,
    round_even,
    splat,
    store,
    store_bfloat16,
    store_int8,
    sum_lanes,
)


@njit(**KERNEL)
def rms_norm(x, x_index, weight, size, padded_size, eps, out, out_index):
    """One row scaled to unit root mean square, then by a learned weight.

    x:      pointer to float32; the row starts at x_index and is zero from `size` to `padded_size`
    weight: pointer to float32, zero beyond `size`, too
    out:    pointer to float32; may be x itself

    Rounding: everything in float32, as the reference does; the order of the sum is ours.
    """
    width = lanes()
    squares = splat(np.float32(0.0))
    for k in range(0, padded_size, width):
        part = load(x, x_index + k)
        squares = fma(part, part, squares)
    scale = np.float32(1.0) / np.sqrt(sum_lanes(squares) / np.float32(size) + eps)
    for k in range(0, padded_size, width):
        store(out, out_index + k, load(x, x_index + k) * splat(np.float32(scale)) * load(weight, k))


@njit(**KERNEL)
def prepare(x, row, inputs, forms):
    """Make a row of activations ready for linear layers.

    x:      Activations whose words of this row are float32
    inputs: K, a multiple of 32
    forms:  what these layers read: WHOLE, ROUNDED, or both
    """
    if forms & WHOLE:
        _quantise(x, row, inputs)
    if forms & ROUNDED and rows_together() > 1:
        _round_to_tiles(x, row, inputs)
    elif forms & ROUNDED and pair_words() == 1:
        round_words(x.words, row * x.width, inputs)


@njit(**KERNEL)
def _round_to_tiles(x, row, inputs):
    """float32 to bfloat16, nearest even, where the tile registers read them."""
    words, start, tiles = floats_at(x.words), row * x.width, halves_at(x.tiles)
    place = row_place(x, row)
    for k in range(0, inputs, 32):
        for part in range(0, 32, lanes()):
            store_bfloat16(tiles, place + k // 32 * group_step() + part, load(words, start + k + part))


@njit(**KERNEL)
def _quantise(x, row, inputs):
    """Groups of 32 to int8: scale = max|x| / 127, to nearest even. A group that holds a NaN gets a scale of NaN."""
    width, words, whole = lanes(), floats_at(x.words), int8_at(x.whole)
    scales, sums, shifts = floats_at(x.scales), int32_at(x.sums), int32_at(x.shifts)
    for group in range(inputs // 32):
        start, place = row * x.width + group * 32, row_place(x, row) + group * group_step()
        largest = magnitude(load(words, start))
        for k in range(start + width, start + 32, width):
            largest = larger_magnitude(largest, magnitude(load(words, k)))
        top = largest_magnitude(largest)
        inverse = np.float32(127.0) / top if top > np.float32(1e-30) else np.float32(0.0)
        total = splat(np.float32(0.0))
        for k in range(start, start + 32, width):
            rounded = round_even(load(words, k) * splat(np.float32(inverse)))
            total = total + rounded
            store_int8(whole, place + k - start, rounded)
        scales[place // 32] = top / np.float32(127.0)
        sums[place // 32], shifts[place // 32] = group_sums(total)


@njit(**KERNEL)
def round_words(address, start, count):
    """float32 to pairs of bfloat16, nearest even, in place: two values become one word at half the distance.

    count: a multiple of the lanes
    """
    values, halves = floats_at(address), halves_at(address)
    for k in range(0, count, lanes()):
        store_bfloat16(halves, 2 * start + k, load(values, start + k))
