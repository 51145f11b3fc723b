"""transformers on torch as an engine to measure: the model's forward with its own cache, bfloat16, nothing compiled."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.work import Work

NAME = "transformers"
FORMATS: Mapping[str, str] = MappingProxyType({"bf16": "folder"})
DOES_LONG_CONTEXT = False


def missing(executor: str) -> str | None:
    """What isn't there to run it, in words; None if nothing."""
    packages = [name for name in ("torch", "transformers") if importlib.util.find_spec(name) is None]
    return f"not installed: {', '.join(packages)}" if packages else None


def load(path: Path, width: str, threads: int, work: Work, executor: str) -> TransformersEngine:
    """Load a model folder in bfloat16."""
    return TransformersEngine(path, threads)


class TransformersEngine:
    """A model, with torch held to so many threads."""

    def __init__(self, path: Path, threads: int) -> None:
        import torch
        import transformers

        torch.set_num_threads(threads)
        transformers.utils.logging.disable_progress_bar()
        self._model = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.bfloat16).eval()
        self.vocab_size: int = self._model.config.vocab_size

    def open(self, sequences: int, tokens: int) -> TransformersSequences:
        """A cache of its own for these sequences; it grows by itself."""
        return TransformersSequences(self._model)


class TransformersSequences:
    """Sequences in step: all have the same number of tokens."""

    def __init__(self, model: Any) -> None:
        from transformers import DynamicCache

        self._model = model
        self._cache = DynamicCache(config=model.config)
        self._next: Any = None

    def prefill(self, prompts: NDArray[np.int32]) -> None:
        """Compute the prompts at once; logits of each one's last token."""
        import torch

        self._run(torch.from_numpy(prompts.astype(np.int64)))

    def step(self) -> None:
        """Append each sequence's most likely token."""
        self._run(self._next)

    def close(self) -> None:
        """Drop the cache."""
        self._cache = None

    def _run(self, tokens: Any) -> None:
        import torch

        with torch.inference_mode():
            logits = self._model(tokens, past_key_values=self._cache, use_cache=True, logits_to_keep=1).logits
            self._next = logits.argmax(dim=-1)  # [B, 1]
