"""Every vector instruction against its definition for single numbers."""

from __future__ import annotations

import numpy as np
import pytest
from numba import njit

from kaishu.cpu.target import current_target
from kaishu.cpu.vector import (
    at_least,
    at_most,
    bytes_at,
    floats_at,
    fma,
    halves_at,
    int8_at,
    int32_at,
    int64_at,
    keep_between,
    lanes,
    larger_magnitude,
    largest_magnitude,
    load,
    load_bfloat16,
    load_half,
    magnitude,
    max_lanes,
    moved,
    pointer,
    prefetch,
    round_even,
    splat,
    store,
    store_int8,
    sum_lanes,
    words_at,
)
from tests.cpu.rounding import fused, multiplied_added

LANES = current_target().lanes
SPECIAL = np.array([0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 3e38, -3e38, 1e-45, 1e-38], np.float32)


@njit
def every_arithmetic(a, b, c, out):
    """out: [10, n]"""
    p, q, r, target = pointer(a), pointer(b), pointer(c), pointer(out)
    n = a.shape[0]
    for i in range(0, n, lanes()):
        x, y, z = load(p, i), load(q, i), load(r, i)
        store(target, i, x + y)
        store(target, n + i, x - y)
        store(target, 2 * n + i, x * y)
        store(target, 3 * n + i, x / y)
        store(target, 4 * n + i, fma(x, y, z))
        store(target, 5 * n + i, larger_magnitude(magnitude(x), magnitude(y)))
        store(target, 6 * n + i, at_least(x, y))
        store(target, 7 * n + i, magnitude(x))
        store(target, 8 * n + i, round_even(x))
        store(target, 9 * n + i, at_most(x, y))


@njit
def widened(bits, halves, bfloats):
    for i in range(0, bits.shape[0], lanes()):
        store(pointer(halves), i, load_half(pointer(bits), i))
        store(pointer(bfloats), i, load_bfloat16(pointer(bits), i))


@njit
def folded(x, out):
    """out: [3]"""
    out[0], out[1] = sum_lanes(load(pointer(x), 0)), max_lanes(load(pointer(x), 0))
    out[2] = largest_magnitude(magnitude(load(pointer(x), 0)))


@njit
def kept_between(x, first, low, high, otherwise, out):
    store(pointer(out), 0, keep_between(load(pointer(x), 0), first, low, high, otherwise))


@njit
def stored_int8(x, start, out):
    store_int8(pointer(out), start, load(pointer(x), 0))


@njit
def splatted_from(x, place, amount, out):
    """Through a moved pointer; a prefetch beyond the end on the way, which must do nothing."""
    source = moved(pointer(x), place)
    prefetch(source, 1 << 40)
    store(pointer(out), amount, splat(source[0]))


@njit
def numbers_at(address):
    return (
        bytes_at(address)[1],
        int8_at(address)[1],
        halves_at(address)[1],
        words_at(address)[1],
        int32_at(address)[1],
        int64_at(address)[1],
        floats_at(address)[1],
    )


def same_bits(found, expected) -> bool:
    """Equal including the sign of zero; any NaN equals any other."""
    return np.array_equal(found, expected, equal_nan=True) and np.array_equal(
        np.signbit(found)[~np.isnan(found)], np.signbit(expected)[~np.isnan(expected)]
    )


def arithmetic(a, b, c):
    out = np.empty((10, len(a)), np.float32)
    every_arithmetic(a, b, c, out)
    return dict(zip(("+", "-", "*", "/", "fma", "max", "at least", "abs", "round", "at most"), out, strict=True))


def pairs_of_numbers(rng):
    """Every pair of special numbers, and random ones of many sizes."""
    x, y = (grid.ravel() for grid in np.meshgrid(SPECIAL, SPECIAL))
    random = (rng.normal(size=(3, 5000)) * 10.0 ** rng.integers(-12, 12, (3, 5000))).astype(np.float32)
    length = (len(x) + 5000) // LANES * LANES
    a, b = np.concatenate([x, random[0]])[:length], np.concatenate([y, random[1]])[:length]
    return a, b, np.resize(np.concatenate([random[2], random[2] / 7]), length)


def test_arithmetic_of_lanes_is_that_of_float32(rng):
    a, b, c = pairs_of_numbers(rng)
    found = arithmetic(a, b, c)
    with np.errstate(all="ignore"):
        for name, expected in {"+": a + b, "-": a - b, "*": a * b, "/": a / b, "abs": np.abs(a)}.items():
            assert same_bits(found[name], expected), name


def test_the_larger_magnitude_lets_no_nan_disappear(rng):
    a, b, c = pairs_of_numbers(rng)
    found = arithmetic(a, b, c)["max"]
    has_nan = np.isnan(a) | np.isnan(b)
    assert has_nan.sum() > 20
    assert np.array_equal(np.isnan(found), has_nan)
    assert same_bits(found, np.maximum(np.abs(a), np.abs(b)))  # numpy's propagates, too


