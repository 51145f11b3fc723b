"""Which executor layout keeps which whole numbers, and that it keeps them exactly."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from kaishu.checkpoint.grouped_weights import GroupedTensor
from kaishu.checkpoint.quantised import Groups
from kaishu.checkpoint.safetensors import StoredTensor
from kaishu.errors import CheckpointError
from tests.checkpoint.quantised_files import check
from tests.checkpoint.quantised_packers import Drawing, Weight, draw


@dataclass(frozen=True)
class InMemory:
    """A GroupedSource of a drawn matrix."""

    weight: Weight

    def whole(self, first: int, last: int) -> NDArray[np.int8]:
        return (self.weight.q[first:last] - (1 << (self.weight.bits - 1))).astype(np.int8)

    def scales(self, first: int, last: int) -> NDArray[np.float32]:
        return self.weight.scales[first:last].astype(np.float32)

    def zeros(self, first: int, last: int) -> NDArray[np.int16] | None:
        return (self.weight.zeros[first:last] - (1 << (self.weight.bits - 1))).astype(np.int16)

    is_kept = False

    def kept(self, first: int, last: int) -> Groups:
        raise AssertionError("never kept")


def tensor(weight: Weight, size: int, index: StoredTensor | None = None) -> GroupedTensor:
    return GroupedTensor(
        "w", "drawn", weight.q.shape, 0, weight.bits, weight.zeros.shape[1], size, InMemory(weight), index
    )


ROUND = {"has_round_scales": True}
SYMMETRIC = {"is_symmetric": True}
LAYOUTS = [
    (Drawing(5, 96, 4, 32, **SYMMETRIC), "int4"),
    (Drawing(5, 128, 4, 64, **SYMMETRIC), "int4"),
    (Drawing(5, 64, 4, -1, **SYMMETRIC), "int4"),
    (Drawing(5, 96, 4, 64, **SYMMETRIC), "int4"),  # the last group is half as long
    (Drawing(5, 96, 4, 32, **ROUND), "int4_minimum"),
    (Drawing(5, 96, 4, 32), "int8"),  # scale · zero needs more bits than float16 has
    (Drawing(5, 96, 8, 32, **SYMMETRIC), "int8"),
    (Drawing(5, 96, 8, 32), "bf16"),
    (Drawing(5, 96, 4, 48, **SYMMETRIC), "bf16"),  # 32 to 63 are of two groups
    (Drawing(5, 96, 4, 16, **SYMMETRIC), "bf16"),
    (Drawing(5, 40, 4, 40, **SYMMETRIC), "bf16"),  # no whole number of 32s
    (Drawing(5, 96, 4, 32, scale_type=np.float32, **SYMMETRIC), "int4"),
]


@pytest.mark.parametrize("how, layout", LAYOUTS[:-1])
def test_each_kind_is_kept_where_it_loses_nothing(how: Drawing, layout: str, rng: np.random.Generator) -> None:
    weight = draw(rng, how)
    check(tensor(weight, how.group_size if how.group_size > 0 else how.inputs), weight.values(), layout)


def test_a_scale_that_float16_rounds_by_a_little_stays_in_whole_numbers(rng: np.random.Generator) -> None:
    how, layout = LAYOUTS[-1]
    found = tensor(draw(rng, how), 32)
    assert found.layout == layout
    groups = found.groups(0, 5)
    assert groups is not None
    error = np.abs(groups.scales.astype(np.float64) / draw(np.random.default_rng(20250427), how).scales - 1)
    assert 0 < error.max() <= 2**-11


@pytest.mark.parametrize("scale", [1e-7, 1e5, 3e-6])
def test_a_scale_that_float16_cannot_hold_goes_to_bf16(scale: float, rng: np.random.Generator) -> None:
    weight = draw(rng, Drawing(3, 64, scale_type=np.float32, **SYMMETRIC))
    weight.scales[2, 1] = scale
    found = tensor(weight, 32)
    assert found.layout == "bf16" and found.groups(0, 1) is None
    np.testing.assert_array_equal(found.values(0, 3), weight.values())


def test_one_zero_that_is_not_in_the_middle_changes_the_layout(rng: np.random.Generator) -> None:
    weight = draw(rng, Drawing(3, 64, **SYMMETRIC))
    weight.zeros[1, 1] = 7
    check(tensor(weight, 32), weight.values(), "int8")


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_scale_that_is_no_number_is_named_with_its_row(value: float, rng: np.random.Generator) -> None:
    weight = draw(rng, Drawing(4, 64, **SYMMETRIC))
    weight.scales[2, 1] = value
    found = tensor(weight, 32)
    for read in (lambda: found.layout, lambda: found.values(0, 4), lambda: found.values(2, 3)):
        with pytest.raises(CheckpointError, match="w has a scale in row 2 that is infinite or no number"):
            read()


def stored(path: Path, index: Any, dtype: str = "I32") -> StoredTensor:
    path.write_bytes(np.asarray(index, "<i4").tobytes())
    return StoredTensor("w.g_idx", dtype, (len(index),), path, 0)


def test_groups_in_another_order_stay_whole_numbers_while_32s_are_of_one_group(
    rng: np.random.Generator, tmp_path: Path
) -> None:
    weight = draw(rng, Drawing(3, 96, **SYMMETRIC))
    swapped = Weight(4, weight.q, weight.scales, weight.zeros, np.repeat([2, 0, 1], 32).astype(np.int32))
    check(tensor(swapped, 32, stored(tmp_path / "a", swapped.index)), swapped.values(), "int4")
    mixed = Weight(4, weight.q, weight.scales, weight.zeros, rng.permutation(weight.index))
    check(tensor(mixed, 32, stored(tmp_path / "b", mixed.index)), mixed.values(), "bf16")


@pytest.mark.parametrize("wrong", [-1, 3, 2**31 - 1, -(2**31)])
def test_a_group_that_there_is_not_is_named(wrong: int, rng: np.random.Generator, tmp_path: Path) -> None:
    weight = draw(rng, Drawing(3, 96, **SYMMETRIC))
    weight.index[40] = wrong
    found = tensor(weight, 32, stored(tmp_path / "a", weight.index))
    for read in (lambda: found.layout, lambda: found.values(0, 1), lambda: found.groups(0, 1)):
        with pytest.raises(CheckpointError, match=rf"w\.g_idx puts weight 40 .* into group {wrong:,}; allowed: 0 to 2"):
            read()
