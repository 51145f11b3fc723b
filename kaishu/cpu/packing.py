"""Filling the packed memory: from a checkpoint's tensors to rows, groups and scales.

Owns the arithmetic of quantisation and the order of bytes that layout.py draws. One tensor at a time is read and every
rank packs its share of rows, so the peak is the packed model and a few rows. `unpack` is the way back: what the kernels
compute with, as float32; tests and `kaishu eval` use it.

Rounding: bfloat16 to nearest even. int8: scale = max|w| / 127, q = w / scale to nearest even. int4: the weight of the
largest size, with its sign, becomes -8, so scale = that weight / -8 (one of sixteen values more than a symmetric ±7);
int4_minimum: scale = (max - min) / 15. Scales are rounded to float16 before the weights are divided by them.
"""

from __future__ import annotations

from typing import Any, get_args

import numpy as np
from numba import njit
from numpy.typing import NDArray

from kaishu.checkpoint import Checkpoint
from kaishu.checkpoint.safetensors import StoredTensor
from kaishu.cpu.layout import (
    BF16,
    GROUP,
    INT4,
    INT8,
    Layout,
    PackedLinear,
    WeightKind,
    view,
)
from kaishu.cpu.scalars import bfloat_bits, bfloat_value, half_bits, half_value
from kaishu.cpu.threads import Ranks
from kaishu.cpu.vector import KERNEL
from kaishu.errors import CheckpointError

STORED = {"BF16": 0, "F16": 1, "F32": 2}  # how a source tensor's bits are to be read


def pack_model(checkpoint: Checkpoint, layout: Layout, memory: NDArray[np.uint8], ranks: Ranks) -> None:
    """Read every tensor of a checkpoint once and write it where the layout says.

    memory: [layout.num_bytes] uint8, zeros or garbage
    raises: CheckpointError when a file can't be read, or a weight to be quantised is infinite or no number
    """
    for linear in layout.packed:
        pack_linear(checkpoint.tensors[f"{linear.name}.weight"], linear, memory, ranks)
    for name, (offset, length) in layout.vectors.items():
        values = as_float32(checkpoint.tensors[name])
        target = view(memory, offset, np.float32, (length,))
        target[: len(values)] = values
        target[len(values) :] = 0
    if layout.embedding >= 0:
        config = layout.config
        target = view(memory, layout.embedding, np.uint16, (config.vocab_size, config.hidden_size))
        source, stored = bits_of(checkpoint.tensors["model.embed_tokens.weight"])
        share(ranks, config.vocab_size, lambda first, last: _copy_rows(source, stored, target, first, last))


