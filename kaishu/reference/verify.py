"""`kaishu verify`: the user's own model, here and in transformers, stage by stage.

Owns the comparison and what counts as equal. Knows nothing of how it is printed (cli/).
Both models run the same tokens from the same folder, one after the other, so that memory holds one of them at a time;
beside it stay the recorded stages, about 3 · layers · tokens · D numbers. transformers runs its plain ("eager") forms.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kaishu.batch import SequenceTokens, pack
from kaishu.checkpoint import Checkpoint, open_checkpoint
from kaishu.checkpoint.gguf import open_gguf
from kaishu.checkpoint.gguf_model import config_of
from kaishu.config import ModelConfig
from kaishu.errors import CheckpointError, InvalidRequestError, MissingDependencyError
from kaishu.reference.caches import RecomputeCache
from kaishu.reference.model import Model
from kaishu.reference.weights import DtypeName, torch_dtype

Stages = Mapping[str, Tensor]

# How far a stage may differ, as a part of its largest number. Float rounding reaches about 1e-5 in the deepest float32
# models; in bfloat16 (8 bits) another order of summing alone makes several percent. A wrong weight shows well above.
ALLOWED_PART: Mapping[DtypeName, float] = {"float32": 5e-5, "bfloat16": 5e-2}

# The packages that transformers reads other forms of weights with; its messages name the one that is missing.
_READERS = ("compressed-tensors", "gptqmodel", "autoawq", "gguf", "accelerate")


@dataclass(frozen=True)
class StageComparison:
    """One stage of the forward pass in both models."""

    stage: str  # "embed_tokens", "layers.0.attention", "layers.0.feed_forward", "layers.0", …, "norm", "logits"
    max_difference: float  # the largest |ours - theirs|; NaN if either has one
    largest: float  # the largest |theirs|
    allowed: float  # how large the difference may be

    @property
    def agrees(self) -> bool:
        """Whether the difference is no more than rounding. NaN never agrees."""
        return self.max_difference <= self.allowed


@dataclass(frozen=True)
class Verification:
    """The result for one model: every stage, in the order in which they are computed."""

    folder: Path
    dtype: DtypeName
    num_tokens: int
    same_choices: int  # at how many of the positions both models like the same next token best
    transformers_version: str
    stages: tuple[StageComparison, ...]

    @property
    def first_difference(self) -> StageComparison | None:
        """The first stage that differs by more than rounding: what to look at. None if all agree."""
        return next((stage for stage in self.stages if not stage.agrees), None)

    @property
    def agrees(self) -> bool:
        """Whether every stage agrees."""
        return self.first_difference is None


def verify_against_transformers(
    folder: Path, *, dtype: DtypeName = "float32", tokens: Sequence[int] | None = None
) -> Verification:
    """Run a model's folder in both, and compare every stage of the forward pass.

    folder: a Hugging Face folder, or a GGUF file, which transformers then widens with the package `gguf`
    dtype:  what both models compute in; float32 tells a mistake from rounding best
    tokens: ids to run, for example an encoded text; None for 64 arbitrary ones, always the same
    return: the comparison
    raises: MissingDependencyError without transformers, or without what it needs to read these weights; ConfigError or
            CheckpointError for a model that doesn't open, or a GGUF that is split, which transformers can't read;
            InvalidParameterError for a dtype, InvalidRequestError for tokens that the model can't run
    """
    try:
        import transformers
    except ImportError as error:
        raise MissingDependencyError("kaishu verify", package="transformers") from error

    torch_dtype(dtype)
    checkpoint = open_checkpoint(folder)  # first, since it refuses what transformers would fill with random numbers
    ids = _checked_tokens(tokens, checkpoint.config)
    _check_readable(checkpoint)
    theirs = transformers_stages(folder, dtype, ids)
    ours = reference_stages(Model.from_checkpoint(checkpoint, dtype=dtype, attention="explicit"), ids)
    return Verification(
        folder=Path(folder),
        dtype=dtype,
        num_tokens=len(ids),
        same_choices=int((ours["logits"].argmax(-1) == theirs["logits"].argmax(-1)).sum()),
        transformers_version=transformers.__version__,
        stages=compare_stages(ours, theirs, dtype),
    )


def reference_stages(model: Model, ids: Sequence[int]) -> Stages:
    """What each stage of our model computes for one sequence, in order; [tokens, …] float32 on the CPU each."""
    stages: dict[str, Tensor] = {}

    def record(name: str, tensor: Tensor) -> None:
        stages[name] = tensor.float().cpu()

    batch = pack([SequenceTokens(ids, start=0, wants_logits=range(len(ids)))])
    with torch.inference_mode():
        model.forward(batch, RecomputeCache(), observe=record)
    return stages


def transformers_stages(folder: Path, dtype: DtypeName, ids: Sequence[int]) -> Stages:
    """The same stages of transformers' model, which is loaded for it and dropped; names and shapes as ours.

    raises: MissingDependencyError without what transformers needs to read these weights
    """
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    auto_model: Any = AutoModelForCausalLM
    hide_progress: Any = logging.disable_progress_bar
    hide_progress()  # the table is the answer; a bar on the way would only stand in it
    is_gguf = folder.is_file()
    place = _gguf_place(folder) if is_gguf else {"use_safetensors": True}
    try:
        model = auto_model.from_pretrained(
            folder.parent if is_gguf else folder,
            dtype=torch_dtype(dtype),
            attn_implementation="eager",
            experts_implementation="eager",
            local_files_only=True,
            **place,
        ).eval()
    except ImportError as error:
        package = next((name for name in _READERS if name in str(error).lower()), None)
        if package is None:
            raise
        raise MissingDependencyError(f"Reading {folder.name} in transformers", package=package) from error
    stages: dict[str, Tensor] = {}

    def record_as(name: str) -> Any:
        def record(module: Any, inputs: Any, output: Any) -> None:
            tensor = output[0] if isinstance(output, tuple) else output
            stages[name] = tensor.detach().float().cpu().reshape(len(ids), -1)  # [1, T, n] → [T, n]

        return record

    for name, module in _their_modules(model).items():
        module.register_forward_hook(record_as(name))
    with torch.inference_mode():
        model(torch.tensor([list(ids)]), use_cache=False)
    return stages


def _gguf_place(path: Path) -> dict[str, Any]:
    """What tells transformers to read a GGUF file. Its sizes are told, too: of a head's size and of ids without a token
    transformers knows nothing in a GGUF."""
    from transformers import AutoConfig

    auto_config: Any = AutoConfig
    return {"gguf_file": path.name, "config": auto_config.for_model(**config_of(open_gguf(path))[0])}


def _check_readable(checkpoint: Checkpoint) -> None:
    """raises: CheckpointError for a model in files that transformers can't read"""
    if checkpoint.gguf is not None and checkpoint.gguf.get("split.count", 1) != 1:
        raise CheckpointError(
            f"{checkpoint.folder.name} is one of {checkpoint.gguf['split.count']} parts of a GGUF model; transformers, "
            "with which it would be compared, reads only whole ones.",
            hint="Merge them with llama.cpp's `llama-gguf-split --merge`, or compare the original safetensors folder.",
        )


