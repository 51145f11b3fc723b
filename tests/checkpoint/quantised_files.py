"""Quantised checkpoints on disk, and what Kaishu reads of them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kaishu.checkpoint.quantised import GROUP, Groups, QuantisedTensor
from kaishu.checkpoint.quantised_huggingface import quantised_tensors
from kaishu.checkpoint.safetensors import StoredTensor, open_safetensors
from kaishu.config import ModelConfig, config_from_json

MODULE = "model.layers.0.self_attn.q_proj"
SMALL: dict[str, Any] = {
    "model_type": "qwen3",
    "vocab_size": 64,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e6,
    "tie_word_embeddings": True,
    "eos_token_id": 1,
}
GPTQ: dict[str, Any] = {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": False, "sym": False}
AWQ: dict[str, Any] = {"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemm", "zero_point": True}
FP8: dict[str, Any] = {
    "quant_method": "fp8",
    "fmt": "e4m3",
    "weight_block_size": [128, 128],
    "activation_scheme": "dynamic",
}


def compressed(form: str = "pack-quantized", **weights: Any) -> dict[str, Any]:
    """What llm-compressor writes for one scheme over all linear layers."""
    scheme = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 32, **weights}
    return {
        "quant_method": "compressed-tensors",
        "format": form,
        "quantization_status": "compressed",
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": scheme, "input_activations": None}},
        "ignore": ["lm_head"],
        "kv_cache_scheme": None,
        "sparsity_config": {},
    }


def config(quantization_config: Mapping[str, Any] | None) -> ModelConfig:
    return config_from_json({**SMALL, "quantization_config": quantization_config})


def write(path: Path, tensors: Mapping[str, Any]) -> Path:
    """A safetensors file, by its own library; numpy arrays, or torch tensors for types that numpy lacks."""
    import torch
    from safetensors.torch import save_file

    as_torch = {
        name: torch.from_numpy(np.ascontiguousarray(tensor)) if isinstance(tensor, np.ndarray) else tensor.contiguous()
        for name, tensor in tensors.items()
    }
    save_file(as_torch, path, metadata={"format": "pt"})
    return path


def read_all(
    folder: Path, tensors: Mapping[str, Any], quantization_config: Mapping[str, Any]
) -> dict[str, StoredTensor | QuantisedTensor]:
    file = open_safetensors(write(folder / "model.safetensors", tensors))
    return quantised_tensors(config(quantization_config), file.tensors)


def read_one(folder: Path, parts: Mapping[str, Any], quantization_config: Mapping[str, Any]) -> QuantisedTensor:
    """The one weight that these parts make."""
    found = read_all(folder, {f"{MODULE}.{part}": tensor for part, tensor in parts.items()}, quantization_config)
    assert list(found) == [f"{MODULE}.weight"]
    tensor = found[f"{MODULE}.weight"]
    assert not isinstance(tensor, StoredTensor) and tensor.name == f"{MODULE}.weight"
    return tensor


def check(tensor: QuantisedTensor, expected: NDArray[np.float32], layout: str) -> None:
    """The tensor has exactly these values, in any range of rows, and its groups have them too."""
    rows, inputs = expected.shape
    assert tensor.shape == (rows, inputs) and tensor.num_values == rows * inputs
    assert tensor.layout == layout
    for first, last in {(0, rows), (0, 1), (rows // 2, rows), (rows // 3, rows // 3 + 1), (1, max(1, rows - 1))}:
        values = tensor.values(first, last)
        assert values.dtype == np.float32
        np.testing.assert_array_equal(values, expected[first:last])
        groups = tensor.groups(first, last)
        assert (groups is None) == (layout == "bf16")
        if groups is not None:
            check_range(groups, layout)
            np.testing.assert_array_equal(from_groups(groups), expected[first:last])


def check_range(groups: Groups, layout: str) -> None:
    """As the contract of Groups says."""
    whole = groups.numbers()
    assert whole.dtype == np.int8 and (groups.whole.dtype == np.int8 or layout == "int4")
    assert groups.scales.dtype == np.float16 and groups.scales.shape == (len(whole), whole.shape[1] // 32)
    assert (groups.minimums is not None) == (layout == "int4_minimum")
    low, high = {"int8": (-128, 127), "int4": (-8, 7), "int4_minimum": (0, 15)}[layout]
    assert whole.size == 0 or (whole.min() >= low and whole.max() <= high)


def from_groups(groups: Groups) -> NDArray[np.float32]:
    """What an executor makes of groups: scale · q + minimum."""
    values = groups.numbers().astype(np.float32) * np.repeat(groups.scales.astype(np.float32), GROUP, axis=1)
    if groups.minimums is not None:
        assert groups.minimums.dtype == np.float16 and groups.minimums.shape == groups.scales.shape
        values += np.repeat(groups.minimums.astype(np.float32), GROUP, axis=1)
    return values
