"""Filling the packed memory: which of a checkpoint's tensors goes where, and who packs which rows.

Owns the way through the tensors; how rows are rounded and in which order their bytes lie is quantise.py's. One tensor
at a time is read and every rank packs its share of rows, so the peak is the packed model and a few rows. `unpack` is
the way back: what the kernels compute with, as float32. Called by executor.py when there is nothing packed yet.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from kaishu.checkpoint import Checkpoint
from kaishu.checkpoint.quantised import QuantisedTensor
from kaishu.checkpoint.safetensors import StoredTensor
from kaishu.cpu.kernels import Entry, Kernel, Kernels
from kaishu.cpu.layout import GROUP, Layout, PackedLinear, WeightKind, plan_layout, view
from kaishu.cpu.records import PACKING, address, record
from kaishu.cpu.threads import Ranks
from kaishu.errors import CheckpointError

PACK_BLOCKS = Entry("pack_blocks", "kaishu.cpu.quantise", "pack_blocks", (PACKING, None, None, None))
PACK_GROUPS = Entry("pack_groups", "kaishu.cpu.quantise", "pack_groups", (PACKING, None, None, None))
COPY_ROWS = Entry("copy_rows", "kaishu.cpu.quantise", "copy_rows", (PACKING, None, None, None))
STORED = {"BF16": 0, "F16": 1, "F32": 2}  # how a source tensor's bits are to be read
KEPT = {"int8": 0, "uint8": 1}  # likewise of Groups.whole: quantise.py's BYTES and PAIRS, without importing Numba
_DECODED_VALUES = 1 << 22  # so many weights are decoded at once: 16 MB of float32
Tensor = StoredTensor | QuantisedTensor


def plan_stored(
    checkpoint: Checkpoint, weights: WeightKind | Literal["stored"], head: WeightKind | Literal["stored"], lanes: int
) -> Layout:
    """plan_layout in which "stored" stands for the layout that keeps a tensor as its file does: bf16 if it is plain."""
    stored: dict[str, WeightKind] = {
        name.removesuffix(".weight"): tensor.layout
        for name, tensor in checkpoint.tensors.items()
        if not isinstance(tensor, StoredTensor)
    }
    if head == "stored":
        head = stored.get("model.embed_tokens" if checkpoint.config.tie_word_embeddings else "lm_head", "bf16")
    return plan_layout(checkpoint.config, stored if weights == "stored" else weights, head, lanes)


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
    tensor: Tensor, linear: PackedLinear, memory: NDArray[np.uint8], ranks: Ranks, kernels: Kernels
) -> None:
    """Pack one linear layer, rows shared among the ranks.

    raises: CheckpointError when the tensor can't be read, or a weight to be quantised is infinite or no number
    """
    start, lanes = address(memory), linear.lanes
    block_bytes = linear.weight_bytes // (linear.padded_rows // lanes)
    scale_bytes = linear.padded_inputs // GROUP * lanes * 2
    for first, source in _parts(tensor, linear):
        block = first // lanes
        last_row = linear.padded_rows if first + len(source.rows) == linear.rows else first + len(source.rows)
        part = source.fields() | {
            "kind": get_args(WeightKind).index(linear.kind),
            "lanes": lanes,
            "inputs": linear.padded_inputs,
            "weights": start + linear.weights + block * block_bytes,
            "scales": start + linear.scales + block * scale_bytes,
            "minimums": start + linear.minimums + block * scale_bytes,
        }
        kernel = kernels.load(PACK_GROUPS if source.scales is not None else PACK_BLOCKS)
        broken_rows = _share(ranks, last_row // lanes - block, kernel, part)
        if broken_rows:
            raise _not_finite(tensor.name, first + min(broken_rows), linear.kind)


@dataclass(frozen=True)
class _Source:
    """Rows of a tensor as the kernels read them.

    rows:    [n, K] bfloat16 or float16 bits, or float32; or of rows that are quantised already, Groups.whole
    columns: K
    stored:  which of STORED the rows are; or which of KEPT
    scales:  [n, K/32] float16, only of rows that are quantised already; minimums likewise, where there are any
    """

    rows: NDArray[Any]
    columns: int
    stored: int
    scales: NDArray[np.float16] | None = None
    minimums: NDArray[np.float16] | None = None

    def fields(self) -> dict[str, int]:
        """Its fields of the record PACKING; it has to be kept while they are used."""
        return {
            "source": address(self.rows),
            "stored": self.stored,
            "rows": len(self.rows),
            "columns": self.columns,
            "source_scales": 0 if self.scales is None else address(self.scales),
            "source_minimums": 0 if self.minimums is None else address(self.minimums),
        }


def _parts(tensor: Tensor, linear: PackedLinear) -> Iterator[tuple[int, _Source]]:
    """A tensor's rows: at once where the file is mapped, else some whole blocks at a time, to decode few at once.

    return: with each part, its first row
    """
    if isinstance(tensor, StoredTensor):
        yield 0, _plain(*bits_of(tensor))
        return
    for first, last in _row_ranges(tensor, 2 * linear.lanes):
        found = tensor.groups(first, last) if linear.kind == tensor.layout else None
        if found is None:
            yield first, _plain(tensor.values(first, last))
            continue
        whole, scales = np.ascontiguousarray(found.whole), np.ascontiguousarray(found.scales)
        minimums = None
        if linear.kind == "int4_minimum":
            minimums = np.zeros_like(scales) if found.minimums is None else np.ascontiguousarray(found.minimums)
        yield first, _Source(whole, tensor.shape[1], KEPT[whole.dtype.name], scales, minimums)


def _plain(rows: NDArray[Any], stored: int = STORED["F32"]) -> _Source:
    return _Source(np.ascontiguousarray(rows), rows.shape[1], stored)


def _row_ranges(tensor: QuantisedTensor, step: int) -> Iterator[tuple[int, int]]:
    """Ranges of rows, each a multiple of `step` but for the last, that take little memory as float32."""
    rows, columns = tensor.shape
    at_once = max(step, _DECODED_VALUES // max(columns, 1) // step * step)
    for first in range(0, rows, at_once):
        yield first, min(rows, first + at_once)


def _not_finite(name: str, row: int, kind: str) -> CheckpointError:
    return CheckpointError(
        f"{name} has a value in row {row:,} that is infinite or no number, "
        f"so it can't be kept as {kind}; allowed: finite weights.",
        hint="The file is damaged, or the model was saved while it was broken. Only bf16 keeps such values.",
    )


def copy_tensor(tensor: Tensor, target: NDArray[np.uint8], ranks: Ranks, kernels: Kernels) -> None:
    """Copy a matrix as bfloat16, in the order of the file.

    target: [at least 2·N·K] uint8
    raises: CheckpointError when the tensor can't be read
    """
    columns = tensor.shape[1]
    parts: Iterable[tuple[int, _Source]]
    if isinstance(tensor, StoredTensor):
        parts = [(0, _plain(*bits_of(tensor)))]
    else:
        ranges = _row_ranges(tensor, 1)
        parts = ((a, _plain(tensor.values(a, b))) for a, b in ranges)
    for first, source in parts:
        unused = dict.fromkeys(("kind", "lanes", "scales", "minimums"), 0)
        place = {"inputs": columns, "weights": address(target) + first * columns * 2}
        _share(ranks, len(source.rows), kernels.load(COPY_ROWS), source.fields() | unused | place)


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


def as_float32(tensor: Tensor) -> NDArray[np.float32]:
    """A whole tensor widened to float32."""
    if not isinstance(tensor, StoredTensor):
        return tensor.values(0, tensor.shape[0])
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
