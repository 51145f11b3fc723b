"""Finding large values by blocks equals sorting everything."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kaishu.batch import BLOCK_TOKENS
from kaishu.sampling.logit_row import (
    FIRST_LOOK,
    SMALLEST_WITH_BLOCKS,
    Known,
    LogitRow,
    block_maxima,
    listed_first,
)


def make_row(seed: int, size: int, *, kind: str, apart: int) -> tuple[LogitRow, np.ndarray]:
    """A row and the same logits in float64, all in one array."""
    rng = np.random.default_rng(seed)
    row = rng.normal(size=size).astype(np.float32) * 3
    if kind == "ties":
        row = np.round(row)
    if kind == "mostly forbidden":
        row[rng.random(size) < 0.99] = -np.inf
        row[rng.integers(size)] = 1.0
    if kind == "few above":
        row = np.maximum(row, np.sort(row)[-70])
    if kind == "equal":
        row[:] = -3
    exact = row.astype(np.float64)
    ids = rng.choice(size, min(apart, size), replace=False)
    values = rng.normal(size=len(ids)) * 3
    exact[ids] = values
    row[ids] = -np.inf
    return LogitRow(row, ids, values), exact


SIZES = [1, 63, SMALLEST_WITH_BLOCKS - 1, SMALLEST_WITH_BLOCKS, SMALLEST_WITH_BLOCKS + BLOCK_TOKENS - 1, 9000]


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


@settings(deadline=None, max_examples=60)
@given(
    seed=st.integers(0, 10**6),
    size=st.sampled_from([SMALLEST_WITH_BLOCKS, 9000]),
    kind=st.sampled_from(["plain", "ties", "mostly forbidden", "few above", "equal"]),
    apart=st.sampled_from([0, 1, 300]),
)
def test_the_first_look_is_what_the_sorted_row_s_beginning_tells(seed, size, kind, apart) -> None:
    """The tokens above the 64th; where all 64 are equal, all of their equals."""
    row, exact = make_row(seed, size, kind=kind, apart=apart)
    order = np.lexsort((np.arange(size), -exact))
    lowest = exact[order[FIRST_LOOK - 1]]
    wanted = exact > lowest if exact.max() > lowest else exact == lowest
    look = row.first_look()
    assert look.ids.tolist() == order[: wanted.sum()].tolist() and np.array_equal(look.values, exact[look.ids])
    others = exact[order[wanted.sum() :]]
    assert ((others < look.limit) | (others == -np.inf)).all() and (look.values >= look.limit).all()
    top = order[: FIRST_LOOK + 5]
    listed = listed_first(top, exact[top])
    assert listed is None if exact.max() == lowest else listed is not None and listed.ids.tolist() == look.ids.tolist()


def test_the_first_look_at_a_short_row_sees_all() -> None:
    for size in (1, 5, SMALLEST_WITH_BLOCKS - 1):
        row, exact = make_row(3, size, kind="ties", apart=1)
        assert row.first_look().is_all and len(row.first_look().ids) == np.isfinite(exact).sum()


@pytest.mark.parametrize("size", [1, BLOCK_TOKENS - 1, BLOCK_TOKENS, 5000, 9024])
def test_maxima_are_those_of_the_blocks_also_after_a_change(size, rng) -> None:
    row = rng.normal(size=size).astype(np.float32)
    before = [row[start : start + BLOCK_TOKENS].max() for start in range(0, size, BLOCK_TOKENS)]
    known = Known(block_maxima(row), hidden=np.array([row.argmax()]))
    assert known.maxima.tolist() == before
    row[known.hidden] = -np.inf if size > 1 else -5
    after = [row[start : start + BLOCK_TOKENS].max() for start in range(0, size, BLOCK_TOKENS)]
    changed = LogitRow(row, known=known)
    assert changed.maxima.tolist() == after and (changed.bounds >= changed.maxima).all()
    assert changed.highest == row.max()


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
