"""A GGUF's metadata and tensors as a model: a ModelConfig and tensors by Hugging Face's names.

Owns which architectures are run and what each means where the metadata are silent: the family decides, never a guess.
It writes the config.json that says the same, so that config.py's checks apply to both. Called by open.py; the names
are gguf_tensors.py's, RoPE's keys gguf_rope.py's.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kaishu.checkpoint.gguf import GgufFile, open_gguf
from kaishu.checkpoint.gguf_rope import rope_json
from kaishu.checkpoint.gguf_tensors import ROPE_FACTORS, standard_tensors
from kaishu.checkpoint.quantised import QuantisedTensor
from kaishu.checkpoint.safetensors import StoredTensor
from kaishu.config import ModelConfig, config_from_json
from kaishu.errors import ConfigError
from kaishu.json_fields import JsonFields

# llama.cpp's names of families, and config.json's.
_FAMILIES: Mapping[str, str] = MappingProxyType(
    {"qwen3": "qwen3", "qwen3moe": "qwen3_moe", "qwen2": "qwen2", "llama": "llama"}
)
_SAMPLING: Mapping[str, str] = MappingProxyType(
    {
        "temp": "temperature",
        "top_k": "top_k",
        "top_p": "top_p",
        "min_p": "min_p",
        "penalty_repeat": "repetition_penalty",
    }
)
# Keys that would change the arithmetic in a way we don't run, after the architecture's name; what else is harmless.
_ONLY_HARMLESS: Mapping[str, tuple[float, ...]] = MappingProxyType(
    {
        "expert_shared_count": (0,),
        "expert_shared_feed_forward_length": (0,),
        "expert_weights_scale": (0, 1),
        "expert_gating_func": (0, 1),  # 1: softmax over all experts, before the best are chosen
        "expert_group_count": (0, 1),
        "leading_dense_block_count": (0,),
        "attention.max_alibi_bias": (0,),
        "attention.clamp_kqv": (0,),
        "attention.scale": (0,),
        "attn_logit_softcapping": (0,),
        "final_logit_softcapping": (0,),
        "logit_scale": (0, 1),
        "residual_scale": (0, 1),
        "embedding_scale": (0, 1),
        "use_parallel_residual": (0,),
    }
)


@dataclass(frozen=True)
class GgufModel:
    """A model out of GGUF, not yet checked for completeness: that is names.py's."""

    file: GgufFile
    config: ModelConfig
    tensors: dict[str, StoredTensor | QuantisedTensor]


def open_gguf_model(path: Path) -> GgufModel:
    """Open a GGUF and give its metadata and tensors their meaning.

    path:   as for open_gguf
    raises: CheckpointError, ConfigError
    """
    file = open_gguf(path)
    config_json, generation_json = config_of(file)
    source = f"{file.path.name}, by config.json's names"
    config = config_from_json(config_json, generation_json, source=source)
    tensors = standard_tensors(
        file,
        config.num_attention_heads,
        config.num_key_value_heads,
        is_interleaved=config.model_type == "llama",
    )
    return GgufModel(file, config, tensors)


def config_of(file: GgufFile) -> tuple[dict[str, Any], dict[str, Any]]:
    """The config.json and generation_config.json that say what the metadata and the tensors' names do.

    raises: ConfigError for what is missing, contradicts itself or isn't run
    """
    fields = JsonFields(file.metadata, f"the metadata of {file.path.name}", ConfigError)
    arch = fields.one_of("general.architecture", tuple(_FAMILIES))
    _refuse_what_is_not_run(fields, arch)
    family = _FAMILIES[arch]
    hidden_size = fields.integer(f"{arch}.embedding_length", 1, 1 << 20)
    heads = fields.integer(f"{arch}.attention.head_count", 1, 65_536)
    head_dim = _head_dim(fields, arch, hidden_size, heads)
    layers = fields.integer(f"{arch}.block_count", 1, 10_000)
    config: dict[str, Any] = {
        "model_type": family,
        "vocab_size": _vocab_size(fields, file, arch),
        "hidden_size": hidden_size,
        "intermediate_size": fields.integer(f"{arch}.feed_forward_length", 1, 1 << 24),
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": fields.integer(f"{arch}.attention.head_count_kv", 1, 65_536, default=heads),
        "head_dim": head_dim,
        "max_position_embeddings": fields.integer(f"{arch}.context_length", 1, 1 << 31),
        "rms_norm_eps": fields.number(f"{arch}.attention.layer_norm_rms_epsilon", 0.0, 1.0),
        "attention_bias": "blk.0.attn_q.bias" in file.tensors,
        "mlp_bias": "blk.0.ffn_gate.bias" in file.tensors,
        "tie_word_embeddings": "output.weight" not in file.tensors,
        "dtype": _dtype(file),
        "eos_token_id": [
            token
            for key in ("eos_token_id", "eot_token_id", "eom_token_id")
            if (token := fields.optional_integer(f"tokenizer.ggml.{key}", 0, (1 << 32) - 1)) is not None
        ],
        "bos_token_id": fields.optional_integer("tokenizer.ggml.bos_token_id", 0, (1 << 32) - 1),
        "pad_token_id": fields.optional_integer("tokenizer.ggml.padding_token_id", 0, (1 << 32) - 1),
        **rope_json(fields, arch, head_dim, _rope_divisors(file)),
    }
    if arch == "qwen3moe":
        config |= _experts(fields, file, arch, layers)
    given = {ours: file.metadata.get(f"general.sampling.{theirs}") for theirs, ours in _SAMPLING.items()}
    return config, {name: value for name, value in given.items() if value is not None}


