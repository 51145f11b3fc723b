"""Where the numbers of activations lie, against numpy's own way of bringing rows into that order."""

from __future__ import annotations

import numpy as np
import pytest

from kaishu.cpu import activations
from kaishu.cpu.records import ACTIVATIONS, record
from kaishu.cpu.target import TILE, current_target
from tests.cpu.drawn_weights import in_order
from tests.cpu.from_python import from_python

row_place, group_step, row_step = map(
    from_python, (activations.row_place, activations.group_step, activations.row_step)
)


@pytest.mark.parametrize("rows, groups", [(1, 1), (5, 3), (16, 2), (41, 32)])
def test_every_number_is_found_where_the_order_has_it(rows, groups):
    width = groups * 32
    x = record(ACTIVATIONS, dict.fromkeys(ACTIVATIONS.names, 0) | {"width": width})
    numbers = np.arange(rows * width, dtype=np.int32).reshape(rows, groups, 32)
    scales = numbers[..., 0]
    memory, scales_memory = in_order(numbers).ravel(), in_order(scales).ravel()
    for row in range(rows):
        start = row_place(x, row)
        for group in range(groups):
            place = start + group * group_step()
            assert np.array_equal(memory[place : place + 32], numbers[row, group])
            assert scales_memory[place // 32] == scales[row, group]


def test_rows_of_a_tile_are_equally_far_apart():
    x = record(ACTIVATIONS, dict.fromkeys(ACTIVATIONS.names, 0) | {"width": 96})
    places = [row_place(x, row) for row in range(TILE, 2 * TILE)]
    assert set(np.diff(places)) == {row_step(x)}
    assert (row_step(x), group_step()) == ((32, 512) if current_target().has_tiles else (96, 32))
