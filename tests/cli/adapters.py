"""A small adapter for the tests of commands that take --lora. What merging means is tests/checkpoint/test_lora.py's."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file


def adapter_of_queries(folder: Path, *, size: float = 0.1) -> Path:
    """An adapter of the queries of the first layer of a tiny model whose hidden size is 64, with 128 queries."""
    folder.mkdir()
    fields = {"peft_type": "LORA", "r": 4, "lora_alpha": 4, "target_modules": ["layers.0.self_attn.q_proj"]}
    (folder / "adapter_config.json").write_text(json.dumps(fields))
    torch.manual_seed(3)
    name = "base_model.model.model.layers.0.self_attn.q_proj"
    tensors = {f"{name}.lora_A.weight": size * torch.randn(4, 64), f"{name}.lora_B.weight": torch.randn(128, 4)}
    save_file(tensors, folder / "adapter_model.safetensors")
    return folder
