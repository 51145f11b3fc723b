"""Drafting: a smaller model with the same tokenizer guesses what a larger one will say.

Owns the smaller model's executor, its pages, and how far each request's tokens are computed there. Knows nothing of
sampling: it always guesses the likeliest token. Used by core.py; what its guesses are checked by is in choice.py.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from kaishu.batch import Executor, SequenceTokens, pack
from kaishu.engine.pages import PagePool
from kaishu.engine.request import Request

CHUNK_TOKENS = 512


class _Drafted:
    """One request in the smaller model: its pages, and the tokens that are computed in them."""

    def __init__(self) -> None:
        self.pages: list[int] = []
        self.computed: list[int] = []


class Drafting:
    """See the module.

    executor:       whose pages are for this alone
    num_token_ids:  tokens that both models have
    context_tokens: the longest text that the smaller model is meant for; for a longer one nothing is guessed
    """

    def __init__(self, executor: Executor, num_token_ids: int, context_tokens: int) -> None:
        self._executor, self._num_token_ids, self._context_tokens = executor, num_token_ids, context_tokens
        self._pool = PagePool(executor.num_pages, executor.page_tokens)
        self._drafted: dict[Request, _Drafted] = {}

    def guess(self, wanted: Sequence[tuple[Request, int]]) -> list[list[int]]:
        """For each request, so many tokens that may follow; none where there are no pages for them."""
        guesses: list[list[int]] = [[] for _ in wanted]
        left = [i for i, (request, count) in enumerate(wanted) if self._make_room(request, count)]
        while left:
            rows = self._next_rows([(wanted[i][0], guesses[i]) for i in left])
            for i, row in zip(left, rows, strict=True):
                guesses[i].append(int(row[: self._num_token_ids].argmax()))
            left = [i for i in left if len(guesses[i]) < wanted[i][1]]
        return guesses

    def forget(self, request: Request) -> None:
        """A request is over."""
        drafted = self._drafted.pop(request, None)
        if drafted is not None:
            self._pool.release(drafted.pages)

    def _make_room(self, request: Request, count: int) -> bool:
        if len(request.token_ids) + count > self._context_tokens:
            return False
        drafted = self._drafted.setdefault(request, _Drafted())
        needed = -(-(len(request.token_ids) + count) // self._pool.page_tokens) - len(drafted.pages)
        pages = self._pool.take(max(needed, 0))
        drafted.pages += pages or []
        return pages is not None

    def _next_rows(self, texts: Sequence[tuple[Request, list[int]]]) -> NDArray[np.float32]:
        """The logits after each request's tokens and what was guessed for it."""
        while True:
            works, room = [], CHUNK_TOKENS
            for request, guessed in texts:
                drafted = self._drafted[request]
                token_ids = request.token_ids + guessed
                start = min(_common(drafted.computed, token_ids), len(token_ids) - 1)
                end = min(len(token_ids), start + max(room, 1))
                room -= end - start
                works.append(SequenceTokens(token_ids[start:end], start, drafted.pages, (-1,)))
                drafted.computed = token_ids[:end]
            rows = self._executor.step(pack(works))
            whole = all(
                len(self._drafted[request].computed) == len(request.token_ids) + len(guessed)
                for request, guessed in texts
            )
            if whole:
                return rows


def _common(first: Sequence[int], second: Sequence[int]) -> int:
    """How many tokens two texts have in common at their beginning."""
    shorter = min(len(first), len(second))
    if list(first[:shorter]) == list(second[:shorter]):
        return shorter
    return next(i for i in range(shorter) if first[i] != second[i])
