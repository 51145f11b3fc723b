"""Compensation against a scalar reading of the paper, and against the error that it is to make small."""

from __future__ import annotations

import numpy as np
import pytest

from kaishu.quantiser.compensation import DAMPING, compensated, factor, output_error
from kaishu.quantiser.rounding import FORMS, best_scales, rounded, values_of, whole_numbers

INT4 = FORMS["int4"]


@pytest.fixture
def inputs(rng) -> np.ndarray:
    """Correlated inputs of 96 channels, as a network's are, some of them large. [T, K] float32"""
    mixed = rng.normal(size=(400, 24)) @ rng.normal(size=(24, 96)) + 0.3 * rng.normal(size=(400, 96))
    return (mixed * np.exp(rng.normal(0, 0.7, 96))).astype(np.float32)


def scalar(weights: np.ndarray, moments: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The paper's algorithm 1 with blocks of one group: inverse, Cholesky, one weight at a time. In float64."""
    columns = len(moments)
    h = moments.astype(np.float64) + DAMPING * np.trace(moments.astype(np.float64)) / columns * np.eye(columns)
    upper = np.linalg.cholesky(np.linalg.inv(h)).T
    whole, scales = np.zeros(weights.shape, int), np.zeros((len(weights), columns // 32))
    for row in range(len(weights)):
        w = weights[row].astype(np.float64)
        for j in range(columns):
            if j % 32 == 0:
                importance = 1 / np.diag(upper)[None, j : j + 32] ** 2
                group = w[None, j : j + 32].astype(np.float32)
                scale = float(best_scales(group, importance.astype(np.float32), INT4)[0])
                scales[row, j // 32] = scale
            q = max(-8, min(7, round(w[j] / scale)))
            whole[row, j] = q
            error = (w[j] - q * scale) / upper[j, j]
            for k in range(j, columns):
                w[k] -= error * upper[j, k]
    return whole, scales


def test_it_is_the_paper_s_algorithm(rng, inputs):
    weights = rng.normal(0, 0.05, (24, 96)).astype(np.float32)
    moments = inputs.T @ inputs
    found, (whole, scales) = compensated(weights, factor(moments), INT4), scalar(weights, moments)
    # A weight on the edge between two numbers may fall to either side of it; all after it in its row then differ, too.
    same = (found.whole == whole).all(axis=1) & (found.scales == scales.astype(np.float16)).all(axis=1)
    assert same.mean() > 0.7
    ours, theirs = (
        output_error((weights - values).astype(np.float32), moments)
        for values in (values_of(found), whole * np.repeat(scales, 32, axis=1))
    )
    assert ours == pytest.approx(theirs, rel=0.02)


def test_the_factor_is_the_upper_triangle_of_the_damped_inverse(inputs):
    moments = inputs.T @ inputs
    upper = factor(moments).astype(np.float64)
    assert not np.tril(upper, -1).any()
    damped = moments + DAMPING * np.trace(moments) / 96 * np.eye(96)
    np.testing.assert_allclose(upper @ damped @ upper.T, np.eye(96), atol=2e-3)


@pytest.mark.parametrize("form", ["int4", "int8"])
@pytest.mark.parametrize("tokens", [400, 20])
def test_outputs_lose_less_than_by_rounding_each_weight_for_itself(form, tokens, rng, inputs):
    """||X W - X Ŵ||² over the tokens; with fewer tokens than channels, too."""
    inputs, weights = inputs[:tokens], rng.normal(0, 0.05, (64, 96)).astype(np.float32)
    moments = inputs.T @ inputs
    ours = values_of(compensated(weights, factor(moments), FORMS[form]))
    lost = [
        np.square(inputs.astype(np.float64) @ (weights - values).T).sum()
        for values in (
            ours,
            values_of(rounded(weights, FORMS[form])),
            values_of(rounded(weights, FORMS[form], search=False)),
        )
    ]
    assert lost[0] < 0.5 * lost[1] < 0.5 * lost[2] * 1.05
    assert output_error(weights - ours, moments) == pytest.approx(lost[0], rel=1e-2)


def test_of_independent_inputs_nothing_can_be_made_up_for(rng):
    weights = rng.normal(0, 0.05, (16, 64)).astype(np.float32)
    found = compensated(weights, factor(np.eye(64, dtype=np.float32)), INT4)
    split = weights.reshape(-1, 32)
    alone = whole_numbers(split, best_scales(split, np.ones((1, 32), np.float32), INT4), INT4).reshape(16, 64)
    np.testing.assert_array_equal(found.whole, alone)


def test_inputs_that_are_never_anything_but_zero_do_no_harm(rng, inputs):
    inputs[:, 3] = inputs[:, 40] = 0
    inputs[:, 50] = inputs[:, 51]  # nor those that are always alike
    found = compensated(rng.normal(size=(8, 96)).astype(np.float32), factor(inputs.T @ inputs), INT4)
    assert np.isfinite(found.scales).all() and np.abs(found.whole).max() <= 8


def test_rows_do_not_know_of_each_other(rng, inputs):
    weights, upper = rng.normal(0, 0.05, (40, 96)).astype(np.float32), factor(inputs.T @ inputs)
    together, alone = compensated(weights, upper, INT4), compensated(weights[7:19], upper, INT4)
    assert (together.whole[7:19] == alone.whole).mean() > 0.99  # sums over rows may be done in another order