def compare_stages(ours: Stages, theirs: Stages, dtype: DtypeName) -> tuple[StageComparison, ...]:
    """Compare stage by stage, in our order. Both must have the same ones."""
    assert ours.keys() == theirs.keys(), f"stages differ: {sorted(ours.keys() ^ theirs.keys())}"
    comparisons = []
    for name, tensor in ours.items():
        largest = theirs[name].abs().max().item()
        difference = (tensor - theirs[name]).abs().max().item()
        comparisons.append(StageComparison(name, difference, largest, allowed=ALLOWED_PART[dtype] * largest))
    return tuple(comparisons)


def _their_modules(model: Any) -> dict[str, Any]:
    """transformers' module for each of our stages."""
    modules = {"embed_tokens": model.model.embed_tokens, "norm": model.model.norm, "logits": model.lm_head}
    for number, layer in enumerate(model.model.layers):
        modules[f"layers.{number}.attention"] = layer.self_attn
        modules[f"layers.{number}.feed_forward"] = layer.mlp
        modules[f"layers.{number}"] = layer
    return modules


def _checked_tokens(tokens: Sequence[int] | None, config: ModelConfig) -> list[int]:
    if tokens is None:
        count = min(64, config.max_position_embeddings)
        return [int(token) for token in np.random.default_rng(0).integers(config.vocab_size, size=count)]
    if not 1 <= len(tokens) <= config.max_position_embeddings:
        raise InvalidRequestError(
            f"There are {len(tokens):,} tokens to compare; allowed: 1 to {config.max_position_embeddings:,}, the "
            "model's context.",
            field="tokens",
        )
    for token in tokens:
        if not 0 <= token < config.vocab_size:
            raise InvalidRequestError(
                f"The token id {token} is not one of the model's; allowed: 0 to {config.vocab_size - 1:,}.",
                field="tokens",
            )
    return list(tokens)
