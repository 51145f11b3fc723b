"""Linear layers on the CPU: reference/linear.py for packed weights and the tokens of a whole step.

Owns the loops around products.py, for each kind of packed weights. Knows nothing of layers. The activations come from
norm.py; forward.py and its parts call `linear_blocks` with the row blocks that a rank has claimed.

Every output element is computed by one accumulator that walks K from its first group to its last. Which tile it was in,
who else was in the step and which rank did it leave no trace in the result.

Cost: a block of `lanes` rows is read from memory once a step and stays in the first-level cache while the tokens pass.
One token reads every byte once and is limited by memory; from some tens of tokens on, arithmetic is the limit.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from numba import njit

from kaishu.cpu.layout import BF16, BIAS, INPUTS, INT4, INT8, KIND, MINIMUMS, SCALES, WEIGHTS
from kaishu.cpu.products import (
    WIDE,
    add_byte_group,
    add_minimum,
    add_nibble_group,
    dot_bytes,
    dot_nibbles,
    high_nibbles,
    low_nibbles,
    multiply_pairs,
    pair_words,
    store_tile,
    wide_tokens,
    zero_byte_sums,
    zero_nibble_sums,
    zero_tile,
)
from kaishu.cpu.vector import (
    KERNEL,
    bytes_at,
    floats_at,
    halves_at,
    lanes,
    load,
    load_bytes,
    load_half,
    load_pairs,
    pointer,
    store,
)

CACHED_BYTES = 128 << 10  # activations that stay in the second-level cache while blocks of weights pass


class Activations(NamedTuple):
    """The rows that a linear layer multiplies, in both forms that kernels read; columns beyond K are zero.

    words:  [T, K] float32, or with BF16 instructions pairs of bfloat16 in [T, K/2] 32-bit words at the same place
    whole:  [T, K] int8, the same quantised in groups of 32
    scales: [T, K/32] float32, one for each group
    sums:   [T, K/32] int32, eight times the sum of each group's whole numbers
    """

    words: Any
    whole: Any
    scales: Any
    sums: Any


def _int4_tile(tokens: int, has_minimum: bool) -> Any:
    @njit(**KERNEL)
    def tile(weights, scales, minimums, groups, x, token, out, out_index, out_stride):  # type: ignore[no-untyped-def]
        width, whole, stride = lanes(), pointer(x.whole), x.whole.shape[1]
        token_scales, token_sums, group_stride = pointer(x.scales), pointer(x.sums), x.scales.shape[1]
        total = zero_tile(tokens)
        for group in range(groups):
            sums = zero_nibble_sums(tokens)
            place = token * stride + group * 32
            for part in range(4):
                packed = load_bytes(weights, (group * 4 + part) * 4 * width)
                sums = dot_nibbles(sums, low_nibbles(packed), whole, place + part * 4, stride)
                sums = dot_nibbles(sums, high_nibbles(packed), whole, place + part * 4 + 16, stride)
            scale, own = load_half(scales, group * width), token * group_stride + group
            if has_minimum:
                total = add_nibble_group(total, sums, scale, token_scales, token_sums, own, group_stride, False)
                smallest = load_half(minimums, group * width)
                total = add_minimum(total, smallest, token_scales, token_sums, own, group_stride)
            else:
                total = add_nibble_group(total, sums, scale, token_scales, token_sums, own, group_stride, True)
        store_tile(out, out_index, out_stride, total)

    return tile


def _int8_tile(tokens: int) -> Any:
    @njit(**KERNEL)
    def tile(weights, scales, minimums, groups, x, token, out, out_index, out_stride):  # type: ignore[no-untyped-def]
        width, whole, stride = lanes(), pointer(x.whole), x.whole.shape[1]
        token_scales, token_sums, group_stride = pointer(x.scales), pointer(x.sums), x.scales.shape[1]
        total = zero_tile(tokens)
        for group in range(groups):
            sums = zero_byte_sums(tokens)
            place = token * stride + group * 32
            for part in range(8):
                packed = load_bytes(weights, (group * 8 + part) * 4 * width)
                sums = dot_bytes(sums, packed, whole, place + part * 4, stride)
            scale, own = load_half(scales, group * width), token * group_stride + group
            total = add_byte_group(total, sums, scale, token_scales, token_sums, own, group_stride, True)
        store_tile(out, out_index, out_stride, total)

    return tile


def _bf16_tile(tokens: int) -> Any:
    @njit(**KERNEL)
    def tile(weights, pairs, x, x_index, x_stride, out, out_index, out_stride):  # type: ignore[no-untyped-def]
        """Two blocks of rows, so that there are enough sums to keep the multipliers busy."""
        width, words = lanes(), pair_words()
        first, second = zero_tile(tokens), zero_tile(tokens)
        for pair in range(pairs):
            place = x_index + pair * words
            first = multiply_pairs(first, load_pairs(weights, pair * 2 * width), x, place, x_stride)
            second = multiply_pairs(second, load_pairs(weights, (pairs + pair) * 2 * width), x, place, x_stride)
        store_tile(out, out_index, out_stride, first)
        store_tile(out, out_index + width, out_stride, second)

    return tile


bf16_tiles = (_bf16_tile(WIDE), _bf16_tile(2), _bf16_tile(1))


def _block_of(tiles: tuple[Any, Any, Any]) -> Any:
    """One block of rows for tokens `start` to `stop`: wide tiles, then what is left."""
    wide, two, one = tiles

    @njit(**KERNEL)
    def block(weights, scales, minimums, groups, x, start, stop, out, column, stride):  # type: ignore[no-untyped-def]
        token = start
        while token + wide_tokens() <= stop:
            wide(weights, scales, minimums, groups, x, token, out, token * stride + column, stride)
            token += wide_tokens()
        while token + 2 <= stop:
            two(weights, scales, minimums, groups, x, token, out, token * stride + column, stride)
            token += 2
        if token < stop:
            one(weights, scales, minimums, groups, x, token, out, token * stride + column, stride)

    return block


_int4_block = _block_of((_int4_tile(WIDE, False), _int4_tile(2, False), _int4_tile(1, False)))
_int4_minimum_block = _block_of((_int4_tile(WIDE, True), _int4_tile(2, True), _int4_tile(1, True)))
_int8_block = _block_of((_int8_tile(WIDE), _int8_tile(2), _int8_tile(1)))
_wide_bf16, _two_bf16, _one_bf16 = bf16_tiles


@njit(**KERNEL)
def bf16_rows(weights, pairs, x, x_index, x_stride, tokens, out, out_index, out_stride):  # type: ignore[no-untyped-def]
    """Two blocks of rows of bfloat16 times `tokens` rows of activation words; attention uses it for keys, too.

    weights: pointer to [2, pairs, lanes, 2] bfloat16
    x:       pointer to words; row t starts at x_index + t · x_stride
    out:     pointer to float32; row t's 2 · lanes results start at out_index + t · out_stride
    """
    token = 0
    while token + wide_tokens() <= tokens:
        _wide_bf16(
            weights, pairs, x, x_index + token * x_stride, x_stride, out, out_index + token * out_stride, out_stride
        )
        token += wide_tokens()
    while token + 2 <= tokens:
        _two_bf16(
            weights, pairs, x, x_index + token * x_stride, x_stride, out, out_index + token * out_stride, out_stride
        )
        token += 2
    if token < tokens:
        _one_bf16(
            weights, pairs, x, x_index + token * x_stride, x_stride, out, out_index + token * out_stride, out_stride
        )


@njit(**KERNEL)
def linear_blocks(model, which, first, last, x, tokens, out, column):  # type: ignore[no-untyped-def]
    """out[t, column + n] = weights[n] · x[t] (+ bias[n]) for the rows n of blocks `first` to `last`.

    model:  the packed model, see forward.py
    which:  the linear's place in model.linears
    first:  an even block; blocks are computed in twos
    x:      Activations of at least `tokens` rows
    out:    [T, ≥ column + padded N] float32
    """
    described = model.linears[which]
    kind, inputs, width = described[KIND], described[INPUTS], lanes()
    groups = inputs // 32
    row_bytes = inputs * 4 if kind == BF16 else inputs
    at_once = max(wide_tokens(), CACHED_BYTES // row_bytes // wide_tokens() * wide_tokens())
    target, stride = pointer(out), out.shape[1]
    scale_step = groups * width * 2
    for start in range(0, tokens, at_once):
        stop = min(tokens, start + at_once)
        if kind == BF16:
            for block in range(first, last, 2):
                weights = halves_at(model.address + described[WEIGHTS] + block * width * inputs * 2)
                words = x.words.shape[1]
                place = start * stride + column + block * width
                bf16_rows(
                    weights, inputs // 2, pointer(x.words), start * words, words, stop - start, target, place, stride
                )
            continue
        for block in range(first, last):
            scales = halves_at(model.address + described[SCALES] + block * scale_step)
            place = column + block * width
            if kind == INT8:
                weights = bytes_at(model.address + described[WEIGHTS] + block * width * inputs)
                _int8_block(weights, scales, scales, groups, x, start, stop, target, place, stride)
            elif kind == INT4:
                weights = bytes_at(model.address + described[WEIGHTS] + block * width * inputs // 2)
                _int4_block(weights, scales, scales, groups, x, start, stop, target, place, stride)
            else:
                weights = bytes_at(model.address + described[WEIGHTS] + block * width * inputs // 2)
                minimums = halves_at(model.address + described[MINIMUMS] + block * scale_step)
                _int4_minimum_block(weights, scales, minimums, groups, x, start, stop, target, place, stride)
    if described[BIAS] >= 0:
        _add_bias(floats_at(model.address + described[BIAS]), first, last, tokens, target, column, stride)


@njit(**KERNEL)
def _add_bias(bias, first, last, tokens, out, column, stride):  # type: ignore[no-untyped-def]
    width = lanes()
    for token in range(tokens):
        for block in range(first, last):
            place = token * stride + column + block * width
            store(out, place, load(out, place) + load(bias, block * width))
