"""The kernels that find the machine's limits really read every byte and do every operation that they are said to."""

from __future__ import annotations

import numpy as np
import pytest

from kaishu.cpu.measure import PIECE_FLOATS, multiply, read_through, turn_operations
from kaishu.cpu.target import current_target
from kaishu.cpu.threads import Ranks


@pytest.fixture(params=[1, 2, 3])
def ranks(request):
    started = Ranks(request.param)
    yield started
    started.close()


def test_every_number_is_read_exactly_once(kernels, ranks, rng):
    memory = rng.integers(0, 4, 3 * PIECE_FLOATS).astype(np.float32)  # their sums are whole, so exact in any order
    assert read_through(kernels, ranks, memory) == memory.sum(dtype=np.float64)
    memory[-1] += 64  # nothing beyond the end is needed, and the end is
    memory[0] += 16
    assert read_through(kernels, ranks, memory) == memory.sum(dtype=np.float64)


@pytest.mark.parametrize("kind", ["int4", "int8", "bf16", "float32"])
@pytest.mark.parametrize("turns", [1, 5, 130])
def test_a_turn_does_as_many_operations_as_it_is_counted_for(kernels, ranks, kind, turns):
    """Every product is 1 · 1, so the sums count the products; each is a multiplication and an addition."""
    target = current_target()
    weight = 129 if kind == "int8" and target.dot.startswith("vnni") and not target.has_tiles else 1
    sums = multiply(kernels, ranks, kind, turns)
    assert sums.shape[0] == ranks.count
    assert len(np.unique(sums)) == 1, "all ranks and lanes do the same"
    assert 2 * sums.sum(dtype=np.float64) == weight * ranks.count * turns * turn_operations(kind)
