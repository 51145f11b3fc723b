"""Linear layers on the CPU: reference/linear.py for packed weights and the tokens of a whole step.

Owns the walk over the blocks of rows that a rank has claimed; blocks.py has the loops within a block. Knows nothing of
layers. The activations come from norm.py; forward.py and its parts call `linear_runs` and `linear_blocks`.

Cost: a block of `lanes` rows is read from memory once a step and stays in the first-level cache while the tokens pass.
One token reads every byte once and is limited by memory; from some tens of tokens on, arithmetic is the limit.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from kaishu.cpu.activations import row_place
from kaishu.cpu.bfloat_products import pair_words
from kaishu.cpu.blocks import (
    int4_block,
    int4_minimum_block,
    int4_minimum_pair,
    int4_pair,
    int8_block,
    int8_pair,
    one_bf16,
    two_bf16,
    wide_bf16,
)
from kaishu.cpu.layout import BF16, BIAS, BLOCKS, INPUTS, INT4, INT8, KIND, MINIMUMS, SCALES, WEIGHTS
from kaishu.cpu.products import wide_tokens
from kaishu.cpu.target import TILE
from kaishu.cpu.tile_blocks import byte_tiles, few_tiles, wide_tiles
from kaishu.cpu.tiles import has_tiles, only_with_tiles, release_tiles, shape_byte_tiles, shape_tiles
from kaishu.cpu.vector import KERNEL, bytes_at, floats_at, halves_at, int64_at, lanes, load, store

FEW_TOKENS = 2  # so few wait for memory, and two runs are read side by side: block by block, for one token at once
ENOUGH_OF_A_TILE = FEW_TOKENS + 1  # tokens of whole numbers; with fewer there may be a second run, which has no tiles
CACHED_BYTES = 128 << 10  # activations that stay in the second-level cache while blocks of weights pass
TILED_BYTES = 1024 << 10  # the same on CPUs with tile registers, where that cache has 2 MB


@njit(**KERNEL)
def linear_field(model, which, column):
    """One column of Layout.linears."""
    return int64_at(model.linears)[which * 8 + column]


@njit(**KERNEL)
def layer_field(model, layer, column):
    """One column of Layout.layers."""
    return int64_at(model.layers)[layer * 8 + column]


@njit(**KERNEL)
def linear_blocks(model, which, first, last, x, first_row, last_row, out, column):
    """As `linear_runs` for one run of blocks."""
    run, nothing = (which, first, last, np.int64(column)), (which, last, last, np.int64(column))
    linear_runs(model, run, nothing, x, np.int64(first_row), last_row, out, out)


@njit(**KERNEL)
def linear_runs(model, run, other, x, first_row, last_row, out, other_out):
    """out[t, column + n] = weights[n] · x[t] (+ bias[n]) for the rows n of two runs of blocks, which read the same x.

    run, other: (the linear's place in the layout, the first block, the end, column); first and end are even; the other
                run isn't longer. A single token is fastest if they lie far apart: see blocks.py
    x:          Activations; tokens are its rows `first_row` to `last_row`
    out:        MATRIX with the same rows, for `run`; other_out: for the other

    Numba compiles a function anew for a constant among its arguments; so whoever calls this one writes np.int64(0).
    """
    inputs, kind, other_kind = linear_field(model, run[0], INPUTS), linear_field(model, run[0], KIND), -1
    if other[1] < other[2]:
        other_kind = linear_field(model, other[0], KIND)
    is_together = other_kind == kind and last_row - first_row <= FEW_TOKENS
    for turn in range(1 if is_together or other_kind < 0 else 2):
        own, own_out, own_kind, second = run, out, kind, other
        if turn == 1:
            own, own_out, own_kind = other, other_out, other_kind
        if not is_together:
            second = (own[0], own[2], own[2], own[3])
        row_bytes = inputs * 2 * pair_words() if own_kind == BF16 else inputs
        least, cached = (2 * TILE, TILED_BYTES) if has_tiles() else (wide_tokens(), CACHED_BYTES)
        at_once = max(least, cached // row_bytes // least * least)
        for start in range(first_row, last_row, at_once):
            stop = min(last_row, start + at_once)
            if own_kind != BF16:
                _whole_runs(model, own_kind, own, second, x, start, stop, own_out, other_out)
            elif has_tiles():
                _tiled_runs(model, own, second, x, start, stop, own_out, other_out)
            else:
                _bf16_runs(model, own, second, x, start, stop, own_out, other_out)
    _add_bias(model, run, first_row, last_row, out)
    _add_bias(model, other, first_row, last_row, other_out)


@njit(**KERNEL)
def _bf16_runs(model, run, other, x, start, stop, out, other_out):
    which, first, last, column = run
    width, pairs = lanes(), linear_field(model, which, INPUTS) // 2
    words, row = floats_at(x.words), x.width
    is_alone = other[1] >= other[2]
    for block in range(first, last, 4 if is_alone else 2):
        other_block, other_which, other_column, target = other[1] + block - first, other[0], other[3], other_out
        if is_alone or other_block >= other[2]:
            other_block = min(block + 2, last - 2) if is_alone else block
            other_which, other_column, target = which, column, out
        weights, others = _halves_of(model, which, block), _halves_of(model, other_which, other_block)
        place, other_place, token = column + block * width, other_column + other_block * width, start
        stride, other_stride, own, second = out.width, target.width, floats_at(out.at), floats_at(target.at)
        while token + wide_tokens() <= stop:
            wide_bf16(weights, pairs, words, token * row, row, own, token * stride + place, stride)
            if other_which != which or other_block != block:
                wide_bf16(
                    others, pairs, words, token * row, row, second, token * other_stride + other_place, other_stride
                )
            token += wide_tokens()
        while token < stop:
            index, other_index = token * stride + place, token * other_stride + other_place
            results, other_results = (own, index, stride), (second, other_index, other_stride)
            if token + 2 <= stop:
                two_bf16(weights, others, pairs, words, token * row, row, *results, *other_results)
            else:
                one_bf16(weights, others, pairs, words, token * row, row, *results, *other_results)
            token += 2


@only_with_tiles
@njit(**KERNEL)
def _tiled_runs(model, run, other, x, start, stop, out, other_out):
    """As `_bf16_runs`, in tile registers: 32 tokens at once, before and after them those that share a tile with others.
    With as many as 32 there is no other run."""
    first_whole = min(stop, (start + TILE - 1) // TILE * TILE)
    whole = first_whole + (stop - first_whole) // (2 * TILE) * 2 * TILE
    if start < first_whole:
        shape_tiles(first_whole - start)
        _few_tiles_of_runs(model, run, other, x, start, out, other_out)
    if first_whole < whole:
        shape_tiles(np.int64(TILE))
        which, first, last, column = run
        pairs = linear_field(model, which, INPUTS) // 2
        for block in range(first, last, 2):
            weights, place = _halves_of(model, which, block), column + block * lanes()
            for token in range(first_whole, whole, 2 * TILE):
                index = token * out.width + place
                wide_tiles(weights, pairs, x, row_place(x, token), floats_at(out.at), index, out.width)
    for token in range(whole, stop, TILE):
        shape_tiles(min(np.int64(TILE), stop - token))
        _few_tiles_of_runs(model, run, other, x, token, out, other_out)
    release_tiles()


@njit(**KERNEL)
def _few_tiles_of_runs(model, run, other, x, token, out, other_out):
    which, first, last, column = run
    other_which, other_first, other_last, other_column = other
    width, pairs, tiles = lanes(), linear_field(model, which, INPUTS) // 2, halves_at(x.tiles)
    index, is_alone = row_place(x, token), other_first >= other_last
    for block in range(first, last, 2 if is_alone else 1):
        other_block, target = other_first + block - first, other_out
        second, place = other_which, token * other_out.width + other_column + other_block * width
        if is_alone or other_block >= other_last:
            other_block, target, second = block + 1 if is_alone else block, out, which
            place = token * out.width + column + other_block * width
        weights, others = _halves_of(model, which, block), _halves_of(model, second, other_block)
        results = floats_at(out.at), token * out.width + column + block * width, out.width
        other_results = floats_at(target.at), place, target.width
        few_tiles(weights, others, pairs, tiles, index, *results, *other_results)


@only_with_tiles
@njit(**KERNEL)
def _tiled_whole_run(model, kind, run, x, start, stop, out):
    """As `_whole_runs`, all in tile registers."""
    which, first, last, column = run
    groups = linear_field(model, which, INPUTS) // 32
    shape_byte_tiles(np.int64(TILE))
    for block in range(first, last):
        own, place = _block_at(model, which, kind, block), column + block * lanes()
        byte_tiles(kind, own, groups, x, start, stop, floats_at(out.at), place, out.width)
    release_tiles()


@njit(**KERNEL)
def _halves_of(model, which, block):
    """Where a block of bfloat16 begins."""
    size = linear_field(model, which, INPUTS) * lanes()
    return halves_at(model.address + linear_field(model, which, WEIGHTS) + block * size * 2)


@njit(**KERNEL)
def _block_at(model, which, kind, block):
    """Where the weights, the scales and the minimums of a block begin; without minimums the scales again"""
    groups = linear_field(model, which, INPUTS) // 32
    size, scale_step = groups * lanes() * (32 if kind == INT8 else 16), groups * lanes() * 2
    weights = model.address + linear_field(model, which, WEIGHTS) + block * size
    scales = model.address + linear_field(model, which, SCALES) + block * scale_step
    minimums = scales
    if kind not in (INT8, INT4):
        minimums = model.address + linear_field(model, which, MINIMUMS) + block * scale_step
    return bytes_at(weights), halves_at(scales), halves_at(minimums)


@njit(**KERNEL)
def _whole_runs(model, kind, run, other, x, start, stop, out, other_out):
    """Of tokens that share a tile, so many are computed in tile registers as are enough of it; the rest elsewhere."""
    first_token, last_token = start, start
    if has_tiles():
        if start % TILE != 0 and min(stop, start // TILE * TILE + TILE) - start < ENOUGH_OF_A_TILE:
            first_token = min(stop, start // TILE * TILE + TILE)
        last_token = stop
        if stop % TILE != 0 and stop - max(first_token, stop // TILE * TILE) < ENOUGH_OF_A_TILE:
            last_token = max(first_token, stop // TILE * TILE)
        if first_token < last_token:  # so many have no other run
            _tiled_whole_run(model, kind, run, x, first_token, last_token, out)
    if start < first_token:
        _few_whole_runs(model, kind, run, other, x, start, first_token, out, other_out)
    if last_token < stop:
        _few_whole_runs(model, kind, run, other, x, last_token, stop, out, other_out)


@njit(**KERNEL)
def _few_whole_runs(model, kind, run, other, x, start, stop, out, other_out):
    which, first, last, column = run
    other_which, other_first, other_last, other_column = other
    groups, width = linear_field(model, which, INPUTS) // 32, lanes()
    for block in range(first, last):
        other_block = other_first + block - first
        own, place = _block_at(model, which, kind, block), column + block * width
        second, other_place = _block_at(model, other_which, kind, other_block), other_column + other_block * width
        if other_block < other_last and stop - start == 1:
            results = floats_at(out.at), start * out.width + place
            other_results = floats_at(other_out.at), start * other_out.width + other_place
            if kind == INT8:
                int8_pair(own, second, groups, x, start, *results, *other_results)
            elif kind == INT4:
                int4_pair(own, second, groups, x, start, *results, *other_results)
            else:
                int4_minimum_pair(own, second, groups, x, start, *results, *other_results)
            continue
        for turn in range(2 if other_block < other_last else 1):
            target, stride = floats_at(out.at), out.width
            if turn == 1:
                own, place, target, stride = second, other_place, floats_at(other_out.at), other_out.width
            if kind == INT8:
                int8_block(own, groups, x, start, stop, target, place, stride)
            elif kind == INT4:
                int4_block(own, groups, x, start, stop, target, place, stride)
            else:
                int4_minimum_block(own, groups, x, start, stop, target, place, stride)


@njit(**KERNEL)
def _add_bias(model, run, first_row, last_row, out):
    which, first, last, column = run
    if linear_field(model, which, BIAS) < 0:
        return
    width, target = lanes(), floats_at(out.at)
    bias = floats_at(model.address + linear_field(model, which, BIAS))
    for token in range(first_row, last_row):
        for block in range(first, min(last, linear_field(model, which, BLOCKS))):
            place = token * out.width + column + block * width
            store(target, place, load(target, place) + load(bias, block * width))
