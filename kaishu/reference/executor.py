"""The reference model as an Executor: batches in, numpy logits or hidden states out.

Owns the model and its paged cache. Knows nothing of requests or of which pages are whose: that is in the batch.
Driven by engine/; the CPU kernels' counterpart is cpu/forward.py.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from kaishu.batch import TokenBatch
from kaishu.reference.caches import PagedCache
from kaishu.reference.model import Model


class ReferenceExecutor:
    """Computes steps with the reference model. Satisfies kaishu.batch.Executor and KeepsPages.

    In float32 a sequence's logits are the same up to float rounding (about 1e-6 of their size) whoever else is in the
    step, and however its prompt was cut into steps: attention goes sequence by sequence, everything else row by row.
    They need not be equal bit for bit, because torch picks its matrix kernels by the number of rows.
    """

    def __init__(self, model: Model, num_pages: int, page_tokens: int = 16, *, threads: int | None = None) -> None:
        """Take memory for the pages.

        model:       what to run
        num_pages:   pages of the cache
        page_tokens: p, positions a page
        threads:     how many CPU threads torch may use, in this whole process; None leaves it as it is
        """
        if threads is not None:
            torch.set_num_threads(threads)
        self.model = model
        self._cache = PagedCache(model, num_pages=num_pages, page_tokens=page_tokens)

    @property
    def page_tokens(self) -> int:
        """p, how many positions one page holds."""
        return self._cache.page_tokens

    @property
    def num_pages(self) -> int:
        """P, how many pages there are."""
        return len(self._cache.pages)

    @property
    def vocab_size(self) -> int:
        """V, the width of the logits."""
        return self.model.lm_head.weight.shape[0]

    def step(self, batch: TokenBatch) -> NDArray[np.float32]:
        """Compute the new tokens of every sequence, keep their keys and values, return the logits that were asked for.

        return: [R, V] float32, on the CPU
        """
        with torch.inference_mode():
            logits: NDArray[np.float32] = self.model.forward(batch, self._cache).float().cpu().numpy()
        return logits

    def hidden(self, batch: TokenBatch) -> NDArray[np.float32]:
        """As `step`, but return what the head would read.

        return: [R, D] float32, on the CPU
        """
        with torch.inference_mode():
            states: NDArray[np.float32] = self.model.hidden(batch, self._cache).float().cpu().numpy()
        return states

    @property
    def page_form(self) -> str:
        """What the bytes of a page depend on beside the model: torch, which computed them, and their number type."""
        return f"torch {torch.__version__} {self._cache.keys.dtype}"

    @property
    def page_bytes(self) -> int:
        """How many bytes `read_pages` gives for a page."""
        return self._cache.page_bytes

    def read_pages(self, pages: Sequence[int]) -> NDArray[np.uint8]:
        """What pages hold. return: [n, page_bytes] uint8"""
        with torch.inference_mode():
            return self._cache.read(pages)

    def write_pages(self, pages: Sequence[int], contents: NDArray[np.uint8]) -> None:
        """Put back what `read_pages` gave, in whichever pages. contents: [n, page_bytes] uint8"""
        with torch.inference_mode():
            self._cache.write(pages, contents)
