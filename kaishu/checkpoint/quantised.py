"""What a quantised weight is to everyone who reads one, whichever format keeps it.

Owns the contract between the formats (GGUF's blocks, AWQ, GPTQ, FP8, compressed-tensors) and the executors: rows of
float32, and where the format allows it, the whole numbers and scales themselves. Knows no format and no executor. The
readers in this folder make such tensors; cpu/packing.py and reference/weights.py read them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

GROUP = 32  # weights along K that share a scale
LayoutKind = Literal["bf16", "int8", "int4", "int4_minimum"]


@dataclass(frozen=True)
class Groups:
    """Rows of weights as whole numbers; weight = scale · q + minimum for each group of 32 along K.

    whole:    [n, K] int8: q, from -128 to 127; for int4 from -8 to 7, for int4_minimum from 0 to 15. Or, as some files
              have int4, [n, K/2] uint8: two neighbours in a byte, the first in its lower half, q + 8 each
    scales:   [n, K/32] float16, as they are stored: who uses them checks that they are finite
    minimums: [n, K/32] float16; None where they are all zero
    """

    whole: NDArray[np.int8] | NDArray[np.uint8]
    scales: NDArray[np.float16]
    minimums: NDArray[np.float16] | None = None

    def numbers(self) -> NDArray[np.int8]:
        """return: [n, K], q, a byte each"""
        if self.whole.dtype == np.int8:
            return self.whole.view(np.int8)
        pairs = np.stack([self.whole & 15, self.whole >> 4], axis=-1)  # [n, K/2, 2]
        return pairs.reshape(len(self.whole), 2 * self.whole.shape[1]).view(np.int8) - np.int8(8)


@runtime_checkable
class QuantisedTensor(Protocol):
    """A matrix [N, K] that its file keeps quantised. Reading rows maps or decodes just these rows.

    name:   by Hugging Face's names
    dtype:  the format's own word for what it is, for people: "Q4_1", "GPTQ int4, groups of 128"
    shape:  (N, K)
    nbytes: what it takes in the file, scales included
    layout: in which of the executors' layouts it is kept; the one that loses nothing, or nothing measurable
    """

    @property
    def name(self) -> str: ...

    @property
    def dtype(self) -> str: ...

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def nbytes(self) -> int: ...

    @property
    def num_values(self) -> int: ...

    @property
    def layout(self) -> LayoutKind: ...

    def values(self, first: int, last: int) -> NDArray[np.float32]:
        """Rows `first` to `last` as the format defines them.

        return: [last - first, K] float32
        raises: CheckpointError when the file can't be read or has shrunk since it was opened
        """
        ...

    def groups(self, first: int, last: int) -> Groups | None:
        """The same rows as whole numbers for `layout`, without rounding them again; None where that layout can only be
        reached by rounding `values`."""
        ...
