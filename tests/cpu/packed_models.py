"""Tiny models packed for the kernels, the reference model of the same weights, and a step's memory to look at.

Owns what the tests of the executor's parts have in common. Knows nothing of what they claim.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from kaishu.batch import SequenceTokens, pack
from kaishu.config import ModelConfig
from kaishu.cpu.executor import CpuExecutor
from kaishu.cpu.kernels import Kernels
from kaishu.cpu.layout import GROUP, Layout, padded, view
from kaishu.cpu.packing import pack_model, plan_stored, unpack
from kaishu.cpu.target import TILE, current_target
from kaishu.cpu.threads import Ranks
from kaishu.reference.model import Model
from tests.cpu.drawn_weights import as_rows
from tests.reference.parity import CheckpointInMemory

PAGE_TOKENS = 32  # with any vectors a multiple of twice their lanes


@dataclass(frozen=True)
class PackedModel:
    """A packed model; any number of executors may use its memory."""

    layout: Layout
    memory: np.ndarray
    kernels: Kernels

    @property
    def config(self) -> ModelConfig:
        return self.layout.config

    @property
    def kinds(self) -> dict[str, str]:
        """What each linear is packed as, by the names that the reference gives them; the head is lm_head."""
        kinds = {linear.name: linear.kind for linear in self.layout.packed}
        return {**kinds, "lm_head": self.layout.packed[self.layout.head].kind}

    def executor(
        self, *, threads: int = 1, num_pages: int = 32, page_tokens: int = PAGE_TOKENS, kv: Any = "bf16"
    ) -> CpuExecutor:
        return CpuExecutor(self.layout, self.memory, self.kernels, Ranks(threads), num_pages, page_tokens, kv)

    def tensors(self) -> dict[str, torch.Tensor]:
        """What the kernels compute with, as float32, by Hugging Face names."""
        config, layout = self.config, self.layout
        found = {f"{linear.name}.weight": unpack(linear, self.memory) for linear in layout.packed}
        sizes = {f"{linear.name}.bias": linear.rows for linear in layout.packed}
        for name, (offset, length) in layout.vectors.items():
            size = sizes.get(name, config.head_dim if name.endswith(("q_norm.weight", "k_norm.weight")) else None)
            found[name] = view(self.memory, offset, np.float32, (length,))[: size or config.hidden_size]
        if layout.embedding >= 0:
            rows = view(self.memory, layout.embedding, np.uint16, (config.vocab_size, config.hidden_size))
            found["model.embed_tokens.weight"] = from_bfloat16(rows)
        return {name: torch.tensor(np.ascontiguousarray(array)) for name, array in found.items()}

    def reference(self) -> Model:
        """The reference model in float32 with the packed weights."""
        checkpoint: Any = CheckpointInMemory(self.config, self.tensors())
        return Model.from_checkpoint(checkpoint, attention="explicit")


def packed_model(checkpoint: Any, kernels: Kernels, weights: Any, head: Any = None) -> PackedModel:
    """Pack whatever has a config and tensors."""
    layout = plan_stored(checkpoint, weights, head or weights, current_target().lanes)
    memory = np.zeros(layout.num_bytes, np.uint8)
    pack_model(checkpoint, layout, memory, Ranks(1), kernels)
    return PackedModel(layout, memory, kernels)


def logits_of(executor: CpuExecutor, ids: Sequence[int], *, start: int = 0, pages: Sequence[int] = ()) -> np.ndarray:
    """[n, V] float32, logits of every position, in one step."""
    own = pages or range(executor.num_pages)
    return executor.step(pack([SequenceTokens(list(ids), start, own, wants_logits=range(len(ids)))]))


def spoil_pages(executor: CpuExecutor) -> None:
    """Fill all pages as broken sequences may leave them: with what is no number."""
    executor._page_memory[:] = 85 if executor._page_scales else 0x7FC1
    for scales in executor._page_scales:
        scales[:] = np.nan


def from_bfloat16(halves: np.ndarray) -> np.ndarray:
    """The bits of bfloat16 → float32."""
    return (halves.astype(np.uint32) << 16).view(np.float32)


def to_bfloat16(values: np.ndarray) -> np.ndarray:
    """float32 rounded to bfloat16, to nearest even, as float32 again; by torch."""
    return torch.tensor(values).bfloat16().float().numpy()


def memory_at(address: int, shape: Sequence[int], dtype: Any) -> np.ndarray:
    """A copy of what lies at an address."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    return np.frombuffer(ctypes.string_at(address, size), dtype).reshape(tuple(shape))


def matrix_after(executor: CpuExecutor, name: str, rows: int, dtype: Any = np.float32) -> np.ndarray:
    """[rows, width]: what the last layer of the last step left in one of the buffers."""
    field = executor._buffers.record[name]
    return memory_at(int(field["at"]), (rows, int(field["width"])), dtype)


def groups_after(executor: CpuExecutor, name: str, form: str, rows: int) -> np.ndarray:
    """[rows, K/32, 32], or [rows, K/32] of one number a group: what activations hold in one form beside the words."""
    field = executor._buffers.record[name]
    dtype = {"whole": np.int8, "tiles": np.uint16, "scales": np.float32}.get(form, np.int32)
    inside = (32,) if form in {"whole", "tiles"} else ()
    groups = int(field["width"]) // GROUP
    if not current_target().has_tiles:
        return memory_at(int(field[form]), (rows, groups, *inside), dtype)
    return as_rows(memory_at(int(field[form]), (-(-rows // TILE), groups, TILE, *inside), dtype))[:rows]


def activations_after(executor: CpuExecutor, name: str, rows: int, columns: int) -> np.ndarray:
    """[rows, columns] float32: what linear layers of bf16 read, in whichever form."""
    field = executor._buffers.record[name]
    if current_target().has_tiles:
        return from_bfloat16(groups_after(executor, name, "tiles", rows).reshape(rows, -1))[:, :columns]
    words = memory_at(int(field["words"]), (rows, int(field["width"])), np.float32)
    if current_target().has_bf16:
        pairs = words[:, : padded(columns, GROUP) // 2].copy().view(np.uint16)  # [rows, columns], the padding included
        words = from_bfloat16(pairs)
    return words[:, :columns]


def assert_same_bits(found: np.ndarray, expected: np.ndarray, message: str = "") -> None:
    """Both are the same float32, bit for bit; a NaN is the same as itself."""
    assert found.dtype == expected.dtype == np.float32 and found.shape == expected.shape
    differ = np.ascontiguousarray(found).view(np.uint32) != np.ascontiguousarray(expected).view(np.uint32)
    if differ.any():
        first = tuple(int(index) for index in np.argwhere(differ)[0])
        raise AssertionError(
            f"{message} {differ.sum()} of {differ.size} differ, the first at {first}: {found[first]} instead of "
            f"{expected[first]}"
        )
