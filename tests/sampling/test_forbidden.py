"""Which tokens are left: ids without a token, end tokens that are too early, a grammar's mask, and all together."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kaishu.errors import NumericalError
from kaishu.sampling import SamplingParams
from kaishu.sampling.forbidden import FEW, ForbiddenTokens
from tests.sampling.definition import mask_of


def make_forbidden(size: int, *, absent=(), ends=(), **fields) -> ForbiddenTokens:
    return ForbiddenTokens(SamplingParams(**fields), num_token_ids=size, absent_ids=absent, end_token_ids=ends)


def ids_left(rule: ForbiddenTokens, size: int, num_taken: int, mask: np.ndarray | None) -> list[int]:
    left = rule.rule(num_taken, mask)
    kept = np.flatnonzero(left.keep(np.zeros(size, np.float32)) > -np.inf).tolist()
    assert left.count == len(kept) and left.is_every_token == (len(kept) == size)
    if len(kept) == 1:
        assert left.only_one() == kept[0]
    return kept


@given(
    size=st.integers(1, 100),
    absent=st.sets(st.integers(0, 120), max_size=8),
    ends=st.sets(st.integers(0, 120), max_size=4),
    stops=st.sets(st.integers(0, 99), max_size=4),
    ignore_eos=st.booleans(),
    min_tokens=st.integers(0, 2),
    num_taken=st.integers(0, 2),
    allowed=st.none() | st.sets(st.integers(0, 120), max_size=60),
    dtype=st.sampled_from([np.uint32, np.int32]),
)
def test_what_is_left_equals_the_rules_one_by_one(
    size, absent, ends, stops, ignore_eos, min_tokens, num_taken, allowed, dtype
) -> None:
    stops = {i for i in stops if i < size}  # others are refused before
    rule = make_forbidden(
        size, absent=absent, ends=ends, stop_token_ids=list(stops), ignore_eos=ignore_eos, min_tokens=min_tokens
    )
    early = num_taken < min_tokens
    may = [i for i in range(size) if i not in absent and (allowed is None or i in allowed)]
    strictly = [i for i in may if not (i in ends and (early or ignore_eos)) and not (i in stops and early)]
    mask = None if allowed is None else mask_of(allowed, 4, dtype)
    expected = strictly or (may if allowed is not None else [])
    if not expected:
        with pytest.raises(NumericalError, match=r"forbidden|allows no token"):
            rule.rule(num_taken, mask)
    else:
        assert ids_left(rule, size, num_taken, mask) == expected


@pytest.mark.parametrize("count", [1, 2, FEW, FEW + 1, 9000, 10_000])
def test_few_and_many_allowed_tokens_are_kept_alike(count, rng) -> None:
    allowed = np.sort(rng.choice(10_000, count, replace=False))
    left = make_forbidden(10_000).rule(0, mask_of(allowed, 313))
    logits = rng.normal(size=10_000).astype(np.float32)
    before = logits.copy()
    kept = left.keep(logits)
    expected = np.full(10_000, -np.inf, np.float32)
    expected[allowed] = logits[allowed]
    assert np.array_equal(kept, expected) and np.array_equal(logits, before)


def test_a_grammar_that_can_only_end_outranks_min_tokens_and_ignore_eos() -> None:
    rule = make_forbidden(64, ends=(5,), min_tokens=3)
    assert ids_left(rule, 64, 0, mask_of([5], 2)) == [5]
    assert ids_left(rule, 64, 0, mask_of([5, 9], 2)) == [9]
    assert ids_left(make_forbidden(64, ends=(5,), ignore_eos=True), 64, 9, mask_of([5], 2)) == [5]


def test_a_mask_may_be_as_long_as_the_head() -> None:
    assert ids_left(make_forbidden(40), 40, 0, mask_of([3, 39, 40, 63, 90], 3)) == [3, 39]
