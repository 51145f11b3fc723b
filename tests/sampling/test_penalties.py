"""Biases and penalties equal their formulas; what is kept is about the tokens they change."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from kaishu.config import GenerationDefaults
from kaishu.sampling import SamplingParams
from kaishu.sampling.penalties import ChangedLogits, apply_count_penalties, apply_repetition_penalty
from tests.sampling.definition import changed

logits_rows = st.lists(st.integers(-40, 40).map(lambda n: n / 4), min_size=1, max_size=24)


def make_changed(prompt: list[int], num_token_ids: int = 200, **fields: object) -> ChangedLogits:
    return ChangedLogits(SamplingParams(**fields).with_defaults(GenerationDefaults()), prompt, num_token_ids)


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


@given(
    prompt=st.lists(st.integers(0, 210), max_size=30),
    output=st.lists(st.integers(0, 199), max_size=150),
    repetition=st.sampled_from([1.0, 0.7, 1.3]),
    presence=st.sampled_from([0.0, 1.5, -2.0]),
    frequency=st.sampled_from([0.0, 0.3]),
    bias=st.dictionaries(st.integers(0, 199), st.floats(-100, 100), max_size=5),
)
def test_all_changes_together_equal_the_formulas_in_their_order(
    prompt, output, repetition, presence, frequency, bias
) -> None:
    logits = np.random.default_rng(1).normal(size=200).astype(np.float32) * 5
    tokens = make_changed(
        prompt,
        repetition_penalty=repetition,
        presence_penalty=presence,
        frequency_penalty=frequency,
        logit_bias=bias,
    )
    for token_id in output:
        tokens.remember(token_id)
    ids, values = tokens.changed(logits)
    got = logits.astype(np.float64)
    got[ids] = values
    expected = changed(
        logits,
        prompt=[i for i in prompt if i < 200],
        output=output,
        repetition=repetition,
        presence=presence,
        frequency=frequency,
        bias=bias,
    )
    assert_allclose(got, expected, rtol=1e-12, atol=1e-12)
    assert len(set(ids.tolist())) == len(ids) == len(tokens)


@pytest.mark.parametrize(
    "fields, kept",
    [({}, 0), ({"logit_bias": {3: 1}}, 1), ({"presence_penalty": 1}, 50), ({"repetition_penalty": 2}, 80)],
)
def test_only_tokens_that_are_changed_are_kept(fields, kept) -> None:
    tokens = make_changed(list(range(100, 130)), **fields)
    for token_id in [*range(50)] * 3:
        tokens.remember(token_id)
    assert len(tokens) == kept
