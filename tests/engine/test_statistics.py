"""Statistics: shares, and steps sorted by how long they took."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest

from kaishu.engine.statistics import STEP_BOUNDS_MS, Counters, Statistics

NOTHING = Statistics(*[0] * (len(fields(Statistics)) - 1), step_histogram=())  # type: ignore[misc]


def test_shares_are_none_where_there_was_nothing() -> None:
    assert NOTHING.hit_rate is None and NOTHING.acceptance is None
    some = replace(NOTHING, prompt_tokens=8, cached_tokens=2, guessed=4, accepted=3)
    assert (some.hit_rate, some.acceptance) == (0.25, 0.75)


@pytest.mark.parametrize(
    ("seconds", "place"), [(0.0, 0), (0.001, 0), (0.0011, 1), (0.02, 4), (0.021, 5), (5.0, 11), (5.1, 12), (1e6, 12)]
)
def test_a_step_is_counted_under_the_first_bound_that_it_keeps(seconds: float, place: int) -> None:
    counters = Counters()
    counters.count_step(seconds, 0.5)
    assert counters.step_histogram.index(1) == place and sum(counters.step_histogram) == 1
    assert len(counters.step_histogram) == len(STEP_BOUNDS_MS) + 1
    assert (counters.steps, counters.step_seconds, counters.own_seconds) == (1, seconds, 0.5)


def test_what_is_counted_is_what_is_shown() -> None:
    assert set(vars(Counters())) <= {field.name for field in fields(Statistics)}
