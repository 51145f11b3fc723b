"""Products of whole numbers are exact at their extremes, and sums are rounded as stated."""

from __future__ import annotations

import numpy as np
import pytest
from numba import njit

from kaishu.cpu.products import (
    WIDE,
    add_byte_group,
    add_minimum,
    add_nibble_group,
    dot_bytes,
    dot_nibbles,
    high_nibbles,
    low_nibbles,
    shifted_nibble_sums,
    store_tile,
    wide_tokens,
    zero_byte_sums,
    zero_nibble_sums,
    zero_tile,
)
from kaishu.cpu.target import current_target
from kaishu.cpu.vector import lanes, load, load_bytes, pointer
from tests.cpu.drawn_weights import nibble_shifts
from tests.cpu.rounding import multiplied_added

TARGET = current_target()
LANES, TOKENS = TARGET.lanes, TARGET.tokens
STRIDE = 37  # bytes between two tokens' activations, not a multiple of anything


@njit
def nibble_group(packed, whole, scales, x_scales, x_sums, x_shifts, plain, centred):
    """Both ways to add one group of 32; plain and centred: [tokens, lanes + 1]."""
    plain_sums, centred_sums = zero_nibble_sums(WIDE), shifted_nibble_sums(WIDE, pointer(x_shifts), 1, 2)
    for part in range(4):
        bytes_ = load_bytes(pointer(packed), part * 4 * lanes())
        low, high = low_nibbles(bytes_), high_nibbles(bytes_)
        plain_sums = dot_nibbles(plain_sums, low, pointer(whole), 3 + part * 4, 37)
        plain_sums = dot_nibbles(plain_sums, high, pointer(whole), 3 + part * 4 + 16, 37)
        centred_sums = dot_nibbles(centred_sums, low, pointer(whole), 3 + part * 4, 37)
        centred_sums = dot_nibbles(centred_sums, high, pointer(whole), 3 + part * 4 + 16, 37)
    scale, tile = load(pointer(scales), 0), zero_tile(WIDE)
    added = add_nibble_group(tile, plain_sums, scale, pointer(x_scales), pointer(x_sums), 1, 2)
    store_tile(pointer(plain), 0, lanes() + 1, added)
    added = add_nibble_group(tile, centred_sums, scale, pointer(x_scales), pointer(x_sums), 1, 2)
    store_tile(pointer(centred), 0, lanes() + 1, added)


@njit
def byte_group(packed, whole, scales, x_scales, x_sums, start, out):
    """out: [tokens, lanes], which is added to `start`'s product with one: twice the group."""
    sums = zero_byte_sums(WIDE)
    for part in range(8):
        sums = dot_bytes(sums, load_bytes(pointer(packed), part * 4 * lanes()), pointer(whole), 3 + part * 4, 37)
    scale = load(pointer(scales), 0)
    tile = add_byte_group(zero_tile(WIDE), sums, scale, pointer(x_scales), pointer(x_sums), 1, 2)
    tile = add_byte_group(tile, sums, load(pointer(start), 0), pointer(x_scales), pointer(x_sums), 1, 2)
    store_tile(pointer(out), 0, lanes(), tile)


@njit
def minimum_added(minimums, x_scales, x_sums, out):
    """Twice, so that the second time something is there already."""
    smallest = load(pointer(minimums), 0)
    tile = add_minimum(zero_tile(WIDE), smallest, pointer(x_scales), pointer(x_sums), 1, 2)
    tile = add_minimum(tile, load(pointer(minimums), lanes()), pointer(x_scales), pointer(x_sums), 0, 2)
    store_tile(pointer(out), 0, lanes(), tile)


@njit
def sizes_of_tiles():
    return len(zero_tile(WIDE)), len(zero_tile(2)), len(zero_tile(1)), wide_tokens()


def activations(rng, draw):
    """Tokens' groups of 32 int8 as the kernels find them. return: [tokens, 32], the bytes, eight times the sums"""
    x = draw(rng, (TOKENS, 32))
    memory = np.full(3 + TOKENS * STRIDE, 111, np.int8)
    for token in range(TOKENS):
        memory[3 + token * STRIDE : 3 + token * STRIDE + 32] = x[token]
    sums = np.full(2 * TOKENS + 1, 99_999, np.int32)
    sums[1::2] = 8 * x.sum(-1)
    return x.astype(np.int64), memory, sums


ACTIVATIONS = {
    "largest": lambda rng, shape: np.full(shape, 127),
    "smallest": lambda rng, shape: np.full(shape, -127),
    "of both ends": lambda rng, shape: rng.choice([-127, 127], shape),
    "alternating": lambda rng, shape: np.resize([127, -127], shape),
    "zero": lambda rng, shape: np.zeros(shape, int),
    "random": lambda rng, shape: rng.integers(-127, 128, shape),
}
every_activation = pytest.mark.parametrize("draw", ACTIVATIONS.values(), ids=ACTIVATIONS)


