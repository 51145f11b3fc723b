"""A few listed tokens: kept and drawn as the definition says, and as from the whole row."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kaishu.sampling.candidates import Candidates
from kaishu.sampling.listed import MOST_LISTED, Rules, beginning, draw_listed
from kaishu.sampling.logit_row import LogitRow
from tests.sampling.definition import chi_square_is_small, distribution

rules_that_keep_a_list = st.one_of(
    st.builds(
        Rules,
        st.sampled_from([1e-320, 0.01, 0.6, 1.0, 50.0]),
        st.integers(1, 70),
        st.sampled_from([0.0, 0.3, 0.95, 1.0]),
        st.sampled_from([0.0, 0.05, 1.0]),
    ),
    st.builds(Rules, st.sampled_from([0.01, 0.6, 1.0]), st.just(0), st.just(1.0), st.sampled_from([0.02, 0.5, 1.0])),
)


@settings(deadline=None)
@given(rules=rules_that_keep_a_list, seed=st.integers(0, 10**6), size=st.integers(1, 90), ties=st.booleans())
def test_a_draw_is_the_one_from_the_whole_row(rules, seed, size, ties) -> None:
    row = (np.random.default_rng(seed).normal(size=size) * 3).astype(np.float32)
    row = np.round(row) if ties else row
    order = np.lexsort((np.arange(size), -row))[:MOST_LISTED]
    ids, logits = order.tolist(), row[order].tolist()
    count = beginning(logits, rules, are_all=size <= MOST_LISTED)
    if count is None:
        assert size > MOST_LISTED
        return
    whole, listed = np.random.default_rng(seed), np.random.default_rng(seed)
    for _ in range(5):
        expected = Candidates(LogitRow(row), rules).draw(whole)
        assert draw_listed(ids[:count], logits[:count], rules, listed) == expected
    assert whole.bit_generator.state == listed.bit_generator.state


@pytest.mark.parametrize(
    "rules", [Rules(0.6, 20, 0.95), Rules(1.5, 5), Rules(1.0, 8, 1.0, 0.1), Rules(2.0, 0, 1.0, 0.2)]
)
def test_frequencies_are_the_definitions(rules, rng) -> None:
    logits = np.sort(rng.normal(size=30))[::-1] * 2
    expected = distribution(logits, rules.temperature, rules.top_k, rules.top_p, rules.min_p)
    count = beginning(logits.tolist(), rules, are_all=True)
    assert chi_square_is_small(
        lambda: draw_listed(range(count), logits[:count].tolist(), rules, rng), expected, draws=20_000
    )


def test_a_list_that_does_not_reach_far_enough_is_refused() -> None:
    logits = [3.0, 2.0, 1.0]
    assert beginning(logits, Rules(1.0, 4), are_all=False) is None
    assert beginning(logits, Rules(1.0, 4), are_all=True) == 3
    assert beginning(logits, Rules(1.0, 0, 1.0, 1e-9), are_all=False) is None  # there may be more
    assert beginning(logits, Rules(1.0, 0, 1.0, 0.3), are_all=False) == 2
    assert beginning(logits, Rules(1.0, 0, 0.9, 0.3), are_all=True) is None  # top-p asks for the mass of all
    assert beginning(logits, Rules(1.0), are_all=True) is None
    assert beginning([0.0] * 200, Rules(1.0, MOST_LISTED + 1), are_all=True) is None
