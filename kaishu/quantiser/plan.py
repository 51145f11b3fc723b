"""Which tensors of a model are quantised, what is left as it is, and what the new folder's config.json says of it.

Owns the choice and the names of compressed-tensors' form "pack-quantized", which other engines read too. A linear layer
of N outputs and K inputs, with b bits a weight, becomes

    weight_packed [N, K·b/32] int32, consecutive k in a word from its lowest bits on, q + 2^(b - 1) each
    weight_scale  [N, K/32] float16
    weight_shape  [2] int64: N, K

Left as they are: the embedding (of a tied model also the head: `--head` says how the kernels keep it), a head of its
own, norms, biases, the routers of experts, which decide more than they weigh, and linear layers whose K is no multiple
of 32. Knows nothing of the arithmetic. Used by quantise.py.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from kaishu.checkpoint import Checkpoint, StoredTensor
from kaishu.checkpoint.quantised import GROUP
from kaishu.checkpoint.writing import NewTensor
from kaishu.errors import CheckpointError
from kaishu.quantiser.rounding import Form

_LINEAR = re.compile(r"\.layers\.\d+\..*\b(?P<kind>[qkvo]_proj|gate_proj|up_proj|down_proj)\.weight$")


@dataclass(frozen=True)
class Plan:
    """What becomes of each tensor; names in the checkpoint's order.

    quantised: weights of linear layers
    uneven:    weights of linear layers that are left, because K isn't a multiple of 32
    kept:      all that is left, those included
    """

    checkpoint: Checkpoint
    form: Form
    quantised: tuple[str, ...]
    uneven: tuple[str, ...]
    kept: tuple[str, ...]

    def tensors(self) -> dict[str, NewTensor]:
        """The tensors of the new file."""
        found: dict[str, NewTensor] = {}
        for name in self.quantised:
            rows, columns = self.checkpoint.tensors[name].shape
            found[f"{name}_shape"] = NewTensor("I64", (2,))
            found[f"{name}_packed"] = NewTensor("I32", (rows, columns * self.form.bits // 32))
            found[f"{name}_scale"] = NewTensor("F16", (rows, columns // GROUP))
        for name in self.kept:
            tensor = self.checkpoint.tensors[name]
            # What is quantised in the source, but not here: an embedding, which the kernels read in bfloat16 anyway.
            dtype = tensor.dtype if isinstance(tensor, StoredTensor) else "BF16"
            found[name] = NewTensor(dtype, tensor.shape)
        return found

    def quantization_config(self) -> dict[str, Any]:
        """What config.json says of it."""
        ignored = ["lm_head"] + [name.removesuffix(".weight") for name in self.uneven]
        if self.checkpoint.config.experts is not None:
            ignored.append(r"re:.*mlp\.gate$")
        weights = {
            "num_bits": self.form.bits,
            "type": "int",
            "symmetric": True,
            "strategy": "group",
            "group_size": GROUP,
            "dynamic": False,
        }
        group = {"targets": ["Linear"], "weights": weights, "input_activations": None, "output_activations": None}
        return {
            "quant_method": "compressed-tensors",
            "format": "pack-quantized",
            "quantization_status": "compressed",
            "config_groups": {"group_0": group},
            "ignore": ignored,
        }


def kind_of(name: str) -> str | None:
    """`q_proj`, `down_proj` and so on for the weight of a layer's linear layer; None for what is no such thing."""
    found = _LINEAR.search(name)
    return found["kind"] if found else None


def plan_of(checkpoint: Checkpoint, form: Form) -> Plan:
    """Decide.

    raises: CheckpointError if there is nothing that can be quantised
    """
    linears = [name for name in checkpoint.tensors if kind_of(name)]
    uneven = [name for name in linears if checkpoint.tensors[name].shape[1] % GROUP]
    chosen = [name for name in linears if name not in set(uneven)]
    if not chosen:
        raise CheckpointError(
            f"No linear layer of {checkpoint.folder.name} has a multiple of {GROUP} inputs, but {GROUP} weights share "
            "a scale, so there is nothing to quantise."
        )
    kept = [name for name in checkpoint.tensors if name not in set(chosen)]
    return Plan(checkpoint, form, tuple(chosen), tuple(uneven), tuple(kept))
