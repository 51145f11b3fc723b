"""In tile registers a block has the same bits for any number of tokens, and of whole numbers those of blocks.py.

What they compute is held against float64 in test_linear.py. Nothing here runs on a CPU without such registers; what is
generated for those that have them is looked at in test_target.py.
"""

from __future__ import annotations

import numpy as np
import pytest
from numba import njit

from kaishu.cpu import blocks, tile_blocks
from kaishu.cpu.activations import row_place
from kaishu.cpu.layout import INT4, INT4_MINIMUM, INT8, MINIMUMS, SCALES, WEIGHTS
from kaishu.cpu.target import TILE, current_target
from kaishu.cpu.tiles import release_tiles, shape_byte_tiles, shape_tiles
from kaishu.cpu.vector import bytes_at, floats_at, halves_at
from tests.cpu.drawn_weights import draw_activations, draw_linear, draw_model

LANES, UNTOUCHED = current_target().lanes, np.float32(-777.25)
KINDS = {
    "int8": (INT8, blocks.int8_block),
    "int4": (INT4, blocks.int4_block),
    "int4_minimum": (INT4_MINIMUM, blocks.int4_minimum_block),
}


@njit
def block_at(addresses):
    return bytes_at(addresses[0]), halves_at(addresses[1]), halves_at(addresses[2])


@njit
def wide(weights, pairs, x, out):
    shape_tiles(np.int64(TILE))
    tile_blocks.wide_tiles(halves_at(weights), pairs, x, row_place(x, 0), floats_at(out), 0, 2 * LANES)
    release_tiles()


@njit
def few(first, tokens, weights, others, pairs, x, out, other_out):
    shape_tiles(np.int64(tokens))
    results, other_results = (floats_at(out), 0, LANES), (floats_at(other_out), 0, LANES)
    tiles, place = halves_at(x.tiles), row_place(x, first)
    tile_blocks.few_tiles(halves_at(weights), halves_at(others), pairs, tiles, place, *results, *other_results)
    release_tiles()


if current_target().has_tiles:

    @pytest.mark.parametrize("kind", KINDS)
    @pytest.mark.parametrize("inputs", [32, 96, 1056, 2080])
    def test_whole_numbers_have_the_bits_of_the_other_loops(kind, inputs, rng):
        number, loop = KINDS[kind]

        @njit
        def in_tiles(addresses, groups, x, start, stop, out):
            shape_byte_tiles(np.int64(TILE))
            tile_blocks.byte_tiles(number, block_at(addresses), groups, x, start, stop, floats_at(out), 3, LANES + 5)
            release_tiles()

        @njit
        def elsewhere(addresses, groups, x, out):
            for tile in range(0, 34, TILE):  # whose rows are the same distance apart
                loop(block_at(addresses), groups, x, tile, min(34, tile + TILE), floats_at(out), 3, LANES + 5)

        linear = draw_linear(rng, kind, 2 * LANES, inputs)
        model, x = draw_model(linear), draw_activations(rng.normal(size=(34, inputs)))
        columns = WEIGHTS, SCALES, MINIMUMS if kind == "int4_minimum" else SCALES
        at = tuple(int(model.record["address"]) + int(model.linears[0, column]) for column in columns)
        expected = np.full((34, LANES + 5), UNTOUCHED)
        elsewhere(at, inputs // 32, x.record[()], expected.ctypes.data)
        assert (expected[:, 3 : 3 + LANES] != UNTOUCHED).all()
        for start, stop in [(0, 16), (0, 32), (1, 33), (0, 34), (16, 17), (3, 9), (5, 16), (14, 18), (31, 34)]:
            found = np.full((34, LANES + 5), UNTOUCHED)
            in_tiles(at, inputs // 32, x.record[()], start, stop, found.ctypes.data)
            assert np.array_equal(found[start:stop], expected[start:stop])
            assert (np.delete(found, np.s_[start:stop], axis=0) == UNTOUCHED).all()

    @pytest.mark.parametrize("inputs", [32, 160])
    def test_bfloat16_has_the_same_bits_for_any_number_of_tokens(inputs, rng):
        linear = draw_linear(rng, "bf16", 2 * LANES, inputs)
        model, x = draw_model(linear), draw_activations(rng.normal(size=(32, inputs)))
        start = int(model.record["address"]) + int(model.linears[0, WEIGHTS])
        record, expected = x.record[()], np.zeros((32, 2 * LANES), np.float32)
        wide(start, inputs // 2, record, expected.ctypes.data)
        assert (expected != 0).all()
        for first, tokens in [*((0, count) for count in range(1, TILE + 1)), (3, 13), (15, 1), (16, 16), (21, 2)]:
            found = np.full((2, TILE, LANES), UNTOUCHED)
            second = start + LANES * inputs * 2
            few(first, tokens, start, second, inputs // 2, record, *(rows.ctypes.data for rows in found))
            assert np.array_equal(np.concatenate(found[:, :tokens], axis=1), expected[first : first + tokens])
            assert (found[:, tokens:] == UNTOUCHED).all()


def test_a_tile_has_as_many_rows_of_weights_as_a_block():
    assert not current_target().has_tiles or LANES == TILE
