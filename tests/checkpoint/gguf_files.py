"""GGUF files for tests: written by the package `gguf` from a Hugging Face folder, or byte by byte to be wrong.

Owns what llama.cpp's converter does between the two, as far as the models of tiny_checkpoints.py need it: names from
the package's own table, experts stacked, and for `llama` the rows of q and k interleaved. Knows nothing of Kaishu.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from safetensors.numpy import load_file

ARCHITECTURES = {"qwen3": "qwen3", "qwen3_moe": "qwen3moe", "qwen2": "qwen2", "llama": "llama"}
# Sizes at which every row is a multiple of 256 long, so that every type can store it.
WIDE = {
    "hidden_size": 256,
    "intermediate_size": 256,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "num_hidden_layers": 1,
}

Encode = Callable[[str, np.ndarray], tuple[np.ndarray, str]]


def as_f32(name: str, values: np.ndarray) -> tuple[np.ndarray, str]:
    """Store everything as it is."""
    return values.astype(np.float32), "F32"


def interleaved(values: np.ndarray, heads: int) -> np.ndarray:
    """The converter's order of q's and k's rows: each head's halves woven into pairs."""
    return values.reshape(heads, 2, -1, *values.shape[1:]).swapaxes(1, 2).reshape(values.shape)


def converted(folder: Path, config: dict[str, Any]) -> Iterator[tuple[str, np.ndarray]]:
    """A folder's tensors by llama.cpp's names, with their rows as the converter leaves them."""
    # The table of a mixture has no names for dense layers; those of the dense family are what llama.cpp calls them.
    families = [gguf.MODEL_ARCH[ARCHITECTURES[config["model_type"]].upper()], gguf.MODEL_ARCH.QWEN3]
    names = [gguf.get_tensor_name_map(family, config["num_hidden_layers"]) for family in families]
    stacks: dict[str, dict[int, np.ndarray]] = {}
    for name, values in load_file(folder / "model.safetensors").items():
        if config["model_type"] == "llama" and ".q_proj." in name:
            values = interleaved(values, config["num_attention_heads"])
        if config["model_type"] == "llama" and ".k_proj." in name:
            values = interleaved(values, config["num_key_value_heads"])
        if ".experts." in name:
            before, _, after = name.partition(".experts.")
            number, _, rest = after.partition(".")
            stacks.setdefault(f"{before}.experts.{rest}", {})[int(number)] = values
            continue
        yield translated(names, name), values
    for name, parts in stacks.items():
        yield translated(names, name), np.stack([parts[number] for number in range(len(parts))])


def translated(tables: list[Any], name: str) -> str:
    """The name by the first table that has it."""
    return next(found for table in tables if (found := table.get_name(name, try_suffixes=(".weight", ".bias"))))


def add_metadata(writer: Any, config: dict[str, Any], generation: dict[str, Any]) -> None:
    """What llama.cpp's converter writes of config.json."""
    heads = config["num_attention_heads"]
    head_dim = config.get("head_dim") or config["hidden_size"] // heads
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_dimension_count(head_dim)
    rope = config["rope_parameters"]
    writer.add_rope_freq_base(rope["rope_theta"])
    if rope["rope_type"] in ("linear", "yarn"):
        writer.add_rope_scaling_type(gguf.RopeScalingType(rope["rope_type"]))
        writer.add_rope_scaling_factor(rope["factor"])
        if "original_max_position_embeddings" in rope:
            writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
    if rope["rope_type"] == "llama3":
        writer.add_tensor("rope_freqs.weight", llama3_divisors(rope, head_dim))
    if config["model_type"] == "qwen3_moe":
        writer.add_expert_count(config.get("num_experts", config.get("num_local_experts")))
        writer.add_expert_used_count(config["num_experts_per_tok"])
        writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
        if not config["norm_topk_prob"]:
            writer.add_expert_weights_norm(False)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list([f"token {number}" for number in range(config["vocab_size"] - 4)])
    first, second = generation["eos_token_id"]
    writer.add_eos_token_id(first)
    writer.add_eot_token_id(second)
    writer.add_bos_token_id(config["bos_token_id"])
    writer.add_pad_token_id(config["pad_token_id"])
    writer.add_float32("general.sampling.temp", generation["temperature"])
    writer.add_int32("general.sampling.top_k", generation["top_k"])
    writer.add_float32("general.sampling.top_p", generation["top_p"])


