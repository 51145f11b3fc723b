"""A model folder → a GGUF file, for the engines that read nothing else (and need the package gguf, llama.cpp's own).

Owns what goes into the file: every matrix in one format, embedding and head included; vectors and routers in float32.
Tensors are converted and written one at a time, a part of a tensor in memory at once. Called by checkpoints.py.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from kaishu.checkpoint import Checkpoint, StoredTensor, open_checkpoint

if TYPE_CHECKING:
    import gguf

FORMATS = {"bf16": "BF16", "f16": "F16", "q8_0": "Q8_0", "q4_0": "Q4_0"}
_VALUES_AT_ONCE = 1 << 22


@dataclass(frozen=True)
class _Planned:
    """One tensor of the GGUF: experts of one layer are stacked into one.

    shape: as numpy has it; GGUF writes it backwards
    """

    name: str
    shape: tuple[int, ...]
    sources: tuple[StoredTensor, ...]
    quantization: gguf.GGMLQuantizationType

    @property
    def nbytes(self) -> int:
        import gguf

        block_values, block_bytes = gguf.GGML_QUANT_SIZES[self.quantization]
        return math.prod(self.shape) // block_values * block_bytes


def write_gguf(folder: Path, path: Path, file_format: str) -> None:
    """Convert a model.

    folder:      a model folder with a tokenizer, of the family qwen3 or qwen3_moe, weights in bfloat16
    path:        the file to write; it appears whole or not at all
    file_format: a key of FORMATS
    """
    import gguf

    checkpoint = open_checkpoint(folder)
    quantization = gguf.GGMLQuantizationType[FORMATS[file_format]]
    part = path.with_name(path.name + ".part")
    writer = gguf.GGUFWriter(part, checkpoint.config.model_type.replace("_", ""))
    _add_shape(writer, checkpoint)
    _add_tokenizer(writer, folder, checkpoint.config.vocab_size)
    writer.add_file_type(gguf.LlamaFileType[f"MOSTLY_{FORMATS[file_format]}"])
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    planned = list(_plan(checkpoint, quantization))
    for tensor in planned:
        writer.add_tensor_info(tensor.name, tensor.shape, np.dtype(np.float32), tensor.nbytes, tensor.quantization)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for tensor in planned:
        writer.write_tensor_data(_converted(tensor))
    writer.close()
    part.replace(path)


def _add_shape(writer: gguf.GGUFWriter, checkpoint: Checkpoint) -> None:
    c = checkpoint.config
    writer.add_name(checkpoint.folder.name)
    writer.add_vocab_size(c.vocab_size)
    writer.add_context_length(c.max_position_embeddings)
    writer.add_embedding_length(c.hidden_size)
    writer.add_block_count(c.num_hidden_layers)
    writer.add_feed_forward_length(c.intermediate_size)
    writer.add_head_count(c.num_attention_heads)
    writer.add_head_count_kv(c.num_key_value_heads)
    writer.add_key_length(c.head_dim)
    writer.add_value_length(c.head_dim)
    writer.add_rope_dimension_count(c.head_dim)
    writer.add_rope_freq_base(c.rope.theta)
    writer.add_layer_norm_rms_eps(c.rms_norm_eps)
    if c.experts is not None:
        writer.add_expert_count(c.experts.num_experts)
        writer.add_expert_used_count(c.experts.num_experts_per_tok)
        writer.add_expert_feed_forward_length(c.experts.moe_intermediate_size)


def _add_tokenizer(writer: gguf.GGUFWriter, folder: Path, vocab_size: int) -> None:
    """Write the vocabulary, padded to the rows of the embedding."""
    import gguf

    tokenizer = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    settings = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    tokens = [f"[PAD{index}]" for index in range(vocab_size)]
    kinds = [gguf.TokenType.UNUSED] * vocab_size
    for token, index in tokenizer["model"]["vocab"].items():
        tokens[index], kinds[index] = token, gguf.TokenType.NORMAL
    for added in tokenizer["added_tokens"]:
        tokens[added["id"]] = added["content"]
        kinds[added["id"]] = gguf.TokenType.CONTROL if added["special"] else gguf.TokenType.USER_DEFINED
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_token_merges([m if isinstance(m, str) else " ".join(m) for m in tokenizer["model"]["merges"]])
    ids = {token: index for index, token in enumerate(tokens)}
    writer.add_eos_token_id(ids["<|im_end|>"])
    writer.add_bos_token_id(ids["<|endoftext|>"])
    writer.add_pad_token_id(ids["<|endoftext|>"])
    writer.add_add_bos_token(False)
    if settings.get("chat_template"):
        writer.add_chat_template(settings["chat_template"])


def _plan(checkpoint: Checkpoint, quantization: gguf.GGMLQuantizationType) -> Iterator[_Planned]:
    """What the file will hold, in its order."""
    import gguf

    architecture = gguf.MODEL_ARCH[checkpoint.config.model_type.replace("_", "").upper()]
    names = gguf.get_tensor_name_map(architecture, checkpoint.config.num_hidden_layers)
    stacks: dict[str, list[StoredTensor]] = {}
    for name, tensor in checkpoint.tensors.items():
        stacks.setdefault(re.sub(r"\.experts\.\d+\.", ".experts.", name), []).append(tensor)
    for name, sources in stacks.items():
        written = names.get_name(name, try_suffixes=(".weight",))
        assert written is not None, f"gguf has no name for {name}"
        shape = sources[0].shape if ".experts." not in name else (len(sources), *sources[0].shape)
        is_small = len(shape) == 1 or name.endswith(".mlp.gate.weight")
        kind = gguf.GGMLQuantizationType.F32 if is_small else quantization
        yield _Planned(written, shape, tuple(sources), kind)


def _converted(tensor: _Planned) -> NDArray[np.uint8]:
    """A tensor's bytes in the file, whole rows at a time: formats have blocks inside a row only."""
    import gguf

    row_values = tensor.shape[-1]
    rows_at_once = max(1, _VALUES_AT_ONCE // row_values)
    converted = np.empty(tensor.nbytes, np.uint8)
    end = 0
    for source in tensor.sources:
        assert source.dtype == "BF16"
        stored: NDArray[Any] = source.read().reshape(-1, row_values)
        for start in range(0, len(stored), rows_at_once):
            bits = stored[start : start + rows_at_once].astype(np.uint32) << 16
            block = gguf.quantize(bits.view(np.float32), tensor.quantization).reshape(-1).view(np.uint8)
            converted[end : end + len(block)] = block
            end += len(block)
    assert end == len(converted)
    return converted
