"""Kaishu as an engine to measure: through the Executor contract (kaishu/batch.py) and nothing else.

Each step includes what a real loop has to do: packing the batch and picking the most likely token of every sequence.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from benchmarks.work import Work
from kaishu.batch import Executor, SequenceTokens, pack

NAME = "Kaishu"
FORMATS: Mapping[str, str] = MappingProxyType({"int4": "folder", "int8": "folder", "bf16": "folder"})
DOES_LONG_CONTEXT = True
_SMALLEST_PAGE = 16
_TOKENS_AT_ONCE = 512


def missing(executor: str) -> str | None:
    """What isn't there to run it, in words; None if nothing."""
    if executor == "cpu" and importlib.util.find_spec("kaishu.cpu.executor") is None:
        return "kaishu.cpu.executor isn't there; --executor reference measures the reference model"
    if executor == "reference" and importlib.util.find_spec("torch") is None:
        return "the reference model needs the package torch"
    return None


def load(path: Path, width: str, threads: int, work: Work, executor: str) -> KaishuEngine:
    """Load the model.

    path:     a model folder
    width:    of all linears and of the head, as in the other engines' files
    executor: "cpu", or "reference" (bf16 only)
    """
    pages = -(-work.most_tokens // _SMALLEST_PAGE) + max((1, *work.streams))
    return KaishuEngine(_executor(path, width, threads, pages, executor))


def _executor(path: Path, width: str, threads: int, pages: int, executor: str) -> Executor:
    from kaishu.checkpoint import open_checkpoint

    checkpoint = open_checkpoint(path)
    if executor == "reference":
        from kaishu.reference.executor import ReferenceExecutor
        from kaishu.reference.model import Model

        assert width == "bf16"
        return ReferenceExecutor(
            Model.from_checkpoint(checkpoint, device="cpu", dtype="bfloat16"), pages, threads=threads
        )
    from kaishu.cpu.executor import CpuExecutor

    return CpuExecutor.from_checkpoint(checkpoint, weights=width, head=width, threads=threads, num_pages=pages)


class KaishuEngine:
    """An executor and its pages."""

    def __init__(self, executor: Executor) -> None:
        assert executor.page_tokens >= _SMALLEST_PAGE, "there are pages for the work"
        self.executor = executor
        self.vocab_size = executor.vocab_size

    def open(self, sequences: int, tokens: int) -> KaishuSequences:
        """Give every sequence the pages that it will need; all pages are free between measures."""
        each = -(-tokens // self.executor.page_tokens)
        assert each * sequences <= self.executor.num_pages
        pages = [range(row * each, (row + 1) * each) for row in range(sequences)]
        return KaishuSequences(self.executor, pages)


class KaishuSequences:
    """Sequences in step: all have the same number of tokens."""

    def __init__(self, executor: Executor, pages: list[range]) -> None:
        self._executor = executor
        self._pages = pages
        self._tokens = 0
        self._next: NDArray[np.intp] = np.zeros(len(pages), np.intp)

    def prefill(self, prompts: NDArray[np.int32]) -> None:
        """Compute prompts in chunks of 512 tokens of all together; logits of each prompt's last token."""
        length = prompts.shape[1]
        chunk = max(1, _TOKENS_AT_ONCE // len(prompts))
        for start in range(0, length, chunk):
            self._run(prompts[:, start : start + chunk], (-1,) if start + chunk >= length else ())

    def step(self) -> None:
        """Append each sequence's most likely token."""
        self._run(self._next[:, None], (-1,))

    def close(self) -> None:
        """Nothing: pages are plain numbers."""

    def _run(self, tokens: NDArray[np.integer], wants_logits: tuple[int, ...]) -> None:
        batch = pack(
            [
                SequenceTokens(row, self._tokens, pages, wants_logits)
                for row, pages in zip(tokens.tolist(), self._pages, strict=True)
            ]
        )
        logits = self._executor.step(batch)
        self._tokens += tokens.shape[1]
        if wants_logits:
            self._next = logits.argmax(axis=-1)
