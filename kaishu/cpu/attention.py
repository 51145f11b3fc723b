"""Grouped-query attention on the CPU: reference/attention.py over pages, for any mix of prompts and single tokens.

Owns the softmax and the walk over keys. Knows nothing of how queries and keys were made. forward.py calls
`attend_piece` for every piece of a step, then `combine` for the sequences whose keys were divided.

Query rows of one sequence that share a key head (several tokens, G heads each) form a tile, so a key that was read once
serves them all. Keys are walked in segments of 256 positions, counted from position 0. A segment has a softmax of its
own: the largest score, the sum of e**(score - largest) and the weighted sum of values; segments are then joined in
order (Milakov & Gimelshein, 2018, arXiv:1805.02867). A prompt's tile walks all of its segments; a single token's
segments are computed by different ranks and joined afterwards. Both are the same operations in the same order, so the
result depends on nothing but the sequence.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit

from kaishu.cpu.linear import bf16_rows
from kaishu.cpu.norm import round_words
from kaishu.cpu.pages import place_of
from kaishu.cpu.products import (
    WIDE,
    multiply_pairs,
    pair_words,
    store_tile,
    wide_tokens,
    zero_tile,
)
from kaishu.cpu.vector import (
    KERNEL,
    exponential,
    fma,
    keep_between,
    lanes,
    load,
    load_pairs,
    max_lanes,
    maximum,
    moved,
    pointer,
    splat,
    store,
    sum_lanes,
)

SEGMENT = 256  # positions


class Scratch(NamedTuple):
    """What a rank needs while it attends; R rows of a tile.

    queries:  [ranks, R, d] float32, the tile's queries, scaled by 1/√d
    scores:   [ranks, R, SEGMENT] float32, scores, then e**(score - largest)
    gathered: [ranks, R, d] float32, one segment's sum of values; own_largest and own_sums: [ranks, R], its other parts
    largest:  [pieces, R] float32, of the divided sequences: each segment's largest score,
    sums:     [pieces, R] float32, its sum of e**(score - largest),
    partial:  [pieces, R, d] float32, and its weighted sum of values
    """

    queries: Any
    scores: Any
    gathered: Any
    own_largest: Any
    own_sums: Any
    largest: Any
    sums: Any
    partial: Any


def _values_tile(tokens: int) -> Any:
    @njit(**KERNEL)
    def tile(
        memory, table, first_page, count, page_size, offset, pairs, x, x_index, x_stride, out, out_index, out_stride
    ):  # type: ignore[no-untyped-def]
        """Two blocks of channels of the values in `count` pages, weighed by the tile's rows."""
        width, words = lanes(), pair_words()
        first, second = zero_tile(tokens), zero_tile(tokens)
        for page in range(count):
            start = table[first_page + page] * page_size + offset
            for pair in range(pairs):
                place = x_index + (page * pairs + pair) * words
                first = multiply_pairs(first, load_pairs(memory, start + pair * 2 * width), x, place, x_stride)
                second = multiply_pairs(
                    second, load_pairs(memory, start + (pairs + pair) * 2 * width), x, place, x_stride
                )
        store_tile(out, out_index, out_stride, first)
        store_tile(out, out_index + width, out_stride, second)

    return tile


_wide_values, _two_values, _one_value = _values_tile(WIDE), _values_tile(2), _values_tile(1)


@njit(**KERNEL)
def _gather_values(pages, table, layer, head, first_page, count, scores, rows, out):  # type: ignore[no-untyped-def]
    """out[r] = Σ scores[r, s] · value[s] over the positions s of `count` pages."""
    width, pairs = lanes(), pages.page_tokens // 2
    memory, x, target = pointer(pages.memory), pointer(scores), pointer(out)
    x_stride, stride = scores.shape[1], out.shape[1]
    for channel in range(0, pages.head_dim, 2 * width):
        offset = layer * pages.layer_size + head * 2 * pages.head_size + pages.head_size + channel * pages.page_tokens
        row = 0
        while row + wide_tokens() <= rows:
            _wide_values(
                memory,
                table,
                first_page,
                count,
                pages.page_size,
                offset,
                pairs,
                x,
                row * x_stride,
                x_stride,
                target,
                row * stride + channel,
                stride,
            )
            row += wide_tokens()
        while row + 2 <= rows:
            _two_values(
                memory,
                table,
                first_page,
                count,
                pages.page_size,
                offset,
                pairs,
                x,
                row * x_stride,
                x_stride,
                target,
                row * stride + channel,
                stride,
            )
            row += 2
        if row < rows:
            _one_value(
                memory,
                table,
                first_page,
                count,
                pages.page_size,
                offset,
                pairs,
                x,
                row * x_stride,
                x_stride,
                target,
                row * stride + channel,
                stride,
            )


