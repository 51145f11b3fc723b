"""Filling the packed memory: which of a checkpoint's tensors goes where, and who packs which rows.

Owns the way through the tensors; how rows are rounded and in which order their bytes lie is quantise.py's. One tensor
at a time is read and every rank packs its share of rows, so the peak is the packed model and a few rows. `unpack` is
the way back: what the kernels compute with, as float32. Called by executor.py when there is nothing packed yet.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from kaishu.checkpoint import Checkpoint
from kaishu.checkpoint.safetensors import StoredTensor
from kaishu.cpu.kernels import Entry, Kernel, Kernels
from kaishu.cpu.layout import GROUP, Layout, PackedLinear, WeightKind, view
from kaishu.cpu.records import PACKING, address, record
from kaishu.cpu.threads import Ranks
from kaishu.errors import CheckpointError

PACK_BLOCKS = Entry("pack_blocks", "kaishu.cpu.quantise", "pack_blocks", (PACKING, None, None, None))
COPY_ROWS = Entry("copy_rows", "kaishu.cpu.quantise", "copy_rows", (PACKING, None, None, None))
STORED = {"BF16": 0, "F16": 1, "F32": 2}  # how a source tensor's bits are to be read


def pack_model(
    checkpoint: Checkpoint, layout: Layout, memory: NDArray[np.uint8], ranks: Ranks, kernels: Kernels
) -> None:
    """Read every tensor of a checkpoint once and write it where the layout says.

    memory: [layout.num_bytes] uint8, zeros or garbage
    raises: CheckpointError when a file can't be read, or a weight to be quantised is infinite or no number
    """
    for linear in layout.packed:
        pack_linear(checkpoint.tensors[f"{linear.name}.weight"], linear, memory, ranks, kernels)
    for name, (offset, length) in layout.vectors.items():
        values = as_float32(checkpoint.tensors[name])
        target = view(memory, offset, np.float32, (length,))
        target[: len(values)] = values
        target[len(values) :] = 0
    if layout.embedding >= 0:
        copy_tensor(checkpoint.tensors["model.embed_tokens.weight"], memory[layout.embedding :], ranks, kernels)


def pack_linear(
    tensor: StoredTensor, linear: PackedLinear, memory: NDArray[np.uint8], ranks: Ranks, kernels: Kernels
) -> None:
    """Pack one linear layer, rows shared among the ranks.

    raises: CheckpointError when the tensor can't be read, or a weight to be quantised is infinite or no number
    """
    source, stored = bits_of(tensor)
    start = address(memory)
    part = {
        "source": address(source),
        "stored": stored,
        "rows": linear.rows,
        "columns": linear.inputs,
        "kind": get_args(WeightKind).index(linear.kind),
        "lanes": linear.lanes,
        "inputs": linear.padded_inputs,
        "weights": start + linear.weights,
        "scales": start + linear.scales,
        "minimums": start + linear.minimums,
    }
    broken_rows = _share(ranks, linear.padded_rows // linear.lanes, kernels.load(PACK_BLOCKS), part)
    if broken_rows:
        raise CheckpointError(
            f"{tensor.name} has a value in row {min(broken_rows):,} that is infinite or no number, "
            f"so it can't be kept as {linear.kind}; allowed: finite weights.",
            hint="The file is damaged, or the model was saved while it was broken. Only bf16 keeps such values.",
        )


def copy_tensor(tensor: StoredTensor, target: NDArray[np.uint8], ranks: Ranks, kernels: Kernels) -> None:
    """Copy a matrix as bfloat16, in the order of the file.

    target: [at least 2·N·K] uint8
    raises: CheckpointError when the tensor can't be read
    """
    source, stored = bits_of(tensor)
    rows, columns = source.shape
    part = {"source": address(source), "stored": stored, "rows": rows, "columns": columns, "inputs": columns}
    unused = dict.fromkeys(("kind", "lanes", "scales", "minimums"), 0)
    _share(ranks, rows, kernels.load(COPY_ROWS), part | unused | {"weights": address(target)})


def _share(ranks: Ranks, pieces: int, kernel: Kernel, part: Mapping[str, int]) -> list[int]:
    """Have every rank do its part of `pieces`; return: the rows that couldn't be packed, in any order."""
    fields, broken_rows, count = record(PACKING, part), list[int](), ranks.count

    def work(rank: int) -> None:
        scratch = np.zeros(part["inputs"] + GROUP, np.float32)
        broken = kernel(address(fields), address(scratch), pieces * rank // count, pieces * (rank + 1) // count)
        broken_rows.extend([broken] if broken >= 0 else [])

    ranks.run(work)
    return broken_rows


def _scale_views(linear: PackedLinear, memory: NDArray[np.uint8]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Scales and minimums as the bits of float16, which Numba has no type for; empty for kinds without them."""
    shape = (linear.padded_rows // linear.lanes, linear.padded_inputs // GROUP, linear.lanes)
    nothing = np.empty((0, 0, 0), np.uint16)
    scales = nothing if linear.scales < 0 else view(memory, linear.scales, np.uint16, shape)
    return scales, nothing if linear.minimums < 0 else view(memory, linear.minimums, np.uint16, shape)


def bits_of(tensor: StoredTensor) -> tuple[NDArray[Any], int]:
    """return: the tensor as the file has it, BF16 and F16 as uint16; and which of STORED it is"""
    array = np.require(tensor.read(), requirements=["C", "ALIGNED"])
    return (array.view(np.uint16) if tensor.dtype == "F16" else array), STORED[tensor.dtype]


def as_float32(tensor: StoredTensor) -> NDArray[np.float32]:
    """A stored tensor widened to float32."""
    array = tensor.read()
    if tensor.dtype == "BF16":
        return (array.astype(np.uint32) << 16).view(np.float32)
    return array.astype(np.float32)


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
