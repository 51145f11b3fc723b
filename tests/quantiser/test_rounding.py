"""The search for scales against its own measure, written out, and against every scale that float16 has nearby."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kaishu.quantiser.rounding import (
    FORMS,
    best_scales,
    nearest_scales,
    rounded,
    unknown_importance,
    values_of,
    whole_numbers,
)

INT4, INT8 = FORMS["int4"], FORMS["int8"]
forms = pytest.mark.parametrize("form", [INT4, INT8], ids=["int4", "int8"])
everyone = np.ones((1, 32), np.float32)


def error(weights, importance, scales, form) -> np.ndarray:
    """Σ h (w - s q)² in float64, q by trying every whole number."""
    numbers = np.arange(form.lowest, form.highest + 1, dtype=np.float64)
    lost = np.abs(weights[:, :, None].astype(np.float64) - scales[:, None, None].astype(np.float64) * numbers)
    return (importance * lost.min(axis=-1) ** 2).sum(axis=-1)


groups = st.builds(
    lambda seed, size, spread: (
        np.random.default_rng(seed).standard_t(spread, (4, 32)).astype(np.float32) * np.float32(10.0**size)
    ),
    st.integers(0, 1 << 32),
    st.integers(-4, 3),
    st.sampled_from([1.5, 3, 30]),
)


@forms
@settings(max_examples=60, deadline=None)
@given(weights=groups, seed=st.integers(0, 1 << 32), is_even=st.booleans())
def test_a_search_never_loses_more_than_rounding_to_the_nearest(form, weights, seed, is_even):
    importance = everyone if is_even else np.random.default_rng(seed).exponential(size=(4, 32)).astype(np.float32)
    found, nearest = best_scales(weights, importance, form), nearest_scales(weights, form)
    assert np.isfinite(found).all()
    assert (found == found.astype(np.float16)).all(), "the file keeps scales in float16"
    chosen, by_rule = (error(weights, importance, scales, form) for scales in (found, nearest))
    assert (chosen <= by_rule * (1 + 1e-5)).all()


def test_normal_weights_lose_a_tenth_less_and_hardly_less_than_with_the_best_of_all_scales(rng):
    weights = rng.normal(0, 0.02, (200, 32)).astype(np.float32)
    found, nearest = best_scales(weights, everyone, INT4), nearest_scales(weights, INT4)
    factors = [np.float32(f) for f in np.linspace(-1.5, 1.5, 601) if f]
    every = np.stack([error(weights, everyone, nearest * f, INT4) for f in factors])
    ours, theirs = error(weights, everyone, found, INT4).sum(), error(weights, everyone, nearest, INT4).sum()
    assert ours < 0.9 * theirs
    assert ours < 1.01 * every.min(axis=0).sum()


@forms
def test_the_nearest_takes_the_largest_weight_as_the_kernels_do(form, rng):
    weights = rng.normal(size=(50, 32)).astype(np.float32)
    largest = weights[np.arange(50), np.abs(weights).argmax(axis=1)]
    expected = (largest / np.float32(-8.0) if form is INT4 else np.abs(largest) / np.float32(127.0)).astype(np.float16)
    found = nearest_scales(weights, form)
    assert (np.abs(found) == np.abs(expected)).all()
    assert form is INT8 or (found == expected).all()


@forms
def test_an_error_that_matters_more_is_smaller(form, rng):
    weights = rng.normal(size=(300, 32)).astype(np.float32)
    importance = everyone.copy()
    importance[0, 5] = 1000
    lost = []
    for h in (everyone, importance):
        scales = best_scales(weights, h, form)
        lost.append(np.square(weights - whole_numbers(weights, scales, form) * scales[:, None])[:, 5].mean())
    assert lost[1] < 0.3 * lost[0]


@forms
@pytest.mark.parametrize("value", [0.0, 1e-30, 6e-8, 1e-5])
def test_weights_that_are_zero_or_too_small_for_a_scale_stay_finite(form, value):
    weights = np.full((2, 64), value, np.float32)
    weights[0, ::2] *= -1
    found = rounded(weights, form)
    assert np.isfinite(values_of(found)).all()
    assert (np.abs(values_of(found)) <= 8 * np.float16(6e-8) + 2 * abs(value)).all()
    assert value or not values_of(found).any()


@forms
def test_weights_beyond_float16_give_a_scale_that_says_so(form):
    assert not np.isfinite(rounded(np.full((1, 32), 1e30, np.float32), form).scales).all()


def test_without_a_text_large_weights_matter_more_in_int4_alone(rng):
    weights = rng.normal(size=(4, 32)).astype(np.float32)
    found = unknown_importance(weights, INT4)
    np.testing.assert_allclose(found, weights**2 + (weights**2).mean(axis=1)[:, None], rtol=1e-6)
    assert (unknown_importance(weights, INT8) == 1).all()


@forms
def test_numbers_stay_in_range_and_rows_on_a_grid_are_kept_exactly(form, rng):
    scales = rng.uniform(0.001, 0.1, (20, 2)).astype(np.float16)
    whole = rng.integers(form.lowest, form.highest + 1, (20, 2, 32))
    whole[:, :, 0] = form.lowest  # so that the largest weight says what the scale is
    values = (whole * scales[:, :, None].astype(np.float32)).reshape(20, 64).astype(np.float32)
    for search in (True, False):
        found = rounded(values, form, search=search)
        assert found.whole.min() >= form.lowest and found.whole.max() <= form.highest
        np.testing.assert_array_equal(values_of(found), values)


def test_many_groups_are_as_few_at_a_time(rng):
    weights = rng.normal(size=(5000, 32)).astype(np.float32)
    importance = rng.exponential(size=weights.shape).astype(np.float32)
    whole = best_scales(weights, importance, INT4)
    parts = [best_scales(weights[i : i + 700], importance[i : i + 700], INT4) for i in range(0, 5000, 700)]
    np.testing.assert_array_equal(whole, np.concatenate(parts))