@njit(**KERNEL)
def _softmax_row(scores, row, count, start, low, high):  # type: ignore[no-untyped-def]
    """Scores of positions start … start + count to e**(score - largest), zero outside low ≤ position < high.

    return: the largest score, the sum; -inf and 0 when the row sees none of these positions
    """
    width, place, values = lanes(), row * scores.shape[1], pointer(scores)
    nothing = np.float32(-np.inf)
    top = splat(nothing)
    for s in range(0, count, width):
        seen = keep_between(load(values, place + s), start + s, low, high, nothing)
        store(values, place + s, seen)
        top = maximum(top, seen)
    largest = max_lanes(top)
    if largest == nothing:
        return largest, np.float32(0.0)
    total = splat(np.float32(0.0))
    for s in range(0, count, width):
        weight = exponential(load(values, place + s) - splat(largest))
        weight = keep_between(weight, start + s, low, high, np.float32(0.0))
        store(values, place + s, weight)
        total = total + weight
    return largest, sum_lanes(total)


@njit(**KERNEL)
def attend_segment(
    pages, table, layer, head, segment, queries, rows, first_row, group, start, window, scores, largest, sums, out
):  # type: ignore[no-untyped-def]
    """One segment of keys for one tile of query rows.

    table:     [P] int32, the sequence's pages
    first_row: the tile's first row: row r is token r // G and query head r % G of the key head
    start:     position of the sequence's first new token
    largest:   [R] float32, written, as are sums; out: [R, d] float32
    """
    last_position = start + (first_row + rows - 1) // group
    first = segment * SEGMENT
    count = min(SEGMENT, last_position + 1 - first)
    num_pages = (count + pages.page_tokens - 1) // pages.page_tokens
    first_page, width = first // pages.page_tokens, lanes()
    memory, target = pointer(pages.memory), pointer(scores)
    for page in range(num_pages):
        keys = place_of(pages, table[first_page + page], layer, head)
        for block in range(0, pages.page_tokens, 2 * width):
            column = page * pages.page_tokens + block
            bf16_rows(
                moved(memory, keys + block * pages.head_dim),
                pages.head_dim // 2,
                pointer(queries),
                0,
                queries.shape[1],
                rows,
                target,
                column,
                scores.shape[1],
            )
    for row in range(rows):
        position = start + (first_row + row) // group
        low = max(0, position + 1 - window)
        largest[row], sums[row] = _softmax_row(scores, row, num_pages * pages.page_tokens, first, low, position + 1)
        if pair_words() == 1:
            round_words(scores, row, num_pages * pages.page_tokens)
    _gather_values(pages, table, layer, head, first_page, num_pages, scores, rows, out)


@njit(**KERNEL)
def _power(x: Any) -> Any:
    """e**x of one number, by the same instructions as everywhere."""
    return max_lanes(exponential(splat(x)))


@njit(**KERNEL)
def join(largest, sums, total, row, new_largest, new_sum, gathered, size):  # type: ignore[no-untyped-def]
    """Join one more segment to what a row has so far, all of it in place.

    total, gathered: [R, d] float32; only `row` is touched
    """
    if new_largest == np.float32(-np.inf):
        return
    own, other = pointer(total), pointer(gathered)
    place, other_place = row * total.shape[1], row * gathered.shape[1]
    if largest[row] == np.float32(-np.inf):
        largest[row], sums[row] = new_largest, new_sum
        for channel in range(0, size, lanes()):
            store(own, place + channel, load(other, other_place + channel))
        return
    top = max(largest[row], new_largest)
    keep, add = _power(largest[row] - top), _power(new_largest - top)
    largest[row], sums[row] = top, sums[row] * keep + new_sum * add
    for channel in range(0, size, lanes()):
        kept = load(own, place + channel) * splat(keep)
        store(own, place + channel, fma(load(other, other_place + channel), splat(add), kept))


@njit(**KERNEL)
def take_queries(qkv, first_token, first_row, rows, group, head, head_dim, queries):  # type: ignore[no-untyped-def]
    """Copy a tile's queries, scaled by 1/√d, into rows of their own with zeros behind."""
    scale = np.float32(1.0 / np.sqrt(head_dim))
    for row in range(rows):
        token = first_token + (first_row + row) // group
        start = (head * group + (first_row + row) % group) * head_dim
        for channel in range(head_dim):
            queries[row, channel] = qkv[token, start + channel] * scale
        queries[row, head_dim:] = np.float32(0.0)
        if pair_words() == 1:
            round_words(queries, row, queries.shape[1])


@njit(**KERNEL)
def finish_row(total, row, sums, out, token, start, head_dim):  # type: ignore[no-untyped-def]
    """Divide by the sum and put the head's channels in their place."""
    for channel in range(head_dim):
        out[token, start + channel] = total[row, channel] / sums[row]