def llama3_divisors(rope: dict[str, Any], head_dim: int) -> np.ndarray:
    """The converter's loop over the frequencies."""
    divisors = []
    low_wave = rope["original_max_position_embeddings"] / rope["low_freq_factor"]
    high_wave = rope["original_max_position_embeddings"] / rope["high_freq_factor"]
    for k in range(0, head_dim, 2):
        wave = 2 * math.pi * rope["rope_theta"] ** (k / head_dim)
        if wave < high_wave:
            divisors.append(1.0)
        elif wave > low_wave:
            divisors.append(rope["factor"])
        else:
            smooth = (rope["original_max_position_embeddings"] / wave - rope["low_freq_factor"]) / (
                rope["high_freq_factor"] - rope["low_freq_factor"]
            )
            divisors.append(1 / ((1 - smooth) / rope["factor"] + smooth))
    return np.array(divisors, np.float32)


def write_gguf(folder: Path, path: Path, encode: Encode = as_f32, **options: Any) -> Path:
    """Write a tiny checkpoint of one file as a GGUF.

    encode:  (name, values) → the array to store, raw blocks as uint8, and the name of its type
    options: for GGUFWriter: split_max_tensors, ...
    return:  the path; of a split file, that of the first part
    """
    config = json.loads((folder / "config.json").read_text())
    generation = json.loads((folder / "generation_config.json").read_text())
    writer = gguf.GGUFWriter(path, ARCHITECTURES[config["model_type"]], **options)
    add_metadata(writer, config, generation)
    for name, values in converted(folder, config):
        stored, kind = encode(name, values)
        writer.add_tensor(name, np.ascontiguousarray(stored), raw_dtype=gguf.GGMLQuantizationType[kind])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path if path.exists() else min(path.parent.glob(f"{path.stem}-*.gguf"))


# Files byte by byte.

U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 = range(13)


def text(value: str | bytes) -> bytes:
    encoded = value if isinstance(value, bytes) else value.encode()
    return struct.pack("<Q", len(encoded)) + encoded


def pair(key: str | bytes, type_id: int, value: bytes) -> bytes:
    return text(key) + struct.pack("<I", type_id) + value


def u32(key: str, value: int) -> bytes:
    return pair(key, U32, struct.pack("<I", value))


def array(type_id: int, count: int, items: bytes = b"") -> bytes:
    return struct.pack("<IQ", type_id, count) + items


def info(name: str | bytes, sizes: list[int], type_id: int = 0, offset: int = 0) -> bytes:
    return text(name) + struct.pack("<I", len(sizes)) + struct.pack(f"<{len(sizes)}QIQ", *sizes, type_id, offset)


def raw_gguf(
    pairs: list[bytes] | None = None,
    infos: list[bytes] | None = None,
    data: bytes = b"",
    *,
    version: int = 3,
    num_tensors: int | None = None,
    num_pairs: int | None = None,
    alignment: int = 32,
) -> bytes:
    """A file as the format says, with any of its counts wrong if wanted."""
    pairs, infos = pairs or [], infos or []
    counts = (
        len(infos) if num_tensors is None else num_tensors,
        len(pairs) if num_pairs is None else num_pairs,
    )
    header = b"GGUF" + struct.pack("<IQQ", version, *counts) + b"".join(pairs) + b"".join(infos)
    return header + bytes(-len(header) % alignment) + data
