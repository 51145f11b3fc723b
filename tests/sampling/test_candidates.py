"""Candidates against the definition: the same tokens, exactly, and draws with the same distribution."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kaishu.sampling.candidates import Candidates
from kaishu.sampling.listed import Rules
from kaishu.sampling.logit_row import LogitRow
from tests.sampling.definition import chi_square_is_small, distribution, either_side

SHAPES = ["normal", "ties", "half forbidden", "three values"]


def make_logits(rng: np.random.Generator, size: int, shape: str, spread: float) -> np.ndarray:
    row = rng.normal(size=size) * spread
    if shape == "ties":
        row = np.round(row * 2) / 2
    if shape == "half forbidden":
        row[rng.random(size) < 0.5] = -np.inf
        row[0] = 0.0
    if shape == "three values":
        row = rng.choice([0.0, 1.0, 2.0], size=size, p=[0.6, 0.3, 0.1])
    return row.astype(np.float32)


def softmax_oracle(logits: list[float]) -> list[float]:
    highest = max(logits)
    powers = [math.exp(value - highest) for value in logits]
    return [power / sum(powers) for power in powers]


def literal_distribution(
    logits: list[float], temperature: float, top_k: int, top_p: float, min_p: float
) -> dict[int, float]:
    """Token id → probability after every rule, one rule after another, in loops: what `definition.py` must say."""
    order = sorted(range(len(logits)), key=lambda i: (-logits[i], i))
    kept = order[:top_k] if top_k > 0 else order
    probability = dict(zip(kept, softmax_oracle([logits[i] / temperature for i in kept]), strict=True))
    mass, nucleus = 0.0, []
    for i in kept:
        if nucleus and top_p < 1.0 and mass >= top_p:
            break
        nucleus.append(i)
        mass += probability[i]
    highest = max(probability[i] for i in nucleus)
    final = [i for i in nucleus if probability[i] >= min_p * highest]
    total = sum(probability[i] for i in final)
    return {i: probability[i] / total for i in final}


@given(
    logits=st.lists(st.integers(-40, 40).map(lambda n: n / 4), min_size=1, max_size=24),
    temperature=st.sampled_from([0.25, 0.7, 1.0, 2.0]),
    top_k=st.integers(0, 30),
    top_p=st.sampled_from([0.0, 1e-9, 0.3, 0.77, 0.951, 1.0]),
    min_p=st.sampled_from([0.0, 0.05, 0.33, 1.0]),
)
def test_the_oracle_equals_the_rules_applied_one_by_one(logits, temperature, top_k, top_p, min_p) -> None:
    rules = (temperature, top_k, top_p, min_p)
    expected, got = literal_distribution(logits, *rules), distribution(np.array(logits), *rules)
    surely, perhaps = either_side(np.array(logits), *rules)
    assert surely <= got.keys() <= perhaps and surely <= expected.keys() <= perhaps
    if got.keys() == expected.keys():
        assert all(got[i] == pytest.approx(expected[i], rel=1e-9) for i in got)


@settings(deadline=None, max_examples=150)
@given(
    seed=st.integers(0, 10**6),
    size=st.sampled_from([1, 24, 4096, 4200]),
    shape=st.sampled_from(SHAPES),
    spread=st.sampled_from([0.01, 1.0, 3.0, 30.0]),
    apart=st.sampled_from([0, 5, 200]),
    temperature=st.sampled_from([1e-320, 1e-12, 0.01, 0.6, 1.0, 2.0, 1e30]),
    top_k=st.sampled_from([0, 0, 1, 20, 70, 4000]),
    top_p=st.sampled_from([1.0, 1.0, 0.0, 1e-9, 0.1, 0.5, 0.9, 0.999]),
    min_p=st.sampled_from([0.0, 0.0, 1e-9, 0.05, 1.0]),
)
def test_the_candidates_are_those_of_the_definition(
    seed, size, shape, spread, apart, temperature, top_k, top_p, min_p
) -> None:
    rng = np.random.default_rng(seed)
    row = make_logits(rng, size, shape, spread)
    exact = row.astype(np.float64)
    ids = rng.choice(size, min(apart, size), replace=False)
    values = rng.normal(size=len(ids)) * spread * 1.5
    exact[ids], row[ids] = values, -np.inf
    rules = (temperature, top_k, top_p, min_p)
    candidates = Candidates(LogitRow(row, ids, values), Rules(*rules))
    surely, perhaps = either_side(exact, *rules)
    expected = list(distribution(exact, *rules))
    for token_id in {*expected[:20], *expected[-20:], *rng.integers(0, size, 20).tolist(), *ids[:20].tolist()}:
        assert (token_id in surely) <= (token_id in candidates) <= (token_id in perhaps)
    assert {candidates.draw(rng) for _ in range(5)} <= perhaps


def test_each_rule_keeps_what_its_definition_keeps() -> None:
    logits = np.log(np.array([0.1, 0.4, 0.2, 0.3])).astype(np.float32)

    def kept(*rules: float) -> list[int]:
        candidates = Candidates(LogitRow(logits), Rules(*rules))
        return [token_id for token_id in range(4) if token_id in candidates]

    assert kept(1.0, 2, 1.0, 0.0) == [1, 3]
    assert kept(1.0, 0, 0.69, 0.0) == [1, 3]
    assert kept(1.0, 0, 0.71, 0.0) == [1, 2, 3]
    assert kept(1.0, 0, 1.0, 0.6) == [1, 3]
    assert kept(1.0, 0, 1.0, 0.0) == [0, 1, 2, 3]


def test_equal_logits_at_the_edge_go_by_id() -> None:
    candidates = Candidates(LogitRow(np.zeros(9, np.float32)), Rules(1.0, top_k=3))
    assert [token_id for token_id in range(9) if token_id in candidates] == [0, 1, 2]


@pytest.mark.parametrize(
    "rules",
    [
        Rules(1.0),
        Rules(0.6, top_k=20, top_p=0.95),
        Rules(1.0, top_p=0.9),
        Rules(1.5, top_p=0.2),
        Rules(1.0, min_p=0.05),
        Rules(1.0, top_p=0.8, min_p=0.01),
        Rules(1e30),
    ],
)
@pytest.mark.parametrize("spread", [0.5, 3.0])
def test_draws_follow_the_distribution(rules, spread) -> None:
    rng = np.random.default_rng(11)
    row = make_logits(rng, 5000, "half forbidden", spread)
    exact = row.astype(np.float64)
    ids = rng.choice(5000, 100, replace=False)
    values = rng.normal(size=100) * spread
    exact[ids], row[ids] = values, -np.inf
    expected = distribution(exact, rules.temperature, rules.top_k, rules.top_p, rules.min_p)
    candidates = Candidates(LogitRow(row, ids, values), rules)
    assert chi_square_is_small(lambda: candidates.draw(rng), expected, 20_000)


@pytest.mark.parametrize("top_p", [1.0, 0.95])
@pytest.mark.parametrize("below", [1.0, 4.0, 9.0])
def test_draws_of_many_unlikely_tokens_come_as_often_as_all_of_them_should(below, top_p) -> None:
    """Of each level of logits; a single token of thousands would hardly be seen, whether it comes too often or not.

    below: how far under the likeliest the others begin. Blind proposals hold mostly, seldom, or hardly ever
    """
    rng = np.random.default_rng(5)
    row = np.repeat(np.float32([0, -0.5, -below, -below - 1, -below - 2, -np.inf]), [9, 50, 1500, 2500, 800, 141])
    row = rng.permutation(row)
    level_of = dict(enumerate(row.tolist()))
    expected: dict[float, float] = {}
    for token_id, probability in distribution(row.astype(np.float64), 1.0, 0, top_p, 0.0).items():
        expected[level_of[token_id]] = expected.get(level_of[token_id], 0.0) + probability
    candidates = Candidates(LogitRow(row), Rules(1.0, top_p=top_p))
    assert chi_square_is_small(lambda: level_of[candidates.draw(rng)], expected, 20_000)


@pytest.mark.parametrize("top_p", [0.5001, 0.9001])
@pytest.mark.parametrize("temperature", [1e-4, 1.0])
def test_equal_logits_far_beyond_the_first_look_go_by_id_too(top_p, temperature, rng) -> None:
    row = np.full(5000, temperature, np.float32)
    row[rng.choice(5000, 200, replace=False)] = 2 * temperature
    row[rng.choice(5000, 100, replace=False)] = 0
    candidates = Candidates(LogitRow(row), Rules(temperature, top_p=top_p))
    surely, perhaps = either_side(row, temperature, 0, top_p, 0.0)
    assert surely == perhaps and 2000 < len(surely) < 4900
    last = max(token_id for token_id in surely if row[token_id] == np.float32(temperature))
    asked = {*rng.integers(0, 5000, 40).tolist(), *range(last - 20, last + 20)}
    assert {token_id for token_id in asked if token_id in candidates} == asked & surely
