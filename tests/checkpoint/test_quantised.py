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
