"""The stored tensors that make up one quantised weight, each looked at before it is used.

Owns the words for a part that is missing, of a wrong type or of a wrong shape. Knows no format; awq.py, gptq.py,
compressed.py and float8.py ask it for the parts that they know by name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kaishu.checkpoint.safetensors import StoredTensor
from kaishu.errors import CheckpointError


@dataclass(frozen=True)
class TensorParts:
    """What is stored under one module's name.

    module: "model.layers.0.self_attn.q_proj"
    found:  by the last piece of the name: "qweight", "scales", ...
    """

    module: str
    found: Mapping[str, StoredTensor]

    @property
    def name(self) -> str:
        """What the weight is called where it isn't quantised."""
        return f"{self.module}.weight"

    @property
    def nbytes(self) -> int:
        """What all parts take in the file."""
        return sum(tensor.nbytes for tensor in self.found.values())

    def optional(self, part: str, dtypes: Sequence[str], dimensions: int = 2) -> StoredTensor | None:
        """A part that needn't be there.

        raises: CheckpointError where it has another type or number of dimensions
        """
        tensor = self.found.get(part)
        if tensor is not None and (tensor.dtype not in dtypes or len(tensor.shape) != dimensions):
            raise CheckpointError(
                f"{self.module}.{part} is {tensor.dtype} of shape {list(tensor.shape)}; "
                f"allowed: {' or '.join(dtypes)}, {dimensions} dimension{'' if dimensions == 1 else 's'}."
            )
        return tensor

    def required(self, part: str, dtypes: Sequence[str], dimensions: int = 2) -> StoredTensor:
        """A part that the weight can't be read without.

        raises: CheckpointError where it is missing, or as `optional` does
        """
        tensor = self.optional(part, dtypes, dimensions)
        if tensor is None:
            have = ", ".join(sorted(self.found))
            raise CheckpointError(f"{self.module}.{part} is missing; of this quantised weight there are only: {have}.")
        return tensor

    def check_shape(self, part: str, shape: tuple[int, ...], why: str) -> None:
        """raises: CheckpointError where a part is there and has another shape"""
        tensor = self.found.get(part)
        if tensor is not None and tensor.shape != shape:
            raise CheckpointError(
                f"{self.module}.{part} has shape {list(tensor.shape)}; allowed: {list(shape)}, because {why}."
            )

    def group_size(self, inputs: int, groups: int, sizes: Sequence[int]) -> int:
        """How many weights along K share a scale.

        inputs: K
        groups: how many scales a row has
        sizes:  what config.json allows; -1 for a whole row
        return: of several that give so many groups, the one without a shorter group at the end
        raises: CheckpointError where none of them gives so many groups
        """
        lengths = [inputs if size < 0 else size for size in sizes]
        fitting = [length for length in lengths if length and -(-inputs // length) == groups]
        if fitting:
            return min(fitting, key=lambda length: inputs % length != 0)
        allowed = " or ".join("a whole row" if size < 0 else str(size) for size in sizes)
        raise CheckpointError(
            f"{self.module} has {groups:,} scales for each row of {inputs:,} weights, "
            f"but config.json says that {allowed} of them share a scale."
        )
