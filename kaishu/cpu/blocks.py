"""Blocks of `lanes` rows of packed weights times the tokens of a step: the innermost loops of linear layers.

Owns these loops, one for each kind of weights and number of tokens, made of products.py and bfloat_products.py. Knows
nothing of layouts and layers: linear.py says where a block lies and where its results belong.

Every output element is computed by one accumulator that walks K from its first group to its last, in every one of these
loops. So which of them computed it leaves no trace in the result.

A block of whole numbers is (weights, scales, minimums), pointers to its first ones. Many tokens are limited by
arithmetic, and a tile holds as many of them as the registers allow. A single token is limited by memory: then two
blocks are multiplied at once, whose weights are two streams. Far apart, they are read faster than one; side by side,
much more slowly.
"""

from __future__ import annotations

from typing import Any

from numba import njit

from kaishu.cpu.activations import group_step, row_place, row_step
from kaishu.cpu.bfloat_products import multiply_pairs, pair_words
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
    floats_at,
    int8_at,
    int32_at,
    lanes,
    load_bytes,
    load_half,
    load_pairs,
    prefetch,
)

AHEAD_BYTES = 1024  # how far before their use weights are fetched for one token, or two in bf16: they wait for memory


def _int4_tile(tokens: int, has_minimum: bool) -> Any:
    @njit(**KERNEL)
    def tile(block, groups, x, token, out, out_index, out_stride):
        weights, scales, minimums = block
        width, stride, start = lanes(), row_step(x), row_place(x, token)
        whole, token_scales, token_sums = int8_at(x.whole), floats_at(x.scales), int32_at(x.sums)
        group_stride, token_shifts = stride // 32, int32_at(x.shifts)
        total = zero_tile(tokens)
        for group in range(groups):
            place = start + group * group_step()
            own = place // 32
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


def _int4_pair(has_minimum: bool) -> Any:
    @njit(**KERNEL)
    def pair(block, other, groups, x, token, out, index, other_out, other_index):
        """Two blocks for one token."""
        weights, scales, minimums = block
        others, other_scales, other_minimums = other
        width, first_place = lanes(), row_place(x, token)
        whole, token_scales, token_sums = int8_at(x.whole), floats_at(x.scales), int32_at(x.sums)
        token_shifts, a, b = int32_at(x.shifts), zero_tile(1), zero_tile(1)
        for group in range(groups):
            place, start = first_place + group * group_step(), group * 16 * width
            own = place // 32
            if has_minimum:
                first, second = zero_nibble_sums(1), zero_nibble_sums(1)
            else:
                first = second = shifted_nibble_sums(1, token_shifts, own, 0)
            for line in range(0, 16 * width, 64):
                prefetch(weights, start + line + AHEAD_BYTES)
                prefetch(others, start + line + AHEAD_BYTES)
            for part in range(4):
                packed, more = (
                    load_bytes(weights, start + part * 4 * width),
                    load_bytes(others, start + part * 4 * width),
                )
                first = dot_nibbles(first, low_nibbles(packed), whole, place + part * 4, 0)
                second = dot_nibbles(second, low_nibbles(more), whole, place + part * 4, 0)
                first = dot_nibbles(first, high_nibbles(packed), whole, place + part * 4 + 16, 0)
                second = dot_nibbles(second, high_nibbles(more), whole, place + part * 4 + 16, 0)
            scale, other_scale = load_half(scales, group * width), load_half(other_scales, group * width)
            a = add_nibble_group(a, first, scale, token_scales, token_sums, own, 0)
            b = add_nibble_group(b, second, other_scale, token_scales, token_sums, own, 0)
            if has_minimum:
                least, other_least = load_half(minimums, group * width), load_half(other_minimums, group * width)
                a = add_minimum(a, least, token_scales, token_sums, own, 0)
                b = add_minimum(b, other_least, token_scales, token_sums, own, 0)
        store_tile(out, index, 0, a)
        store_tile(other_out, other_index, 0, b)

    return pair


