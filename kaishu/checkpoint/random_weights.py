"""Checkpoints of a known shape with random weights: for measuring speed and memory where nothing can be downloaded.

Owns the table of shapes and how their weights are drawn and written. Knows nothing of who measures: `kaishu bench` and
benchmarks/ call it, and open what it wrote as they would open any model. numpy alone; bfloat16 is written as raw bits,
a few megabytes at a time, so that a model larger than memory can be made.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import NormalDist
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kaishu.checkpoint.names import NeededTensor, needed_tensors
from kaishu.checkpoint.stored_numbers import bfloat16_bits
from kaishu.checkpoint.writing import NewTensor, TensorFile, new_folder
from kaishu.config import config_from_json
from kaishu.errors import InvalidParameterError

STANDARD_DEVIATION = 0.02  # what Qwen3's own config.json calls initializer_range
_ONE = 0x3F80  # 1.0 in bfloat16
_VALUES_AT_ONCE = 1 << 20

_COMMON: Mapping[str, Any] = {
    "model_type": "qwen3",
    "architectures": ["Qwen3ForCausalLM"],
    "dtype": "bfloat16",
    "vocab_size": 151_936,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "hidden_act": "silu",
    "max_position_embeddings": 40_960,
    "initializer_range": STANDARD_DEVIATION,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1_000_000,
    "attention_bias": False,
    "attention_dropout": 0.0,
    "use_sliding_window": False,
    "bos_token_id": 151_643,
    "eos_token_id": 151_645,
}
_EXPERTS: Mapping[str, Any] = {
    "model_type": "qwen3_moe",
    "architectures": ["Qwen3MoeForCausalLM"],
    "num_experts_per_tok": 8,
    "norm_topk_prob": True,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
}
_BIASED: Mapping[str, Any] = {
    "model_type": "qwen2",
    "architectures": ["Qwen2ForCausalLM"],
    "attention_bias": True,  # of queries, keys and values; in this family always, so the published file doesn't say it
    "max_position_embeddings": 32_768,
}


def _sizes(hidden: int, intermediate: int, layers: int, heads: int, *, tied: bool, **more: Any) -> Mapping[str, Any]:
    sizes = {
        "hidden_size": hidden,
        "intermediate_size": intermediate,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "tie_word_embeddings": tied,
    }
    return MappingProxyType({**_COMMON, **sizes, **more})


# What each model's config.json says, as published; the last two are for trying a whole pipeline out in seconds.
SHAPES: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "qwen3-0.6b": _sizes(1024, 3072, 28, 16, tied=True),
        "qwen3-1.7b": _sizes(2048, 6144, 28, 16, tied=True),
        "qwen3-4b": _sizes(2560, 9728, 36, 32, tied=True),
        "qwen3-8b": _sizes(4096, 12_288, 36, 32, tied=False),
        "qwen3-14b": _sizes(5120, 17_408, 40, 40, tied=False),
        "qwen3-32b": _sizes(5120, 25_600, 64, 64, tied=False),
        "qwen3-30b-a3b": _sizes(
            2048,
            6144,
            48,
            32,
            tied=False,
            **{**_EXPERTS, "num_key_value_heads": 4, "num_experts": 128, "moe_intermediate_size": 768},
        ),
        "qwen3-235b-a22b": _sizes(
            4096,
            12_288,
            94,
            64,
            tied=False,
            **{**_EXPERTS, "num_key_value_heads": 4, "num_experts": 128, "moe_intermediate_size": 1536},
        ),
        "qwen2.5-0.5b": _sizes(896, 4864, 24, 14, tied=True, **_BIASED, num_key_value_heads=2, head_dim=64),
        "tiny-test": _sizes(128, 384, 2, 4, tied=True, num_key_value_heads=2, head_dim=64),
        "tiny-moe-test": _sizes(
            128,
            384,
            2,
            4,
            tied=True,
            **{**_EXPERTS, "num_key_value_heads": 2, "head_dim": 64, "num_experts": 16, "moe_intermediate_size": 96},
        ),
    }
)


def shape_name(shape: str) -> str:
    """The key of SHAPES that is meant.

    shape:  in any case, with or without `qwen3-` in front: "0.6b", "Qwen3-30B-A3B"
    raises: InvalidParameterError naming the shapes that there are
    """
    lowered = shape.lower()
    named = next((name for name in (lowered, f"qwen3-{lowered}") if name in SHAPES), None)
    if named is None:
        raise InvalidParameterError("shape", shape, ", ".join(name.removeprefix("qwen3-") for name in SHAPES))
    return named


def shape_config(shape: str, layers: int | None = None) -> dict[str, Any]:
    """The config.json of a shape.

    shape:  as for shape_name
    layers: how many decoder layers; None: as many as the real model has
    return: the object for config.json, the caller's own
    raises: InvalidParameterError
    """
    config = dict(SHAPES[shape_name(shape)])
    if layers is not None:
        if not 1 <= layers <= 10_000:
            raise InvalidParameterError("layers", layers, "1 to 10,000")
        config["num_hidden_layers"] = layers
    return config


def random_checkpoint_bytes(shape: str, layers: int | None = None) -> int:
    """How many bytes the weights of write_random_checkpoint take on disk and, before any packing, in memory."""
    needed = needed_tensors(config_from_json(shape_config(shape, layers)))
    return sum(_nbytes(tensor) for tensor in needed.values())


def write_random_checkpoint(folder: Path, shape: str, layers: int | None = None, seed: int = 0) -> Path:
    """Write a complete model folder without a tokenizer: config.json, and model.safetensors in bfloat16.

    Linears and embeddings are normal with a standard deviation of 0.02, norms are 1. The folder appears whole or not
    at all, and takes a few megabytes of memory to write. Fewer layers of the same seed have the same first layers.

    folder: made anew; nothing is overwritten
    shape:  as for shape_name
    layers: as for shape_config
    seed:   the same seed gives the same bytes
    return: the folder
    raises: InvalidParameterError; CheckpointError if something is in the folder, or it can't be written
    """
    raw = shape_config(shape, layers)
    needed = needed_tensors(config_from_json(raw))
    size = sum(_nbytes(tensor) for tensor in needed.values())
    with new_folder(folder, "random weights", size) as unfinished:
        (unfinished / "config.json").write_text(json.dumps(raw, indent=2) + "\n", encoding="utf-8")
        _write_tensors(unfinished / "model.safetensors", needed, np.random.default_rng(seed))
    return folder


def _write_tensors(path: Path, needed: Mapping[str, NeededTensor], random: np.random.Generator) -> None:
    """Write a safetensors file with random values for the needed tensors."""
    table = _normal_table()
    with TensorFile(path, {name: NewTensor("BF16", tensor.shape) for name, tensor in needed.items()}) as file:
        for name, tensor in needed.items():
            start = 0
            for values in _values(tensor, table, random):
                file.write(name, values, start)
                start += values.size


def _values(
    tensor: NeededTensor, table: NDArray[np.uint16], random: np.random.Generator
) -> Iterator[NDArray[np.uint16]]:
    """The bits of a tensor's values, a part at a time."""
    count = math.prod(tensor.shape)
    for start in range(0, count, _VALUES_AT_ONCE):
        size = min(_VALUES_AT_ONCE, count - start)
        if tensor.name.endswith("norm.weight"):
            yield np.full(size, _ONE, np.uint16)
        else:
            yield table[random.integers(0, len(table), size, np.uint16)]


def _normal_table() -> NDArray[np.uint16]:
    """What turns 16 random bits into a normally distributed bfloat16: the quantiles of 2^16 equally likely slices.

    return: [65536] uint16, bfloat16 bits in rising order

    Drawing is then a look-up, several times faster than drawing normals and rounding each. The extremes are ±4.3
    standard deviations.
    """
    normal = NormalDist(0.0, STANDARD_DEVIATION)
    quantiles = np.array([normal.inv_cdf((i + 0.5) / 65_536) for i in range(65_536)], np.float32)
    return bfloat16_bits(quantiles)


def _nbytes(tensor: NeededTensor) -> int:
    return 2 * math.prod(tensor.shape)
