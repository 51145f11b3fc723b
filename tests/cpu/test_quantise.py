"""Packed weights, read back by the layout's drawing, against GGUF's definitions and torch's rounding."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from kaishu.cpu.packing import unpack
from tests.cpu.drawn_weights import bfloat16_values
from tests.cpu.packed_tensors import (
    assert_nearest,
    ends_of,
    every_dtype,
    every_kind,
    every_whole_kind,
    random_weights,
    read_back,
    values_of,
)


@every_whole_kind
@every_dtype
@pytest.mark.parametrize("rows, inputs", [(16, 32), (48, 96), (1, 32), (37, 70), (17, 31), (16, 1)])
def test_each_weight_becomes_the_nearest_that_its_group_offers(kind, dtype, rows, inputs, pack, rng):
    linear, memory, weights = pack(random_weights(rng, rows, inputs), kind, dtype)
    assert_nearest(linear, memory, weights)


@every_whole_kind
def test_hardly_anything_is_cut_off(kind, pack, rng):
    """int8 and int4_minimum lose what float16 rounds off the ends; int4 up to one step on the side opposite to -8.

    For weights whose scales float16 holds with all of its bits; for smaller ones see the tiny groups below.
    """
    linear, memory, weights = pack(100 * random_weights(rng, 64, 96), kind)
    low, high = ends_of(linear, memory)
    _, scale, minimum = read_back(linear, memory)
    scale, minimum = np.abs(scale), np.abs(minimum)
    step = {"int8": 127 * scale * 2.0**-11, "int4": scale * (1 + 8 * 2.0**-11)}.get(kind)
    if step is None:
        step = (15 * scale + minimum) * 2.0**-11
    assert (np.maximum(low - weights, weights - high) <= step * 1.001).all()


@every_whole_kind
@pytest.mark.parametrize("lanes", [8, 16])
def test_scales_are_ggufs_in_float16(kind, lanes, pack, rng):
    linear, memory, weights = pack(random_weights(rng, 37, 64), kind, lanes=lanes)
    groups = weights.astype(np.float32).reshape(37, 2, 32)
    low, high = groups.min(-1), groups.max(-1)
    largest = np.take_along_axis(groups, np.abs(groups).argmax(-1)[..., None], -1)[..., 0]
    expected = {
        "int8": np.abs(groups).max(-1) / np.float32(127),
        "int4": largest / np.float32(-8),
        "int4_minimum": (high - low) / np.float32(15),
    }[kind]
    _, scale, minimum = read_back(linear, memory)
    assert np.array_equal(scale[:37, ::32], expected.astype(np.float16).astype(np.float64))
    if kind == "int4_minimum":
        assert np.array_equal(minimum[:37, ::32], low.astype(np.float16).astype(np.float64))


@every_whole_kind
def test_the_ends_of_the_range_are_used(kind, pack, rng):
    """The largest weight of a group takes the last whole number: ±127 in Q8_0, 0 in Q4_0, 0 and 15 in Q4_1."""
    linear, memory, weights = pack(rng.normal(size=(32, 64)), kind)
    whole = read_back(linear, memory)[0].reshape(32, 2, 32)
    if kind == "int8":
        assert (np.abs(whole).max(-1) == 127).all() and whole.min() < 0
    elif kind == "int4":
        assert (np.take_along_axis(whole, np.abs(weights.reshape(32, 2, 32)).argmax(-1)[..., None], -1) == 0).all()
    else:
        assert (whole.min(-1) == 0).all() and (whole.max(-1) == 15).all()


@every_kind
def test_zeros_stay_zeros(kind, pack):
    linear, memory, _ = pack(np.zeros((20, 64)), kind)
    found = unpack(linear, memory)
    assert found.shape == (20, 64) and (found == 0).all()


@every_kind
@pytest.mark.parametrize("rows, inputs", [(37, 70), (1, 1), (16, 33)])
def test_the_padding_adds_nothing(kind, rows, inputs, pack, rng):
    """Rows beyond the last are zeros; columns beyond meet activations of zero, and are as small as a step anyway."""
    linear, memory, _ = pack(random_weights(rng, rows, inputs), kind)
    whole, scale, _ = read_back(linear, memory)
    values = bfloat16_values(whole) if kind == "bf16" else values_of(linear, memory)
    assert (values[rows:] == 0).all()
    assert (np.abs(values[:rows, inputs:]) <= (0 if scale is None else np.abs(scale[:rows, inputs:]) * 0.5001)).all()


@every_whole_kind
@pytest.mark.parametrize("size", [1e5, 1e7, 1e30], ids=str)
def test_huge_groups_are_held_to_the_largest_that_float16_scales_allow(kind, size, pack, rng):
    weights = rng.normal(size=(16, 64))
    weights[:, :32] *= size
    linear, memory, stored = pack(weights, kind)
    _, scale, minimum = read_back(linear, memory)
    assert (np.abs(scale) <= 65504).all() and (np.abs(minimum) <= 65504).all()
    assert np.isfinite(unpack(linear, memory)).all()
    assert_nearest(linear, memory, stored)


@every_whole_kind
@pytest.mark.parametrize("size", [1e-4, 1e-6, 1e-8, 1e-30], ids=str)
def test_tiny_groups_have_the_scales_that_float16_has_down_there(kind, size, pack, rng):
    """Below 2**-14 float16 has fewer bits, below 2**-25 none: then a group's weights are its minimum, or zero."""
    weights = rng.normal(size=(16, 64))
    weights[:, :32] *= size
    linear, memory, stored = pack(weights, kind)
    assert_nearest(linear, memory, stored)
    if size == 1e-30:
        assert (unpack(linear, memory)[:, :32] == 0).all()


def test_a_group_of_equal_weights_is_its_minimum(pack):
    linear, memory, _ = pack(np.full((16, 32), -0.7), "int4_minimum")
    assert (unpack(linear, memory) == np.float32(np.float16(-0.7))).all()


@every_dtype
@pytest.mark.parametrize("broken", [np.nan, np.inf, -np.inf], ids=str)
def test_bfloat16_keeps_what_is_no_number(dtype, broken, pack, rng):
    weights = random_weights(rng, 16, 32)
    weights[3, 5] = broken
    found = unpack(*pack(weights, "bf16", dtype)[:2])
    assert np.array_equal(found[3, 5], broken, equal_nan=True) and np.isfinite(found).sum() == found.size - 1


@every_dtype
@pytest.mark.parametrize("rows, inputs", [(16, 32), (37, 70)])
@pytest.mark.parametrize("lanes", [8, 16])
def test_bfloat16_is_torchs_rounding_of_the_source(dtype, rows, inputs, lanes, pack, rng):
    linear, memory, weights = pack(random_weights(rng, rows, inputs), "bf16", dtype, lanes=lanes)
    expected = torch.tensor(weights, dtype=torch.float32).to(torch.bfloat16).float().numpy()
    assert np.array_equal(bfloat16_values(read_back(linear, memory)[0])[:rows, :inputs], expected)
    assert np.array_equal(unpack(linear, memory), expected)
