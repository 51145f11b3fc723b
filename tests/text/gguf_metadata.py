"""A Hugging Face tokenizer as a GGUF file's metadata, written by the gguf package, which isn't ours.

Does what converters do: tokens by id, ids without a token filled up with unused ones, `<|…|>` counted as control tokens
even where tokenizer.json doesn't call them special.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

NORMAL, CONTROL, USER_DEFINED, UNUSED = 1, 3, 4, 5


def metadata_of(content: Mapping[str, Any], *, pre: str, rows: int = 0, **more: Any) -> dict[str, Any]:
    """The metadata that describe a tokenizer.

    content: of tokenizer.json
    pre:     the name of its splitting rule
    rows:    how many rows the embedding has
    more:    further keys, without "tokenizer.ggml."
    """
    vocabulary = dict(content["model"]["vocab"])
    kinds = dict.fromkeys(vocabulary.values(), NORMAL)
    for token in content["added_tokens"]:
        vocabulary[token["content"]] = token["id"]
        is_control = token["special"] or (token["content"].startswith("<|") and token["content"].endswith("|>"))
        kinds[token["id"]] = CONTROL if is_control else USER_DEFINED
    by_id = {token_id: token for token, token_id in vocabulary.items()}
    ids = range(max(rows, max(by_id) + 1))
    merges = content["model"]["merges"]
    return {
        "general.architecture": "qwen3",
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": [by_id.get(i, f"[PAD{i}]") for i in ids],
        "tokenizer.ggml.token_type": [kinds.get(i, UNUSED) for i in ids],
        "tokenizer.ggml.merges": [merge if isinstance(merge, str) else " ".join(merge) for merge in merges],
        **{f"tokenizer.ggml.{key}": value for key, value in more.items()},
    }


def write_gguf(path: Path, metadata: Mapping[str, Any]) -> Path:
    """A GGUF file of these metadata and no tensors, written by the gguf package."""
    import gguf

    writer = gguf.GGUFWriter(path, metadata["general.architecture"])
    for key, value in metadata.items():
        if key == "general.architecture":
            continue
        if isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        elif isinstance(value, list):
            writer.add_array(key, value)
        else:
            writer.add_string(key, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
