"""A weight and what an adapter adds to it, as one tensor: base + scale · B · A (Hu et al., 2021, arXiv:2106.09685).

Owns the arithmetic of merging, and how each kind of module keeps its two narrow matrices. A row is merged when it is
read, in float32, so that loading takes no more memory than without. Knows no files and no names: lora.py makes these,
and whoever reads a QuantisedTensor reads them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from kaishu.checkpoint.quantised import Groups, LayoutKind, QuantisedTensor
from kaishu.checkpoint.safetensors import StoredTensor
from kaishu.checkpoint.stored_numbers import as_float32


class Change(Protocol):
    """What is added to a weight [N, K]; r is its rank."""

    @property
    def shape(self) -> tuple[int, int]:
        """(N, K)"""
        ...

    @property
    def rank(self) -> int:
        """r"""
        ...

    @property
    def nbytes(self) -> int:
        """What it takes in the file."""
        ...

    def rows(self, first: int, last: int) -> NDArray[np.float32]:
        """return: [last - first, K] float32, not yet scaled"""
        ...


@dataclass(frozen=True)
class LinearChange:
    """Of a linear module.

    a: [r, K] any float
    b: [N, r] any float
    """

    a: StoredTensor
    b: StoredTensor

    @property
    def shape(self) -> tuple[int, int]:
        """(N, K)"""
        return self.b.shape[0], self.a.shape[1]

    @property
    def rank(self) -> int:
        """r"""
        return self.a.shape[0]

    @property
    def nbytes(self) -> int:
        """What both take in the file."""
        return self.a.nbytes + self.b.nbytes

    def rows(self, first: int, last: int) -> NDArray[np.float32]:
        """return: [last - first, K] float32"""
        return as_float32(self.b.read()[first:last], self.b.dtype) @ as_float32(self.a.read(), self.a.dtype)


@dataclass(frozen=True)
class EmbeddingChange:
    """Of an embedding, whose matrices are kept for one column a token: A·[token] is what B turns into a row.

    a: [r, V] any float
    b: [D, r] any float
    """

    a: StoredTensor
    b: StoredTensor

    @property
    def shape(self) -> tuple[int, int]:
        """(V, D)"""
        return self.a.shape[1], self.b.shape[0]

    @property
    def rank(self) -> int:
        """r"""
        return self.a.shape[0]

    @property
    def nbytes(self) -> int:
        """What both take in the file."""
        return self.a.nbytes + self.b.nbytes

    def rows(self, first: int, last: int) -> NDArray[np.float32]:
        """return: [last - first, D] float32"""
        return as_float32(self.a.read()[:, first:last], self.a.dtype).T @ as_float32(self.b.read(), self.b.dtype).T


@dataclass(frozen=True)
class ExpertChange:
    """Of one expert, or of some of its outputs, where the experts of a layer are stacked and changed together.

    a:             [E·r, inputs] any float: the experts one after another
    b:             [outputs, r·E] any float: the experts alternate
    first_row:     of the stack's outputs, where this weight's begin
    num_rows:      how many it has
    is_transposed: it was trained by a PEFT that takes a stack [E, outputs, inputs] for [E, inputs, outputs]: then what
                   is called inputs above are the outputs
    """

    a: StoredTensor
    b: StoredTensor
    expert: int
    num_experts: int
    first_row: int
    num_rows: int
    is_transposed: bool = False

    @property
    def shape(self) -> tuple[int, int]:
        """(N, K)"""
        return self.num_rows, self.b.shape[0] if self.is_transposed else self.a.shape[1]

    @property
    def rank(self) -> int:
        """r"""
        return self.a.shape[0] // self.num_experts

    @property
    def nbytes(self) -> int:
        """This weight's share of what both take in the file."""
        by_outputs, by_inputs = (self.a, self.b) if self.is_transposed else (self.b, self.a)
        outputs = by_outputs.num_values // (self.rank * self.num_experts)
        return (by_inputs.nbytes + by_outputs.nbytes * self.num_rows // outputs) // self.num_experts

    def rows(self, first: int, last: int) -> NDArray[np.float32]:
        """return: [last - first, K] float32"""
        a = self.a.read().reshape(self.num_experts, self.rank, -1)[self.expert]  # [r, inputs]
        b = self.b.read().reshape(-1, self.rank, self.num_experts)[:, :, self.expert]  # [outputs, r]
        outer, inner = (a.T, b.T) if self.is_transposed else (b, a)
        outer = outer[self.first_row + first : self.first_row + last]  # [n, r]
        return as_float32(outer, self.a.dtype) @ as_float32(inner, self.a.dtype)


@dataclass(frozen=True)
class MergedTensor:
    """A weight with an adapter's change. Satisfies QuantisedTensor, though nothing in it need be quantised.

    base: [N, K]; may be merged itself, where there are several adapters
    """

    name: str
    base: StoredTensor | QuantisedTensor
    change: Change
    scale: float

    @property
    def dtype(self) -> str:
        """What it is made of, for people."""
        return f"{self.base.dtype} + LoRA r={self.change.rank}"

    @property
    def shape(self) -> tuple[int, ...]:
        """(N, K)"""
        return self.base.shape

    @property
    def nbytes(self) -> int:
        """What its parts take in their files."""
        return self.base.nbytes + self.change.nbytes

    @property
    def num_values(self) -> int:
        """N · K"""
        return self.base.num_values

    @property
    def layout(self) -> LayoutKind:
        """bf16 where the base is plain. What was quantised gets 8 bits: in 4 the small changes would be rounded away,
        since the sum has to be rounded again."""
        is_plain = isinstance(self.base, StoredTensor) or self.base.layout == "bf16"
        return "bf16" if is_plain else "int8"

    def values(self, first: int, last: int) -> NDArray[np.float32]:
        """return: [last - first, K] float32: base + scale · change
        raises: CheckpointError when a file can't be read"""
        if isinstance(self.base, StoredTensor):
            rows = as_float32(self.base.read()[first:last], self.base.dtype)
        else:
            rows = self.base.values(first, last)
        return rows + np.float32(self.scale) * self.change.rows(first, last)

    def groups(self, first: int, last: int) -> Groups | None:
        """return: None, because the sum is in no group's whole numbers"""
        return None
