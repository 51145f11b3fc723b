"""Conversions by bits against torch's bfloat16 and numpy's float16: every value there is, and every tie."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numba import njit

from kaishu.cpu.scalars import bfloat_bits, bfloat_value, half_bits, half_value

EVERY = np.arange(1 << 16, dtype=np.uint32).astype(np.uint16)


@njit
def narrowed(values, bfloats, halves):
    for i in range(values.shape[0]):
        bfloats[i], halves[i] = bfloat_bits(values[i]), half_bits(values[i])


@njit
def widened(bits, bfloats, halves):
    for i in range(bits.shape[0]):
        bfloats[i], halves[i] = bfloat_value(bits[i]), half_value(bits[i])


def narrow(values):
    bfloats, halves = np.empty((2, len(values)), np.uint16)
    narrowed(values, bfloats, halves)
    return bfloats, halves


def widen(bits):
    bfloats, halves = np.empty((2, len(bits)), np.float32)
    widened(bits, bfloats, halves)
    return bfloats, halves


def torch_bfloat16_bits(values):
    return torch.from_numpy(values).to(torch.bfloat16).view(torch.int16).numpy().view(np.uint16)


def around(values):
    """Each value and its nearest neighbours among float32, of both signs."""
    near = np.concatenate([values, np.nextafter(values, np.float32(np.inf)), np.nextafter(values, np.float32(-np.inf))])
    return np.concatenate([near, -near])


@pytest.fixture
def floats(rng):
    """float32 of every size, and random bits that are numbers."""
    bits = rng.integers(0, 1 << 32, 200_000, dtype=np.uint32).view(np.float32)
    small = (rng.normal(size=200_000) * 10.0 ** rng.integers(-9, 6, 200_000)).astype(np.float32)
    return np.concatenate([bits[np.isfinite(bits)], small])


def test_every_bfloat16_and_every_finite_float16_is_widened_exactly():
    bfloats, halves = widen(EVERY)
    assert np.array_equal(bfloats.view(np.uint32), EVERY.astype(np.uint32) << 16)
    expected = EVERY.view(np.float16).astype(np.float32)
    finite = np.isfinite(expected)
    assert np.array_equal(halves[finite].view(np.uint32), expected[finite].view(np.uint32))


def test_narrowing_to_bfloat16_is_torchs(floats):
    nearest = floats[np.abs(floats) < 1e38]
    assert np.array_equal(narrow(nearest)[0], torch_bfloat16_bits(nearest))
    special = np.array([0.0, -0.0, np.inf, -np.inf, 3.4e38, -3.4e38, 1e-45, -1e-45, 1e-38], np.float32)
    assert np.array_equal(narrow(special)[0], torch_bfloat16_bits(special))


def test_ties_between_two_bfloat16_go_to_the_even_one():
    finite = EVERY[:0x7F7F]
    ties = ((finite.astype(np.uint32) << 16) + 0x8000).view(np.float32)
    values = around(ties)
    assert np.array_equal(narrow(values)[0], torch_bfloat16_bits(values))


@pytest.mark.parametrize("bits", [0x7FC00000, 0xFFC00000, 0x7F800001, 0xFF800001, 0x7FFFFFFF, 0xFFFFFFFF], ids=hex)
def test_a_nan_in_bfloat16_is_a_nan_of_the_same_sign(bits):
    found = narrow(np.array([bits], np.uint32).view(np.float32))[0]
    value = widen(found)[0]
    assert np.isnan(value[0]) and np.signbit(value[0]) == bool(bits >> 31)


def test_narrowing_to_float16_is_numpys_up_to_the_largest(floats):
    values = floats[np.abs(floats) < 65520]
    assert len(values) > 200_000
    assert np.array_equal(narrow(values)[1], values.astype(np.float16).view(np.uint16))


def test_ties_between_two_float16_go_to_the_even_one():
    finite = EVERY[:0x7BFF].view(np.float16).astype(np.float64)
    above = EVERY[1:0x7C00].view(np.float16).astype(np.float64)
    values = around(((finite + above) / 2).astype(np.float32))
    assert np.array_equal(narrow(values)[1], values.astype(np.float16).view(np.uint16))


@pytest.mark.parametrize("value", [65504.0, 65519.99, 65520.0, 65536.0, 1e6, 3.4e38])
def test_what_is_too_large_for_float16_becomes_the_largest(value):
    values = np.array([value, -value], np.float32)
    assert np.array_equal(narrow(values)[1].view(np.float16).astype(np.float32), [65504, -65504])
