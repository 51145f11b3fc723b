"""Grouped-query attention on the CPU: reference/attention.py over pages, for any mix of prompts and single tokens.

Owns the softmax and the walk over keys. Knows nothing of how queries and keys were made. forward.py

Query rows of one sequence that share a key head (several tokens, G heads each) form a tile, so a key that was read once
serves them all. Keys are walked in segments of 256 positions, counted from position 0. A segment has a softmax of its
own: the largest score, the sum of e**(score - largest) and the weighted sum of values; segments are then joined in
order (Milakov & Gimelshein, 2018, arXiv:1805.02867). A prompt's tile walks all of its segments; a single token's
segments are computed by different ranks and joined afterwards. Both are the same operations in the same order, so the
result depends on nothing but the sequence.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from kaishu.cpu.bfloat_products import pair_words
from kaishu.cpu.exponential import exponential
from kaishu.cpu.norm import round_words
from kaishu.cpu.page_access import place_of, scale_scores
from kaishu.cpu.page_products import (
    few_gathered,
    few_scores,
    in_tiles,
    tile_gathered,
    tile_scores,
    tiled_gathered,
    tiled_scores,
)
from kaishu.cpu.pages import SEGMENT
from kaishu.cpu.products import query_rows
from kaishu.cpu.vector import (
    KERNEL,
    at_least,
    floats_at,
    fma,
    keep_between,
    lanes,
    load,
    max_lanes,
    moved,
    splat,
    store,
    sum_lanes,
)


@njit(**KERNEL)
def _softmax_row(scores, index, count, start, low, high):
    """Scores of positions start … start + count to e**(score - largest), zero outside low ≤ position < high.

    return: the largest score, the sum; -inf and 0 when the row sees none of these positions
    """
    width, nothing = lanes(), np.float32(-np.inf)
    top = splat(nothing)
    for s in range(0, count, width):
        seen = load(scores, index + s)
        if not (low <= start + s and start + s + width <= high):
            seen = keep_between(seen, start + s, low, high, nothing)
            store(scores, index + s, seen)
        top = at_least(seen, top)
    largest = max_lanes(top)
    if largest == nothing:
        return largest, np.float32(0.0)
    total = splat(np.float32(0.0))
    for s in range(0, count, width):
        weight = exponential(load(scores, index + s) - splat(largest))
        if not (low <= start + s and start + s + width <= high):
            weight = keep_between(weight, start + s, low, high, np.float32(0.0))
        store(scores, index + s, weight)
        total = total + weight
    return largest, sum_lanes(total)


@njit(**KERNEL)
def attend_segment(
    pages, table, layer, head, segment, tile, rank, window, buffers, largest, sums, out, out_index, is_few
):
    """One segment of keys for one tile of query rows, which `take_queries` has put into the rank's buffers.

    table:         pointer to the sequence's pages
    tile:          (first row, rows, G, position of the first new token): row r is token r // G, query head r % G
    window:        how many keys a query sees, its own included
    largest, sums: pointers to [R] float32, written
    out:           pointer to float32; [R, d] from out_index on, written
    is_few:        whether the tile is computed row by row or in twos; if not, it has as many rows as a tile holds; in
                   tile registers that makes no difference
    """
    first_row, rows, group, start = tile
    first = segment * SEGMENT
    count = min(SEGMENT, start + (first_row + rows - 1) // group + 1 - first)
    own_table = moved(table, first // pages.page_tokens)
    num_pages = (count + pages.page_tokens - 1) // pages.page_tokens
    queries, query_index = floats_at(buffers.queries.at), rank * query_rows() * pages.head_dim
    scores, score_index = floats_at(buffers.scores.at), rank * query_rows() * SEGMENT
    keys = place_of(pages, 0, layer, head)
    if in_tiles(pages):
        tiled_scores(pages, own_table, keys, num_pages, queries, query_index, rows, scores, score_index)
    elif is_few:
        few_scores(pages, own_table, keys, num_pages, queries, query_index, rows, scores, score_index)
    else:
        tile_scores(pages, own_table, keys, num_pages, queries, query_index, scores, score_index)
    values, seen = keys + pages.head_size, num_pages * pages.page_tokens
    scale_scores(pages, own_table, keys, num_pages, rows, scores, score_index)
    for row in range(rows):
        position, index = start + (first_row + row) // group, score_index + row * SEGMENT
        low = max(0, position + 1 - window)
        largest[row], sums[row] = _softmax_row(scores, index, seen, first, low, position + 1)
    scale_scores(pages, own_table, values, num_pages, rows, scores, score_index)
    if pair_words() == 1:
        for row in range(rows):
            round_words(buffers.scores.at, score_index + row * SEGMENT, seen)
    if in_tiles(pages):
        tiled_gathered(pages, own_table, values, num_pages, scores, score_index, rows, out, out_index)
    elif is_few:
        few_gathered(pages, own_table, values, num_pages, scores, score_index, rows, out, out_index)
    else:
        tile_gathered(pages, own_table, values, num_pages, scores, score_index, out, out_index)


@njit(**KERNEL)
def _power(x):
    """e**x of one number, by the same instructions as everywhere."""
    return max_lanes(exponential(splat(x)))


@njit(**KERNEL)
def join(largest, sums, total, total_index, row, new_largest, new_sum, gathered, gathered_index, size):
    """Join one more segment to what a row has so far, all of it in place.

    largest, sums:   pointers to the tile's rows
    total, gathered: pointers to float32; this row's d start at the index
    """
    if new_largest == np.float32(-np.inf):
        return
    if largest[row] == np.float32(-np.inf):
        largest[row], sums[row] = new_largest, new_sum
        for channel in range(0, size, lanes()):
            store(total, total_index + channel, load(gathered, gathered_index + channel))
        return
    top = max(largest[row], new_largest)
    keep, add = _power(np.float32(largest[row] - top)), _power(np.float32(new_largest - top))
    largest[row], sums[row] = top, np.float32(sums[row] * keep) + np.float32(new_sum * add)
    for channel in range(0, size, lanes()):
        kept = load(total, total_index + channel) * splat(keep)
        store(total, total_index + channel, fma(load(gathered, gathered_index + channel), splat(add), kept))


@njit(**KERNEL)
def take_queries(qkv, first_token, tile, head, head_dim, pages, rank, buffers):
    """Copy a tile's queries, scaled by 1/√d, into rows of their own with zeros behind."""
    first_row, rows, group, _ = tile
    source, queries, scale = floats_at(qkv.at), floats_at(buffers.queries.at), np.float32(1.0 / np.sqrt(head_dim))
    for row in range(rows):
        token = first_token + (first_row + row) // group
        start = token * qkv.width + (head * group + (first_row + row) % group) * head_dim
        target = (rank * query_rows() + row) * pages.head_dim
        whole = head_dim // lanes() * lanes()
        for channel in range(0, whole, lanes()):
            store(queries, target + channel, load(source, start + channel) * splat(scale))
        for channel in range(whole, head_dim):
            queries[target + channel] = source[start + channel] * scale
        for channel in range(head_dim, pages.head_dim):
            queries[target + channel] = np.float32(0.0)
        if pair_words() == 1:
            round_words(buffers.queries.at, target, pages.head_dim)


@njit(**KERNEL)
def finish_row(total, index, divisor, out, out_index, head_dim):
    """Divide by the sum and put the head's channels in their place."""
    whole = head_dim // lanes() * lanes()
    for channel in range(0, whole, lanes()):
        store(out, out_index + channel, load(total, index + channel) / splat(divisor))
    for channel in range(whole, head_dim):
        out[out_index + channel] = total[index + channel] / divisor
