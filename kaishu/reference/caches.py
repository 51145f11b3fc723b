"""Where keys and values are kept between steps: three answers behind one protocol.

`RecomputeCache` keeps nothing, `ContiguousCache` keeps one stretch of memory for each sequence, `PagedCache` keeps
pages that any sequence may own. The model can't tell which one it was given, and neither can its logits.
Called by attention.py, once a layer; made by executor.py, or by whoever calls generate.py.

A token's position alone decides where its key goes. So a step may be repeated, or start again from an earlier
position (after rejected guesses, say): what is there is overwritten, and what lies beyond is never read.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kaishu.batch import TokenBatch
from kaishu.errors import OutOfMemoryError

if TYPE_CHECKING:
    from kaishu.reference.model import Model


FIRST_PAGES = 64


class Cache(Protocol):
    """Takes a step's new keys and values, gives back all that each sequence has."""

    @property
    def remembers(self) -> bool:
        """Whether earlier steps' keys are still there. If not, a step must bring each sequence from position 0."""
        ...

    @property
    def pages(self) -> range:
        """The pages that sequences may be given; none where the cache has no pages."""
        ...

    def append(self, layer: int, batch: TokenBatch, keys: Tensor, values: Tensor) -> Sequence[tuple[Tensor, Tensor]]:
        """Keep one layer's new keys and values; return everything up to and including them.

        layer:  which layer they belong to
        batch:  whose they are: rows, positions, pages
        keys:   [T, K, d] float, new keys, already rotated
        values: [T, K, d] float, new values
        return: [S, K, d] dtype of keys, [S, K, d] dtype of values, for each sequence: its positions 0 to S - 1
        """
        ...


class RecomputeCache:
    """Keeps nothing, so each step computes the whole text again: n tokens cost the work of n²/2.

    This is where the tutorials begin, and what the others are measured against.
    """

    remembers = False
    pages = range(0)

    def append(self, layer: int, batch: TokenBatch, keys: Tensor, values: Tensor) -> Sequence[tuple[Tensor, Tensor]]:
        """See Cache: what was brought is all there is.

        keys:   [T, K, d] float, new keys, already rotated
        values: [T, K, d] float, new values
        return: [S, K, d] dtype of keys, [S, K, d] dtype of values, for each sequence
        """
        assert not batch.positions[batch.query_starts[:-1]].any(), "nothing was kept, so a step starts at position 0"
        rows = [batch.rows(sequence) for sequence in range(batch.num_sequences)]
        return [(keys[own], values[own]) for own in rows]


class ContiguousCache:
    """Keeps one stretch of memory for each sequence, long enough for the longest it may become.

    The simplest cache that works. Row b of every batch must be the same sequence, and memory is paid for in advance.
    """

    remembers = True
    pages = range(0)

    def __init__(self, model: Model, *, capacity_tokens: int, sequences: int = 1) -> None:
        self.keys = _memory(model, sequences, capacity_tokens)  # [layers, B, capacity, K, d]
        self.values = _memory(model, sequences, capacity_tokens)

    def append(self, layer: int, batch: TokenBatch, keys: Tensor, values: Tensor) -> Sequence[tuple[Tensor, Tensor]]:
        """See Cache: write at the positions, return a view from the beginning.

        keys:   [T, K, d] float, new keys, already rotated
        values: [T, K, d] float, new values
        return: [S, K, d] dtype of keys, [S, K, d] dtype of values, for each sequence
        """
        held = []
        for sequence in range(batch.num_sequences):
            rows, end = batch.rows(sequence), batch.context_tokens(sequence)
            start = end - (rows.stop - rows.start)
            assert end <= self.keys.shape[2], "the caller never lets a sequence outgrow the capacity"
            self.keys[layer, sequence, start:end] = keys[rows]
            self.values[layer, sequence, start:end] = values[rows]
            held.append((self.keys[layer, sequence, :end], self.values[layer, sequence, :end]))  # [S, K, d]
        return held


