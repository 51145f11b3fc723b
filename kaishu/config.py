"""ModelConfig: what a checkpoint says about itself.

Owns the meaning of `config.json` and `generation_config.json` in their old and new spellings, for the families that
are one model with different fields: qwen3, qwen3_moe, qwen2, llama. Refuses to guess: a field that changes the
arithmetic and that we don't implement is an error, never ignored. Knows nothing of tensors or devices.
Read by checkpoint/ when a model is opened; used by reference/ and cpu/ to build the same model.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class RopeConfig:
    """Rotary position embedding: the base and, where the context was stretched, how.

    Fields that a `kind` doesn't use keep their defaults. `original_positions` is the context length before stretching.
    """

    theta: float
    kind: Literal["default", "linear", "yarn", "llama3"] = "default"
    factor: float = 1.0
    original_positions: int | None = None
    attention_factor: float | None = None  # yarn: None means 0.1 ln(factor) + 1 (or from mscale, mscale_all_dim)
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool = True  # yarn: round the correction range to whole dimensions
    low_freq_factor: float = 1.0  # llama3
    high_freq_factor: float = 4.0  # llama3


@dataclass(frozen=True)
class ExpertsConfig:
    """A mixture of experts in place of the feed-forward network, in the layers where `ModelConfig.is_sparse` says so."""

    num_experts: int
    num_experts_per_tok: int
    moe_intermediate_size: int
    norm_topk_prob: bool
    sparse_layers: tuple[int, ...]


@dataclass(frozen=True)
class GenerationDefaults:
    """What the model's authors recommend for sampling; None where they say nothing."""

    temperature: float | None = None  # 0.0 where the file says do_sample: false
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None


@dataclass(frozen=True)
class ModelConfig:
    """The shape of a decoder and the few switches that tell its families apart. Names are Hugging Face's."""

    model_type: Literal["qwen3", "qwen3_moe", "qwen2", "llama"]
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    max_position_embeddings: int
    rms_norm_eps: float
    rope: RopeConfig
    qk_norm: bool  # RMSNorm over each head of q and k, before RoPE (Qwen3)
    attention_bias: bool  # on q_proj, k_proj, v_proj
    output_bias: bool  # on o_proj
    mlp_bias: bool  # on gate_proj, up_proj, down_proj
    tie_word_embeddings: bool
    dtype: Literal["float32", "float16", "bfloat16"]
    eos_token_ids: tuple[int, ...]
    bos_token_id: int | None = None
    pad_token_id: int | None = None
    experts: ExpertsConfig | None = None
    sliding_windows: tuple[int | None, ...] = ()  # per layer: how many keys a query sees, itself included; None: all
    generation: GenerationDefaults = GenerationDefaults()
