"""Products with pages: against float64 on the pages' own numbers, and few rows with the bits of a whole tile."""

from __future__ import annotations

import numpy as np
import pytest
from numba import njit

from kaishu.cpu.page_products import SEGMENT, few_gathered, few_scores, tile_gathered, tile_scores
from kaishu.cpu.records import PAGES, address, record
from kaishu.cpu.target import current_target
from kaishu.cpu.vector import floats_at, int32_at
from tests.cpu.drawn_weights import as_bfloat16, bfloat16_bits

LANES, ROWS, HAS_BF16 = current_target().lanes, current_target().tokens, current_target().has_bf16
every_shape = pytest.mark.parametrize("head_dim, page_tokens", [(32, 32), (96, 32), (128, 64), (128, 256)])
every_count = pytest.mark.parametrize("count", [1, 2, 3])


@njit
def scores_of(pages, table, count, queries, rows, is_few, scores):
    """queries, scores: addresses; the head begins in the middle of its page"""
    keys = pages.layer_size
    if is_few:
        few_scores(pages, int32_at(table), keys, count, floats_at(queries), 0, rows, floats_at(scores), 0)
    else:
        tile_scores(pages, int32_at(table), keys, count, floats_at(queries), 0, floats_at(scores), 0)


@njit
def gathered_of(pages, table, count, scores, rows, is_few, out):
    values = pages.layer_size + pages.head_size
    if is_few:
        few_gathered(pages, int32_at(table), values, count, floats_at(scores), 0, rows, floats_at(out), 0)
    else:
        tile_gathered(pages, int32_at(table), values, count, floats_at(scores), 0, floats_at(out), 0)


class DrawnPages:
    """Pages of two layers with a single head, of which the second layer's is filled, from pages.py's drawing.

    keys, values: [count · p, d] float64, in the order of `table`
    """

    def __init__(self, rng, head_dim, page_tokens, count):
        head_size = head_dim * page_tokens
        page_size = 5 * head_size
        self.table = rng.permutation(count + 2)[:count].astype(np.int32)
        self.memory = np.full((count + 2) * page_size, 0x7FC0, np.uint16)  # not a number wherever nothing is drawn
        bits = bfloat16_bits(rng.normal(size=(2, count, page_tokens, head_dim)))
        slot, channel = np.indices((page_tokens, head_dim))
        key = ((slot // LANES * (head_dim // 2) + channel // 2) * LANES + slot % LANES) * 2 + channel % 2
        value = ((channel // LANES * (page_tokens // 2) + slot // 2) * LANES + channel % LANES) * 2 + slot % 2
        for at, page in enumerate(self.table):
            start = page * page_size + 2 * head_size
            self.memory[start + key], self.memory[start + head_size + value] = bits[:, at]
        wide = (bits.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
        self.keys, self.values = wide.reshape(2, count * page_tokens, head_dim)
        fields = {
            "memory": address(self.memory),
            "page_tokens": page_tokens,
            "head_dim": head_dim,
            "head_size": head_size,
            "layer_size": 2 * head_size,
            "page_size": page_size,
        }
        self.record = record(PAGES, fields)


def words_of(rows):
    """Rows as kernels read them, float32 or pairs of bfloat16 in the first half of each row; what they stand for."""
    rows = rows.astype(np.float32)
    if not HAS_BF16:
        return rows, rows.astype(np.float64)
    words = np.zeros_like(rows)
    words[:, : rows.shape[1] // 2] = bfloat16_bits(rows).view(np.float32)
    return words, as_bfloat16(rows).astype(np.float64)


def assert_products(found, rows, others):
    expected, size = rows @ others.T, np.abs(rows) @ np.abs(others).T
    assert (np.abs(found - expected) <= (rows.shape[1] + 2) * 2.0**-24 * size).all()


@every_shape
@every_count
def test_scores_are_the_products_of_queries_and_keys(head_dim, page_tokens, count, rng):
    count = min(count, SEGMENT // page_tokens)
    pages = DrawnPages(rng, head_dim, page_tokens, count)
    words, queries = words_of(rng.normal(size=(ROWS, head_dim)))
    whole = np.full((ROWS, SEGMENT), 5, np.float32)
    scores_of(pages.record, address(pages.table), count, address(words), ROWS, False, address(whole))
    assert_products(whole[:, : count * page_tokens], queries, pages.keys)
    assert (whole[:, count * page_tokens :] == 5).all(), "only scores of these pages are written"
    for rows in range(1, ROWS + 1):
        few = np.full((ROWS, SEGMENT), 5, np.float32)
        scores_of(pages.record, address(pages.table), count, address(words), rows, True, address(few))
        assert np.array_equal(few[:rows], whole[:rows]) and (few[rows:] == 5).all()


@every_shape
@every_count
def test_values_are_weighed_and_added(head_dim, page_tokens, count, rng):
    count = min(count, SEGMENT // page_tokens)
    pages = DrawnPages(rng, head_dim, page_tokens, count)
    drawn = np.zeros((ROWS, SEGMENT))
    drawn[:, : count * page_tokens] = rng.random((ROWS, count * page_tokens))
    words, weights = words_of(drawn)
    whole = np.full((ROWS, head_dim), 5, np.float32)
    gathered_of(pages.record, address(pages.table), count, address(words), ROWS, False, address(whole))
    assert_products(whole, weights[:, : count * page_tokens], pages.values.T)
    for rows in range(1, ROWS + 1):
        few = np.full((ROWS, head_dim), 5, np.float32)
        gathered_of(pages.record, address(pages.table), count, address(words), rows, True, address(few))
        assert np.array_equal(few[:rows], whole[:rows]) and (few[rows:] == 5).all()
