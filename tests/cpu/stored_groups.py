"""Matrices that are quantised already, drawn at random: what a GGUF or a quantised checkpoint would hand over."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kaishu.checkpoint import Checkpoint
from kaishu.checkpoint.quantised import GROUP, Groups, LayoutKind

RANGES = {"int8": (-128, 128), "int4": (-8, 8), "int4_minimum": (0, 16)}


@dataclass(frozen=True)
class StoredGroups:
    """Satisfies QuantisedTensor."""

    name: str
    layout: LayoutKind
    whole: NDArray[np.int8]
    scales: NDArray[np.float16]
    minimums: NDArray[np.float16] | None
    has_groups: bool = True
    has_pairs: bool = False

    dtype = "drawn"

    @property
    def shape(self) -> tuple[int, ...]:
        return self.whole.shape

    @property
    def nbytes(self) -> int:
        return self.whole.nbytes + self.scales.nbytes

    @property
    def num_values(self) -> int:
        return self.whole.size

    def values(self, first: int, last: int) -> NDArray[np.float32]:
        scales = np.repeat(self.scales[first:last].astype(np.float32), GROUP, axis=1)
        values = self.whole[first:last].astype(np.float32) * scales
        if self.minimums is not None:
            values += np.repeat(self.minimums[first:last].astype(np.float32), GROUP, axis=1)
        return values

    def groups(self, first: int, last: int) -> Groups | None:
        if not self.has_groups:
            return None
        minimums = None if self.minimums is None else self.minimums[first:last]
        whole = self.whole[first:last]
        if self.has_pairs:  # of int4: the first of two neighbours in the lower half of a byte, each plus 8
            whole = (whole[:, 0::2] + 8 | (whole[:, 1::2] + 8) << 4).astype(np.uint8)
        return Groups(whole, self.scales[first:last], minimums)


def draw_groups(
    rng: np.random.Generator, kind: Any, rows: int, inputs: int, *, name: str = "w", size: float = 1.0, **fields: Any
) -> StoredGroups:
    """A matrix of about `size`, of whole numbers over the whole range of their kind."""
    low, high = RANGES[kind]
    whole = rng.integers(low, high, (rows, inputs)).astype(np.int8)
    scales = (rng.uniform(0.5, 1.0, (rows, inputs // GROUP)) * size / max(-low, high - 1)).astype(np.float16)
    minimums = (scales * np.float16(-7.5)).astype(np.float16) if kind == "int4_minimum" else None
    return StoredGroups(name, kind, whole, scales, minimums, **fields)


FIRST_QUERIES = "model.layers.0.self_attn.q_proj.weight"


def stored_model(
    checkpoint: Checkpoint, rng: np.random.Generator, *, plain: Collection[str] = (FIRST_QUERIES,)
) -> Checkpoint:
    """The checkpoint with its matrices drawn anew in three formats in turn.

    plain: the names of those that stay as they are, as routers do, and those whose rows aren't whole groups
    """
    kinds, tensors = list(RANGES), dict(checkpoint.tensors)
    for place, (name, tensor) in enumerate(checkpoint.tensors.items()):
        is_plain = len(tensor.shape) != 2 or name in plain or ".mlp.gate." in name
        is_plain = is_plain or tensor.shape[1] % GROUP != 0
        if not is_plain:
            rows, inputs = tensor.shape
            size = 0.2 if "embed" in name else inputs**-0.5
            tensors[name] = draw_groups(rng, kinds[place % 3], rows, inputs, name=name, size=size)
    return replace(checkpoint, tensors=tensors, identity=f"{checkpoint.identity} drawn")