def _refuse_what_is_not_run(fields: JsonFields, arch: str) -> None:
    for name, harmless in _ONLY_HARMLESS.items():
        value = fields.values.get(f"{arch}.{name}")
        if value is not None and not (isinstance(value, int | float) and value in harmless):
            raise fields.wrong(f"{arch}.{name}", " or ".join([*map(str, harmless), "absent"]))
    if arch != "qwen3moe" and fields.integer(f"{arch}.expert_count", 0, 65_536, default=0):
        raise fields.wrong(f"{arch}.expert_count", f"0 or absent, as experts are run for qwen3moe, not {arch}")
    window = fields.integer(f"{arch}.attention.sliding_window", 0, (1 << 32) - 1, default=0)
    if 0 < window < fields.integer(f"{arch}.context_length", 1, 1 << 31):
        raise fields.wrong(f"{arch}.attention.sliding_window", "the context length or more, 0, or absent")


def _head_dim(fields: JsonFields, arch: str, hidden_size: int, heads: int) -> int:
    """Where it isn't said, llama.cpp's rule holds for every family, also for Qwen3: the hidden size over the heads."""
    key, value = f"{arch}.attention.key_length", f"{arch}.attention.value_length"
    if not fields.has(key) and hidden_size % heads:
        raise fields.missing(key, hint=f"{hidden_size:,} numbers can't be shared among {heads} heads.")
    head_dim = fields.integer(key, 1, 16_384, default=hidden_size // heads)
    if fields.integer(value, 1, 16_384, default=head_dim) != head_dim:
        raise fields.wrong(value, f"the same as {key}, {head_dim}")
    return head_dim


def _vocab_size(fields: JsonFields, file: GgufFile, arch: str) -> int:
    """As many as the embedding has rows: models have more of them than tokens."""
    embedding = file.tensors.get("token_embd.weight")
    tokens = file.metadata.count("tokenizer.ggml.tokens")
    if embedding is None or len(embedding.shape) != 2:
        return fields.integer(f"{arch}.vocab_size", 1, 1 << 24, default=tokens or 1)  # names.py says what is missing
    rows = embedding.shape[0]
    if fields.integer(f"{arch}.vocab_size", 1, 1 << 24, default=rows) != rows:
        raise fields.wrong(f"{arch}.vocab_size", f"{rows:,}, as many as token_embd.weight has rows")
    if tokens is not None and tokens > rows:
        raise ConfigError(
            f"{fields.source}: tokenizer.ggml.tokens has {tokens:,} tokens, but token_embd.weight has {rows:,} rows."
        )
    return rows


def _dtype(file: GgufFile) -> str:
    """The precision of most weights; bfloat16 where they are quantised."""
    weights: Counter[str] = Counter()
    for tensor in file.tensors.values():
        weights[tensor.kind] += math.prod(tensor.shape)
    most = max(weights, key=weights.__getitem__, default="BF16")
    return {"F32": "float32", "F16": "float16"}.get(most, "bfloat16")


def _rope_divisors(file: GgufFile) -> NDArray[np.float32] | None:
    tensor = file.tensors.get(ROPE_FACTORS)
    if tensor is None:
        return None
    if tensor.kind != "F32" or len(tensor.shape) != 1 or tensor.shape[0] > 16_384:
        raise ConfigError(f"{ROPE_FACTORS} is {tensor.kind} of shape {list(tensor.shape)}; allowed: F32, one axis.")
    divisors: NDArray[np.float32] = StoredTensor(
        tensor.name, tensor.kind, tensor.shape, tensor.file, tensor.offset
    ).read()
    return divisors


def _experts(fields: JsonFields, file: GgufFile, arch: str, layers: int) -> dict[str, Any]:
    """A layer without a router is dense. Qwen3's mixture renormalises its best experts; no key need say so."""
    return {
        "num_experts": fields.integer(f"{arch}.expert_count", 1, 65_536),
        "num_experts_per_tok": fields.integer(f"{arch}.expert_used_count", 1, 65_536),
        "moe_intermediate_size": fields.integer(f"{arch}.expert_feed_forward_length", 1, 1 << 24),
        "norm_topk_prob": fields.boolean(f"{arch}.expert_weights_norm", True),
        "mlp_only_layers": [n for n in range(layers) if f"blk.{n}.ffn_gate_inp.weight" not in file.tensors],
    }
