"""The memory in which likeliest.py leaves its lists: made once, because asking numpy where an array lies takes long.

Owns the arrays, their addresses, and what is made of them. After a step, when all caches are full of weights, to ask
for an address takes some eight microseconds, and a list needs five. Used by executor.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kaishu.batch import BLOCK_TOKENS, Likeliest
from kaishu.cpu.records import address

LISTED = 64  # as in likeliest.py, which would import Numba


class ListRoom:
    """Room for the lists of so many rows of so many tokens."""

    def __init__(self, rows: int, num_token_ids: int) -> None:
        self._num_rows, self._num_token_ids = rows, num_token_ids
        self._wanted = np.zeros(rows, np.int32)
        self._maxima = np.empty((rows, -(-num_token_ids // BLOCK_TOKENS)), np.float32)
        self._values, self._ids = np.zeros((rows, LISTED)), np.zeros((rows, LISTED), np.int64)
        self._finite = np.empty(rows, np.int32)
        self.wanted_address = address(self._wanted)
        found: tuple[NDArray[Any], ...] = (self._maxima, self._values, self._ids, self._finite)
        self.found_addresses = tuple(map(address, found))

    def fits(self, rows: int, num_token_ids: int) -> bool:
        """Whether there is room for these."""
        return rows <= self._num_rows and num_token_ids == self._num_token_ids

    def ask_for(self, rows: Sequence[int]) -> None:
        """Have the kernel look at these rows."""
        for place, row in enumerate(rows):  # for one row, as often as not, much faster than in a single call
            self._wanted[place] = row

    def found(self, count: int) -> list[Likeliest]:
        """What the kernel found for the first `count` rows asked for; the maxima until it is asked again."""
        listed = min(LISTED, self._num_token_ids)
        ids, logits = self._ids[:count, :listed].copy(), self._values[:count, :listed].copy()
        lists = zip(self._finite[:count].tolist(), ids, logits, self._maxima[:count], strict=True)
        return [Likeliest(True, *own) if is_finite else Likeliest.of_no_finite_row() for is_finite, *own in lists]
