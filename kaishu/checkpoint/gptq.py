"""GPTQ (Frantar et al., 2022, arXiv:2210.17323), as AutoGPTQ and GPTQModel store it.

Owns where a weight's numbers lie. A linear layer of N outputs and K inputs with G groups is, with P = 32/bits,

    qweight  [K/P, N] int32   P consecutive k in a word, the first in the lowest bits
    qzeros   [G, N/P] int32   P consecutive n in a word; each is zero - 1 in the form "gptq", zero in "gptq_v2"
    scales   [G, N]   float
    g_idx    [K]      int32   the group of each k; in order where the inputs weren't reordered

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
from kaishu.checkpoint.stored_numbers import FLOAT_TYPES, as_float32, unpacked
from kaishu.checkpoint.tensor_parts import TensorParts
from kaishu.errors import CheckpointError
from kaishu.quantisation_config import QuantisationConfig

PARTS = ("qweight", "qzeros", "scales", "g_idx")


def gptq_tensor(parts: TensorParts, config: QuantisationConfig) -> GroupedTensor:
    """One linear layer's weight.

    raises: CheckpointError naming a part that is missing or doesn't fit the others
    """
    qweight, qzeros = parts.required("qweight", ("I32",)), parts.required("qzeros", ("I32",))
    scales, g_idx = parts.required("scales", FLOAT_TYPES), parts.optional("g_idx", ("I32", "I64"), 1)
    num_groups, rows = scales.shape
    bits = next((b for b in config.bits if rows * b == 32 * qzeros.shape[1]), None)
    if bits is None:
        raise CheckpointError(
            f"{qzeros.name} has {qzeros.shape[1]:,} words for {rows:,} outputs; "
            f"allowed: {' or '.join(f'{rows * b / 32:g}' for b in config.bits)}, at {config.bits} bits."
        )
    inputs = qweight.shape[0] * 32 // bits
    parts.check_shape("qweight", (qweight.shape[0], rows), f"scales say that there are {rows:,} outputs")
    parts.check_shape("qzeros", (num_groups, qzeros.shape[1]), f"scales say that there are {num_groups:,} groups")
    parts.check_shape("g_idx", (inputs,), f"qweight has {inputs:,} inputs at {bits} bits")
    if g_idx is None and config.is_act_ordered:
        parts.required("g_idx", ("I32", "I64"), 1)
    group_size = parts.group_size(inputs, num_groups, config.group_sizes)
    kind = f"GPTQ int{bits}, {'one group a row' if group_size == inputs else f'groups of {group_size}'}"
    return GroupedTensor(
        parts.name,
        kind + (", act-order" if config.is_act_ordered else ""),
        (rows, inputs),
        parts.nbytes,
        bits,
        num_groups,
        group_size,
        GptqSource(qweight, qzeros, scales, bits, config.zeros_less_one),
        g_idx,
    )


@dataclass(frozen=True)
class GptqSource:
    """A GroupedSource: the three matrices, and whether zeros are stored less one."""

    qweight: StoredTensor
    qzeros: StoredTensor
    stored_scales: StoredTensor
    bits: int
    zeros_less_one: bool

    def whole(self, first: int, last: int) -> NDArray[np.int8]:
        """return: [last - first, K]"""
        return unpacked(self.qweight.read()[:, first:last].T, self.bits)

    def scales(self, first: int, last: int) -> NDArray[np.float32]:
        """return: [last - first, G]"""
        return as_float32(self.stored_scales.read()[:, first:last].T, self.stored_scales.dtype)

    def zeros(self, first: int, last: int) -> NDArray[np.int16] | None:
        """return: [last - first, G]

        Zeros that are stored less one had one subtracted from each, or, by other writers, from whole words, so that a
        zero of 0 borrowed from its neighbour. Adding to whole words undoes both.

        raises: CheckpointError where a zero of 0 that became -1 was packed with all its bits, over those above it
        """
        per_word = 32 // self.bits
        start = first // per_word
        words = self.qzeros.read()[:, start : -(-last // per_word)].astype(np.uint32)  # [G, …]
        if self.zeros_less_one:
            overrun = words >= (0xFF000000 if self.bits == 4 else 0xFFFF0000)
            if overrun.any():
                output = (start + int(overrun.any(axis=0).argmax())) * per_word
                raise CheckpointError(
                    f"{self.qzeros.name} has zeros of -1 among outputs {output:,} to {output + per_word - 1:,}, "
                    f"packed over others; allowed: 0 to {(1 << self.bits) - 1}, stored less one.",
                    hint="The quantiser lost those zeros. If the file is of the form gptq_v2, write "
                    '"checkpoint_format": "gptq_v2" into quantization_config.',
                )
            words += np.uint32(0x11111111 if self.bits == 4 else 0x01010101)
        packed = unpacked(words.view(np.int32), self.bits)  # [G, …]
        return packed[:, first - start * per_word : last - start * per_word].T.astype(np.int16)  # [last - first, G]

    @property
    def is_kept(self) -> bool:
        """Never: every group has a zero, and a row's numbers lie far apart."""
        return False

    def kept(self, first: int, last: int) -> Groups:
        """Not to be asked for."""
        raise AssertionError("never kept")
