"""A GGUF's tensors under the names and with the rows that a Hugging Face checkpoint has.

Owns the table of names, the slicing of experts' stacks, the order of rows that llama.cpp's converter changes for one
family, and reading a quantised matrix by rows. Knows nothing of metadata. Called by gguf_model.py; the executors read
what it makes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kaishu.checkpoint.gguf import GgufFile, GgufTensor, row_bytes
from kaishu.checkpoint.gguf_blocks import LAYOUT_OF, PLAIN, groups, values
from kaishu.checkpoint.quantised import Groups, LayoutKind, QuantisedTensor
from kaishu.checkpoint.safetensors import StoredTensor
from kaishu.errors import CheckpointError, and_more, shown

ROPE_FACTORS = "rope_freqs.weight"  # read by gguf_rope.py, not by the model
_MAX_EXPERTS = 65_536
_OUTSIDE_LAYERS: Mapping[str, str] = MappingProxyType(
    {
        "token_embd.weight": "model.embed_tokens.weight",
        "output_norm.weight": "model.norm.weight",
        "output.weight": "lm_head.weight",
    }
)
_IN_LAYER: Mapping[str, str] = MappingProxyType(
    {
        "attn_norm": "input_layernorm",
        "attn_q": "self_attn.q_proj",
        "attn_k": "self_attn.k_proj",
        "attn_v": "self_attn.v_proj",
        "attn_output": "self_attn.o_proj",
        "attn_q_norm": "self_attn.q_norm",
        "attn_k_norm": "self_attn.k_norm",
        "ffn_norm": "post_attention_layernorm",
        "ffn_gate": "mlp.gate_proj",
        "ffn_up": "mlp.up_proj",
        "ffn_down": "mlp.down_proj",
        "ffn_gate_inp": "mlp.gate",
    }
)
_STACKS: Mapping[str, str] = MappingProxyType(
    {"ffn_gate_exps": "gate_proj", "ffn_up_exps": "up_proj", "ffn_down_exps": "down_proj"}
)
_LAYER_NAME = re.compile(r"blk\.(?P<layer>0|[1-9]\d{0,4})\.(?P<what>\w+)\.(?P<leaf>weight|bias)")


def half_split_rows(heads: int, rows: int) -> NDArray[np.intp]:
    """Where to find each row of q_proj or k_proj as Hugging Face has it, in a file for llama.cpp's `llama`.

    RoPE turns pairs of numbers. Hugging Face's halves of a head pair row i with row i + d/2; llama.cpp's `llama` pairs
    neighbours, so its converter wrote row i of the halves to 2i and row i + d/2 to 2i + 1. Its Qwen families keep the
    halves, and their rows are as they were.

    return: [rows] int; row r is row `return[r]` of the file
    """
    order = np.arange(rows).reshape(heads, -1, 2).swapaxes(1, 2)  # [heads, 2, d/2]
    return order.reshape(rows)


@dataclass(frozen=True)
class ReorderedTensor(StoredTensor):
    """A plain tensor whose rows are read in the order of half_split_rows; `read` therefore copies it."""

    heads: int

    def read(self) -> NDArray[Any]:
        """As StoredTensor.read, but the rows of a copy in their order."""
        return super().read()[half_split_rows(self.heads, self.shape[0])]


@dataclass(frozen=True)
class GgufMatrix:
    """A quantised matrix where it lies in a GGUF: a QuantisedTensor.

    heads: how many heads its rows are of, where they must be reordered (half_split_rows); 0 where they lie in order
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    file: Path
    offset: int
    heads: int = 0

    @property
    def num_values(self) -> int:
        """How many weights it has."""
        return self.shape[0] * self.shape[1]

    @property
    def nbytes(self) -> int:
        """How many bytes it takes in the file."""
        return self.shape[0] * row_bytes(self.dtype, self.shape[1])

    @property
    def layout(self) -> LayoutKind:
        """In which of the executors' layouts it is kept."""
        return LAYOUT_OF[self.dtype]

    def values(self, first: int, last: int) -> NDArray[np.float32]:
        """Rows as the format defines them: as QuantisedTensor.values."""
        return values(self.dtype, self._raw(first, last))

    def groups(self, first: int, last: int) -> Groups | None:
        """Rows as whole numbers and scales: as QuantisedTensor.groups. A scale beyond float16's range is infinite."""
        return groups(self.dtype, self._raw(first, last))

    def _raw(self, first: int, last: int) -> NDArray[np.uint8]:
        """return: [last - first, row bytes] uint8, a view of the file, or a copy where rows are reordered"""
        rows, length = self.shape
        assert 0 <= first <= last <= rows, "rows lie inside"
        width = row_bytes(self.dtype, length)
        if self.heads:
            whole = StoredTensor(self.name, "U8", (rows, width), self.file, self.offset).read()
            return whole[half_split_rows(self.heads, rows)[first:last]]
        return StoredTensor(self.name, "U8", (last - first, width), self.file, self.offset + first * width).read()