def in_lanes(weights):
    """[lanes, 32] to the order of bytes in memory: [8, lanes, 4]."""
    return weights.reshape(LANES, 8, 4).transpose(1, 0, 2)


def signs_of(rng, whole_activations):
    """One sign for each weight, as the first token's activations have it: then all products add up."""
    return np.sign(whole_activations[0]).repeat(LANES).reshape(32, LANES).T


@every_activation
@pytest.mark.parametrize("values", [[15], [0], [0, 15], [1, 14], range(16)], ids=str)
def test_products_of_4_bit_weights_are_exact(values, draw, rng):
    x, memory, sums = activations(rng, draw)
    weights = rng.choice(values, (LANES, 32))
    first, last = in_lanes(weights)[:4], in_lanes(weights)[4:]  # inputs 0 to 15 and 16 to 31
    packed = (first | last << 4).astype(np.uint8).ravel()
    ones, plain, centred = np.ones(2 * TOKENS + LANES, np.float32), *np.full((2, TOKENS, LANES + 1), 5, np.float32)
    shifts = np.full(2 * TOKENS + 1, 99_999, np.int32)
    shifts[1::2] = nibble_shifts(x.astype(np.int8))
    nibble_group(packed, memory, ones, ones, sums, shifts, plain, centred)
    assert np.array_equal(plain[:, :LANES], x @ weights.T)
    assert np.array_equal(centred[:, :LANES], x @ (weights - 8).T)
    assert (plain[:, LANES] == 5).all(), "nothing is written between two tokens' results"


@every_activation
@pytest.mark.parametrize("values", [[127], [-128], [-128, 127], [-127, 127], [0, 1, -1], range(-128, 128)], ids=str)
def test_products_of_8_bit_weights_are_exact(values, draw, rng):
    x, memory, sums = activations(rng, draw)
    weights = rng.choice(values, (LANES, 32))
    for chosen in (weights, np.where(signs_of(rng, x) > 0, max(values), min(values))):
        packed = in_lanes(chosen).astype(np.int8).view(np.uint8).ravel()
        ones, out = np.ones(2 * TOKENS + LANES, np.float32), np.empty((TOKENS, LANES), np.float32)
        byte_group(packed, memory, ones, ones, sums, np.zeros(LANES, np.float32), out)
        assert np.array_equal(out, x @ chosen.T)


def test_the_int16_sums_of_avx2_would_overflow_with_one_more_pair():
    """The claim that products.py rests on: two products in each half of a lane, eight times, stay below 2**15."""
    assert 8 * 2 * 15 * 127 < 1 << 15 <= 9 * 2 * 15 * 127
    assert 2 * 128 * 127 < 1 << 15  # two products of 8-bit weights, before they are widened


def test_a_group_is_scaled_and_added_with_the_stated_roundings(rng):
    x, memory, sums = activations(rng, ACTIVATIONS["random"])
    weights = rng.integers(-128, 128, (LANES, 32))
    packed = in_lanes(weights).astype(np.int8).view(np.uint8).ravel()
    scales, start = rng.normal(size=(2, LANES)).astype(np.float32)
    x_scales = rng.normal(size=2 * TOKENS + 1).astype(np.float32)
    out = np.empty((TOKENS, LANES), np.float32)
    byte_group(packed, memory, scales, x_scales, sums, start, out)
    whole, own = (x @ weights.T).astype(np.float32), x_scales[1::2, None]
    once = multiplied_added(whole, scales * own, np.zeros((TOKENS, LANES), np.float32))
    assert np.array_equal(out, multiplied_added(whole, start * own, once))


def test_a_minimum_adds_itself_times_the_sum_of_the_activations(rng):
    minimums, x_scales = (
        rng.normal(size=2 * LANES).astype(np.float32),
        rng.normal(size=2 * TOKENS + 1).astype(np.float32),
    )
    whole_sums = rng.integers(-32 * 127, 32 * 127 + 1, 2 * TOKENS + 1).astype(np.int32)
    out = np.empty((TOKENS, LANES), np.float32)
    minimum_added(minimums, x_scales, 8 * whole_sums, out)
    factors = x_scales * whole_sums.astype(np.float32)  # one rounding
    once = multiplied_added(minimums[:LANES], factors[1::2, None], np.zeros((TOKENS, LANES), np.float32))
    assert np.array_equal(out, multiplied_added(minimums[LANES:], factors[0:-1:2, None], once))


def test_a_tile_has_as_many_tokens_as_the_target_says():
    assert sizes_of_tiles() == (TOKENS, 2, 1, TOKENS)
