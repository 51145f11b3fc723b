"""The sampler against small oracles written from the definitions, and the edges where sampling usually breaks.

Each oracle reads its rule literally: loops over tokens, Python floats, no shared code.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from kaishu.config import GenerationDefaults
from kaishu.errors import NumericalError
from kaishu.sampling import Sampler, SamplingParams
from kaishu.sampling.sampler import apply_count_penalties, apply_repetition_penalty, candidates, log_softmax

logits_rows = st.lists(st.integers(-40, 40).map(lambda n: n / 4), min_size=1, max_size=24)


def softmax_oracle(logits: list[float]) -> list[float]:
    highest = max(logits)
    powers = [math.exp(value - highest) for value in logits]
    return [power / sum(powers) for power in powers]


def distribution_oracle(
    logits: list[float], temperature: float, top_k: int, top_p: float, min_p: float
) -> dict[int, float]:
    """Token id → probability after every rule, one rule after another, renormalised between them."""
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


def make_sampler(prompt_ids: tuple[int, ...] = (), num_token_ids: int = 24, ends: tuple[int, ...] = (), **fields: Any):
    params = SamplingParams(**fields).with_defaults(GenerationDefaults())
    return Sampler(params, prompt_ids=prompt_ids, num_token_ids=num_token_ids, end_token_ids=ends)


@given(
    logits=logits_rows,
    temperature=st.sampled_from([0.25, 0.7, 1.0, 2.0]),
    top_k=st.integers(0, 30),
    top_p=st.sampled_from([0.0, 1e-9, 0.3, 0.77, 0.951, 1.0]),
    min_p=st.sampled_from([0.0, 0.05, 0.33, 1.0]),
)
def test_candidates_equal_the_rules_applied_one_by_one(logits, temperature, top_k, top_p, min_p) -> None:
    ids, weights = candidates(np.array(logits), temperature, top_k, top_p, min_p)
    expected = distribution_oracle(logits, temperature, top_k, top_p, min_p)
    got = dict(zip(ids.tolist(), (weights / weights.sum()).tolist(), strict=True))
    # Where a cumulative sum meets top_p to the last bit, either side is right; such rows differ by one token at most.
    if got.keys() != expected.keys():
        assert len(got.keys() ^ expected.keys()) == 1 and top_p < 1.0
        return
    for token_id, probability in expected.items():
        assert got[token_id] == pytest.approx(probability, rel=1e-9)


def test_each_rule_keeps_what_its_definition_keeps() -> None:
    logits = np.log(np.array([0.1, 0.4, 0.2, 0.3]))
    assert candidates(logits, 1.0, 2, 1.0, 0.0)[0].tolist() == [1, 3]
    assert candidates(logits, 1.0, 0, 0.69, 0.0)[0].tolist() == [1, 3]
    assert candidates(logits, 1.0, 0, 0.71, 0.0)[0].tolist() == [1, 3, 2]
    assert candidates(logits, 1.0, 0, 1.0, 0.6)[0].tolist() == [1, 3]
    assert candidates(logits, 1.0, 0, 1.0, 0.0)[0].tolist() == [0, 1, 2, 3]


@given(logits=logits_rows, penalty=st.sampled_from([0.01, 0.5, 1.3, 100.0]), seed=st.integers(0, 9))
def test_repetition_penalty_equals_its_definition(logits, penalty, seed) -> None:
    seen = np.random.default_rng(seed).random(len(logits)) < 0.5
    expected = [
        (value / penalty if value > 0 else value * penalty) if was else value
        for value, was in zip(logits, seen, strict=True)
    ]
    row = np.array(logits)
    apply_repetition_penalty(row, seen, penalty)
    assert_allclose(row, expected, rtol=1e-12)


@given(logits=logits_rows, presence=st.sampled_from([-2.0, 0.0, 1.5]), frequency=st.sampled_from([-1.0, 0.0, 0.7]))
def test_count_penalties_equal_openais_formula(logits, presence, frequency) -> None:
    counts = np.arange(len(logits)) % 3
    expected = [v - c * frequency - (c > 0) * presence for v, c in zip(logits, counts, strict=True)]
    row = np.array(logits)
    apply_count_penalties(row, counts, presence, frequency)
    assert_allclose(row, expected, rtol=1e-12, atol=1e-12)


def test_log_softmax_stays_finite_where_probabilities_underflow() -> None:
    got = log_softmax(np.array([1000.0, 0.0, -1e30]))
    assert_allclose(got, [0.0, -1000.0, -1e30])


@pytest.mark.parametrize(
    "fields", [{"temperature": 0}, {"temperature": 1e-12}, {"temperature": 1e-320}, {"top_k": 1}, {"top_p": 0},
               {"top_p": 1e-9}, {"min_p": 1}]
)  # fmt: skip
def test_what_means_greedy_is_greedy(fields, rng) -> None:
    sampler = make_sampler(num_token_ids=500, **fields)
    for _ in range(20):
        logits = rng.normal(size=500).astype(np.float32)
        assert sampler.sample(logits).token_id == logits.argmax()


@pytest.mark.parametrize(
    "fields",
    [{"temperature": t} for t in (1e-4, 1.0, 2.0, 1e30)]
    + [{"top_k": k} for k in (-1, 0, 10**9)]
    + [{"repetition_penalty": r} for r in (0.01, 100.0)]
    + [{"presence_penalty": 2.0, "frequency_penalty": -2.0, "logit_bias": {3: -100, 4: 100}}],
)
@pytest.mark.parametrize("scale", [0.0, 1.0, 1e4, 1e30])
def test_extreme_settings_still_give_a_token_in_range(fields, scale, rng) -> None:
    sampler = make_sampler(num_token_ids=500, prompt_ids=(1, 2, 499), **fields)
    for _ in range(5):
        token = sampler.sample((rng.normal(size=512) * scale).astype(np.float32))
        assert 0 <= token.token_id < 500


def test_ties_go_to_the_lowest_id() -> None:
    assert make_sampler(temperature=0).sample(np.zeros(24, np.float32)).token_id == 0
    assert candidates(np.zeros(9), 1.0, 3, 1.0, 0.0)[0].tolist() == [0, 1, 2]


def test_draws_follow_the_distribution() -> None:
    logits = np.log(np.array([0.5, 0.3, 0.15, 0.05], np.float32))
    sampler = make_sampler(num_token_ids=4, seed=7, temperature=1.0)
    counts = Counter(sampler.sample(logits).token_id for _ in range(20_000))
    chi_square = sum((counts[i] - 20_000 * p) ** 2 / (20_000 * p) for i, p in enumerate([0.5, 0.3, 0.15, 0.05]))
    assert chi_square < 16.27  # 3 degrees of freedom, p = 0.001; the seed is fixed


def test_rows_without_a_token_are_never_chosen_nor_listed() -> None:
    logits = np.zeros(40, np.float32)
    logits[24:] = 50.0
    for fields in ({"temperature": 0}, {"temperature": 1.0}, {"top_k": 5}):
        sampled = make_sampler(num_token_ids=24, logprobs=20, seed=0, **fields).sample(logits)
        assert sampled.token_id < 24 and all(entry.token_id < 24 for entry in sampled.top)
        assert sampled.logprob == pytest.approx(-math.log(24))


def test_gaps_in_the_vocabulary_are_never_chosen_nor_listed() -> None:
    params = SamplingParams(logprobs=20, seed=0).with_defaults(GenerationDefaults())
    sampler = Sampler(params, prompt_ids=(), num_token_ids=8, end_token_ids=(), absent_ids=(2, 3, 9))
    logits = np.array([0, 0, 50, 50, 0, 0, 0, 0], np.float32)
    for _ in range(20):
        sampled = sampler.sample(logits)
        assert {sampled.token_id, *(entry.token_id for entry in sampled.top)} == {0, 1, 4, 5, 6, 7}
        assert sampled.logprob == pytest.approx(-math.log(6))


def test_a_seed_repeats_and_zero_is_a_seed(rng) -> None:
    rows = rng.normal(size=(30, 24)).astype(np.float32)

    def run(seed: int | None) -> list[int]:
        sampler = make_sampler(seed=seed, temperature=1.0)
        return [sampler.sample(row).token_id for row in rows]

    assert run(0) == run(0) and run(5) == run(5)
    assert run(0) != run(5)
    assert run(None) != run(None)


def test_end_tokens_wait_for_min_tokens_and_never_come_under_ignore_eos() -> None:
    logits = np.zeros(24, np.float32)
    logits[[5, 6]] = 30.0
    sampler = make_sampler(ends=(5,), stop_token_ids=[6], min_tokens=3, temperature=0)
    assert [sampler.sample(logits).token_id for _ in range(4)] == [0, 0, 0, 5]
    sampler = make_sampler(ends=(5, 6), ignore_eos=True, temperature=0)
    assert [sampler.sample(logits).token_id for _ in range(4)] == [0] * 4
    sampler = make_sampler(ends=(5, 6), ignore_eos=True, min_tokens=2, temperature=0, logit_bias={5: 100})
    assert [sampler.sample(logits).token_id for _ in range(4)] == [0] * 4


def test_forbidding_every_token_is_an_error_not_a_crash() -> None:
    sampler = make_sampler(num_token_ids=2, ends=(0,), stop_token_ids=[1], min_tokens=1)
    with pytest.raises(NumericalError, match="Every token is forbidden"):
        sampler.sample(np.zeros(2, np.float32))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("temperature", [0, 1])
def test_a_row_that_is_not_a_number_is_an_error(bad, temperature) -> None:
    logits = np.zeros(24, np.float32)
    logits[7] = bad
    with pytest.raises(NumericalError, match="not a number"):
        make_sampler(temperature=temperature).sample(logits)


@settings(deadline=None)
@given(logits=st.lists(st.floats(-1e4, 1e4, width=32), min_size=24, max_size=24), count=st.integers(0, 20))
def test_log_probabilities_are_finite_sorted_and_include_the_chosen_token(logits, count) -> None:
    row = np.array(logits, np.float32)
    for fields in ({"top_k": 1}, {"logit_bias": {int(row.argmax()): -100}}, {"temperature": 0.0}, {"top_p": 0.5}):
        sampled = make_sampler(logprobs=count, seed=1, **fields).sample(row)
        expected = row.astype(np.float64) - np.logaddexp.reduce(row.astype(np.float64))
        assert sampled.logprob == pytest.approx(expected[sampled.token_id], abs=1e-9)
        assert len(sampled.top) == count
        values = [entry.logprob for entry in sampled.top]
        assert values == sorted(values, reverse=True) and np.isfinite(values).all()
        assert_allclose(values, np.sort(expected)[::-1][:count], atol=1e-9)


def test_no_log_probabilities_unless_asked() -> None:
    assert make_sampler().sample(np.zeros(24, np.float32)).logprob is None
    sampled = make_sampler(logprobs=0).sample(np.zeros(24, np.float32))
    assert sampled.logprob is not None and sampled.top == ()


def test_the_sampler_leaves_the_callers_logits_alone() -> None:
    logits = np.zeros(24, np.float32)
    make_sampler(prompt_ids=(1,), repetition_penalty=3.0, logit_bias={2: 5}, min_tokens=1, ends=(0,)).sample(logits)
    assert not logits.any()
