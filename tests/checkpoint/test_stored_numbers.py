"""Bits as numbers, against plain loops, numpy and torch."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kaishu.checkpoint.stored_numbers import as_float32, e4m3_values, unpacked
from tests.checkpoint.quantised_packers import e4m3_value, word


@pytest.mark.parametrize("bits", [4, 8])
@given(data=st.data())
@settings(max_examples=50, deadline=None)
def test_numbers_come_out_of_words_in_the_order_in_which_they_went_in(bits: int, data: st.DataObject) -> None:
    per_word = 32 // bits
    rows = data.draw(st.integers(1, 3))
    row = st.lists(st.integers(0, (1 << bits) - 1), min_size=2 * per_word, max_size=2 * per_word)
    numbers = data.draw(st.lists(row, min_size=rows, max_size=rows))
    words = [[word(line[:per_word], bits), word(line[per_word:], bits)] for line in numbers]
    found = unpacked(np.array(words, np.int32), bits)
    assert found.dtype == np.int8
    assert (found.astype(int) + (1 << (bits - 1))).tolist() == numbers


def test_a_view_of_columns_is_unpacked_like_a_copy(rng: np.random.Generator) -> None:
    words = rng.integers(-(2**31), 2**31, (6, 9)).astype(np.int32)
    assert np.array_equal(unpacked(words[:, 2:5].T, 4), unpacked(np.ascontiguousarray(words[:, 2:5].T), 4))


@pytest.mark.parametrize("shape", [(0, 3), (3, 0)])
def test_nothing_unpacks_to_nothing(shape: tuple[int, int]) -> None:
    assert unpacked(np.empty(shape, np.int32), 4).shape == (shape[0], 8 * shape[1])


def test_every_pattern_of_e4m3_is_what_the_paper_and_torch_say() -> None:
    import torch

    expected = [e4m3_value(pattern) for pattern in range(256)]
    np.testing.assert_array_equal(e4m3_values(), np.array(expected, np.float32))
    official = torch.arange(256).to(torch.uint8).view(torch.float8_e4m3fn).float().numpy()
    np.testing.assert_array_equal(e4m3_values(), official)
    assert np.nanmax(e4m3_values()) == 448 and math.copysign(1, e4m3_values()[128]) == -1


def test_other_types_are_widened_without_loss(rng: np.random.Generator) -> None:
    import torch

    bits = rng.integers(0, 65_536, 1000).astype(np.uint16)
    bfloat = torch.from_numpy(bits.view(np.int16)).view(torch.bfloat16).float().numpy()
    np.testing.assert_array_equal(as_float32(bits, "BF16"), bfloat)
    np.testing.assert_array_equal(as_float32(bits.view(np.float16), "F16"), bits.view(np.float16).astype(np.float32))
    patterns = np.arange(256, dtype=np.uint8)
    powers = torch.from_numpy(patterns).view(torch.float8_e8m0fnu).float().numpy()
    np.testing.assert_array_equal(as_float32(patterns, "F8_E8M0"), powers)
