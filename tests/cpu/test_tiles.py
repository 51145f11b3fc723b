"""Tile registers do what Intel's manual says, bit by bit.

Nothing here runs on a CPU without them, but for the last test; what is generated for those that have them is looked at
in test_target.py.
"""

from __future__ import annotations

import numpy as np
import pytest
from numba import njit

from kaishu.cpu.target import TILE, current_target
from kaishu.cpu.tiles import (
    has_tiles,
    load_tile,
    multiply_byte_tiles,
    multiply_tiles,
    release_tiles,
    shape_byte_tiles,
    shape_tiles,
    store_sums,
    zero_sums,
)
from kaishu.cpu.vector import pointer
from tests.cpu.drawn_weights import bfloat16_bits, bfloat16_values


@njit
def bfloats_multiplied(tokens, turns, x, weights, out):
    """x: [16, 32 · turns], weights: [16 · turns, 16, 2], bits of bfloat16; out: [16, 16] float32"""
    shape_tiles(np.int64(tokens))
    zero_sums(2)
    for turn in range(turns):
        load_tile(5, pointer(x), turn * 32, turns * 32)
        load_tile(6, pointer(weights), turn * 512, 32)
        multiply_tiles(2, 5, 6)
    store_sums(2, pointer(out), 0, 16)
    release_tiles()


@njit
def bytes_multiplied(tokens, x, weights, out):
    """x: [16, 32], weights: [8, 16, 4] int8; out: [16, 16] int32"""
    shape_byte_tiles(np.int64(tokens))
    zero_sums(1)
    load_tile(4, pointer(x), 0, 32)
    load_tile(7, pointer(weights), 0, 64)
    multiply_byte_tiles(1, 4, 7)
    store_sums(1, pointer(out), 0, 16)
    release_tiles()


@njit
def are_there():
    return has_tiles()


def as_the_manual_says(x, weights):
    """TDPBF16PS: x [16, K], weights [K, 16], of bfloat16 values. Their products are exact in float32."""
    sums = np.zeros((TILE, TILE), np.float32)
    for start in range(0, len(weights), 32):
        halves = np.zeros((2, TILE, TILE), np.float32)
        for k in range(start, start + 32):
            halves[k % 2] += x[:, k, None] * weights[k]
        sums += halves[0] + halves[1]
    return sums


if current_target().has_tiles:

    @pytest.mark.parametrize("tokens", [1, 2, 15, 16])
    @pytest.mark.parametrize("turns", [1, 5])
    def test_bfloat16_is_added_as_the_manual_says(tokens, turns, rng):
        x, weights = (bfloat16_bits(rng.normal(size=shape)) for shape in ((TILE, 32 * turns), (32 * turns, TILE)))
        out = np.full((TILE, TILE), 5, np.float32)
        packed = np.ascontiguousarray(weights.reshape(-1, 2, TILE).transpose(0, 2, 1))
        bfloats_multiplied(tokens, turns, x.ravel(), packed.ravel(), out.ravel())
        expected = as_the_manual_says(bfloat16_values(x), bfloat16_values(weights))
        assert np.array_equal(out[:tokens], expected[:tokens]) and (out[tokens:] == 5).all()

    @pytest.mark.parametrize("tokens", [1, 7, 16])
    def test_bytes_are_added_exactly(tokens, rng):
        x, weights = rng.integers(-127, 128, (TILE, 32)), rng.integers(-128, 128, (32, TILE))
        out = np.full((TILE, TILE), 5, np.int32)
        packed = np.ascontiguousarray(weights.reshape(8, 4, TILE).transpose(0, 2, 1)).astype(np.int8)
        bytes_multiplied(tokens, x.astype(np.int8).ravel(), packed.ravel(), out.ravel())
        assert np.array_equal(out[:tokens], (x @ weights)[:tokens]) and (out[tokens:] == 5).all()


def test_compiled_code_knows_whether_there_are_tile_registers():
    assert are_there() == current_target().has_tiles
