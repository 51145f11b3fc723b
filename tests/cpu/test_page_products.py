"""Products with pages: against float64 on the pages' own numbers, and few rows with the bits of a whole tile."""

from __future__ import annotations

import numpy as np
import pytest
from numba import njit

from kaishu.cpu.page_access import scale_scores
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
from kaishu.cpu.records import INT8_PAGES, PAGES, address, record
from kaishu.cpu.target import current_target
from kaishu.cpu.vector import floats_at, int32_at
from tests.cpu.drawn_weights import as_bfloat16, bfloat16_bits, bfloat16_values

LANES, ROWS, HAS_BF16 = current_target().lanes, current_target().query_rows, current_target().has_bf16
every_shape = pytest.mark.parametrize("head_dim, page_tokens", [(32, 32), (96, 32), (128, 64), (128, 256)])
every_kind = pytest.mark.parametrize("kv", ["bf16", "int8"])
every_count = pytest.mark.parametrize("count", [1, 2, 3])


@njit
def scores_of(pages, table, count, queries, rows, is_few, scores):
    """queries, scores: addresses; the head begins in the middle of its page"""
    keys = pages.layer_size
    if in_tiles(pages):
        tiled_scores(pages, int32_at(table), keys, count, floats_at(queries), 0, rows, floats_at(scores), 0)
    elif is_few:
        few_scores(pages, int32_at(table), keys, count, floats_at(queries), 0, rows, floats_at(scores), 0)
    else:
        tile_scores(pages, int32_at(table), keys, count, floats_at(queries), 0, floats_at(scores), 0)


@njit
def gathered_of(pages, table, count, scores, rows, is_few, out):
    values = pages.layer_size + pages.head_size
    if in_tiles(pages):
        tiled_gathered(pages, int32_at(table), values, count, floats_at(scores), 0, rows, floats_at(out), 0)
    elif is_few:
        few_gathered(pages, int32_at(table), values, count, floats_at(scores), 0, rows, floats_at(out), 0)
    else:
        tile_gathered(pages, int32_at(table), values, count, floats_at(scores), 0, floats_at(out), 0)


class DrawnPages:
    """Pages of two layers with a single head, of which the second layer's is filled, from pages.py's drawing.

    keys, values: [count · p, d] float64, in the order of `table`; of int8 the whole numbers
    scales:       [2, count · p] float32, of the keys and of the values, with int8
    """

    def __init__(self, rng, head_dim, page_tokens, count, kv="bf16"):
        head_size = head_dim * page_tokens
        page_size = 5 * head_size
        self.table = rng.permutation(count + 2)[:count].astype(np.int32)
        if kv == "int8":
            self.memory = rng.integers(-127, 128, (count + 2) * page_size).astype(np.int8)
            bits = rng.integers(-127, 128, (2, count, page_tokens, head_dim)).astype(np.int8)
        else:
            self.memory = np.full((count + 2) * page_size, 0x7FC0, np.uint16)  # NaN wherever nothing is drawn
            bits = bfloat16_bits(rng.normal(size=(2, count, page_tokens, head_dim)))
        scales = rng.random((2, count, page_tokens)).astype(np.float32)
        self.scales = scales.reshape(2, -1)
        self.scale_memory = np.full(len(self.memory) // head_dim, np.nan, np.float32)
        slot, channel = np.indices((page_tokens, head_dim))
        key = ((slot // LANES * (head_dim // 2) + channel // 2) * LANES + slot % LANES) * 2 + channel % 2
        value = ((channel // LANES * (page_tokens // 2) + slot // 2) * LANES + channel % LANES) * 2 + slot % 2
        if kv == "int8":
            key = ((slot // LANES * (head_dim // 2) + channel // 2) * 2 + channel % 2) * LANES + slot % LANES
            value = ((channel // LANES * (page_tokens // 2) + slot // 2) * 2 + slot % 2) * LANES + channel % LANES
        for at, page in enumerate(self.table):
            start = page * page_size + 2 * head_size
            for which in range(2):
                own = (start + which * head_size) // head_dim
                self.scale_memory[own : own + page_tokens] = scales[which, at]
            self.memory[start + key], self.memory[start + head_size + value] = bits[:, at]
        wide = bits.astype(np.float64) if kv == "int8" else bfloat16_values(bits).astype(np.float64)
        self.keys, self.values = wide.reshape(2, count * page_tokens, head_dim)
        fields = {
            "memory": address(self.memory),
            "page_tokens": page_tokens,
            "head_dim": head_dim,
            "head_size": head_size,
            "layer_size": 2 * head_size,
            "page_size": page_size,
        }
        if kv == "int8":
            self.record = record(INT8_PAGES, fields | {"scales": address(self.scale_memory)})
        else:
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


@every_kind
@every_shape
@every_count
def test_scores_are_the_products_of_queries_and_keys(kv, head_dim, page_tokens, count, rng):
    count = min(count, SEGMENT // page_tokens)
    pages = DrawnPages(rng, head_dim, page_tokens, count, kv)
    words, queries = words_of(rng.normal(size=(ROWS, head_dim)))
    whole = np.full((ROWS, SEGMENT), 5, np.float32)
    scores_of(pages.record[()], address(pages.table), count, address(words), ROWS, False, address(whole))
    assert_products(whole[:, : count * page_tokens], queries, pages.keys)
    assert (whole[:, count * page_tokens :] == 5).all(), "only scores of these pages are written"
    for rows in range(1, ROWS + 1):
        few = np.full((ROWS, SEGMENT), 5, np.float32)
        scores_of(pages.record[()], address(pages.table), count, address(words), rows, True, address(few))
        assert np.array_equal(few[:rows], whole[:rows]) and (few[rows:] == 5).all()


@every_kind
@every_shape
@every_count
def test_values_are_weighed_and_added(kv, head_dim, page_tokens, count, rng):
    count = min(count, SEGMENT // page_tokens)
    pages = DrawnPages(rng, head_dim, page_tokens, count, kv)
    drawn = np.zeros((ROWS, SEGMENT))
    drawn[:, : count * page_tokens] = rng.random((ROWS, count * page_tokens))
    words, weights = words_of(drawn)
    whole = np.full((ROWS, head_dim), 5, np.float32)
    gathered_of(pages.record[()], address(pages.table), count, address(words), ROWS, False, address(whole))
    assert_products(whole, weights[:, : count * page_tokens], pages.values.T)
    for rows in range(1, ROWS + 1):
        few = np.full((ROWS, head_dim), 5, np.float32)
        gathered_of(pages.record[()], address(pages.table), count, address(words), rows, True, address(few))
        assert np.array_equal(few[:rows], whole[:rows]) and (few[rows:] == 5).all()


@njit
def scaled_of(pages, table, is_values, count, rows, scores):
    place = pages.layer_size + (pages.head_size if is_values else 0)
    scale_scores(pages, int32_at(table), place, count, rows, floats_at(scores), 0)


@every_kind
@pytest.mark.parametrize("which", [0, 1], ids=["keys", "values"])
def test_scores_are_scaled_by_position_where_there_are_scales(kv, which, rng):
    pages = DrawnPages(rng, 64, 32, 3, kv)
    before = rng.normal(size=(ROWS, SEGMENT)).astype(np.float32)
    scores = before.copy()
    scaled_of(pages.record[()], address(pages.table), bool(which), 3, ROWS - 1, address(scores))
    expected = before.copy()
    if kv == "int8":
        expected[: ROWS - 1, :96] *= pages.scales[which]
    assert np.array_equal(scores, expected)
