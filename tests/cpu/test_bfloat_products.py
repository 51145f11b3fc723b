"""Products of bfloat16 are rounded as stated, and whole numbers among them are exact."""

from __future__ import annotations

import numpy as np
import pytest
from numba import njit

from kaishu.cpu.bfloat_products import multiply_pairs, pair_words
from kaishu.cpu.products import WIDE, store_tile, zero_tile
from kaishu.cpu.target import current_target
from kaishu.cpu.vector import lanes, load_pairs, pointer
from tests.cpu.drawn_weights import as_bfloat16, bfloat16_bits, bfloat16_values
from tests.cpu.rounding import multiplied_added

TARGET = current_target()
LANES, TOKENS = TARGET.lanes, TARGET.tokens


@njit
def pairs_multiplied(weights, pairs, x, stride, out):
    tile = zero_tile(WIDE)
    for pair in range(pairs):
        place = 1 + pair * pair_words()
        tile = multiply_pairs(tile, load_pairs(pointer(weights), pair * 2 * lanes()), pointer(x), place, stride)
    store_tile(pointer(out), 0, lanes(), tile)


@njit
def words_of_a_pair():
    return pair_words()


def words_of(x):
    """[tokens, K] as the kernels find them, one word further on. return: the words, and a row's length"""
    if TARGET.has_bf16:
        x = np.ascontiguousarray(bfloat16_bits(x)).view(np.float32)
    return np.concatenate([[np.float32(1e30)], x.ravel()]), x.shape[1]


def multiplied(bits, x):
    """bits: [K, lanes] of bfloat16"""
    inputs = len(bits)
    packed = np.ascontiguousarray(bits.reshape(inputs // 2, 2, LANES).transpose(0, 2, 1)).ravel()
    words, stride = words_of(x)
    out = np.empty((TOKENS, LANES), np.float32)
    pairs_multiplied(packed, inputs // 2, words, stride, out)
    return out


def test_whole_numbers_in_bfloat16_are_multiplied_exactly(rng):
    weights, x = rng.integers(-100, 101, (64, LANES)), rng.integers(-100, 101, (TOKENS, 64))
    found = multiplied(bfloat16_bits(weights), x.astype(np.float32))
    assert np.array_equal(found, x @ weights)


def test_pairs_are_multiplied_in_order_with_one_rounding_each(rng):
    """Where a BF16 instruction does it, its own roundings are unlike any other's: then it is only held to float64."""
    bits, x = bfloat16_bits(rng.normal(size=(96, LANES))), as_bfloat16(rng.normal(size=(TOKENS, 96)))
    weights, found = bfloat16_values(bits), multiplied(bits, x)
    terms = x.astype(np.float64)[:, :, None] * weights
    assert (np.abs(found - terms.sum(1)) <= 97 * 2.0**-24 * np.abs(terms).sum(1)).all()
    if not TARGET.has_bf16:
        total = np.zeros((TOKENS, LANES), np.float32)
        for k in range(96):
            total = multiplied_added(*np.broadcast_arrays(x[:, k, None], weights[k], total))
        assert np.array_equal(found, total)


@pytest.mark.parametrize("token", range(TOKENS))
def test_a_nan_stays_with_its_token(token, rng):
    x = np.ones((TOKENS, 32), np.float32)
    x[token, 5] = np.nan
    found = multiplied(bfloat16_bits(np.ones((32, LANES))), x)
    assert np.array_equal(np.isnan(found).all(1), np.arange(TOKENS) == token)
    assert np.array_equal(np.isnan(found).any(1), np.arange(TOKENS) == token)


def test_a_pair_of_activations_is_one_word_where_there_are_instructions_for_it():
    assert words_of_a_pair() == (1 if TARGET.has_bf16 else 2)