def pack_linear(tensor: StoredTensor, linear: PackedLinear, memory: NDArray[np.uint8], ranks: Ranks) -> None:
    """Pack one linear layer, rows shared among the ranks."""
    source, stored = bits_of(tensor)
    blocks = linear.padded_rows // linear.lanes
    weights = view(memory, linear.weights, np.uint8, (blocks, linear.weight_bytes // blocks))
    scales, minimums = _scale_views(linear, memory)
    kind = get_args(WeightKind).index(linear.kind)
    broken_rows: list[int] = []

    def pack(first: int, last: int) -> None:
        broken = _pack_blocks(source, stored, kind, linear.lanes, weights, scales, minimums, first, last)
        broken_rows.extend([broken] if broken >= 0 else [])

    share(ranks, blocks, pack)
    if broken_rows:
        raise CheckpointError(
            f"{tensor.name} has a value in row {min(broken_rows):,} that is infinite or no number, "
            f"so it can't be kept as {linear.kind}; allowed: finite weights.",
            hint="The file is damaged, or the model was saved while it was broken. Only bf16 keeps such values.",
        )


def _scale_views(linear: PackedLinear, memory: NDArray[np.uint8]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Scales and minimums as the bits of float16, which Numba has no type for; empty for kinds without them."""
    shape = (linear.padded_rows // linear.lanes, linear.padded_inputs // GROUP, linear.lanes)
    nothing = np.empty((0, 0, 0), np.uint16)
    scales = nothing if linear.scales < 0 else view(memory, linear.scales, np.uint16, shape)
    return scales, nothing if linear.minimums < 0 else view(memory, linear.minimums, np.uint16, shape)


def share(ranks: Ranks, pieces: int, work: Any) -> None:
    """Call work(first, last) on every rank with its part of `pieces`."""
    count = ranks.count
    ranks.run(lambda rank: work(pieces * rank // count, pieces * (rank + 1) // count))


def bits_of(tensor: StoredTensor) -> tuple[NDArray[Any], int]:
    """return: the tensor as the file has it, BF16 and F16 as uint16; and which of STORED it is"""
    array = tensor.read()
    return (array.view(np.uint16) if tensor.dtype == "F16" else array), STORED[tensor.dtype]


def as_float32(tensor: StoredTensor) -> NDArray[np.float32]:
    """A stored tensor widened to float32."""
    array = tensor.read()
    if tensor.dtype == "BF16":
        return (array.astype(np.uint32) << 16).view(np.float32)
    return array.astype(np.float32)


@njit(**KERNEL)
def _read_row(source: Any, stored: int, row: int, out: Any) -> None:
    """One row to float32; what is beyond the row's end stays zero."""
    columns = source.shape[1]
    if stored == 0:
        for k in range(columns):
            out[k] = bfloat_value(source[row, k])
    elif stored == 1:
        for k in range(columns):
            out[k] = half_value(source[row, k])
    else:
        for k in range(columns):
            out[k] = source[row, k]


@njit(**KERNEL)
def _group_scale(row: Any, start: int, kind: int) -> tuple[Any, Any]:
    """The scale and minimum of 32 weights, as float32 that float16 can hold."""
    low = high = row[start]
    for k in range(start, start + GROUP):
        low, high = min(low, row[k]), max(high, row[k])
    if kind == INT8:
        return half_value(half_bits(max(-low, high) / np.float32(127.0))), np.float32(0.0)
    if kind == INT4:
        largest = low if -low > high else high
        return half_value(half_bits(largest / np.float32(-8.0))), np.float32(0.0)
    scale = half_value(half_bits((high - low) / np.float32(15.0)))
    return scale, half_value(half_bits(low))


@njit(**KERNEL)
def _quantise_group(row: Any, start: int, kind: int, scale: Any, minimum: Any, out: Any) -> None:
    """32 weights to whole numbers: -128 to 127 for int8, 0 to 15 for the others."""
    inverse = np.float32(0.0) if scale == 0 else np.float32(1.0) / scale
    shift = np.float32(8.0) if kind == INT4 else np.float32(0.0)
    smallest, largest = (np.float32(-127.0), np.float32(127.0)) if kind == INT8 else (np.float32(0.0), np.float32(15.0))
    for k in range(GROUP):
        value = np.rint((row[start + k] - minimum) * inverse + shift)
        out[k] = np.int32(max(smallest, min(largest, value)))


@njit(**KERNEL)
def _pack_blocks(
    source: Any, stored: int, kind: int, lanes: int, weights: Any, scales: Any, minimums: Any, first: int, last: int
) -> int:
    """Blocks of rows from `first` to `last`; return: the first row that can't be quantised, -1 if there is none"""
    inputs = scales.shape[1] * GROUP if kind != BF16 else weights.shape[1] // (2 * lanes)
    row, whole = np.zeros(inputs, np.float32), np.zeros(GROUP, np.int32)
    for block in range(first, last):
        for lane in range(lanes):
            if block * lanes + lane < source.shape[0]:
                _read_row(source, stored, block * lanes + lane, row)
            else:
                row[:] = 0
            if kind == BF16:
                _write_pairs(row, lane, lanes, weights[block])
                continue
            if not _is_finite(row):
                return block * lanes + lane
            for group in range(inputs // GROUP):
                scale, minimum = _group_scale(row, group * GROUP, kind)
                scales[block, group, lane] = half_bits(scale)
                if kind > INT4:
                    minimums[block, group, lane] = half_bits(minimum)
                _quantise_group(row, group * GROUP, kind, scale, minimum, whole)
                _write_group(whole, kind, lane, lanes, group, weights[block])
    return -1


@njit(**KERNEL)
def _is_finite(row: Any) -> Any:
    """Whether every value is a number: the largest exponent stands for infinity and for no number."""
    bits, largest = row.view(np.uint32), np.uint32(0)
    for k in range(row.shape[0]):
        largest = max(largest, np.uint32(bits[k] & np.uint32(0x7FFFFFFF)))
    return largest < np.uint32(0x7F800000)


@njit(**KERNEL)
def _write_pairs(row: Any, lane: int, lanes: int, out: Any) -> None:
    """One row of bfloat16 into its lane: [K/2, lanes, 2]."""
    pairs = out.view(np.uint16)
    for k in range(row.shape[0]):
        pairs[(k // 2 * lanes + lane) * 2 + k % 2] = bfloat_bits(row[k])


@njit(**KERNEL)
def _write_group(whole: Any, kind: int, lane: int, lanes: int, group: int, out: Any) -> None:
    """One row's group into its lane: [parts, lanes, 4] bytes."""
    parts = 8 if kind == INT8 else 4
    for part in range(parts):
        for k in range(4):
            value = whole[part * 4 + k]
            if kind != INT8:
                value |= whole[16 + part * 4 + k] << 4
            out[((group * parts + part) * lanes + lane) * 4 + k] = np.uint8(value)


@njit(**KERNEL)
def _copy_rows(source: Any, stored: int, target: Any, first: int, last: int) -> None:
    """Rows as bfloat16, in the order of the file."""
    row = np.zeros(source.shape[1], np.float32)
    for index in range(first, last):
        _read_row(source, stored, index, row)
        for k in range(row.shape[0]):
            target[index, k] = bfloat_bits(row[k])


def unpack(linear: PackedLinear, memory: NDArray[np.uint8]) -> NDArray[np.float32]:
    """The weights that the kernels compute with.

    memory: the packed model
    return: [N, K] float32
    """
    blocks, lanes, groups = linear.padded_rows // linear.lanes, linear.lanes, linear.padded_inputs // GROUP
    if linear.kind == "bf16":
        pairs = view(memory, linear.weights, np.uint16, (blocks, groups * GROUP // 2, lanes, 2))
        wide = (pairs.astype(np.uint32) << 16).view(np.float32)
        return wide.transpose(0, 2, 1, 3).reshape(linear.padded_rows, -1)[: linear.rows, : linear.inputs]
    scales, minimums = _scale_views(linear, memory)
    if linear.kind == "int8":
        whole = view(memory, linear.weights, np.int8, (blocks, groups, 8, lanes, 4)).astype(np.float32)
    else:
        packed = view(memory, linear.weights, np.uint8, (blocks, groups, 4, lanes, 4))
        whole = np.concatenate([packed & 15, packed >> 4], axis=2).astype(np.float32)  # [blocks, groups, 8, lanes, 4]
        if linear.kind == "int4":
            whole -= 8
    values = whole * scales.view(np.float16).astype(np.float32)[:, :, None, :, None]
    if linear.minimums >= 0:
        values += minimums.view(np.float16).astype(np.float32)[:, :, None, :, None]
    rows = values.transpose(0, 3, 1, 2, 4).reshape(linear.padded_rows, -1)
    return rows[: linear.rows, : linear.inputs]


PACKING_KERNELS = (_pack_blocks, _copy_rows)  # what is compiled for packing
