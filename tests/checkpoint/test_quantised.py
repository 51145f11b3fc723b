"""The contract of quantised tensors says the same as the layout that keeps them."""

from __future__ import annotations

from typing import get_args

import numpy as np

from kaishu.checkpoint.quantised import GROUP, Groups, LayoutKind
from kaishu.cpu import layout


def test_the_executors_layouts_are_the_ones_that_tensors_may_ask_for():
    assert get_args(LayoutKind) == get_args(layout.WeightKind)
    assert GROUP == layout.GROUP


def test_minimums_may_be_left_out():
    groups = Groups(np.zeros((1, 32), np.int8), np.ones((1, 1), np.float16))
    assert groups.minimums is None


def test_numbers_are_the_same_in_bytes_and_in_pairs(rng):
    whole = rng.integers(-8, 8, (3, 64)).astype(np.int8)
    pairs = np.zeros((3, 32), np.uint8)
    for row in range(3):
        for k in range(64):
            pairs[row, k // 2] |= int(whole[row, k] + 8) << (4 * (k % 2))
    for kept in (whole, pairs):
        numbers = Groups(kept, np.ones((3, 2), np.float16)).numbers()
        assert numbers.dtype == np.int8 and np.array_equal(numbers, whole)