def test_a_bound_that_is_no_number_is_none_and_a_value_that_is_no_number_stays(rng):
    a, b, c = pairs_of_numbers(rng)
    found = arithmetic(a, b, c)
    assert (np.isnan(a) & ~np.isnan(b)).sum() > 5 and (~np.isnan(a) & np.isnan(b)).sum() > 5
    assert same_bits(found["at least"], np.where(b > a, b, a))
    assert same_bits(found["at most"], np.where(b < a, b, a))


def test_a_product_and_sum_is_rounded_once_where_the_cpu_can(rng):
    a, b, _ = (rng.normal(size=LANES * 500).astype(np.float32) for _ in range(3))
    c = -(a * b) * (1 + rng.normal(size=a.shape) * 1e-6)  # nearly cancels the product: here one rounding shows
    c = c.astype(np.float32)
    found = arithmetic(a, b, c)["fma"]
    assert same_bits(found, multiplied_added(a, b, c))
    assert not same_bits(fused(a, b, c), a * b + c), "the numbers tell one rounding from two"


def test_rounding_goes_to_the_nearest_even():
    x = np.resize(
        np.array([0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 126.5, 127.49, -0.49, 1e9, 3e38, -3.5], np.float32), 12 * LANES
    )
    assert same_bits(arithmetic(x, x, x)["round"], np.rint(x))


def test_all_finite_halves_and_all_bfloat16_are_widened_exactly():
    bits = np.arange(1 << 16, dtype=np.uint32).astype(np.uint16)
    halves, bfloats = np.empty((2, 1 << 16), np.float32)
    widened(bits, halves, bfloats)
    expected = bits.view(np.float16).astype(np.float32)
    finite = np.isfinite(expected)
    assert finite.sum() == 2 * 31 * 1024
    assert same_bits(halves[finite], expected[finite])
    assert np.array_equal(bfloats.view(np.uint32), bits.astype(np.uint32) << 16)


def test_lanes_are_folded_half_onto_half(rng):
    """The stated tree: lane i with lane i + half, again and again. Checked where another order gives another sum."""
    orders_differ = False
    for _ in range(200):
        x = (rng.normal(size=LANES) * 10.0 ** rng.integers(-4, 4, LANES)).astype(np.float32)
        tree = x
        while len(tree) > 1:
            half = len(tree) // 2
            tree = tree[:half] + tree[half:]
        out = np.empty(3, np.float32)
        folded(x, out)
        assert out[0] == tree[0] and out[1] == x.max() and out[2] == np.abs(x).max()
        orders_differ |= out[0] != np.cumsum(x)[-1]
    assert orders_differ


@pytest.mark.parametrize("lane", range(LANES))
def test_a_nan_in_any_lane_is_the_sum_and_the_maximum(lane):
    x, out = np.ones(LANES, np.float32), np.empty(3, np.float32)
    x[lane] = np.nan
    folded(x, out)
    assert np.isnan(out).all()


@pytest.mark.parametrize("first", [0, 5, -3, 1 << 33])
def test_lanes_are_kept_between_two_places(first, rng):
    x, out = rng.normal(size=LANES).astype(np.float32), np.empty(LANES, np.float32)
    x[2] = np.nan
    for low in range(first - 2, first + LANES + 2):
        for high in range(low - 1, first + LANES + 2):
            kept_between(x, first, low, high, np.float32(-7.5), out)
            place = first + np.arange(LANES)
            assert same_bits(out, np.where((low <= place) & (place < high), x, np.float32(-7.5)))


def test_int8_are_stored_where_they_belong_and_nowhere_else():
    whole = np.resize(np.array([-128, 127, 0, -1, 1, -127, 64, 5], np.float32), LANES)
    out = np.full(3 * LANES, 99, np.int8)
    stored_int8(whole, 3, out)
    assert np.array_equal(out[3 : 3 + LANES], whole.astype(np.int8))
    assert (np.delete(out, np.arange(3, 3 + LANES)) == 99).all()


def test_a_splat_through_a_moved_pointer():
    x, out = np.arange(10, dtype=np.float32), np.zeros(2 * LANES + 1, np.float32)
    splatted_from(x, 7, 1, out)
    assert np.array_equal(out, [0] + [7] * LANES + [0] * LANES)


def test_pointers_from_addresses_read_their_own_type():
    memory = np.arange(160, 176, dtype=np.uint8)
    kinds = (np.uint8, np.int8, np.uint16, np.uint32, np.int32, np.int64, np.float32)
    found = numbers_at(memory.ctypes.data)
    assert [np.array(value, kind) for value, kind in zip(found, kinds, strict=True)] == [
        memory.view(kind)[1] for kind in kinds
    ]
