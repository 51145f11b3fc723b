"""Linear layers on the CPU: reference/linear.py for packed weights and the tokens of a whole step.

Owns the loops around products.py, for each kind of packed weights. Knows nothing of layers. The activations come from
norm.py; forward.py and its parts call `linear_blocks` with the row blocks that a rank has claimed.

Every output element is computed by one accumulator that walks K from its first group to its last. Which tile it was in,
who else was in the step and which rank did it leave no trace in the result.

Cost: a block of `lanes` rows is read from memory once a step and stays in the first-level cache while the tokens pass.
One token reads every byte once and is limited by memory; from some tens of tokens on, arithmetic is the limit.
"""

from __future__ import annotations

from typing import Any

from numba import njit

from kaishu.cpu.bfloat_products import multiply_pairs, pair_words
from kaishu.cpu.layout import BF16, BIAS, BLOCKS, INPUTS, INT4, INT8, KIND, MINIMUMS, SCALES, WEIGHTS
from kaishu.cpu.products import (
    WIDE,
    add_byte_group,
    add_minimum,
    add_nibble_group,
    dot_bytes,
    dot_nibbles,
    high_nibbles,
    low_nibbles,
    shifted_nibble_sums,
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
    int8_at,
    int32_at,
    int64_at,
    lanes,
    load,
    load_bytes,
    load_half,
    load_pairs,
    moved,
    prefetch,
    store,
)

AHEAD_BYTES = 2048  # how far before their use weights are fetched for a single token, which waits for memory alone
CACHED_BYTES = 128 << 10  # activations that stay in the second-level cache while blocks of weights pass


@njit(**KERNEL)
def linear_field(model, which, column):
    """One column of Layout.linears."""
    return int64_at(model.linears)[which * 8 + column]


@njit(**KERNEL)
def layer_field(model, layer, column):
    """One column of Layout.layers."""
    return int64_at(model.layers)[layer * 8 + column]


def _int4_tile(tokens: int, has_minimum: bool) -> Any:
    @njit(**KERNEL)
    def tile(weights, scales, minimums, groups, x, token, out, out_index, out_stride):
        width, stride = lanes(), x.width
        whole, token_scales, token_sums = int8_at(x.whole), floats_at(x.scales), int32_at(x.sums)
        group_stride, token_shifts = stride // 32, int32_at(x.shifts)
        total = zero_tile(tokens)
        for group in range(groups):
            place, own = token * stride + group * 32, token * group_stride + group
            if has_minimum:
                sums = zero_nibble_sums(tokens)
            else:
                sums = shifted_nibble_sums(tokens, token_shifts, own, group_stride)
            if tokens == 1:
                prefetch(weights, group * 16 * width + AHEAD_BYTES)
                prefetch(weights, group * 16 * width + AHEAD_BYTES + 64)
            for part in range(4):
                packed = load_bytes(weights, (group * 4 + part) * 4 * width)
                sums = dot_nibbles(sums, low_nibbles(packed), whole, place + part * 4, stride)
                sums = dot_nibbles(sums, high_nibbles(packed), whole, place + part * 4 + 16, stride)
            scale = load_half(scales, group * width)
            total = add_nibble_group(total, sums, scale, token_scales, token_sums, own, group_stride)
            if has_minimum:
                smallest = load_half(minimums, group * width)
                total = add_minimum(total, smallest, token_scales, token_sums, own, group_stride)
        store_tile(out, out_index, out_stride, total)

    return tile


def _int8_tile(tokens: int) -> Any:
    @njit(**KERNEL)
    def tile(weights, scales, minimums, groups, x, token, out, out_index, out_stride):
        width, stride = lanes(), x.width
        whole, token_scales, token_sums = int8_at(x.whole), floats_at(x.scales), int32_at(x.sums)
        group_stride = stride // 32
        total = zero_tile(tokens)
        for group in range(groups):
            sums = zero_byte_sums(tokens)
            place = token * stride + group * 32
            if tokens == 1:
                for line in range(4):
                    prefetch(weights, group * 32 * width + AHEAD_BYTES + line * 64)
            for part in range(8):
                packed = load_bytes(weights, (group * 8 + part) * 4 * width)
                sums = dot_bytes(sums, packed, whole, place + part * 4, stride)
            scale, own = load_half(scales, group * width), token * group_stride + group
            total = add_byte_group(total, sums, scale, token_scales, token_sums, own, group_stride)
        store_tile(out, out_index, out_stride, total)

    return tile


@njit(**KERNEL)
def wide_bf16(weights, pairs, x, x_index, x_stride, out, out_index, out_stride):
    """Two blocks of rows of bfloat16 for a whole tile of tokens.

    weights: pointer to [2, pairs, lanes, 2] bfloat16
    x:       pointer to words; row t starts at x_index + t · x_stride
    out:     pointer to float32; row t's 2 · lanes results start at out_index + t · out_stride
    """
    width, words = lanes(), pair_words()
    first, second = zero_tile(WIDE), zero_tile(WIDE)
    for pair in range(pairs):
        place = x_index + pair * words
        first = multiply_pairs(first, load_pairs(weights, pair * 2 * width), x, place, x_stride)
        second = multiply_pairs(second, load_pairs(weights, (pairs + pair) * 2 * width), x, place, x_stride)
    store_tile(out, out_index, out_stride, first)
    store_tile(out, out_index + width, out_stride, second)


