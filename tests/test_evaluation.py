"""Divergence, agreement and perplexity against their definitions, written out with Python's own floats."""

from __future__ import annotations

import math

import numpy as np
import pytest

from kaishu.errors import NumericalError
from kaishu.evaluation import Predictions, compare, joined, summary


def probabilities(logits: np.ndarray) -> list[float]:
    weights = [math.exp(float(logit)) for logit in logits]
    return [weight / math.fsum(weights) for weight in weights]


@pytest.mark.parametrize("rows", [1, 31, 32, 33, 70])
def test_each_position_is_measured_as_the_definitions_say(rng, rows):
    true_logits = rng.normal(0, 3, (rows, 50)).astype(np.float32)
    logits = (true_logits + rng.normal(0, 1, true_logits.shape)).astype(np.float32)
    next_ids = rng.integers(0, 50, rows).tolist()
    measured = compare(true_logits, logits, next_ids)
    for row, next_id in enumerate(next_ids):
        p, q = probabilities(true_logits[row]), probabilities(logits[row])
        divergence = math.fsum(a * math.log(a / b) for a, b in zip(p, q, strict=True))
        assert measured.divergences[row] == pytest.approx(divergence, rel=1e-9)
        assert measured.same_choices[row] == (p.index(max(p)) == q.index(max(q)))
        assert measured.surprises[row] == pytest.approx(-math.log(q[next_id]), rel=1e-9)
        assert measured.true_surprises[row] == pytest.approx(-math.log(p[next_id]), rel=1e-9)


def test_divergence_is_from_the_truth_and_not_the_other_way_round():
    """P = (1/2, 1/2), Q = (3/4, 1/4): KL(P‖Q) = ln(2/√3), KL(Q‖P) is less."""
    p, q = np.log([[0.5, 0.5]]).astype(np.float32), np.log([[0.75, 0.25]]).astype(np.float32)
    assert compare(p, q, [0]).divergences[0] == pytest.approx(math.log(2 / math.sqrt(3)), rel=1e-6)


def test_a_constant_added_to_all_logits_changes_nothing_and_large_ones_do_not_overflow(rng):
    logits = rng.normal(0, 3, (4, 20)).astype(np.float32)
    measured = compare(logits, logits + np.float32(1024), [1, 2, 3, 4])
    assert measured.divergences == pytest.approx(np.zeros(4), abs=1e-6)
    assert measured.same_choices.all()
    assert (compare(logits, logits, [0] * 4).divergences == 0).all()


def test_the_summary_is_means_a_percentile_and_two_perplexities():
    divergences = np.arange(101, dtype=np.float64)[::-1]  # 0 to 100: 99 is the value with 99 of 100 steps below it
    choices = np.arange(101) < 25
    surprises, true_surprises = np.full(101, math.log(8.0)), np.linspace(0, 2, 101)
    found = summary(Predictions(divergences, choices, surprises, true_surprises))
    assert found.tokens == 101
    assert found.kl_mean == 50
    assert found.kl_99_percent == 99
    assert found.top1_agreement == pytest.approx(25 / 101)
    assert found.perplexity == pytest.approx(8.0)
    assert found.true_perplexity == pytest.approx(math.e)


def test_several_texts_count_by_their_tokens(rng):
    logits = [rng.normal(size=(rows, 8)).astype(np.float32) for rows in (2, 5)]
    others = [part + rng.normal(size=part.shape).astype(np.float32) for part in logits]
    parts = [compare(a, b, [0] * len(a)) for a, b in zip(logits, others, strict=True)]
    whole = compare(np.concatenate(logits), np.concatenate(others), [0] * 7)
    assert summary(joined(parts)) == summary(whole)


@pytest.mark.parametrize("broken", [math.nan, math.inf])
def test_logits_that_are_no_numbers_are_an_error_that_says_whose(rng, broken):
    logits = rng.normal(size=(40, 8)).astype(np.float32)
    damaged = logits.copy()
    damaged[35, 3] = broken
    with pytest.raises(NumericalError, match="the model's logits are not finite"):
        compare(logits, damaged, [0] * 40)
    with pytest.raises(NumericalError, match="the truth's logits are not finite"):
        compare(damaged, logits, [0] * 40)
