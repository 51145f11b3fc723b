"""Sums of weights: every bound holds, each is closer than the one before, the last is the definition's."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from numpy.testing import assert_allclose

from kaishu.batch import BLOCK_TOKENS
from kaishu.sampling.logit_row import LogitRow
from kaishu.sampling.mass import ROUNDING, Mass, weights_of


def make_mass(kind: str, temperature: float, *, listed: int = 64) -> tuple[Mass, np.ndarray]:
    """A mass and all logits in float64."""
    rng = np.random.default_rng(3)
    row = rng.normal(size=20_000).astype(np.float32) * {"flat": 0.1, "usual": 3, "wide": 40}[kind]
    exact = row.astype(np.float64)
    ids = rng.choice(len(row), 500, replace=False)
    values = exact[ids] / 1.3
    exact[ids] = values
    row[ids] = -np.inf
    prepared = LogitRow(row, ids, values)
    return Mass(prepared, prepared.likeliest(listed), temperature), exact


@pytest.mark.parametrize("temperature", [1e-5, 1e-2, 0.6, 1.0, 1e8])
@pytest.mark.parametrize("kind", ["flat", "usual", "wide"])
def test_bounds_hold_and_end_at_the_definition(kind, temperature) -> None:
    mass, exact = make_mass(kind, temperature)
    weights = np.exp((exact - exact.max()) / temperature)
    order = np.lexsort((np.arange(len(exact)), -exact))
    for place in (0, 5, 63, 64, 400, 19_999):
        token_id = int(order[place])
        likelier, total = float(weights[order[:place]].sum()), float(weights.sum())
        found = np.flatnonzero(mass.likeliest.ids == token_id)
        widths = []
        for bounds in mass.around(token_id, int(found[0]) if len(found) else None):
            for (low, high), value in ((bounds.likelier, likelier), (bounds.total, total)):
                assert low * (1 - 1e-12) <= value <= high * (1 + 1e-12)
            widths.append(bounds.total[1] - bounds.total[0] + bounds.likelier[1] - bounds.likelier[0])
        assert widths[-1] == 0 and all(later <= earlier + 1e-29 for earlier, later in pairwise(widths))


@pytest.mark.parametrize("temperature", [1e-5, 0.6, 1.0, 1e8])
def test_the_total_is_within_the_rounding_it_promises(temperature) -> None:
    mass, exact = make_mass("usual", temperature)
    expected = float(np.exp((exact - exact.max()) / temperature).sum())
    assert abs(mass.total() - expected) <= ROUNDING * (expected - mass.of_likeliest) + 1e-12 * expected


@pytest.mark.parametrize("temperature", [1e-5, 0.6, 1.0, 1e8])
def test_ceilings_are_above_every_token_that_is_not_listed(temperature) -> None:
    mass, exact = make_mass("usual", temperature)
    exact[mass.row.apart_ids] = -np.inf
    exact[mass.likeliest.ids] = -np.inf
    weights = weights_of(exact, mass.row.highest, temperature)
    assert (weights <= np.repeat(mass.ceilings(), BLOCK_TOKENS)[: len(weights)]).all()
    assert_allclose(mass.envelope(), np.cumsum(BLOCK_TOKENS * mass.ceilings(), dtype=np.float64))


def test_extreme_temperatures_give_weights_of_zero_and_one() -> None:
    values = np.array([0.0, -1e-3, -np.inf])
    assert weights_of(values, 0.0, 1e-320).tolist() == [1, 0, 0]
    assert weights_of(values, 0.0, 1e300).tolist() == [1, 1, 0]
