"""Products with pages: queries times keys, and weights times values; the two sums that attention consists of.

Owns the tiles that walk over pages. Knows nothing of softmax, of masks, or of which sequence it serves. attention.py
calls two pairs of functions, for a whole tile of rows (a prompt) and for few rows (decoding), in which each sum is
computed in the same order, so that the results have the same bits. Where there are tile registers, one pair serves
pages of bfloat16 for any number of rows, with an order of its own.

A whole tile of four rows is limited by arithmetic, as a linear layer is. Few rows are limited by memory: every key and
value is read for two products a row. There are four blocks at a time, since a sum of products waits four cycles for
each, and while a piece is multiplied the next one is fetched.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from kaishu.cpu.bfloat_products import multiply_kept, pair_words
from kaishu.cpu.page_access import by_kind, kept_at
from kaishu.cpu.pages import SEGMENT
from kaishu.cpu.products import WIDE, query_rows, store_tile, wide_tokens, zero_tile
from kaishu.cpu.tiles import (
    TILE_PAIRS,
    has_tiles,
    load_tile,
    multiply_tiles,
    only_with_tiles,
    release_tiles,
    shape_tiles,
    store_sums,
    zero_sums,
)
from kaishu.cpu.vector import KERNEL, lanes, prefetch

_FEW_ROWS = 8  # so many, or fewer, wait for memory


def _values_tile(tokens: int) -> Any:
    @njit(**KERNEL)
    def tile(pages, table, count, offset, x, x_index, out, out_index):
        """Two blocks of channels of the values in `count` pages, weighed by the tile's rows."""
        memory, width, words, pairs = kept_at(pages), lanes(), pair_words(), pages.page_tokens // 2
        first, second = zero_tile(tokens), zero_tile(tokens)
        for page in range(count):
            start = table[page] * pages.page_size + offset
            for pair in range(pairs):
                place = x_index + (page * pairs + pair) * words
                first = multiply_kept(first, memory, start + pair * 2 * width, x, place, SEGMENT)
                second = multiply_kept(second, memory, start + (pairs + pair) * 2 * width, x, place, SEGMENT)
        store_tile(out, out_index, pages.head_dim, first)
        store_tile(out, out_index + width, pages.head_dim, second)

    return tile


@njit(**KERNEL)
def _wide_keys(pages, here, x, x_index, out, out_index):
    """Two blocks of positions of a page, for a whole tile of queries."""
    memory, width, words, pairs = kept_at(pages), lanes(), pair_words(), pages.head_dim // 2
    first, second = zero_tile(WIDE), zero_tile(WIDE)
    for pair in range(pairs):
        place = x_index + pair * words
        first = multiply_kept(first, memory, here + pair * 2 * width, x, place, pages.head_dim)
        second = multiply_kept(second, memory, here + (pairs + pair) * 2 * width, x, place, pages.head_dim)
    store_tile(out, out_index, SEGMENT, first)
    store_tile(out, out_index + width, SEGMENT, second)


def _few_values_tile(tokens: int) -> Any:
    @njit(**KERNEL)
    def tile(pages, table, count, offsets, x, x_index, out, targets):
        """As above for one or two rows, and twice as many blocks: a sum is waited for, so there have to be enough."""
        memory, width, words, pairs = kept_at(pages), lanes(), pair_words(), pages.page_tokens // 2
        a, b, c, d = zero_tile(tokens), zero_tile(tokens), zero_tile(tokens), zero_tile(tokens)
        for page in range(count):
            start = table[page] * pages.page_size
            for pair in range(pairs):
                place = x_index + (page * pairs + pair) * words
                here, there = start + offsets[0] + pair * 2 * width, start + offsets[1] + pair * 2 * width
                prefetch(memory, here + 4 * pairs * 2 * width + pair * 2 * width)
                prefetch(memory, there + 4 * pairs * 2 * width + pair * 2 * width)
                a = multiply_kept(a, memory, here, x, place, SEGMENT)
                b = multiply_kept(b, memory, here + pairs * 2 * width, x, place, SEGMENT)
                c = multiply_kept(c, memory, there, x, place, SEGMENT)
                d = multiply_kept(d, memory, there + pairs * 2 * width, x, place, SEGMENT)
        store_tile(out, targets[0], pages.head_dim, a)
        store_tile(out, targets[0] + width, pages.head_dim, b)
        store_tile(out, targets[1], pages.head_dim, c)
        store_tile(out, targets[1] + width, pages.head_dim, d)

    return tile