def _int8_tile(tokens: int) -> Any:
    @njit(**KERNEL)
    def tile(block, groups, x, token, out, out_index, out_stride):
        weights, scales, _ = block
        width, stride, start = lanes(), row_step(x), row_place(x, token)
        whole, token_scales, token_sums = int8_at(x.whole), floats_at(x.scales), int32_at(x.sums)
        group_stride = stride // 32
        total = zero_tile(tokens)
        for group in range(groups):
            sums = zero_byte_sums(tokens)
            place = start + group * group_step()
            if tokens == 1:
                for line in range(4):
                    prefetch(weights, group * 32 * width + AHEAD_BYTES + line * 64)
            for part in range(8):
                packed = load_bytes(weights, (group * 8 + part) * 4 * width)
                sums = dot_bytes(sums, packed, whole, place + part * 4, stride)
            scale, own = load_half(scales, group * width), place // 32
            total = add_byte_group(total, sums, scale, token_scales, token_sums, own, group_stride)
        store_tile(out, out_index, out_stride, total)

    return tile


@njit(**KERNEL)
def int8_pair(block, other, groups, x, token, out, index, other_out, other_index):
    """As the pair of int4."""
    weights, scales, _ = block
    others, other_scales, _ = other
    width, first_place = lanes(), row_place(x, token)
    whole, token_scales, token_sums = int8_at(x.whole), floats_at(x.scales), int32_at(x.sums)
    a, b = zero_tile(1), zero_tile(1)
    for group in range(groups):
        first, second = zero_byte_sums(1), zero_byte_sums(1)
        place, start = first_place + group * group_step(), group * 32 * width
        own = place // 32
        for line in range(0, 32 * width, 64):
            prefetch(weights, start + line + AHEAD_BYTES)
            prefetch(others, start + line + AHEAD_BYTES)
        for part in range(8):
            packed, more = load_bytes(weights, start + part * 4 * width), load_bytes(others, start + part * 4 * width)
            first = dot_bytes(first, packed, whole, place + part * 4, 0)
            second = dot_bytes(second, more, whole, place + part * 4, 0)
        scale, other_scale = load_half(scales, group * width), load_half(other_scales, group * width)
        a = add_byte_group(a, first, scale, token_scales, token_sums, own, 0)
        b = add_byte_group(b, second, other_scale, token_scales, token_sums, own, 0)
    store_tile(out, index, 0, a)
    store_tile(other_out, other_index, 0, b)


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
    def tile(weights, others, pairs, x, x_index, x_stride, out, index, stride, other_out, other_index, other_stride):
        """Two neighbours and two others, since a sum of products waits four cycles for each, and four are under way."""
        width, words = lanes(), pair_words()
        a, b, c, d = zero_tile(tokens), zero_tile(tokens), zero_tile(tokens), zero_tile(tokens)
        for pair in range(pairs):
            place, low, high = x_index + pair * words, pair * 2 * width, (pairs + pair) * 2 * width
            ahead = pair + AHEAD_BYTES // (4 * width)
            ahead += pairs if ahead >= pairs else 0  # behind two neighbours the next two begin
            for block in range(2):
                prefetch(weights, (ahead + block * pairs) * 2 * width)
                prefetch(others, (ahead + block * pairs) * 2 * width)
            a = multiply_pairs(a, load_pairs(weights, low), x, place, x_stride)
            b = multiply_pairs(b, load_pairs(weights, high), x, place, x_stride)
            c = multiply_pairs(c, load_pairs(others, low), x, place, x_stride)
            d = multiply_pairs(d, load_pairs(others, high), x, place, x_stride)
        store_tile(out, index, stride, a)
        store_tile(out, index + width, stride, b)
        store_tile(other_out, other_index, other_stride, c)
        store_tile(other_out, other_index + width, other_stride, d)

    return tile


def _block_of(wide: Any, two: Any, one: Any) -> Any:
    """One block of rows for tokens `start` to `stop`: wide tiles, then what is left. With tile registers, these tokens
    have to lie in one tile (activations.py)."""

    @njit(**KERNEL)
    def block(block, groups, x, start, stop, out, column, stride):
        token = start
        while token + wide_tokens() <= stop:
            wide(block, groups, x, token, out, token * stride + column, stride)
            token += wide_tokens()
        while token + 2 <= stop:
            two(block, groups, x, token, out, token * stride + column, stride)
            token += 2
        if token < stop:
            one(block, groups, x, token, out, token * stride + column, stride)

    return block


int4_block = _block_of(_int4_tile(WIDE, False), _int4_tile(2, False), _int4_tile(1, False))
int4_minimum_block = _block_of(_int4_tile(WIDE, True), _int4_tile(2, True), _int4_tile(1, True))
int8_block = _block_of(_int8_tile(WIDE), _int8_tile(2), _int8_tile(1))
int4_pair, int4_minimum_pair = _int4_pair(False), _int4_pair(True)
two_bf16, one_bf16 = _few_bf16_tile(2), _few_bf16_tile(1)
