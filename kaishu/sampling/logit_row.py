"""One row of logits, ready to be asked for its likeliest tokens without sorting it.

Owns the search for large values; knows nothing of temperatures, requests or random numbers. Made by sampler.py and
log_probabilities.py, once per row; asked by candidates.py and mass.py.

The idea: cut the row into blocks and keep each block's maximum. Finding the maxima is one pass over the row. After
that, "all values of at least t" are in the few blocks whose maximum is at least t, and the k-th largest of the maxima
is a value that at least k tokens reach. A block isn't a run of neighbours but a column of the row written as a matrix,
[BLOCK, number of blocks], because numpy takes the maxima of columns four times faster than those of short rows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

BLOCK = 32
SMALLEST_WITH_BLOCKS = 4096  # below, looking at every token costs less than being clever

Ids = NDArray[np.int64]
Values = NDArray[np.float64]
Float32Row = NDArray[np.float32]


@dataclass(frozen=True)
class LikeliestTokens:
    """The tokens of a row whose logit reaches a limit, likeliest first, equal ones by id.

    ids:    [N] int64
    values: [N] float64, their logits
    limit:  every token that isn't here has a smaller logit; -inf if there is no other token
    """

    ids: Ids
    values: Values
    limit: float

    @property
    def is_all(self) -> bool:
        """Whether these are all tokens that may come."""
        return self.limit == -np.inf

    def first(self, count: int) -> LikeliestTokens:
        """The `count` likeliest of these, as if there were no others."""
        return LikeliestTokens(self.ids[:count], self.values[:count], -np.inf)


def block_maxima(row: Float32Row) -> Float32Row:
    """The maximum of each block of a row.

    row:    [V] float32
    return: [number of blocks] float32; none for a row that is too short for blocks
    """
    maxima: Float32Row = _blocks(row).max(axis=0)
    return maxima


def _blocks(row: Float32Row) -> Float32Row:
    """[BLOCK, number of blocks]: a view of the row, as far as it fills blocks"""
    num_blocks = len(row) // BLOCK if len(row) >= SMALLEST_WITH_BLOCKS else 0
    return row[: num_blocks * BLOCK].reshape(BLOCK, num_blocks)


class LogitRow:
    """A row of logits in float32, and beside it the tokens whose logits need float64.

    row:          [V] float32, contiguous; -inf where no token may come. Kept, not copied: it must not change
    apart_ids:    [A] int64, tokens whose logits were changed by penalties or biases; `row` is -inf there
    apart_values: [A] float64, their logits

    highest: the largest logit; there must be one that is finite
    blocks:  [BLOCK, number of blocks] float32, a view of `row`; token i is at [i // number, i % number]
    maxima:  [number of blocks] float32; given where they are known
    """

    def __init__(
        self,
        row: Float32Row,
        apart_ids: Ids | None = None,
        apart_values: Values | None = None,
        *,
        maxima: Float32Row | None = None,
    ) -> None:
        self.row = row
        self.blocks = _blocks(row)  # [BLOCK, number of blocks]
        self.maxima: Float32Row = self.blocks.max(axis=0) if maxima is None else maxima
        in_blocks = self.blocks.size
        # What doesn't fill a block is kept apart, too.
        ids = np.arange(in_blocks, len(row))
        values = row[in_blocks:].astype(np.float64)
        if apart_ids is not None and apart_values is not None:
            ids, values = np.concatenate([ids, apart_ids]), np.concatenate([values, apart_values])
        may_come = values > -np.inf
        self.apart_ids: Ids = ids[may_come]
        self.apart_values: Values = values[may_come]
        self._found: LikeliestTokens | None = None
        self.highest = float(max(self.maxima.max(initial=-np.inf), self.apart_values.max(initial=-np.inf)))

    def forbids(self, token_id: int) -> bool:
        """Whether a token may not come."""
        return bool(self.row[token_id] == -np.inf) and token_id not in self.apart_ids

    def at_least(self, limit: float) -> LikeliestTokens:
        """All tokens whose logit is at least `limit`; with -inf, all that may come."""
        if limit == -np.inf:
            in_row = np.flatnonzero(self.blocks.reshape(-1) > -np.inf)
            return self._sorted(in_row, self.row[in_row], slice(None), limit)
        largest = float(np.finfo(np.float32).max)
        in_float32 = np.float32(max(limit, -largest) if limit <= largest else np.inf)
        if float(in_float32) < limit:  # among float32 values, "at least the limit" begins at the next one
            in_float32 = np.nextafter(in_float32, np.float32(np.inf))
        promising = np.flatnonzero(self.maxima >= in_float32)
        values = self.blocks.take(promising, axis=1).reshape(-1)  # [BLOCK · promising]
        found = np.flatnonzero(values >= in_float32)
        if len(promising) == 0:
            return self._sorted(found, values, self.apart_values >= limit, limit)
        ids = found // len(promising) * len(self.maxima) + promising[found % len(promising)]
        return self._sorted(ids, values[found], self.apart_values >= limit, limit)

    def likeliest(self, count: int) -> LikeliestTokens:
        """At least the `count` likeliest tokens, or all where there are no more; a few others may come with them.

        count: 1 or more
        """
        if self._found is None or (len(self._found.ids) < count and not self._found.is_all):
            self._found = self.at_least(self._reached_by(count))
        return self._found

    def _reached_by(self, count: int) -> float:
        """A logit that at least `count` tokens reach; -inf where there are no so many."""
        num_blocks = len(self.maxima)
        if count <= num_blocks:
            return float(np.partition(self.maxima, num_blocks - count)[num_blocks - count])
        if count < self.blocks.size:
            return float(np.partition(self.blocks.reshape(-1), self.blocks.size - count)[self.blocks.size - count])
        return -math.inf

    def _sorted(self, ids: Ids, values: Float32Row, apart: slice | NDArray[np.bool_], limit: float) -> LikeliestTokens:
        ids = np.concatenate([ids, self.apart_ids[apart]])
        exact: Values = np.concatenate([values, self.apart_values[apart]], dtype=np.float64)
        order = np.lexsort((ids, -exact))
        return LikeliestTokens(ids[order], exact[order], -np.inf if len(ids) == len(self.row) else limit)