def _few_keys_tile(tokens: int) -> Any:
    @njit(**KERNEL)
    def tile(pages, places, x, x_index, out, out_index, other_index):
        """Two blocks of positions of each of two pages; what is read next is fetched: the same blocks of two more
        pages, and the values that belong to these.

        places: where in the pages' memory the blocks of the two pages begin, and of the two to fetch
        """
        memory, width, words, pairs = kept_at(pages), lanes(), pair_words(), pages.head_dim // 2
        a, b, c, d = zero_tile(tokens), zero_tile(tokens), zero_tile(tokens), zero_tile(tokens)
        here, there, next_here, next_there, here_values, there_values = places
        share = 8 * width * pages.page_tokens // pages.head_dim
        for pair in range(pairs):
            place, line = x_index + pair * words, pair * 4 * width
            prefetch(memory, next_here + line)
            prefetch(memory, next_there + line)
            prefetch(memory, here_values + pair * share)
            prefetch(memory, there_values + pair * share)
            a = multiply_kept(a, memory, here + pair * 2 * width, x, place, pages.head_dim)
            b = multiply_kept(b, memory, here + (pairs + pair) * 2 * width, x, place, pages.head_dim)
            c = multiply_kept(c, memory, there + pair * 2 * width, x, place, pages.head_dim)
            d = multiply_kept(d, memory, there + (pairs + pair) * 2 * width, x, place, pages.head_dim)
        store_tile(out, out_index, SEGMENT, a)
        store_tile(out, out_index + width, SEGMENT, b)
        store_tile(out, other_index, SEGMENT, c)
        store_tile(out, other_index + width, SEGMENT, d)

    return tile


_wide_values, _two_values, _one_value = _values_tile(WIDE), _few_values_tile(2), _few_values_tile(1)
_two_keys, _one_key = _few_keys_tile(2), _few_keys_tile(1)


@njit(**KERNEL)
def few_scores(pages, table, keys, count, queries, query_index, rows, scores, score_index):
    """scores[r, s] = query[r] · key[s] for few rows and the positions s of `count` pages, two pages at a time."""
    step, tokens = pages.page_size, pages.page_tokens
    for page in range(0, count, 2):
        last = count - 1
        other, ahead, further = min(page + 1, last), min(page + 2, last), min(page + 3, last)
        values, other_values = table[page] * step + keys + pages.head_size, table[other] * step + keys + pages.head_size
        for block in range(0, tokens, 2 * lanes()):
            own = keys + block * pages.head_dim
            here, there = table[page] * step + own, table[other] * step + own
            places = (here, there, table[ahead] * step + own, table[further] * step + own, values, other_values)
            column, other_column = score_index + page * tokens + block, score_index + other * tokens + block
            for row in range(0, rows, 2):
                x_index, out = query_index + row * pages.head_dim, row * SEGMENT
                if row + 2 <= rows:
                    _two_keys(pages, places, queries, x_index, scores, out + column, out + other_column)
                else:
                    _one_key(pages, places, queries, x_index, scores, out + column, out + other_column)


@njit(**KERNEL)
def few_gathered(pages, table, values, count, scores, score_index, rows, out, out_index):
    """out[r] = Σ scores[r, s] · value[s] for few rows, four blocks of channels at a time."""
    for channel in range(0, pages.head_dim, 4 * lanes()):
        other = min(channel + 2 * lanes(), pages.head_dim - 2 * lanes())
        offsets = (values + channel * pages.page_tokens, values + other * pages.page_tokens)
        for row in range(0, rows, 2):
            x_index, place = score_index + row * SEGMENT, out_index + row * pages.head_dim + channel
            targets = (place, place + other - channel)
            if row + 2 <= rows:
                _two_values(pages, table, count, offsets, scores, x_index, out, targets)
            else:
                _one_value(pages, table, count, offsets, scores, x_index, out, targets)


