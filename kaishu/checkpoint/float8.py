"""FP8 weights: E4M3 values with a scale for each block, each row, or all of them.

Owns where the scales lie and that they multiply: weight = scale · value, in spite of the name `weight_scale_inv`.

    weight                          [N, K] E4M3
    weight_scale_inv, weight_scale  [⌈N/b⌉, ⌈K/c⌉] for blocks of b × c; [N, K/c] for groups along K; [N, 1] or [N] for
                                    rows; [1], [1, 1] or [] for all

No executor layout holds E4M3, so such weights are kept in bf16, rounded once. Called by quantised_huggingface.py and,
for files of compressed-tensors, by compressed.py.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kaishu.checkpoint.quantised import Groups, LayoutKind
from kaishu.checkpoint.safetensors import StoredTensor
from kaishu.checkpoint.stored_numbers import FLOAT_TYPES, as_float32
from kaishu.checkpoint.tensor_parts import TensorParts
from kaishu.errors import CheckpointError
from kaishu.quantisation_config import QuantisationConfig

PARTS = ("weight_scale_inv", "weight_scale")


def float8_tensor(parts: TensorParts, config: QuantisationConfig) -> Float8Tensor:
    """One linear layer's weight.

    raises: CheckpointError naming a part that is missing or doesn't fit the others
    """
    weight = parts.required("weight", ("F8_E4M3",))
    names = [name for name in PARTS if name in parts.found]
    if len(names) != 1:
        raise CheckpointError(
            f"{weight.name} is E4M3 with {' and '.join(names) or 'no scale'}; allowed: one of {' and '.join(PARTS)}."
        )
    scale = parts.found[names[0]]
    rows, inputs = weight.shape
    grid = scale.shape + (1,) * (2 - len(scale.shape))
    block = config.block or (1, inputs)
    grids = {(1, 1): (rows, inputs, "one scale"), (rows, 1): (1, inputs, "a scale for each row")}
    grids |= {
        (rows, -(-inputs // size)): (1, size, f"groups of {size}") for size in config.group_sizes if 0 < size < inputs
    }
    if config.block is not None:
        sizes = (-(-rows // block[0]), -(-inputs // block[1]))
        grids = {sizes: (*block, f"blocks of {block[0]}×{block[1]}")}
    if len(grid) != 2 or grid not in grids or scale.dtype not in (*FLOAT_TYPES, "F8_E8M0"):
        raise CheckpointError(
            f"{scale.name} is {scale.dtype} of shape {list(scale.shape)}; allowed: {', '.join(FLOAT_TYPES)} or "
            f"F8_E8M0, and {' or '.join(str(list(shape)) for shape in grids)}, for a weight of [{rows}, {inputs}]."
        )
    step_rows, step_inputs, what = grids[grid]
    return Float8Tensor(parts.name, f"FP8 E4M3, {what}", parts.nbytes, weight, scale, step_rows, step_inputs)


@dataclass(frozen=True)
class Float8Tensor:
    """A QuantisedTensor of E4M3 values.

    rows_per_scale, inputs_per_scale: how large the blocks are that share a scale
    """

    name: str
    dtype: str
    nbytes: int
    weight: StoredTensor
    scale: StoredTensor
    rows_per_scale: int
    inputs_per_scale: int

    @property
    def shape(self) -> tuple[int, ...]:
        """(N, K)."""
        return self.weight.shape

    @property
    def num_values(self) -> int:
        """N·K."""
        return self.weight.num_values

    @property
    def layout(self) -> LayoutKind:
        """No executor has an 8-bit float."""
        return "bf16"

    def values(self, first: int, last: int) -> NDArray[np.float32]:
        """Rows `first` to `last`: scale · value, rounded once to float32.

        return: [last - first, K] float32
        raises: CheckpointError for a scale that is no number, or when the file can't be read or has shrunk
        """
        grid = self.scale.read()
        grid = grid.reshape(grid.shape + (1,) * (2 - grid.ndim))
        start = first // self.rows_per_scale
        few = as_float32(grid[start : -(-last // self.rows_per_scale)], self.scale.dtype)  # of groups along K are many
        scales = few[np.arange(first, last) // self.rows_per_scale - start]  # [last - first, scales a row]
        if not np.isfinite(scales).all():
            row = first + int((~np.isfinite(scales)).any(axis=1).argmax())
            raise CheckpointError(
                f"{self.scale.name} has a scale for row {row:,} that is infinite or no number; allowed: finite scales.",
                hint="The file is damaged, or the model was broken when it was quantised.",
            )
        values = as_float32(self.weight.read()[first:last], self.weight.dtype)
        values *= scales[:, np.arange(self.shape[1]) // self.inputs_per_scale]
        return values

    def groups(self, first: int, last: int) -> Groups | None:
        """None: bf16 is reached by rounding `values`."""
        return None
