"""Quantised Hugging Face checkpoints: several stored tensors become one weight, under the name it has when it is plain.

Owns which tensors of a file belong together, for each method. What they mean is said by awq.py, gptq.py, compressed.py
and float8.py. Called by open.py between reading the files and looking for what the model needs. The tensors decide what
is quantised: a module whose `weight` is stored in a float type is plain, whatever the lists in config.json say of it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from kaishu.checkpoint import awq, compressed, float8, gptq
from kaishu.checkpoint.quantised import QuantisedTensor
from kaishu.checkpoint.safetensors import StoredTensor
from kaishu.checkpoint.tensor_parts import TensorParts
from kaishu.config import ModelConfig
from kaishu.errors import CheckpointError
from kaishu.quantisation_config import Method, QuantisationConfig

# What is stored for activations, keys and values; weights can be read without.
_BESIDE_WEIGHTS = (
    "input_scale",
    "input_zero_point",
    "activation_scale",
    "output_scale",
    "output_zero_point",
    "q_scale",
    "k_scale",
    "v_scale",
)


@dataclass(frozen=True)
class _Format:
    """How one method's tensors are found.

    parts:         the last pieces of their names, beside `weight`
    weight_dtypes: the types of `weight` that are quantised
    read:          what makes one weight of them
    """

    parts: tuple[str, ...]
    weight_dtypes: tuple[str, ...]
    read: Callable[[TensorParts, QuantisationConfig], QuantisedTensor]


def _format(method: Method) -> _Format:
    return {
        "awq": _Format(awq.PARTS, (), awq.awq_tensor),
        "gptq": _Format(gptq.PARTS, (), gptq.gptq_tensor),
        "fp8": _Format(float8.PARTS, ("F8_E4M3",), float8.float8_tensor),
        "compressed-tensors": _Format(
            (*compressed.PARTS, "weight_scale_inv"), ("I8", "F8_E4M3"), compressed.compressed_tensor
        ),
    }[method]


def quantised_tensors(
    config: ModelConfig, tensors: Mapping[str, StoredTensor]
) -> dict[str, StoredTensor | QuantisedTensor]:
    """Put the parts of each quantised weight together.

    config:  the model; its `quantisation` is what config.json says, None where weights are plain
    tensors: all that the files hold, under standard names (names.standard_names)
    return:  an entry `MODULE.weight` for each quantised weight, and every plain tensor as it is
    raises:  CheckpointError naming parts that are missing, left over, or don't fit each other
    """
    if config.quantisation is None:
        return dict(tensors)
    form = _format(config.quantisation.method)
    found: dict[str, StoredTensor | QuantisedTensor] = {}
    modules: defaultdict[str, dict[str, StoredTensor]] = defaultdict(dict)
    for name, tensor in tensors.items():
        module, _, part = name.rpartition(".")
        if part in form.parts or (part == "weight" and tensor.dtype in form.weight_dtypes):
            modules[module][part] = tensor
        elif part not in _BESIDE_WEIGHTS:
            found[name] = tensor
    for module, parts in modules.items():
        if f"{module}.weight" in found:
            raise CheckpointError(
                f"{module}.weight is stored plain ({tensors[f'{module}.weight'].dtype}), but with "
                f"{', '.join(sorted(parts))} beside it; allowed: plain or quantised."
            )
        found[f"{module}.weight"] = form.read(TensorParts(module, parts), config.quantisation)
    for name in _empty_biases(config, modules, tensors):
        del found[name]
    return found


def _empty_biases(config: ModelConfig, modules: Iterable[str], tensors: Mapping[str, StoredTensor]) -> list[str]:
    """The biases of quantised modules that the model doesn't have: old quantisers wrote zeros for them."""
    has_bias = dict.fromkeys(("q_proj", "k_proj", "v_proj"), config.attention_bias) | {"o_proj": config.output_bias}
    has_bias |= dict.fromkeys(("gate_proj", "up_proj", "down_proj"), config.mlp_bias)
    surplus = [f"{module}.bias" for module in modules if not has_bias.get(module.rpartition(".")[2], False)]
    return [name for name in surplus if name in tensors and not tensors[name].read().any()]
