"""The tiny Qwen3: its shape, its fresh weights, and writing it as a checkpoint."""

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from transformers import Qwen3Config, Qwen3ForCausalLM

ROW_STEP = 32  # embedding rows are rounded up to a multiple of this


def tiny_config(tokenizer: Tokenizer) -> Qwen3Config:
    """About 2.6 million weights: 5.2 MB in bfloat16."""
    rows = -(-tokenizer.get_vocab_size() // ROW_STEP) * ROW_STEP
    return Qwen3Config(
        vocab_size=rows,
        hidden_size=192,
        intermediate_size=448,
        num_hidden_layers=6,
        num_attention_heads=6,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=2048,
        rope_theta=10_000.0,
        rms_norm_eps=1e-6,
        tie_word_embeddings=True,
        attention_bias=False,
        initializer_range=0.03,
        use_cache=True,
        bos_token_id=tokenizer.token_to_id("<|endoftext|>"),
        eos_token_id=tokenizer.token_to_id("<|im_end|>"),
        pad_token_id=tokenizer.token_to_id("<|endoftext|>"),
    )


def new_model(tokenizer: Tokenizer, seed: int) -> Qwen3ForCausalLM:
    torch.manual_seed(seed)
    return Qwen3ForCausalLM(tiny_config(tokenizer)).float()


def export(weights: dict[str, torch.Tensor], tokenizer: Tokenizer, folder: Path) -> None:
    """Write config.json, generation_config.json and bfloat16 weights; the tied head has no tensor of its own."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {
        name: tensor.to(torch.bfloat16).contiguous() for name, tensor in weights.items() if name != "lm_head.weight"
    }
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    config = tiny_config(tokenizer)
    end, pad = config.eos_token_id, config.pad_token_id
    shape = {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "torch_dtype": "bfloat16",
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_hidden_layers,
        "num_attention_heads": config.num_attention_heads,
        "num_key_value_heads": config.num_key_value_heads,
        "head_dim": config.head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": config.max_position_embeddings,
        "max_window_layers": config.num_hidden_layers,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "rope_scaling": None,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "sliding_window": None,
        "use_sliding_window": False,
        "tie_word_embeddings": True,
        "initializer_range": 0.03,
        "bos_token_id": pad,
        "eos_token_id": end,
        "pad_token_id": pad,
        "use_cache": True,
    }
    generation = {"do_sample": False, "eos_token_id": [end, pad], "pad_token_id": pad, "bos_token_id": pad}
    (folder / "config.json").write_text(json.dumps(shape, indent=2) + "\n")
    (folder / "generation_config.json").write_text(json.dumps(generation, indent=2) + "\n")
