"""A folder or a GGUF file → a Checkpoint: the config, and exactly the tensors that it needs.

Owns the order of the checks and the rule for tied heads. Knows nothing of how tensors are used. Puts together
config.py, shards.py, gguf_model.py and names.py; used by loading.py, reference/ and the command line.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from kaishu.checkpoint.gguf import GgufPart
from kaishu.checkpoint.gguf_model import open_gguf_model
from kaishu.checkpoint.names import EMBEDDING, HEAD, select, standard_names
from kaishu.checkpoint.quantised import QuantisedTensor
from kaishu.checkpoint.quantised_huggingface import quantised_tensors
from kaishu.checkpoint.safetensors import SafetensorsFile, StoredTensor
from kaishu.checkpoint.shards import open_shards, path_inside
from kaishu.config import ModelConfig

Tensor = StoredTensor | QuantisedTensor
_COMPARED_BYTES = 8 << 20

# What is read from a model folder beside the weights, here or in text/; none of it may lead out of the folder.
READ_FILES = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "additional_chat_templates",
)


@dataclass(frozen=True)
class Checkpoint:
    """An opened model: complete, checked, and not yet in memory.

    folder:   what was opened: a folder, or a GGUF file (of a split one, its first part)
    config:   what to build; its tie_word_embeddings is what the weights really are
    tensors:  exactly the needed tensors, by Hugging Face name. Read each once and drop it: then loading takes the
              memory of what is built, plus one tensor. Plain and quantised ones may be mixed
    notes:    what a user should know although it is no error; one sentence each
    identity: changes whenever a weight file or the config does; the key for anything cached about this checkpoint
    gguf:     a GGUF's metadata, which hold the tokenizer and the chat template; None for a folder
    """

    folder: Path
    config: ModelConfig
    tensors: Mapping[str, StoredTensor | QuantisedTensor]
    notes: tuple[str, ...]
    identity: str
    gguf: Mapping[str, Any] | None = None

    @property
    def num_parameters(self) -> int:
        """How many numbers the model has; a tied head counts once."""
        return sum(tensor.num_values for tensor in self.tensors.values())

    @property
    def nbytes(self) -> int:
        """How many bytes its tensors take in the files."""
        return sum(tensor.nbytes for tensor in self.tensors.values())


def open_checkpoint(path: Path) -> Checkpoint:
    """Open a model and check that it is complete.

    path:   a folder with config.json beside model.safetensors, or beside shards and their index; or a GGUF file, of a
            split one any part
    return: the checkpoint; headers have been read, and of the tensors at most a tied head and the embedding
    raises: ConfigError, CheckpointError
    """
    is_file = path.is_file() or (path.suffix == ".gguf" and not path.is_dir())
    return _open_gguf(path) if is_file else _open_folder(path)


def _open_gguf(path: Path) -> Checkpoint:
    model = open_gguf_model(path)
    file = model.file
    tensors = select(model.config, model.tensors, source=f"the metadata of {file.path.name}")
    return Checkpoint(file.path, model.config, tensors, (), _identity(model.config, file.files), file.metadata)


def _open_folder(folder: Path) -> Checkpoint:
    for name in READ_FILES:
        path_inside(folder, name)
    config = ModelConfig.from_folder(folder)
    shards = open_shards(folder)
    found = quantised_tensors(config, standard_names(shards.tensors))
    asked = config.quantisation.notes if config.quantisation else ()
    config, found, notes = _settle_head(config, found, is_bare=EMBEDDING not in shards.tensors)
    tensors = select(config, found)
    return Checkpoint(folder, config, tensors, shards.notes + asked + notes, _identity(config, shards.files))


def _settle_head(
    config: ModelConfig, found: dict[str, Tensor], *, is_bare: bool
) -> tuple[ModelConfig, dict[str, Tensor], tuple[str, ...]]:
    """Decide what a tied head means, given what is stored. As in transformers: what is stored and differs, wins.

    A bare decoder never had a head, whatever its config says (Qwen3-Embedding-8B's: untied). It gets the embedding as
    one, which costs nothing; its hidden states are what such a model is for.

    config:  as config.json says
    found:   tensors by standard name
    is_bare: they were saved without the names of a whole language model
    return:  the config and the tensors that fit each other, and notes
    """
    if is_bare and not config.tie_word_embeddings and HEAD not in found and EMBEDDING in found:
        note = "The weights have no output head: the model can embed texts, but what it generates means nothing."
        return replace(config, tie_word_embeddings=True), found, (note,)
    if not config.tie_word_embeddings or HEAD not in found:
        return config, found, ()
    head = found[HEAD]
    rest = {name: tensor for name, tensor in found.items() if name != HEAD}
    if EMBEDDING not in found:
        # A quantised head is no embedding; select says what is missing.
        return (
            config,
            {**rest, EMBEDDING: replace(head, name=EMBEDDING)} if isinstance(head, StoredTensor) else found,
            (),
        )
    if _are_equal(found[EMBEDDING], head):
        return config, rest, ()
    note = (
        f"config.json ties the output head to the embedding, but {HEAD} is stored and differs from {EMBEDDING}; "
        f"the stored {HEAD} wins. Set tie_word_embeddings to false in config.json to say so."
    )
    return replace(config, tie_word_embeddings=False), found, (note,)


def _are_equal(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors are the same, bit for bit; a few rows at a time. Quantised ones are never."""
    if not (isinstance(one, StoredTensor) and isinstance(other, StoredTensor)):
        return False
    if (one.dtype, one.shape) != (other.dtype, other.shape):
        return False
    left, right = (tensor.read().reshape(-1).view(np.uint8) for tensor in (one, other))
    return all(
        np.array_equal(left[start : start + _COMPARED_BYTES], right[start : start + _COMPARED_BYTES])
        for start in range(0, len(left), _COMPARED_BYTES)
    )


def _identity(config: ModelConfig, files: Iterable[SafetensorsFile | GgufPart]) -> str:
    """A digest of the config and of each file's place, size, time of change and header.

    The place is where the file really is (a blob, in a hub's cache): two fine-tunings of one model have the same header
    and size, and unpacking an archive or building an image may have given them the same time.
    """
    parts = [repr(config)]
    parts += [f"{f.path.resolve()} {f.num_bytes} {f.modified_ns} {f.header_digest}" for f in files]
    return hashlib.sha256("\n".join(parts).encode("utf-8", "surrogateescape")).hexdigest()
