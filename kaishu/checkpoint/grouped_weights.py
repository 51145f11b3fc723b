"""Weights that are whole numbers with scales and zeros: weight = scale · (q - zero), one of each for a group along K.

Owns what follows from that alone, whichever format packs the numbers: their values, and the executors' layout that
keeps them. Knows no packing: awq.py, gptq.py and compressed.py are GroupedSources. The layouts have groups of 32 with
float16 scales, so

    zeros all in the middle  4 bits → int4, 8 bits → int8: q and the scale as they are
    4 bits, other zeros      → int4_minimum where scale and -scale·zero are float16 exactly; else → int8, which holds
                             q - zero (-15 to 15) and the same scale: nothing is lost, in twice the bytes
    8 bits, other zeros      → bf16: q - zero doesn't fit a byte
    groups that cut 32s      → bf16: act-order, a size that isn't a multiple of 32, or K that isn't one

Everything goes to bf16 where float16 can't hold a scale to within 2^-11 of it: two times finer than bfloat16 rounds.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from kaishu.checkpoint.quantised import GROUP, Groups, LayoutKind
from kaishu.checkpoint.safetensors import StoredTensor
from kaishu.errors import CheckpointError

_SCALES_AT_ONCE = 1 << 20
_FLOAT16_TOLERANCE = np.float32(2.0**-11)


class GroupedSource(Protocol):
    """How one format keeps such a matrix [N, K] of G groups a row."""

    def whole(self, first: int, last: int) -> NDArray[np.int8]:
        """return: [last - first, K], each minus 2^(bits - 1) if the format has them unsigned"""
        ...

    def scales(self, first: int, last: int) -> NDArray[np.float32]:
        """return: [last - first, G]"""
        ...

    def zeros(self, first: int, last: int) -> NDArray[np.int16] | None:
        """return: [last - first, G], shifted as `whole` is; None where all of them are 0"""
        ...

    @property
    def is_kept(self) -> bool:
        """Whether the file itself has its rows as a Groups, but for how many weights share a scale: no zeros, scales in
        float16, one for each group. Reads nothing."""
        ...

    def kept(self, first: int, last: int) -> Groups:
        """The rows as the file has them; only where `is_kept`."""
        ...


@dataclass(frozen=True)
class GroupedTensor:
    """A QuantisedTensor of whole numbers, scales and zeros.

    bits:        4 or 8
    num_groups:  G
    group_size:  how many weights along K share a scale; the last group may have fewer
    group_index: [K] int32 in the file, the group of each weight; None: in the order of K
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    bits: int
    num_groups: int
    group_size: int
    source: GroupedSource
    group_index: StoredTensor | None = None

    @property
    def num_values(self) -> int:
        """N·K."""
        return self.shape[0] * self.shape[1]

    @cached_property
    def layout(self) -> LayoutKind:
        """As the table above says; the first call reads all scales and zeros, unless their types decide.

        raises: CheckpointError for a scale that was read and is no number, or a group that there isn't
        """
        if self._has_whole_groups and self.source.is_kept:
            return "int4" if self.bits == 4 else "int8"
        kinds: set[LayoutKind] = {"int4" if self.bits == 4 else "int8"} if self._has_whole_groups else {"bf16"}
        step = max(GROUP, _SCALES_AT_ONCE // max(self.num_groups, 1))
        for first in range(0, self.shape[0], step):
            kinds.add(self._needed_layout(*self._scales_and_zeros(first, min(self.shape[0], first + step))))
        order: tuple[LayoutKind, ...] = ("int4", "int4_minimum", "int8", "bf16")
        return max(kinds, key=order.index)

    def values(self, first: int, last: int) -> NDArray[np.float32]:
        """Rows `first` to `last`: scale · (q - zero), rounded once to float32.

        return: [last - first, K] float32
        raises: CheckpointError as `layout` does, and when the file can't be read or has shrunk since it was opened
        """
        scales, zeros = self._scales_and_zeros(first, last)
        values = self.source.whole(first, last).astype(np.float32)
        if zeros is not None:
            values -= np.take(zeros.astype(np.float32), self._group_of, axis=1)
        values *= np.take(scales, self._group_of, axis=1)
        return values

    def groups(self, first: int, last: int) -> Groups | None:
        """The same rows as whole numbers for `layout`; None for bf16.

        raises: as `values` does, but says nothing of scales that are float16 in the file
        """
        layout = self.layout
        if layout == "bf16":
            return None
        if self.source.is_kept:
            kept, is_one_each = self.source.kept(first, last), self.group_index is None and self.group_size == GROUP
            return kept if is_one_each else replace(kept, scales=kept.scales[:, self._group_of[::GROUP]])
        scales, zeros = self._scales_and_zeros(first, last)
        whole, at = self.source.whole(first, last), self._group_of[::GROUP]
        scales = scales[:, at]
        zeros = np.zeros(scales.shape, np.int16) if zeros is None else zeros[:, at]
        if layout == "int4_minimum":
            minimums = -scales * (zeros + 8)
            return Groups(whole + np.int8(8), scales.astype(np.float16), minimums.astype(np.float16))
        if zeros.any():
            whole = whole - np.repeat(zeros.astype(np.int8), GROUP, axis=1)
        return Groups(whole, scales.astype(np.float16))

    def _needed_layout(self, scales: NDArray[np.float32], zeros: NDArray[np.int16] | None) -> LayoutKind:
        """The smallest layout that keeps groups with these scales and zeros."""
        with np.errstate(over="ignore"):
            halves = scales.astype(np.float16).astype(np.float32)
        if (np.abs(halves - scales) > np.abs(scales) * _FLOAT16_TOLERANCE).any():
            return "bf16"
        if zeros is None or not zeros.any():
            return "int4" if self.bits == 4 else "int8"
        if self.bits == 8:
            return "bf16"
        minimums = -scales * (zeros + 8)
        with np.errstate(over="ignore"):
            are_exact = (halves == scales).all() and (minimums.astype(np.float16) == minimums).all()
        return "int4_minimum" if are_exact else "int8"

    def _scales_and_zeros(self, first: int, last: int) -> tuple[NDArray[np.float32], NDArray[np.int16] | None]:
        # Taking columns of what lies by columns would be many times slower.
        scales, zeros = np.ascontiguousarray(self.source.scales(first, last)), self.source.zeros(first, last)
        if not np.isfinite(scales).all():
            row = first + int((~np.isfinite(scales)).any(axis=1).argmax())
            raise CheckpointError(
                f"{self.name} has a scale in row {row:,} that is infinite or no number; allowed: finite scales.",
                hint="The file is damaged, or the model was broken when it was quantised.",
            )
        return scales, None if zeros is None else np.ascontiguousarray(zeros)

    @cached_property
    def _group_of(self) -> NDArray[np.intp]:
        """[K], the group of each weight."""
        if self.group_index is None:
            return np.arange(self.shape[1]) // self.group_size
        index = self.group_index.read().astype(np.intp)
        wrong = (index < 0) | (index >= self.num_groups)
        if wrong.any():
            place = int(wrong.argmax())
            raise CheckpointError(
                f"{self.group_index.name} puts weight {place:,} of each row into group {index[place]:,}; "
                f"allowed: 0 to {self.num_groups - 1:,}."
            )
        return index

    @property
    def _has_whole_groups(self) -> bool:
        """Whether each 32 weights along K, as the layouts cut them, are of one group."""
        group_of = self._group_of
        if len(group_of) % GROUP:
            return False
        blocks = group_of.reshape(-1, GROUP)
        return bool((blocks == blocks[:, :1]).all())
