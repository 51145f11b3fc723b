"""AWQ (Lin et al., 2023, arXiv:2306.00978), as AutoAWQ stores it in the form it calls `gemm`.

Owns where a weight's numbers lie. A linear layer of N outputs and K inputs with groups of g is

    qweight  [K, N/8]    int32   8 consecutive n in a word; from the lowest bits up they are n = 0, 2, 4, 6, 1, 3, 5, 7
    qzeros   [K/g, N/8]  int32   likewise
    scales   [K/g, N]    float16

so a row of the weight is a column here: rows are read a block of columns at a time. What the numbers mean together is
grouped_weights.py's; called by quantised_huggingface.py.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kaishu.checkpoint.grouped_weights import GroupedTensor
from kaishu.checkpoint.quantised import Groups
from kaishu.checkpoint.safetensors import StoredTensor
from kaishu.checkpoint.stored_numbers import FLOAT_TYPES, as_float32
from kaishu.checkpoint.tensor_parts import TensorParts
from kaishu.quantisation_config import QuantisationConfig

PARTS = ("qweight", "qzeros", "scales")
_PER_WORD = 8
_IN_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)  # the n in a word, from its lowest bits up


def awq_tensor(parts: TensorParts, config: QuantisationConfig) -> GroupedTensor:
    """One linear layer's weight.

    raises: CheckpointError naming a part that is missing or doesn't fit the others
    """
    qweight, qzeros = parts.required("qweight", ("I32",)), parts.required("qzeros", ("I32",))
    scales = parts.required("scales", FLOAT_TYPES)
    inputs, words = qweight.shape
    num_groups, rows = scales.shape[0], words * _PER_WORD
    parts.check_shape("scales", (num_groups, rows), f"qweight has {rows:,} outputs")
    parts.check_shape("qzeros", (num_groups, words), f"there are {num_groups:,} groups of {rows:,} outputs")
    group_size = parts.group_size(inputs, num_groups, config.group_sizes)
    return GroupedTensor(
        parts.name,
        f"AWQ int4, {'one group a row' if group_size == inputs else f'groups of {group_size}'}",
        (rows, inputs),
        parts.nbytes,
        4,
        num_groups,
        group_size,
        AwqSource(qweight, qzeros, scales),
    )


@dataclass(frozen=True)
class AwqSource:
    """A GroupedSource: the three matrices."""

    qweight: StoredTensor
    qzeros: StoredTensor
    stored_scales: StoredTensor

    def whole(self, first: int, last: int) -> NDArray[np.int8]:
        """return: [last - first, K]"""
        return _columns(self.qweight, first, last)

    def scales(self, first: int, last: int) -> NDArray[np.float32]:
        """return: [last - first, G]"""
        return as_float32(self.stored_scales.read()[:, first:last].T, self.stored_scales.dtype)

    def zeros(self, first: int, last: int) -> NDArray[np.int16] | None:
        """return: [last - first, G]"""
        return _columns(self.qzeros, first, last).astype(np.int16)

    @property
    def is_kept(self) -> bool:
        """Never: every group has a zero, and a row's numbers lie far apart."""
        return False

    def kept(self, first: int, last: int) -> Groups:
        """Not to be asked for."""
        raise AssertionError("never kept")


def _columns(tensor: StoredTensor, first: int, last: int) -> NDArray[np.int8]:
    """Columns of a packed matrix [R, N/8] as rows.

    return: [last - first, R] int8, each minus 8
    """
    start = first // _PER_WORD
    packed = np.ascontiguousarray(tensor.read()[:, start : -(-last // _PER_WORD)], "<i4")
    count, words = packed.shape
    pieces = np.ascontiguousarray(packed.view(np.uint8).reshape(count, 4 * words).T).reshape(words, 4, count)
    numbers = np.empty((words, _PER_WORD, count), np.int8)
    numbers[:, _IN_ORDER[0::2]] = pieces & 15  # the lower half of each of a word's four bytes
    numbers[:, _IN_ORDER[1::2]] = pieces >> 4
    numbers -= 8
    return numbers.reshape(words * _PER_WORD, count)[first - start * _PER_WORD : last - start * _PER_WORD]
