"""Rows of a checkpoint's tensor to packed blocks: rounding, scales, and the order of bytes that layout.py draws.

Owns the arithmetic of quantisation. Which tensor goes where is packing.py's business, which has every rank call
`pack_blocks`, `pack_groups` and `copy_rows` with its share of rows.

Rounding: bfloat16 to nearest even. int8: scale = max|w| / 127, q = w / scale to nearest even. int4: the weight of the
largest size, with its sign, becomes -8, so scale = that weight / -8 (one of sixteen values more than a symmetric ±7);
int4_minimum: scale = (max - min) / 15. Scales are rounded to float16 before the weights are divided by them.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from kaishu.cpu.layout import BF16, GROUP, INT4, INT8
from kaishu.cpu.scalars import bfloat_bits, bfloat_value, half_bits, half_value
from kaishu.cpu.vector import KERNEL, bytes_at, floats_at, halves_at, int8_at, int32_at, words_at

BYTES, PAIRS = 0, 1  # how part.source of quantised rows has each number: a byte of its own, or half of one


@njit(**KERNEL)
def pack_blocks(part, scratch, first, last):
    """Blocks of rows from `first` to `last`.

    part:    the record PACKING
    scratch: the address of K float32 and then 32 int32, of this rank alone; the floats begin as zeros
    return:  the first row that can't be quantised, -1 if there is none
    """
    row, whole = floats_at(scratch), int32_at(scratch + 4 * part.inputs)
    are_same_bits = part.kind == BF16 and part.stored == 0 and part.columns == part.inputs
    for block in range(first, last):
        if are_same_bits and (block + 1) * part.lanes <= part.rows:
            _copy_pairs(part, block)
            continue
        for lane in range(part.lanes):
            index = block * part.lanes + lane
            if index < part.rows:
                _read_row(part, index, row)
            else:
                for k in range(part.inputs):
                    row[k] = np.float32(0.0)
            if part.kind == BF16:
                _write_pairs(part, row, block, lane)
                continue
            if not _is_finite(part, scratch):
                return index
            for group in range(part.inputs // GROUP):
                _pack_group(part, row, whole, block, lane, group)
    return -1


@njit(**KERNEL)
def pack_groups(part, scratch, first, last):
    """Blocks of rows that are quantised already, columns whole groups; part.stored says how part.source has them.

    Scales and minimums are kept bit for bit; of int4, q from -8 to 7 is kept as q + 8.

    return: the first row that has a scale or a minimum which is no number, -1 if there is none
    """
    groups = part.columns // GROUP
    for block in range(first, last):
        for lane in range(part.lanes):
            row = block * part.lanes + lane
            for group in range(groups):
                if row < part.rows and not _keep_scales(part, row * groups + group, block, lane, group):
                    return row
                if row >= part.rows:
                    _write_padding(part, scratch, block, lane, group)
                elif part.stored == PAIRS:
                    _write_group_of_pairs(part, row, block, lane, group)
                else:
                    _write_group_of_bytes(part, scratch, row, block, lane, group)
    return -1


@njit(**KERNEL)
def _keep_scales(part, source, block, lane, group):
    """One group's scale and minimum, as they are; return: whether both are finite"""
    place = (block * (part.inputs // GROUP) + group) * part.lanes + lane
    scale, minimum = halves_at(part.source_scales)[source], np.uint16(0)
    halves_at(part.scales)[place] = scale
    if part.kind > INT4:
        minimum = halves_at(part.source_minimums)[source]
        halves_at(part.minimums)[place] = minimum
    return (scale & np.uint16(0x7C00)) != 0x7C00 and (minimum & np.uint16(0x7C00)) != 0x7C00


@njit(**KERNEL)
def _write_padding(part, scratch, block, lane, group):
    """A group of zeros, of a row that there isn't."""
    whole, zero = int32_at(scratch), 8 if part.kind == INT4 else 0
    for k in range(GROUP):
        whole[k] = zero
    place = (block * (part.inputs // GROUP) + group) * part.lanes + lane
    halves_at(part.scales)[place] = np.uint16(0)
    if part.kind > INT4:
        halves_at(part.minimums)[place] = np.uint16(0)
    _write_group(part, whole, block, lane, group)


@njit(**KERNEL)
def _write_group_of_bytes(part, scratch, row, block, lane, group):
    """One row's group, of which each number is a byte."""
    whole, shift = int32_at(scratch), 8 if part.kind == INT4 else 0
    source, start = int8_at(part.source), row * part.columns + group * GROUP
    for k in range(GROUP):
        whole[k] = np.int32(source[start + k]) + shift
    _write_group(part, whole, block, lane, group)


@njit(**KERNEL)
def _write_group_of_pairs(part, row, block, lane, group):
    """One row's group, of which two neighbours are a byte: four of its first half, and the four 16 further on."""
    source, start = halves_at(part.source), (row * part.columns + group * GROUP) // 4
    out, place = words_at(part.weights), (block * (part.inputs // GROUP) + group) * 4 * part.lanes + lane
    for piece in range(4):
        low, high = _spread(source[start + piece]), _spread(source[start + 4 + piece])
        out[place + piece * part.lanes] = low | (high << np.uint32(4))


@njit(**KERNEL)
def _spread(nibbles):
    """Four nibbles of 16 bits to the lower halves of four bytes."""
    wide = np.uint32(nibbles)
    wide = (wide | (wide << np.uint32(8))) & np.uint32(0x00FF00FF)
    return (wide | (wide << np.uint32(4))) & np.uint32(0x0F0F0F0F)


@njit(**KERNEL)
def copy_rows(part, scratch, first, last):
    """Rows from `first` to `last` as bfloat16, in the order of the file; arguments as for pack_blocks."""
    row, target = floats_at(scratch), halves_at(part.weights)
    for index in range(first, last):
        _read_row(part, index, row)
        for k in range(part.columns):
            target[index * part.columns + k] = bfloat_bits(row[k])
    return -1


@njit(**KERNEL)
def _read_row(part, index, row):
    """One row to float32; what is beyond the row's end stays zero."""
    start = index * part.columns
    if part.stored == 0:
        for k in range(part.columns):
            row[k] = bfloat_value(halves_at(part.source)[start + k])
    elif part.stored == 1:
        for k in range(part.columns):
            row[k] = half_value(halves_at(part.source)[start + k])
    else:
        for k in range(part.columns):
            row[k] = floats_at(part.source)[start + k]


@njit(**KERNEL)
def _is_finite(part, scratch):
    """Whether every value is a number: the largest exponent stands for infinity and for no number."""
    bits, largest = words_at(scratch), np.uint32(0)
    for k in range(part.inputs):
        largest = max(largest, np.uint32(bits[k] & np.uint32(0x7FFFFFFF)))
    return largest < np.uint32(0x7F800000)


@njit(**KERNEL)
def _pack_group(part, row, whole, block, lane, group):
    """32 weights of a row: their scale, their minimum, and themselves."""
    scale, minimum = _group_scale(row, group * GROUP, part.kind)
    place = (block * (part.inputs // GROUP) + group) * part.lanes + lane
    halves_at(part.scales)[place] = half_bits(scale)
    if part.kind > INT4:
        halves_at(part.minimums)[place] = half_bits(minimum)
    _quantise_group(row, group * GROUP, part.kind, scale, minimum, whole)
    _write_group(part, whole, block, lane, group)


@njit(**KERNEL)
def _group_scale(row, start, kind):
    """The scale and minimum of 32 weights, as float32 that float16 can hold."""
    low = high = row[start]
    for k in range(start, start + GROUP):
        low, high = min(low, row[k]), max(high, row[k])
    if kind == INT8:
        return half_value(half_bits(max(-low, high) / np.float32(127.0))), np.float32(0.0)
    if kind == INT4:
        largest = low if -low > high else high
        return half_value(half_bits(largest / np.float32(-8.0))), np.float32(0.0)
    scale = half_value(half_bits((high - low) / np.float32(15.0)))
    return scale, half_value(half_bits(low))


@njit(**KERNEL)
def _quantise_group(row, start, kind, scale, minimum, whole):
    """32 weights to whole numbers: -127 to 127 for int8, 0 to 15 for the others."""
    inverse = np.float32(0.0) if scale == 0 else np.float32(1.0) / scale
    shift = np.float32(8.0) if kind == INT4 else np.float32(0.0)
    smallest, largest = (np.float32(-127.0), np.float32(127.0)) if kind == INT8 else (np.float32(0.0), np.float32(15.0))
    for k in range(GROUP):
        value = np.rint((row[start + k] - minimum) * inverse + shift)
        whole[k] = np.int32(max(smallest, min(largest, value)))


@njit(**KERNEL)
def _write_pairs(part, row, block, lane):
    """One row of bfloat16 into its lane: [K/2, lanes, 2]."""
    pairs, start = halves_at(part.weights), block * part.inputs * part.lanes
    for k in range(part.inputs):
        pairs[start + (k // 2 * part.lanes + lane) * 2 + k % 2] = bfloat_bits(row[k])


@njit(**KERNEL)
def _copy_pairs(part, block):
    """A whole block of rows that are bfloat16 already."""
    source, pairs, start = halves_at(part.source), halves_at(part.weights), block * part.inputs * part.lanes
    for pair in range(part.inputs // 2):
        for lane in range(part.lanes):
            place, k = start + (pair * part.lanes + lane) * 2, start + lane * part.inputs + pair * 2
            pairs[place] = source[k]
            pairs[place + 1] = source[k + 1]


@njit(**KERNEL)
def _write_group(part, whole, block, lane, group):
    """One row's group into its lane: [parts, lanes, 4] bytes."""
    out, parts = bytes_at(part.weights), 8 if part.kind == INT8 else 4
    start = (block * (part.inputs // GROUP) + group) * parts
    for piece in range(parts):
        for k in range(4):
            value = whole[piece * 4 + k]
            if part.kind != INT8:
                value |= whole[16 + piece * 4 + k] << 4
            out[((start + piece) * part.lanes + lane) * 4 + k] = np.uint8(value)