def _few_bf16_tile(tokens: int) -> Any:
    @njit(**KERNEL)
    def tile(weights, other, pairs, x, x_index, x_stride, out, out_index, other_index, out_stride):
        """Four blocks of rows, since a sum of products waits four cycles for each; two of them begin at `other`."""
        width, words = lanes(), pair_words()
        a, b, c, d = zero_tile(tokens), zero_tile(tokens), zero_tile(tokens), zero_tile(tokens)
        for pair in range(pairs):
            place, low, high = x_index + pair * words, pair * 2 * width, (pairs + pair) * 2 * width
            ahead = pair + AHEAD_BYTES // (4 * width)
            ahead += 3 * pairs if ahead >= pairs else 0  # behind the block's end the next four begin
            for block in range(4):
                prefetch(weights, (ahead + block * pairs) * 2 * width)
            a = multiply_pairs(a, load_pairs(weights, low), x, place, x_stride)
            b = multiply_pairs(b, load_pairs(weights, high), x, place, x_stride)
            c = multiply_pairs(c, load_pairs(weights, other + low), x, place, x_stride)
            d = multiply_pairs(d, load_pairs(weights, other + high), x, place, x_stride)
        store_tile(out, out_index, out_stride, a)
        store_tile(out, out_index + width, out_stride, b)
        store_tile(out, other_index, out_stride, c)
        store_tile(out, other_index + width, out_stride, d)

    return tile


def _block_of(wide: Any, two: Any, one: Any) -> Any:
    """One block of rows for tokens `start` to `stop`: wide tiles, then what is left."""

    @njit(**KERNEL)
    def block(weights, scales, minimums, groups, x, start, stop, out, column, stride):
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


_int4_block = _block_of(_int4_tile(WIDE, False), _int4_tile(2, False), _int4_tile(1, False))
_int4_minimum_block = _block_of(_int4_tile(WIDE, True), _int4_tile(2, True), _int4_tile(1, True))
_int8_block = _block_of(_int8_tile(WIDE), _int8_tile(2), _int8_tile(1))
_two_bf16, _one_bf16 = _few_bf16_tile(2), _few_bf16_tile(1)


@njit(**KERNEL)
def linear_blocks(model, which, first, last, x, first_row, last_row, out, column):
    """out[t, column + n] = weights[n] · x[t] (+ bias[n]) for the rows n of blocks `first` to `last`.

    which:     the linear's place in the layout
    first:     an even block; blocks are computed in twos
    x:         Activations; tokens are its rows `first_row` to `last_row`
    out:       MATRIX with the same rows
    """
    kind, inputs = linear_field(model, which, KIND), linear_field(model, which, INPUTS)
    row_bytes = inputs * 4 if kind == BF16 else inputs
    at_once = max(wide_tokens(), CACHED_BYTES // row_bytes // wide_tokens() * wide_tokens())
    for start in range(first_row, last_row, at_once):
        stop = min(last_row, start + at_once)
        if kind == BF16:
            _bf16_blocks(model, which, first, last, x, start, stop, out, column)
        else:
            _whole_blocks(model, which, kind, first, last, x, start, stop, out, column)
    if linear_field(model, which, BIAS) >= 0:
        _add_bias(model, which, first, last, first_row, last_row, out, column)


@njit(**KERNEL)
def _bf16_blocks(model, which, first, last, x, start, stop, out, column):
    width, pairs = lanes(), linear_field(model, which, INPUTS) // 2
    address, target, stride = model.address + linear_field(model, which, WEIGHTS), floats_at(out.at), out.width
    words, row, block_size = floats_at(x.words), x.width, pairs * 2 * width
    for block in range(first, last, 4):
        other = min(block + 2, last - 2)
        weights, other_weights = halves_at(address + block * block_size * 2), (other - block) * block_size
        token = start
        while token + wide_tokens() <= stop:
            place = token * stride + column
            wide_bf16(weights, pairs, words, token * row, row, target, place + block * width, stride)
            if other > block:
                others = moved(weights, other_weights)
                wide_bf16(others, pairs, words, token * row, row, target, place + other * width, stride)
            token += wide_tokens()
        while token < stop:
            place = token * stride + column
            own, another = place + block * width, place + other * width
            if token + 2 <= stop:
                _two_bf16(weights, other_weights, pairs, words, token * row, row, target, own, another, stride)
            else:
                _one_bf16(weights, other_weights, pairs, words, token * row, row, target, own, another, stride)
            token += 2


@njit(**KERNEL)
def _whole_blocks(model, which, kind, first, last, x, start, stop, out, column):
    width, groups = lanes(), linear_field(model, which, INPUTS) // 32
    scale_step, target, stride = groups * width * 2, floats_at(out.at), out.width
    block_bytes = groups * width * (32 if kind == INT8 else 16)
    address = model.address + linear_field(model, which, WEIGHTS)
    for block in range(first, last):
        weights, place = bytes_at(address + block * block_bytes), column + block * width
        scales = halves_at(model.address + linear_field(model, which, SCALES) + block * scale_step)
        if kind == INT8:
            _int8_block(weights, scales, scales, groups, x, start, stop, target, place, stride)
        elif kind == INT4:
            _int4_block(weights, scales, scales, groups, x, start, stop, target, place, stride)
        else:
            minimums = halves_at(model.address + linear_field(model, which, MINIMUMS) + block * scale_step)
            _int4_minimum_block(weights, scales, minimums, groups, x, start, stop, target, place, stride)


@njit(**KERNEL)
def _add_bias(model, which, first, last, first_row, last_row, out, column):
    width, target = lanes(), floats_at(out.at)
    bias = floats_at(model.address + linear_field(model, which, BIAS))
    for token in range(first_row, last_row):
        for block in range(first, min(last, linear_field(model, which, BLOCKS))):
            place = token * out.width + column + block * width
            store(target, place, load(target, place) + load(bias, block * width))
