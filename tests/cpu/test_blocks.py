"""The innermost loops: which of them computes a block makes no difference to a bit of its results.

What they compute is held against float64 in test_linear.py.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numba import njit

from kaishu.cpu import blocks
from kaishu.cpu.layout import MINIMUMS, SCALES, WEIGHTS
from kaishu.cpu.target import current_target
from kaishu.cpu.vector import bytes_at, floats_at, halves_at
from tests.cpu.drawn_weights import KINDS, WHOLE_KINDS, draw_activations, draw_linear, draw_model

LANES, UNTOUCHED = current_target().lanes, np.float32(-777.25)
BLOCK_LOOPS = {"int8": blocks.int8_block, "int4": blocks.int4_block, "int4_minimum": blocks.int4_minimum_block}
PAIR_LOOPS = {"int8": blocks.int8_pair, "int4": blocks.int4_pair, "int4_minimum": blocks.int4_minimum_pair}


def compiled(loop: Any, pair: Any) -> tuple[Any, Any]:
    """The loop over the tokens of one block, and that for two blocks and one token; blocks are three addresses."""

    @njit
    def block_at(addresses):
        return bytes_at(addresses[0]), halves_at(addresses[1]), halves_at(addresses[2])

    @njit
    def alone(addresses, groups, x, tokens, out):
        loop(block_at(addresses), groups, x, 0, tokens, floats_at(out), 0, LANES)

    @njit
    def together(addresses, others, groups, x, token, out, other_out):
        pair(block_at(addresses), block_at(others), groups, x, token, floats_at(out), 0, floats_at(other_out), 0)

    return alone, together


@pytest.mark.parametrize("kind", WHOLE_KINDS)
@pytest.mark.parametrize("inputs", [32, 96, 1024])
def test_two_blocks_of_one_token_have_the_bits_of_each_with_all_tokens(kind, inputs, rng):
    alone, together = compiled(BLOCK_LOOPS[kind], PAIR_LOOPS[kind])
    linear = draw_linear(rng, kind, 6 * LANES, inputs)
    model, x, groups = draw_model(linear), draw_activations(rng.normal(size=(7, inputs))), inputs // 32
    sizes = groups * LANES * (32 if kind == "int8" else 16), groups * LANES * 2, groups * LANES * 2
    columns = WEIGHTS, SCALES, MINIMUMS if kind == "int4_minimum" else SCALES
    starts = [int(model.record["address"]) + int(model.linears[0, column]) for column in columns]
    at = [tuple(start + block * size for start, size in zip(starts, sizes, strict=True)) for block in range(6)]
    record, expected = x.record[()], np.zeros((6, 7, LANES), np.float32)
    for block in range(6):
        alone(at[block], groups, record, 7, expected[block].ctypes.data)
    assert (expected != 0).any(axis=-1).all()
    for first, second in ((0, 5), (3, 1), (2, 2)):
        for token in range(7):
            found = np.full((2, LANES), UNTOUCHED)
            together(at[first], at[second], groups, record, token, *(row.ctypes.data for row in found))
            assert np.array_equal(found, expected[[first, second], token])


@pytest.mark.parametrize("tokens", [1, 2])
@pytest.mark.parametrize("inputs", [32, 160])
def test_four_blocks_of_bfloat16_have_the_bits_of_two_for_a_whole_tile(tokens, inputs, rng):
    few = {1: blocks.one_bf16, 2: blocks.two_bf16}[tokens]

    @njit
    def wide(weights, pairs, x, out):
        blocks.wide_bf16(halves_at(weights), pairs, floats_at(x), 0, WORDS, floats_at(out), 0, 2 * LANES)

    @njit
    def four(weights, others, pairs, x, out, other_out):
        results, other_results = (floats_at(out), 0, 2 * LANES), (floats_at(other_out), 0, 2 * LANES)
        few(halves_at(weights), halves_at(others), pairs, floats_at(x), 0, WORDS, *results, *other_results)

    assert "bf16" in KINDS
    tile, linear = current_target().tokens, draw_linear(rng, "bf16", 8 * LANES, inputs)
    model, x = draw_model(linear), draw_activations(rng.normal(size=(tile, inputs)))
    WORDS = x.words.shape[1]  # of one row
    start = int(model.record["address"]) + int(model.linears[0, WEIGHTS])
    at = [start + twos * 2 * LANES * inputs * 2 for twos in range(4)]
    expected = np.zeros((4, tile, 2 * LANES), np.float32)
    for twos in range(4):
        wide(at[twos], inputs // 2, x.words.ctypes.data, expected[twos].ctypes.data)
    for first, second in ((0, 3), (2, 1), (1, 1)):
        found = np.full((2, tokens, 2 * LANES), UNTOUCHED)
        four(at[first], at[second], inputs // 2, x.words.ctypes.data, *(rows.ctypes.data for rows in found))
        assert np.array_equal(found, expected[[first, second], :tokens])
