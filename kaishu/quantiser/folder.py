"""The files beside the weights: config.json, and the tokenizer, template and generation settings of the source.

Owns which files go along, and what is written where the source is a GGUF file, which has them all in its metadata.
Knows nothing of the weights. Called by quantise.py.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from kaishu.checkpoint import Checkpoint
from kaishu.checkpoint.gguf import open_gguf
from kaishu.checkpoint.gguf_model import config_of
from kaishu.checkpoint.shards import path_inside
from kaishu.errors import CheckpointError
from kaishu.json_fields import read_json_object
from kaishu.text.gguf_template import KEY, ROLES
from kaishu.text_files import tokenizer_of

# What tokenizers, templates and sampling are read from, here and in other engines; and the licence under which all is.
BESIDE = (
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
    "LICENSE*",
    "NOTICE*",
)
TEMPLATES = "additional_chat_templates"
_TEMPLATE = re.compile(re.escape(KEY) + r"\.([\w-]{1,100})")  # of a name that a file may have


def write_beside(checkpoint: Checkpoint, quantization_config: Mapping[str, Any], folder: Path) -> None:
    """Write everything but the weights.

    quantization_config: goes into config.json, in place of the source's own if it has one
    raises:              CheckpointError for a file that leads out of the source; OSError
    """
    if checkpoint.gguf is not None:
        config, generation = config_of(open_gguf(checkpoint.folder))
        _write_json(folder / "generation_config.json", generation)
        _write_gguf_tokenizer(checkpoint, config, folder)
    else:
        config = dict(read_json_object(checkpoint.folder / "config.json", CheckpointError))
        _copy_beside(checkpoint.folder, folder)
    config.pop("compression_config", None)
    config["tie_word_embeddings"] = checkpoint.config.tie_word_embeddings  # what the weights really are
    _write_json(folder / "config.json", {**config, "quantization_config": dict(quantization_config)})


def _copy_beside(source: Path, folder: Path) -> None:
    for name in sorted(entry.name for entry in source.iterdir() if entry.is_file()):
        if any(fnmatchcase(name, pattern) for pattern in BESIDE):
            shutil.copyfile(path_inside(source, name), folder / name)
    templates = source / TEMPLATES
    if templates.is_dir():
        path_inside(source, TEMPLATES)
        (folder / TEMPLATES).mkdir()
        for path in sorted(templates.glob("*.jinja")):
            shutil.copyfile(path, folder / TEMPLATES / path.name)


def _write_gguf_tokenizer(checkpoint: Checkpoint, config: dict[str, Any], folder: Path) -> None:
    """Write the tokenizer and the templates of a GGUF's metadata as a folder has them."""
    assert checkpoint.gguf is not None
    tokenizer = tokenizer_of(checkpoint)
    (folder / "tokenizer.json").write_text(tokenizer.as_json(), encoding="utf-8")
    ids = {name: checkpoint.gguf.get(f"tokenizer.ggml.{role}_token_id") for name, role in ROLES.items()}
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "add_bos_token": bool(tokenizer.encode("")),
        "clean_up_tokenization_spaces": False,
        **{name: tokenizer.token_bytes(i).decode() for name, i in ids.items() if i is not None},
    }
    _write_json(folder / "tokenizer_config.json", settings)
    config["eos_token_id"] = sorted({*tokenizer.eos_token_ids, *checkpoint.config.eos_token_ids})
    for key in checkpoint.gguf:
        if key == KEY:
            (folder / "chat_template.jinja").write_text(checkpoint.gguf[key], encoding="utf-8")
        elif named := _TEMPLATE.fullmatch(key):
            (folder / TEMPLATES).mkdir(exist_ok=True)
            (folder / TEMPLATES / f"{named[1]}.jinja").write_text(checkpoint.gguf[key], encoding="utf-8")


def _write_json(path: Path, value: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(value, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")
