"""Finding large values by blocks equals sorting everything."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kaishu.sampling.logit_row import BLOCK, SMALLEST_WITH_BLOCKS, LogitRow


def make_row(seed: int, size: int, *, kind: str, apart: int) -> tuple[LogitRow, np.ndarray]:
    """A row and the same logits in float64, all in one array."""
    rng = np.random.default_rng(seed)
    row = rng.normal(size=size).astype(np.float32) * 3
    if kind == "ties":
        row = np.round(row)
    if kind == "mostly forbidden":
        row[rng.random(size) < 0.99] = -np.inf
        row[rng.integers(size)] = 1.0
    exact = row.astype(np.float64)
    ids = rng.choice(size, min(apart, size), replace=False)
    values = rng.normal(size=len(ids)) * 3
    exact[ids] = values
    row[ids] = -np.inf
    return LogitRow(row, ids, values), exact


SIZES = [1, 63, SMALLEST_WITH_BLOCKS - 1, SMALLEST_WITH_BLOCKS, SMALLEST_WITH_BLOCKS + BLOCK - 1, 9000]


@settings(deadline=None, max_examples=60)
@given(
    seed=st.integers(0, 10**6),
    size=st.sampled_from(SIZES),
    kind=st.sampled_from(["plain", "ties", "mostly forbidden"]),
    apart=st.sampled_from([0, 1, 300]),
    count=st.sampled_from([1, 2, 20, 64, 300, 5000, 10**9]),
)
def test_the_likeliest_begin_as_the_sorted_row_does(seed, size, kind, apart, count) -> None:
    row, exact = make_row(seed, size, kind=kind, apart=apart)
    order = np.lexsort((np.arange(size), -exact))
    order = order[exact[order] > -np.inf]
    found = row.likeliest(count)
    assert len(found.ids) >= min(count, len(order))
    assert found.ids.tolist() == order[: len(found.ids)].tolist()
    assert found.values.tolist() == exact[found.ids].tolist()
    assert row.highest == exact[order[0]]
    outside = np.setdiff1d(order, found.ids)
    assert not len(outside) if found.is_all else (exact[outside] < found.limit).all()


@pytest.mark.parametrize("limit", [-np.inf, -1e300, -1.0, 0.1, 1 / 3, 2.0, 1e300, 1e39])
@pytest.mark.parametrize("size", SIZES)
def test_at_least_finds_what_comparing_finds(limit, size) -> None:
    row, exact = make_row(5, size, kind="ties", apart=40)
    assert sorted(row.at_least(limit).ids.tolist()) == np.flatnonzero((exact >= limit) & (exact > -np.inf)).tolist()


def test_a_limit_between_two_float32_numbers_is_not_rounded() -> None:
    exact = np.full(SMALLEST_WITH_BLOCKS, np.float32(0.1))
    assert len(LogitRow(exact).at_least(float(np.float32(0.1)) + 1e-12).ids) == 0
    assert len(LogitRow(exact).at_least(float(np.float32(0.1))).ids) == len(exact)


def test_the_first_of_many_stand_for_all() -> None:
    row, _ = make_row(0, 9000, kind="plain", apart=0)
    first = row.likeliest(100).first(3)
    assert len(first.ids) == len(first.values) == 3 and first.is_all


def test_forbidden_tokens_are_those_that_are_nowhere() -> None:
    values = np.zeros(5000, np.float32)
    values[[1, 2]] = -np.inf
    row = LogitRow(values, np.array([2, 4]), np.array([0.5, -np.inf]))
    values[4] = -np.inf
    assert [token_id for token_id in range(6) if row.forbids(token_id)] == [1, 4]