def standard_tensors(
    file: GgufFile, query_heads: int, key_value_heads: int, *, is_interleaved: bool
) -> dict[str, StoredTensor | QuantisedTensor]:
    """All tensors of a model by Hugging Face's names; each expert a tensor of its own.

    is_interleaved: whether the rows of q and k are as llama.cpp's `llama` wants them, to be put back
    raises:         CheckpointError naming tensors that have no place in a model, or whose type or shape can't be
    """
    named: dict[str, StoredTensor | QuantisedTensor] = {}
    unknown = []
    for tensor in file.tensors.values():
        if tensor.name == ROPE_FACTORS:
            continue
        heads = 0
        if is_interleaved:
            heads = {"attn_q": query_heads, "attn_k": key_value_heads}.get(tensor.name.split(".")[-2:][0], 0)
        pieces = list(_pieces(tensor, heads))
        if not pieces:
            unknown.append(f"{tensor.name} ({tensor.kind})")
        named.update((piece.name, piece) for piece in pieces)
    if unknown:
        raise CheckpointError(
            f"{file.path.name} has {len(unknown):,} tensors that this family doesn't use: {and_more(unknown)}.",
            hint="The model is of a kind that isn't run yet.",
        )
    return named


def _pieces(tensor: GgufTensor, heads: int) -> Iterator[StoredTensor | QuantisedTensor]:
    """The tensor under its name; a stack's parts under theirs; nothing where the name is unknown."""
    if tensor.name in _OUTSIDE_LAYERS:
        yield _matrix(tensor, _OUTSIDE_LAYERS[tensor.name])
        return
    match = _LAYER_NAME.fullmatch(tensor.name)
    if match is None:
        return
    prefix = f"model.layers.{match['layer']}"
    if match["what"] in _IN_LAYER:
        yield _matrix(tensor, f"{prefix}.{_IN_LAYER[match['what']]}.{match['leaf']}", heads)
    elif match["what"] in _STACKS and match["leaf"] == "weight":
        if len(tensor.shape) != 3 or tensor.shape[0] > _MAX_EXPERTS:
            raise _wrong_shape(tensor, "[experts, outputs, inputs]")
        num_experts, rows, length = tensor.shape
        expert_bytes = rows * row_bytes(tensor.kind, length)
        for expert in range(num_experts):
            name = f"{prefix}.mlp.experts.{expert}.{_STACKS[match['what']]}.weight"
            offset = tensor.offset + expert * expert_bytes
            yield _matrix(GgufTensor(tensor.name, tensor.kind, (rows, length), tensor.file, offset), name)


def _matrix(tensor: GgufTensor, name: str, heads: int = 0) -> StoredTensor | QuantisedTensor:
    if heads and tensor.shape[0] % (2 * heads):
        raise _wrong_shape(tensor, f"{heads} heads of an even number of rows")
    if tensor.kind not in PLAIN:
        if len(tensor.shape) != 2:
            raise _wrong_shape(tensor, "quantised tensors are matrices")
        return GgufMatrix(name, tensor.kind, tensor.shape, tensor.file, tensor.offset, heads)
    if heads:
        return ReorderedTensor(name, tensor.kind, tensor.shape, tensor.file, tensor.offset, heads)
    return StoredTensor(name, tensor.kind, tensor.shape, tensor.file, tensor.offset)


def _wrong_shape(tensor: GgufTensor, allowed: str) -> CheckpointError:
    found = f"{tensor.kind} of shape {list(tensor.shape)}"
    return CheckpointError(f"{shown(tensor.name)} in {tensor.file.name} is {found}; allowed: {allowed}.")
