"""compressed-tensors, as llm-compressor writes it: int4 and int8 packed into words, int8 and FP8 a byte each.

Owns where a weight's numbers lie. A linear layer of N outputs and K inputs with G groups is, with P = 32/bits, one of

    weight_packed [N, ⌈K/P⌉] int32, P consecutive k in a word, q + 2^(bits - 1) each; weight_shape [2]: N, K
    weight        [N, K] int8, or FP8 (float8.py)

    weight_scale       [N, G] float; [N, 1]: one a row; [1] or []: one for all
    weight_zero_point  like weight_scale, int8; or packed along N: [⌈N/P⌉, G] int32. Absent where it is 0
    weight_g_idx       [K] int32, the group of each k; all -1 stands for none

What the numbers mean together is grouped_weights.py's; called by quantised_huggingface.py.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kaishu.checkpoint.float8 import Float8Tensor, float8_tensor
from kaishu.checkpoint.grouped_weights import GroupedTensor
from kaishu.checkpoint.quantised import Groups
from kaishu.checkpoint.safetensors import StoredTensor
from kaishu.checkpoint.stored_numbers import FLOAT_TYPES, as_float32, unpacked
from kaishu.checkpoint.tensor_parts import TensorParts
from kaishu.errors import CheckpointError
from kaishu.quantisation_config import QuantisationConfig

PARTS = ("weight_packed", "weight_scale", "weight_zero_point", "weight_shape", "weight_g_idx")


def compressed_tensor(parts: TensorParts, config: QuantisationConfig) -> GroupedTensor | Float8Tensor:
    """One linear layer's weight.

    raises: CheckpointError naming a part that is missing or doesn't fit the others
    """
    if "weight_packed" not in parts.found:
        weight = parts.required("weight", ("I8", "F8_E4M3"))
        return float8_tensor(parts, config) if weight.dtype == "F8_E4M3" else _integers(parts, config, weight, 8)
    packed = parts.required("weight_packed", ("I32",))
    rows, inputs = _shape(parts, packed)
    bits = next((b for b in config.bits if -(-inputs * b // 32) == packed.shape[1]), None)
    if bits is None or packed.shape[0] != rows:
        raise CheckpointError(
            f"{packed.name} is {list(packed.shape)}, which isn't {rows:,} rows of {inputs:,} numbers "
            f"of {' or '.join(map(str, config.bits))} bits, as {parts.module}.weight_shape says."
        )
    return _integers(parts, config, packed, bits, inputs)


def _shape(parts: TensorParts, packed: StoredTensor) -> tuple[int, int]:
    stored = parts.required("weight_shape", ("I64", "I32"), 1)
    parts.check_shape("weight_shape", (2,), "a weight is a matrix")
    rows, inputs = (int(size) for size in stored.read())
    if rows < 0 or not 0 <= inputs <= 8 * packed.shape[1]:
        raise CheckpointError(
            f"{stored.name} says [{rows}, {inputs}], which {packed.name}, {list(packed.shape)}, can't hold."
        )
    return rows, inputs


def _integers(
    parts: TensorParts, config: QuantisationConfig, weight: StoredTensor, bits: int, inputs: int | None = None
) -> GroupedTensor:
    """A weight of whole numbers.

    weight: the packed words, or the int8 as they are
    inputs: K, where it isn't the width of `weight`
    """
    rows, inputs = weight.shape[0], weight.shape[1] if inputs is None else inputs
    scale = parts.found.get("weight_scale")
    scale = parts.required("weight_scale", FLOAT_TYPES, len(scale.shape) if scale and len(scale.shape) < 2 else 2)
    num_groups = scale.shape[1] if len(scale.shape) == 2 else 1
    if scale.num_values != 1:
        parts.check_shape("weight_scale", (rows, num_groups), f"the weight has {rows:,} rows")
    zeros = parts.found.get("weight_zero_point")
    if zeros is None and config.needs_zeros:
        zeros = parts.required("weight_zero_point", ("I8", "I32"))
    if zeros is not None and zeros.dtype == "I32":
        zeros = parts.required("weight_zero_point", ("I32",))
        shape = (-(-rows * bits // 32), num_groups)
        parts.check_shape("weight_zero_point", shape, f"{32 // bits} of {rows:,} rows are in a word")
    elif zeros is not None:
        zeros = parts.required("weight_zero_point", ("I8",), len(scale.shape))
        parts.check_shape("weight_zero_point", scale.shape, "there is one for each scale")
    index = parts.optional("weight_g_idx", ("I32", "I64"), 1)
    parts.check_shape("weight_g_idx", (inputs,), f"the weight has {inputs:,} inputs")
    if index is not None and (index.read() == -1).all():
        index = None
    group_size = inputs if num_groups == 1 else parts.group_size(inputs, num_groups, config.group_sizes)
    grouping = "one scale" if scale.num_values == 1 else "a scale for each row"
    return GroupedTensor(
        parts.name,
        f"compressed-tensors int{bits}, {grouping if num_groups == 1 else f'groups of {group_size}'}",
        (rows, inputs),
        parts.nbytes,
        bits,
        num_groups,
        group_size,
        CompressedSource(weight, scale, zeros, bits, inputs),
        index,
    )


@dataclass(frozen=True)
class CompressedSource:
    """A GroupedSource.

    weight: words, or int8 as they are
    inputs: K; words may hold a few numbers more
    """

    weight: StoredTensor
    scale: StoredTensor
    zero_point: StoredTensor | None
    bits: int
    inputs: int

    def whole(self, first: int, last: int) -> NDArray[np.int8]:
        """return: [last - first, K]"""
        rows = self.weight.read()[first:last]
        return np.asarray(rows) if self.weight.dtype == "I8" else unpacked(rows, self.bits)[:, : self.inputs]

    def scales(self, first: int, last: int) -> NDArray[np.float32]:
        """return: [last - first, G]"""
        return as_float32(self._rows(self.scale, first, last), self.scale.dtype)

    def zeros(self, first: int, last: int) -> NDArray[np.int16] | None:
        """return: [last - first, G]"""
        if self.zero_point is None:
            return None
        if self.zero_point.dtype == "I8":
            return self._rows(self.zero_point, first, last).astype(np.int16)
        per_word = 32 // self.bits
        start = first // per_word
        zeros = unpacked(self.zero_point.read()[start : -(-last // per_word)].T, self.bits)  # [G, …]
        return zeros[:, first - start * per_word : last - start * per_word].T.astype(np.int16)

    @property
    def is_kept(self) -> bool:
        """Where scales are float16, one for each group, and there are no zeros."""
        return self.scale.dtype == "F16" and self.zero_point is None and self.scale.num_values != 1

    def kept(self, first: int, last: int) -> Groups:
        """Words are pairs already: their bytes, little-endian, are in the order of K."""
        rows, scales = self.weight.read()[first:last], self.scale.read()[first:last]
        if self.weight.dtype == "I8":
            return Groups(rows, scales)
        if self.bits == 8:
            return Groups(unpacked(rows, 8)[:, : self.inputs], scales)
        return Groups(np.ascontiguousarray(rows, "<i4").view(np.uint8)[:, : self.inputs // 2], scales)

    @staticmethod
    def _rows(tensor: StoredTensor, first: int, last: int) -> NDArray[np.generic]:
        """Rows of something that is one for each row, or one for all."""
        if tensor.num_values == 1:
            return np.broadcast_to(tensor.read().reshape(1, 1), (last - first, 1))
        return tensor.read()[first:last]