class PagedCache:
    """Keeps pages of p tokens; a sequence's page table says which of them hold its positions, in order.

    Sequences take pages as they grow, give them back when they end, and may share those of a common beginning
    (Kwon et al., 2023, arXiv:2309.06180). Who owns what is the caller's business: the cache only follows the table.
    Memory is taken when a page is first used, in ever larger stretches, so that a model's longest context costs nothing
    until somebody needs it.
    """

    remembers = True

    def __init__(self, model: Model, *, num_pages: int, page_tokens: int = 16) -> None:
        self.page_tokens = page_tokens
        self.pages = range(num_pages)
        self.keys = _memory(model, min(num_pages, FIRST_PAGES) * page_tokens)  # [layers, slots, K, d]
        self.values = _memory(model, min(num_pages, FIRST_PAGES) * page_tokens)

    def append(self, layer: int, batch: TokenBatch, keys: Tensor, values: Tensor) -> Sequence[tuple[Tensor, Tensor]]:
        """See Cache: write at the positions' slots, return a copy gathered from all of a sequence's slots.

        keys:   [T, K, d] float, new keys, already rotated
        values: [T, K, d] float, new values
        return: [S, K, d] dtype of keys, [S, K, d] dtype of values, for each sequence
        """
        slots = [self._slots(batch, sequence).to(keys.device) for sequence in range(batch.num_sequences)]  # [S] each
        self._make_room(1 + max(int(own.max()) for own in slots))
        lengths = np.diff(batch.query_starts)
        new = torch.cat([own[-length:] for own, length in zip(slots, lengths, strict=True)])  # [T]
        self.keys[layer, new] = keys
        self.values[layer, new] = values
        return [(self.keys[layer, own], self.values[layer, own]) for own in slots]  # [S, K, d]

    @property
    def page_bytes(self) -> int:
        """How many bytes a page has."""
        layers, _, *sizes = self.keys.shape
        return 2 * layers * self.page_tokens * math.prod(sizes) * self.keys.element_size()

    def read(self, pages: Sequence[int]) -> NDArray[np.uint8]:
        """Whole pages' keys and then values. return: [n, page_bytes] uint8"""
        slots = self._slots_of(pages)
        both = torch.stack([self.keys[:, slots], self.values[:, slots]])  # [2, layers, n·p, K, d]
        by_page = both.reshape(2, both.shape[1], len(pages), self.page_tokens, *both.shape[3:]).movedim(2, 0)
        # by_page: [n, 2, layers, p, K, d]
        raw: NDArray[np.uint8] = by_page.reshape(len(pages), -1).view(torch.uint8).cpu().numpy()  # [n, page_bytes]
        return raw

    def write(self, pages: Sequence[int], contents: NDArray[np.uint8]) -> None:
        """Put back what `read` gave. contents: [n, page_bytes] uint8"""
        self._make_room((1 + max(pages)) * self.page_tokens)
        layers, _, *sizes = self.keys.shape
        raw = torch.from_numpy(np.array(contents)).view(self.keys.dtype)
        by_page = raw.reshape(len(pages), 2, layers, self.page_tokens, *sizes).to(self.keys.device)
        slots = self._slots_of(pages)
        self.keys[:, slots], self.values[:, slots] = by_page.movedim(0, 2).flatten(2, 3)  # [layers, n·p, K, d] each

    def _slots_of(self, pages: Sequence[int]) -> Tensor:
        """Where all positions of whole pages lie. return: [n·p] int64"""
        first = torch.tensor(list(pages), device=self.keys.device) * self.page_tokens
        return (first[:, None] + torch.arange(self.page_tokens, device=self.keys.device)).flatten()

    def _make_room(self, num_slots: int) -> None:
        """Take memory for so many slots, and at least twice what there is, so that copying it over stays rare."""
        held = self.keys.shape[1]
        assert num_slots <= len(self.pages) * self.page_tokens, "the page table has only pages that exist"
        if num_slots > held:
            taken = min(max(num_slots, 2 * held), len(self.pages) * self.page_tokens)
            self.keys, self.values = _copied(self.keys, taken), _copied(self.values, taken)

    def _slots(self, batch: TokenBatch, sequence: int) -> Tensor:
        """Where a sequence's positions lie: page · p + offset in the page. return: [S] int64"""
        positions = np.arange(batch.context_tokens(sequence))  # [S]
        pages = batch.page_table[sequence, positions // self.page_tokens].astype(np.int64)
        assert (pages >= 0).all(), "the page table covers every position of the sequence"
        return torch.from_numpy(pages * self.page_tokens + positions % self.page_tokens)


def _memory(model: Model, *places: int) -> Tensor:
    """Room for one key (or value) a layer and place."""
    config, weight = model.config, model.embed_tokens
    shape = (config.num_hidden_layers, *places, config.num_key_value_heads, config.head_dim)
    return _room(shape, weight)


def _copied(memory: Tensor, num_slots: int) -> Tensor:
    """The same keys (or values) in a larger stretch of memory. memory: [layers, slots, K, d] float"""
    larger = _room((memory.shape[0], num_slots, *memory.shape[2:]), memory)
    larger[:, : memory.shape[1]] = memory
    return larger


def _room(shape: tuple[int, ...], like: Tensor) -> Tensor:
    """Memory that isn't cleared: what was never written is never read.

    raises: OutOfMemoryError
    """
    try:
        return torch.empty(shape, dtype=like.dtype, device=like.device)
    except RuntimeError as error:  # torch's own out-of-memory errors are of this type, on every device
        size_gb = 2 * math.prod(shape) * like.element_size() / 1e9
        raise OutOfMemoryError(
            f"There is no memory for the KV cache: keys and values need {size_gb:,.1f} GB on {like.device}.",
            hint="Make the context smaller (context_tokens=…, --context N), or the prompt shorter.",
        ) from error
