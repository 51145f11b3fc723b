"""Histograms: where a number is counted, and that a copy stays as it was."""

from __future__ import annotations

from dataclasses import fields

import pytest

from kaishu.engine.histograms import GAP_SECONDS, SECONDS, TOKENS, Histogram, JobHistograms


@pytest.mark.parametrize(("number", "place"), [(0.0, 0), (1.0, 0), (1.5, 1), (2.0, 1), (5.0, 2), (5.1, 3), (1e9, 3)])
def test_a_number_is_counted_under_the_first_bound_that_it_keeps(number: float, place: int) -> None:
    histogram = Histogram((1.0, 2.0, 5.0))
    histogram.add(number)
    assert histogram.counts == [int(index == place) for index in range(4)] and histogram.total == number


@pytest.mark.parametrize("bounds", [SECONDS, GAP_SECONDS, TOKENS])
def test_bounds_ascend_and_are_round(bounds: tuple[float, ...]) -> None:
    assert list(bounds) == sorted(set(bounds)) and bounds[0] > 0
    assert all(len(f"{bound:g}") <= 6 for bound in bounds)


def test_a_copy_stays_as_it_was() -> None:
    jobs = JobHistograms()
    jobs.queue.add(0.5)
    before = jobs.copied()
    for one in fields(jobs):
        getattr(jobs, one.name).add(0.5)
    assert before.queue.total == 0.5 and before.whole.total == 0.0
    assert sum(before.queue.counts) == 1 and sum(jobs.queue.counts) == 2
