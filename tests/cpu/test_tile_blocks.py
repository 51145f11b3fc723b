"""In tile registers a block has the same bits for any number of tokens, and of whole numbers those of blocks.py.

What they compute is held against float64 in test_linear.py. Nothing here runs on a CPU without such registers; what is
generated for those that have them is looked at in test_target.py.
"""

from __future__ import annotations

import numpy as np
import pytest
from numba import njit

from kaishu.cpu import blocks, tile_blocks
from kaishu.cpu.layout import INT4, INT4_MINIMUM, INT8, MINIMUMS, SCALES, WEIGHTS
from kaishu.cpu.target import current_target
from kaishu.cpu.tiles import TILE, release_tiles, shape_byte_tiles, shape_tiles
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
def wide(weights, pairs, x, width, out):
    shape_tiles(np.int64(TILE))
    tile_blocks.wide_tiles(halves_at(weights), pairs, floats_at(x), 0, width, floats_at(out), 0, 2 * LANES)
    release_tiles()


@njit
def few(tokens, weights, others, pairs, x, width, out, other_out):
    shape_tiles(np.int64(tokens))
    results, other_results = (floats_at(out), 0, LANES), (floats_at(other_out), 0, LANES)
    tile_blocks.few_tiles(
        halves_at(weights), halves_at(others), pairs, floats_at(x), 0, width, *results, *other_results
    )
    release_tiles()


if current_target().has_tiles:

    @pytest.mark.parametrize("kind", KINDS)
    @pytest.mark.parametrize("inputs", [32, 96, 1056, 2080])
    def test_whole_numbers_have_the_bits_of_the_other_loops(kind, inputs, rng):
        number, loop = KINDS[kind]

        @njit
        def in_tiles(addresses, groups, x, out):
            shape_byte_tiles(np.int64(TILE))
            tile_blocks.byte_tiles(number, block_at(addresses), groups, x, 1, 33, floats_at(out), 3, LANES + 5)
            release_tiles()

        @njit
        def elsewhere(addresses, groups, x, out):
            loop(block_at(addresses), groups, x, 1, 33, floats_at(out), 3, LANES + 5)

        linear = draw_linear(rng, kind, 2 * LANES, inputs)
        model, x = draw_model(linear), draw_activations(rng.normal(size=(34, inputs)))
        columns = WEIGHTS, SCALES, MINIMUMS if kind == "int4_minimum" else SCALES
        at = tuple(int(model.record["address"]) + int(model.linears[0, column]) for column in columns)
        found, expected = np.full((2, 34, LANES + 5), UNTOUCHED)
        in_tiles(at, inputs // 32, x.record[()], found.ctypes.data)
        elsewhere(at, inputs // 32, x.record[()], expected.ctypes.data)
        assert np.array_equal(found, expected) and (found[1:33, 3 : 3 + LANES] != UNTOUCHED).all()

    @pytest.mark.parametrize("inputs", [32, 160])
    def test_bfloat16_has_the_same_bits_for_any_number_of_tokens(inputs, rng):
        linear = draw_linear(rng, "bf16", 2 * LANES, inputs)
        model, x = draw_model(linear), draw_activations(rng.normal(size=(32, inputs)))
        start = int(model.record["address"]) + int(model.linears[0, WEIGHTS])
        width = x.words.shape[1]
        expected = np.zeros((32, 2 * LANES), np.float32)
        wide(start, inputs // 2, x.words.ctypes.data, width, expected.ctypes.data)
        assert (expected != 0).all()
        for tokens in range(1, TILE + 1):
            found = np.full((2, TILE, LANES), UNTOUCHED)
            second = start + LANES * inputs * 2
            few(tokens, start, second, inputs // 2, x.words.ctypes.data, width, *(rows.ctypes.data for rows in found))
            assert np.array_equal(np.concatenate(found[:, :tokens], axis=1), expected[:tokens])
            assert (found[:, tokens:] == UNTOUCHED).all()


def test_a_tile_has_as_many_rows_of_weights_as_a_block():
    assert not current_target().has_tiles or LANES == TILE
