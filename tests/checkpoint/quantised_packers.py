"""Quantised weights written from the descriptions of their formats, one number at a time.

Owns the packing order of each format, independently of the readers: plain loops over Python integers. Knows nothing of
Kaishu. What is packed is drawn by the tests, so that they know what must come back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)  # from a word's lowest bits up: which of eight outputs each is


@dataclass(frozen=True)
class Weight:
    """What a quantised matrix is, before any packing: weight[n, k] = scales[n, g] · (q[n, k] - zeros[n, g]).

    index:    [K], the group g of each k
    q, zeros: unsigned, 0 to 2^bits - 1
    """

    bits: int
    q: NDArray[np.int64]
    scales: NDArray[Any]
    zeros: NDArray[np.int64]
    index: NDArray[np.int32]

    def values(self) -> NDArray[np.float32]:
        """[N, K], as the formats define it."""
        n, k = self.q.shape
        out = np.empty((n, k), np.float32)
        for row in range(n):
            for column in range(k):
                group = self.index[column]
                difference = np.float32(int(self.q[row, column]) - int(self.zeros[row, group]))
                out[row, column] = np.float32(self.scales[row, group]) * difference
        return out


@dataclass(frozen=True)
class Drawing:
    """How a matrix is drawn."""

    rows: int
    inputs: int
    bits: int = 4
    group_size: int = 32  # -1: a whole row
    is_symmetric: bool = False
    has_round_scales: bool = False  # scales that, times any zero, are still float16
    is_act_ordered: bool = False
    lowest_zero: int = 0
    scale_type: Any = field(default=np.float16)


def draw(rng: np.random.Generator, how: Drawing) -> Weight:
    """A matrix over the whole range of its numbers."""
    size = how.inputs if how.group_size < 0 else how.group_size
    groups = -(-how.inputs // size)
    top = 1 << how.bits
    q = rng.integers(0, top, (how.rows, how.inputs))
    zeros = rng.integers(how.lowest_zero, top, (how.rows, groups))
    if how.is_symmetric:
        zeros[:] = top // 2
    scales = rng.uniform(0.001, 0.02, (how.rows, groups)).astype(how.scale_type)
    if how.has_round_scales:
        scales = np.exp2(rng.integers(-10, -4, (how.rows, groups))).astype(how.scale_type)
    index = (np.arange(how.inputs) // size).astype(np.int32)
    if how.is_act_ordered:
        index = rng.permutation(index)
    return Weight(how.bits, q, scales, zeros, index)


def word(numbers: Sequence[int], bits: int) -> int:
    """Numbers in one 32-bit word, the first in the lowest bits, as a signed integer."""
    total = 0
    for place, number in enumerate(numbers):
        assert 0 <= number < 1 << bits
        total |= int(number) << (bits * place)
    return total - (1 << 32) if total >= 1 << 31 else total


def pack_gptq(weight: Weight, *, is_second_form: bool = False) -> dict[str, NDArray[Any]]:
    """qweight [K/P, N], qzeros [G, N/P] of zero - 1 (of zero, in the second form), scales [G, N], g_idx [K]."""
    (rows, inputs), groups, per_word = weight.q.shape, weight.zeros.shape[1], 32 // weight.bits
    qweight = np.empty((inputs // per_word, rows), np.int32)
    for k in range(0, inputs, per_word):
        for n in range(rows):
            qweight[k // per_word, n] = word([weight.q[n, k + i] for i in range(per_word)], weight.bits)
    qzeros = np.empty((groups, rows // per_word), np.int32)
    less = 0 if is_second_form else 1
    for g in range(groups):
        for n in range(0, rows, per_word):
            stored = [int(weight.zeros[n + i, g]) - less for i in range(per_word)]
            qzeros[g, n // per_word] = word(stored, weight.bits)
    scales = np.ascontiguousarray(weight.scales.T)
    return {"qweight": qweight, "qzeros": qzeros, "scales": scales, "g_idx": weight.index}


def pack_awq(weight: Weight) -> dict[str, NDArray[Any]]:
    """qweight [K, N/8], qzeros [G, N/8], both with outputs in AWQ_ORDER; scales [G, N]."""
    (rows, inputs), groups = weight.q.shape, weight.zeros.shape[1]
    qweight = np.empty((inputs, rows // 8), np.int32)
    qzeros = np.empty((groups, rows // 8), np.int32)
    for n in range(0, rows, 8):
        for k in range(inputs):
            qweight[k, n // 8] = word([weight.q[n + i, k] for i in AWQ_ORDER], 4)
        for g in range(groups):
            qzeros[g, n // 8] = word([weight.zeros[n + i, g] for i in AWQ_ORDER], 4)
    return {"qweight": qweight, "qzeros": qzeros, "scales": np.ascontiguousarray(weight.scales.T)}


def pack_compressed(
    weight: Weight, *, is_symmetric: bool = False, has_index: bool = False, has_packed_zeros: bool = True
) -> dict[str, NDArray[Any]]:
    """pack-quantized: weight_packed [N, ⌈K/P⌉], weight_shape, weight_scale [N, G]; zeros packed along N, or int8."""
    (rows, inputs), groups, per_word = weight.q.shape, weight.zeros.shape[1], 32 // weight.bits
    packed = np.empty((rows, -(-inputs // per_word)), np.int32)
    for n in range(rows):
        for k in range(0, inputs, per_word):
            numbers = [int(weight.q[n, i]) if i < inputs else 0 for i in range(k, k + per_word)]
            packed[n, k // per_word] = word(numbers, weight.bits)
    parts = {"weight_packed": packed, "weight_shape": np.array([rows, inputs]), "weight_scale": weight.scales}
    if not is_symmetric and has_packed_zeros:
        zeros = np.empty((-(-rows // per_word), groups), np.int32)
        for n in range(0, rows, per_word):
            for g in range(groups):
                numbers = [int(weight.zeros[i, g]) if i < rows else 0 for i in range(n, n + per_word)]
                zeros[n // per_word, g] = word(numbers, weight.bits)
        parts["weight_zero_point"] = zeros
    elif not is_symmetric:
        parts["weight_zero_point"] = (weight.zeros - (1 << (weight.bits - 1))).astype(np.int8)
    if has_index:
        parts["weight_g_idx"] = weight.index
    return parts


def pack_int8(weight: Weight, *, is_symmetric: bool = False) -> dict[str, NDArray[Any]]:
    """int-quantized: weight [N, K] int8, weight_scale [N, G], weight_zero_point [N, G] int8."""
    half = 1 << (weight.bits - 1)
    parts = {"weight": (weight.q - half).astype(np.int8), "weight_scale": weight.scales}
    return parts if is_symmetric else {**parts, "weight_zero_point": (weight.zeros - half).astype(np.int8)}


def e4m3_value(pattern: int) -> float:
    """One byte of E4M3 as the paper defines it."""
    sign = -1.0 if pattern >= 128 else 1.0
    exponent, mantissa = pattern % 128 // 8, pattern % 8
    if exponent == 15 and mantissa == 7:
        return float("nan")
    if exponent == 0:
        return sign * 2.0**-6 * (mantissa / 8)
    return sign * 2.0 ** (exponent - 7) * (1 + mantissa / 8)
