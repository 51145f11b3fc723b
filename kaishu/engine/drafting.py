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

CHUNK_TOKENS = 128  # of a text that the smaller model has to read before it can guess


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
        fits = [i for i, (request, count) in enumerate(wanted) if self._make_room(request, count)]
        left = [i for i in fits if self._missing_tokens(wanted[i][0]) <= CHUNK_TOKENS]
        if behind := [wanted[i][0] for i in fits if i not in left]:
            self._catch_up(behind[0])
        while left:
            rows = self._next_rows([(wanted[i][0], guesses[i]) for i in left])
            for i, row in zip(left, rows, strict=True):
                guesses[i].append(int(row[: self._num_token_ids].argmax()))
            left = [i for i in left if len(guesses[i]) < wanted[i][1]]
        return guesses

    def _missing_tokens(self, request: Request) -> int:
        """How many of a request's tokens the smaller model hasn't computed."""
        return len(request.token_ids) - _common(self._drafted[request].computed, request.token_ids)

    def _catch_up(self, request: Request) -> None:
        """Compute one chunk of a long text, of which nothing is guessed yet: so no step of the engine takes long."""
        drafted, token_ids = self._drafted[request], request.token_ids
        start = _common(drafted.computed, token_ids)
        end = min(len(token_ids), start + CHUNK_TOKENS)
        self._executor.step(pack([SequenceTokens(token_ids[start:end], start, drafted.pages, ())]))
        drafted.computed = token_ids[:end]

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
        works = []
        for request, guessed in texts:
            drafted = self._drafted[request]
            token_ids = request.token_ids + guessed
            start = min(_common(drafted.computed, token_ids), len(token_ids) - 1)
            works.append(SequenceTokens(token_ids[start:], start, drafted.pages, (-1,)))
            drafted.computed = token_ids
        return self._executor.step(pack(works))


def _common(first: Sequence[int], second: Sequence[int]) -> int:
    """How many tokens two texts have in common at their beginning."""
    shorter = min(len(first), len(second))
    if list(first[:shorter]) == list(second[:shorter]):
        return shorter
    return next(i for i in range(shorter) if first[i] != second[i])
