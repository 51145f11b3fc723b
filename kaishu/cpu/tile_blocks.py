"""Blocks of rows of packed weights times many tokens in tile registers: blocks.py for CPUs that have them.

Owns the loops within a block, made of tiles.py. Knows nothing of layouts and layers: linear.py says where a block lies
and where its results belong.

In bfloat16 any number of tokens is computed here, since the instruction has roundings of its own. Of whole numbers a
group's sum is exact, and is scaled and added as everywhere: so few tokens may as well be computed in blocks.py, with
the same bits. 4-bit weights are unpacked first, once for each portion of tokens.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from kaishu.cpu.activations import group_step, row_place
from kaishu.cpu.blocks import AHEAD_BYTES
from kaishu.cpu.layout import INT4, INT4_MINIMUM, INT8
from kaishu.cpu.products import add_minimum, high_nibbles, low_nibbles, store_tile, zero_tile
from kaishu.cpu.target import TILE
from kaishu.cpu.tiles import (
    TILE_PAIRS,
    add_group,
    load_rows,
    load_tile,
    multiply_byte_tiles,
    multiply_tiles,
    scratch_bytes,
    scratch_floats,
    scratch_sums,
    store_bytes,
    store_sums,
    zero_sums,
)
from kaishu.cpu.vector import (
    KERNEL,
    floats_at,
    halves_at,
    int8_at,
    int32_at,
    lanes,
    load,
    load_bytes,
    load_half,
    moved,
    prefetch,
    store,
)

GROUPS_AT_ONCE = 32  # so many of a block are unpacked at a time: 16 KiB, a third of the first-level cache
_UNPACKED_BYTES, _TWO_SUMS = GROUPS_AT_ONCE * 32 * TILE, 2 * TILE * TILE


@njit(**KERNEL)
def unpack_nibbles(weights, groups, less, target):
    """Groups of a block of 4-bit weights as int8, in the order of 8-bit ones, every number less so many."""
    width = 4 * lanes()
    for group in range(groups):
        for part in range(4):
            packed, place = load_bytes(weights, (group * 4 + part) * width), (group * 8 + part) * width
            store_bytes(target, place, low_nibbles(packed), less)
            store_bytes(target, place + 4 * width, high_nibbles(packed), less)


def _byte_tiles(has_minimum: bool) -> Any:
    @njit(**KERNEL)
    def tiles(weights, scales, minimums, groups, first_group, x, token, out, out_index, out_stride, sums, ahead, size):
        """One block of rows for 16 tokens: groups `first_group` and so many more, of weights that begin with the first.

        weights: pointer to bytes, [groups, 8, lanes, 4] int8
        sums:    pointer to int32, [2, 16, 16], scratch
        ahead:   pointer to what is read next, of which `size` bytes are fetched with each group
        """
        width, start = lanes(), row_place(x, token)
        whole, token_scales, token_sums = int8_at(x.whole), floats_at(x.scales), int32_at(x.sums)
        total = zero_tile(TILE)
        if first_group > 0:
            total = load_rows(TILE, out, out_index, out_stride)
        for group in range(groups):
            zero_sums(0)
            place = start + (first_group + group) * group_step()
            load_tile(4, whole, place, 32)
            load_tile(6, weights, group * 32 * width, 4 * width)
            multiply_byte_tiles(0, 4, 6)
            own_sums = group % 2 * TILE * TILE
            store_sums(0, sums, own_sums, TILE)
            for line in range(group * size, (group + 1) * size, 64):
                prefetch(ahead, line)
            scale, own = load_half(scales, (first_group + group) * width), place // 32
            total = add_group(total, sums, own_sums, scale, token_scales, own, 1)
            if has_minimum:
                smallest = load_half(minimums, (first_group + group) * width)
                total = add_minimum(total, smallest, token_scales, token_sums, own, 1)
        store_tile(out, out_index, out_stride, total)

    return tiles


_plain_byte_tiles, _minimum_byte_tiles = _byte_tiles(False), _byte_tiles(True)


@njit(**KERNEL)
def byte_tiles(kind, block, groups, x, start, stop, out, column, stride):
    """One block of rows of whole numbers of any kind, for tokens `start` to `stop`; the registers are shaped for bytes.

    Tiles are computed whole; one that begins before these tokens, or ends behind them, is computed into `partial`, of
    which only the rows asked for are copied.
    """
    weights, scales, minimums = block
    width, unpacked, sums = lanes(), scratch_bytes(_UNPACKED_BYTES), scratch_sums(_TWO_SUMS)
    first_tile, partial = start // TILE * TILE, scratch_floats(_TWO_SUMS)
    for first in range(0, groups, GROUPS_AT_ONCE):
        count = min(GROUPS_AT_ONCE, groups - first)
        ahead_bytes = (32 if kind == INT8 else 16) * width  # of a group
        own = moved(weights, first * ahead_bytes)
        ahead = moved(own, count * ahead_bytes)
        if kind != INT8:
            unpack_nibbles(own, count, 8 if kind == INT4 else 0, unpacked)
            own = unpacked
        for tile in range(first_tile, stop, TILE):
            target, place, step, size = out, tile * stride + column, stride, ahead_bytes if tile == first_tile else 0
            if tile < start or tile + TILE > stop:
                target, place, step = partial, _place_in_partial(tile, first_tile), np.int64(TILE)
            if kind == INT4_MINIMUM:
                _minimum_byte_tiles(
                    own, scales, minimums, count, first, x, tile, target, place, step, sums, ahead, size
                )
            else:
                _plain_byte_tiles(own, scales, minimums, count, first, x, tile, target, place, step, sums, ahead, size)
    for tile in range(first_tile, stop, TILE):
        if tile < start or tile + TILE > stop:
            for token in range(max(start, tile), min(stop, tile + TILE)):
                row = load(partial, _place_in_partial(tile, first_tile) + (token - tile) * TILE)
                store(out, token * stride + column, row)


@njit(**KERNEL)
def _place_in_partial(tile, first_tile):
    """At most two tiles are partial: the first and the last."""
    return 0 if tile == first_tile else TILE * TILE


@njit(**KERNEL)
def wide_tiles(weights, pairs, x, index, out, out_index, out_stride):
    """Two blocks of rows of bfloat16 for 32 tokens; index: where in x.tiles the first of their two tiles begins."""
    width, out_later = lanes(), out_index + TILE * out_stride
    tiles, later = halves_at(x.tiles), index + TILE * x.width
    zero_sums(0)
    zero_sums(1)
    zero_sums(2)
    zero_sums(3)
    for pair in range(0, pairs, TILE_PAIRS):
        load_tile(6, weights, pair * 2 * width, 2 * width)
        load_tile(4, tiles, index + pair * 2 * TILE, 2 * TILE_PAIRS)
        load_tile(7, weights, (pairs + pair) * 2 * width, 2 * width)
        load_tile(5, tiles, later + pair * 2 * TILE, 2 * TILE_PAIRS)
        multiply_tiles(0, 4, 6)
        multiply_tiles(1, 4, 7)
        multiply_tiles(2, 5, 6)
        multiply_tiles(3, 5, 7)
    store_sums(0, out, out_index, out_stride)
    store_sums(1, out, out_index + width, out_stride)
    store_sums(2, out, out_later, out_stride)
    store_sums(3, out, out_later + width, out_stride)


@njit(**KERNEL)
def few_tiles(weights, others, pairs, tiles, tile_index, out, index, stride, other_out, other_index, other_stride):
    """Two blocks of rows of bfloat16, anywhere, for as many tokens of one tile as the registers are shaped for."""
    width = lanes()
    zero_sums(0)
    zero_sums(1)
    for pair in range(0, pairs, TILE_PAIRS):
        for line in range(TILE_PAIRS):
            ahead = (pair + line) * 2 * width + AHEAD_BYTES // 2
            prefetch(weights, ahead)
            prefetch(others, ahead)
        load_tile(4, tiles, tile_index + pair * 2 * TILE, 2 * TILE_PAIRS)
        load_tile(6, weights, pair * 2 * width, 2 * width)
        load_tile(7, others, pair * 2 * width, 2 * width)
        multiply_tiles(0, 4, 6)
        multiply_tiles(1, 4, 7)
    store_sums(0, out, index, stride)
    store_sums(1, other_out, other_index, other_stride)