@njit(**KERNEL)
def tile_scores(pages, table, keys, count, queries, query_index, scores, score_index):
    """scores[r, s] = query[r] · key[s] for as many rows as attention takes at once."""
    for row in range(0, query_rows(), wide_tokens()):
        own, out = query_index + row * pages.head_dim, score_index + row * SEGMENT
        for page in range(count):
            for block in range(0, pages.page_tokens, 2 * lanes()):
                here = table[page] * pages.page_size + keys + block * pages.head_dim
                _wide_keys(pages, here, queries, own, scores, out + page * pages.page_tokens + block)


@njit(**KERNEL)
def tile_gathered(pages, table, values, count, scores, score_index, out, out_index):
    """out[r] = Σ scores[r, s] · value[s] for as many rows as attention takes at once."""
    for row in range(0, query_rows(), wide_tokens()):
        own, target = score_index + row * SEGMENT, out_index + row * pages.head_dim
        for channel in range(0, pages.head_dim, 2 * lanes()):
            offset = values + channel * pages.page_tokens
            _wide_values(pages, table, count, offset, scores, own, out, target + channel)


@njit(**KERNEL)
def _bf16_in_tiles(pages):
    return has_tiles()


@njit(**KERNEL)
def _int8_in_tiles(pages):
    return 0


in_tiles = by_kind(_bf16_in_tiles, _int8_in_tiles)  # (pages): whether the following two serve them, for any rows


@only_with_tiles
@njit(**KERNEL)
def tiled_scores(pages, table, keys, count, queries, query_index, rows, scores, score_index):
    """scores[r, s] = query[r] · key[s] in tile registers, for 1 to 16 rows. For few, what is read next is fetched."""
    memory, width, pairs = kept_at(pages), lanes(), pages.head_dim // 2
    shape_tiles(np.int64(rows))
    for page in range(count):
        here = table[page] * pages.page_size + keys
        if rows <= _FEW_ROWS:
            ahead = table[min(page + 1, count - 1)] * pages.page_size + keys
            for line in range(0, pages.head_size, 2 * width):
                prefetch(memory, ahead + line)
                prefetch(memory, here + pages.head_size + line)
        for block in range(0, pages.page_tokens, 2 * width):
            own = here + block * pages.head_dim
            zero_sums(0)
            zero_sums(1)
            for pair in range(0, pairs, TILE_PAIRS):
                load_tile(4, queries, query_index + pair, pages.head_dim)
                load_tile(6, memory, own + pair * 2 * width, 2 * width)
                load_tile(7, memory, own + (pairs + pair) * 2 * width, 2 * width)
                multiply_tiles(0, 4, 6)
                multiply_tiles(1, 4, 7)
            place = score_index + page * pages.page_tokens + block
            store_sums(0, scores, place, SEGMENT)
            store_sums(1, scores, place + width, SEGMENT)
    release_tiles()


@only_with_tiles
@njit(**KERNEL)
def tiled_gathered(pages, table, values, count, scores, score_index, rows, out, out_index):
    """out[r] = Σ scores[r, s] · value[s] in tile registers, for 1 to 16 rows and two blocks of channels at a time."""
    memory, width, pairs = kept_at(pages), lanes(), pages.page_tokens // 2
    shape_tiles(np.int64(rows))
    for channel in range(0, pages.head_dim, 2 * width):
        zero_sums(0)
        zero_sums(1)
        for page in range(count):
            here = table[page] * pages.page_size + values + channel * pages.page_tokens
            for pair in range(0, pairs, TILE_PAIRS):
                load_tile(4, scores, score_index + page * pairs + pair, SEGMENT)
                load_tile(6, memory, here + pair * 2 * width, 2 * width)
                load_tile(7, memory, here + (pairs + pair) * 2 * width, 2 * width)
                multiply_tiles(0, 4, 6)
                multiply_tiles(1, 4, 7)
        store_sums(0, out, out_index + channel, pages.head_dim)
        store_sums(1, out, out_index + channel + width, pages.head_dim)
    release_tiles()
