"""The exponential against numpy's in float64, and beyond its range."""

from __future__ import annotations

import numpy as np
from numba import njit

from kaishu.cpu.exponential import exponential
from kaishu.cpu.target import current_target
from kaishu.cpu.vector import lanes, load, pointer, store
from tests.cpu.rounding import ulps

LANES = current_target().lanes


@njit
def exponentials(x, out):
    for i in range(0, x.shape[0], lanes()):
        store(pointer(out), i, exponential(load(pointer(x), i)))


def exponential_of(x):
    padded = np.resize(x, -(-len(x) // LANES) * LANES).astype(np.float32)
    out = np.empty_like(padded)
    exponentials(padded, out)
    return out[: len(x)]


def test_the_exponential_is_within_two_units_in_the_last_place_over_its_range(rng):
    x = np.concatenate([np.linspace(-87, 88, 400_001), np.linspace(-1, 1, 100_001), rng.normal(size=100_000) * 1e-4])
    x = x.astype(np.float32)
    errors = ulps(exponential_of(x), np.exp(x.astype(np.float64)))
    assert errors.max() < 2.0 and errors.mean() < 0.5
    assert exponential_of(np.zeros(LANES, np.float32))[0] == 1.0


def test_the_exponential_stays_finite_beyond_its_range_and_nan_stays_nan():
    beyond = exponential_of(np.array([-87.0, -88.0, -1e30, -np.inf, 88.0, 89.0, 1e30, np.inf], np.float32))
    assert (beyond[:4] == beyond[0]).all() and 0 < beyond[0] < 2e-38
    assert (beyond[4:] == beyond[4]).all() and 1.6e38 < beyond[4] < np.inf
    with_nan = exponential_of(np.array([1.0, np.nan, 2.0, -np.nan] * LANES, np.float32))
    assert np.array_equal(np.isnan(with_nan), [False, True, False, True] * LANES)
