"""Tiny random checkpoints, written by transformers itself, one for each shape of model that we run.

Owns the list of kinds and how their weights are drawn. Knows nothing of Kaishu: the folders are what a user would get
from transformers' `save_pretrained`, so that reading them is a test of reading the real thing.
Used by tests of checkpoint/, reference/, llm and the command line, mostly through the fixtures in conftest.py.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

VOCAB_SIZE = 320  # 256 bytes, Qwen3's 26 control tokens, and rows past the tokenizer, as the real models have
MAX_POSITIONS = 512

CONTROL_TOKENS = [
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|object_ref_start|>",
    "<|object_ref_end|>",
    "<|box_start|>",
    "<|box_end|>",
    "<|quad_start|>",
    "<|quad_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|vision_pad|>",
    "<|image_pad|>",
    "<|video_pad|>",
    "<tool_call>",
    "</tool_call>",
    "<|fim_prefix|>",
    "<|fim_middle|>",
    "<|fim_suffix|>",
    "<|fim_pad|>",
    "<|repo_name|>",
    "<|file_sep|>",
    "<tool_response>",
    "</tool_response>",
    "<think>",
    "</think>",
]
END_OF_TEXT, IM_START, IM_END = 256, 257, 258  # the first three control tokens follow the 256 bytes

_COMMON: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": MAX_POSITIONS,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1_000_000.0},
    "bos_token_id": END_OF_TEXT,
    "eos_token_id": IM_END,
    "pad_token_id": END_OF_TEXT,
}
_QWEN3 = {**_COMMON, "head_dim": 32, "tie_word_embeddings": True}
_MOE = {
    **_COMMON,
    "head_dim": 32,
    "tie_word_embeddings": False,
    "num_experts": 6,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 40,
}


def _with_rope(common: Mapping[str, Any], **rope: Any) -> dict[str, Any]:
    return {**common, "rope_parameters": {"rope_theta": 10_000.0, **rope}}


# Each kind: the name of transformers' config class, and its fields.
KINDS: Mapping[str, tuple[str, Mapping[str, Any]]] = MappingProxyType(
    {
        "dense_tied": ("Qwen3Config", _QWEN3),
        "dense_untied": ("Qwen3Config", {**_QWEN3, "tie_word_embeddings": False}),
        "dense_biased": ("Qwen3Config", {**_QWEN3, "attention_bias": True}),
        "odd_head_dim": (
            "Qwen3Config",
            {**_QWEN3, "hidden_size": 40, "head_dim": 24, "num_attention_heads": 6, "num_key_value_heads": 3},
        ),
        "multi_query": ("Qwen3Config", {**_QWEN3, "num_key_value_heads": 1}),
        "sliding_window": (
            "Qwen3Config",
            {**_QWEN3, "use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1},
        ),
        "yarn": (
            "Qwen3Config",
            _with_rope(_QWEN3, rope_type="yarn", factor=4.0, original_max_position_embeddings=128),
        ),
        "moe": ("Qwen3MoeConfig", {**_MOE, "norm_topk_prob": True}),
        "moe_mixed": (
            "Qwen3MoeConfig",
            # Sparse in layers 1, 3, 5 by the step; layer 3 is then taken back by the list.
            {**_MOE, "norm_topk_prob": False, "num_hidden_layers": 6, "decoder_sparse_step": 2, "mlp_only_layers": [3]},
        ),
        "moe_tied": ("Qwen3MoeConfig", {**_MOE, "norm_topk_prob": True, "tie_word_embeddings": True}),
        "qwen2": ("Qwen2Config", {**_COMMON, "tie_word_embeddings": True}),
        "qwen2_sliding_window": (
            "Qwen2Config",
            {**_COMMON, "use_sliding_window": True, "sliding_window": 8, "max_window_layers": 2},
        ),
        "llama": ("LlamaConfig", _with_rope(_COMMON, rope_type="default")),
        "llama_biased": ("LlamaConfig", {**_COMMON, "attention_bias": True, "mlp_bias": True}),
        "linear_rope": ("LlamaConfig", _with_rope(_COMMON, rope_type="linear", factor=4.0)),
        "llama3_rope": (
            "LlamaConfig",
            _with_rope(
                _COMMON,
                rope_type="llama3",
                factor=8.0,
                low_freq_factor=1.0,
                high_freq_factor=4.0,
                original_max_position_embeddings=64,
            ),
        ),
    }
)


def write_tiny_checkpoint(
    folder: Path,
    kind: str,
    *,
    dtype: str = "float32",
    seed: int = 0,
    shard_bytes: int | None = None,
    with_tokenizer: bool = False,
    **overrides: Any,
) -> Path:
    """Write one checkpoint and return its folder.

    kind:           a key of KINDS
    dtype:          "float32", "bfloat16" or "float16": what the file stores
    shard_bytes:    split into files of about this many bytes, with an index
    with_tokenizer: add a byte-level tokenizer with Qwen3's control tokens and a short ChatML template
    overrides:      fields that replace or join those of the kind
    """
    import torch
    import transformers

    class_name, fields = KINDS[kind]
    config = getattr(transformers, class_name)(**{**fields, **overrides})
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = transformers.AutoModelForCausalLM.from_config(config)
        _draw_weights(model, seed)
    model = model.to(getattr(torch, dtype))
    model.generation_config = transformers.GenerationConfig(
        bos_token_id=END_OF_TEXT,
        eos_token_id=[IM_END, END_OF_TEXT],
        pad_token_id=END_OF_TEXT,
        do_sample=True,
        temperature=0.6,
        top_k=20,
        top_p=0.95,
    )
    folder.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(folder, **({} if shard_bytes is None else {"max_shard_size": shard_bytes}))
    if with_tokenizer:
        write_byte_tokenizer(folder)
    return folder


def _draw_weights(model: Any, seed: int) -> None:
    """Fill every parameter so that each one matters: norms away from one, biases away from zero, lively attention."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in sorted(model.named_parameters()):
            noise = torch.randn(parameter.shape, generator=generator)
            if name.endswith("norm.weight"):
                parameter.copy_(1.0 + 0.3 * noise)
            elif name.endswith(".bias"):
                parameter.copy_(0.5 * noise)
            elif "embed_tokens" in name:
                parameter.copy_(0.4 * noise)
            else:
                parameter.copy_(1.4 * noise / parameter.shape[-1] ** 0.5)


CHAT_TEMPLATE = (
    "{%- for message in messages -%}"
    "{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}"
    "{{ '<|im_start|>assistant\\n' }}"
    "{%- if enable_thinking is defined and enable_thinking is false -%}{{ '<think>\\n\\n</think>\\n\\n' }}{%- endif -%}"
    "{%- endif -%}"
)


def write_byte_tokenizer(folder: Path) -> None:
    """Write tokenizer.json and tokenizer_config.json: one token a byte, no merges, Qwen3's control tokens."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({symbol: i for i, symbol in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    # As in Qwen3, the tool and thinking tags are tokens of their own but not "special".
    tokenizer.add_tokens(
        [AddedToken(token, normalized=False, special=token.startswith("<|")) for token in CONTROL_TOKENS]
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "Qwen2Tokenizer",
        "bos_token": None,
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "unk_token": None,
        "clean_up_tokenization_spaces": False,
        "model_max_length": MAX_POSITIONS,
        "chat_template": CHAT_TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2), encoding="utf-8")
