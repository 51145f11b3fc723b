"""One row of logits, ready to be asked for its likeliest tokens without sorting it.

Owns the search for large values; knows nothing of temperatures, requests or random numbers. Made by sampler.py and
log_probabilities.py, once per row; asked by candidates.py and mass.py.

The idea: cut the row into blocks of neighbours and keep each block's maximum. Finding the maxima is one pass over the
row, unless the executor has them. After that, "all values of at least t" are in the few blocks whose maximum is at
least t, and the k-th largest of the maxima is a value that at least k tokens reach.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kaishu.batch import BLOCK_TOKENS

SMALLEST_WITH_BLOCKS = 4096  # below, sorting every token costs less than being clever
FIRST_LOOK = 64  # how many of the likeliest tokens are looked at first; the CPU executor lists as many

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
    return: [number of blocks] float32; the last block may be shorter
    """
    return np.maximum.reduceat(row, np.arange(0, len(row), BLOCK_TOKENS))  # of numpy's ways the fastest


def listed_first(ids: Ids, values: Values) -> LikeliestTokens | None:
    """What some of the likeliest tokens say of a row that has more of them.

    ids:    [N] int64, likeliest first; the first FIRST_LOOK matter
    values: [N] float64
    return: those before the last one and its equals, of which there may be others; None if that is none
    """
    lowest, count = float(values[FIRST_LOOK - 1]), FIRST_LOOK - 1
    while count > 0 and values[count - 1] == lowest:  # mostly none, and numpy would take three calls
        count -= 1
    return LikeliestTokens(ids[:count], values[:count], math.nextafter(lowest, math.inf)) if count else None


@dataclass(frozen=True)
class Known:
    """What is known of a row before a LogitRow looks at it.

    maxima: its `block_maxima`
    hidden: [N] int64, the tokens whose logits became -inf after those were taken
    first:  what `first_look` returns
    """

    maxima: Float32Row
    hidden: Ids | None = None
    first: LikeliestTokens | None = None


class LogitRow:
    """A row of logits in float32, and beside it the tokens whose logits need float64.

    row:          [V] float32, contiguous; -inf where no token may come. Kept, not copied: it must not change
    apart_ids:    [A] int64, tokens whose logits were changed by penalties or biases; `row` is -inf there
    apart_values: [A] float64, their logits
    known:        what need not be looked for

    highest: the largest logit; there must be one that is finite
    bounds:  [number of blocks] float32, which no token of a block exceeds
    """

    def __init__(
        self,
        row: Float32Row,
        apart_ids: Ids | None = None,
        apart_values: Values | None = None,
        known: Known | None = None,
    ) -> None:
        self.row = row
        self.bounds = block_maxima(row) if known is None else known.maxima
        self._hidden, self._first = (None, None) if known is None else (known.hidden, known.first)
        self.apart_ids: Ids = np.zeros(0, np.int64)
        self.apart_values: Values = np.zeros(0, np.float64)
        if apart_ids is not None and apart_values is not None:
            may_come = apart_values > -np.inf
            self.apart_ids, self.apart_values = apart_ids[may_come], apart_values[may_come]
        self._found: LikeliestTokens | None = None
        if self._first is not None:
            self.highest = float(self._first.values[0])
        else:
            self.highest = float(max(self.maxima.max(), self.apart_values.max(initial=-np.inf)))

    @functools.cached_property
    def maxima(self) -> Float32Row:
        """[number of blocks] float32: the largest logit of each block."""
        return self.bounds if self._hidden is None or not len(self._hidden) else block_maxima(self.row)

    def forbids(self, token_id: int) -> bool:
        """Whether a token may not come."""
        return bool(self.row[token_id] == -np.inf) and token_id not in self.apart_ids

    def at_least(self, limit: float) -> LikeliestTokens:
        """All tokens whose logit is at least `limit`; with -inf, all that may come."""
        if limit == -np.inf:
            in_row = np.flatnonzero(self.row > -np.inf)
            return self._sorted(in_row, self.row[in_row], slice(None), limit)
        largest = float(np.finfo(np.float32).max)
        in_float32 = np.float32(max(limit, -largest) if limit <= largest else np.inf)
        if float(in_float32) < limit:  # among float32 values, "at least the limit" begins at the next one
            in_float32 = np.nextafter(in_float32, np.float32(np.inf))
        promising = np.flatnonzero(self.maxima >= in_float32)
        num_whole = len(self.row) // BLOCK_TOKENS
        end, are_whole = num_whole * BLOCK_TOKENS, promising < num_whole
        values = self.row[:end].reshape(num_whole, BLOCK_TOKENS)[promising[are_whole]].reshape(-1)
        if not are_whole.all():
            values = np.concatenate([values, self.row[end:]])  # [up to promising · BLOCK_TOKENS]
        found = np.flatnonzero(values >= in_float32)
        ids = promising[found // BLOCK_TOKENS] * BLOCK_TOKENS + found % BLOCK_TOKENS
        return self._sorted(ids, values[found], self.apart_values >= limit, limit)

    def likeliest(self, count: int) -> LikeliestTokens:
        """At least the `count` likeliest tokens, or all where there are no more; a few others may come with them.

        count: 1 or more
        """
        if self._found is None or (len(self._found.ids) < count and not self._found.is_all):
            self._found = self.at_least(self._reached_by(count))
        return self._found

    def first_look(self) -> LikeliestTokens:
        """Some sixty of the likeliest tokens; more where many are equally likely, all of them in a short row."""
        if self._first is None:
            # Not by `likeliest`, which would keep what it found: whoever is told the first look has nothing to keep.
            found = self.at_least(self._reached_by(FIRST_LOOK))
            self._first = found
            is_short = len(self.row) < SMALLEST_WITH_BLOCKS or (found.is_all and len(found.ids) <= FIRST_LOOK)
            if not is_short:
                first = listed_first(found.ids, found.values)
                self._first = self.at_least(float(found.values[0])) if first is None else first
        return self._first

    def _reached_by(self, count: int) -> float:
        """A logit that at least `count` tokens reach; -inf where there are no so many."""
        if count >= len(self.row) or len(self.row) < SMALLEST_WITH_BLOCKS:
            return -math.inf
        values = self.maxima if count <= len(self.maxima) else self.row
        return float(np.partition(values, len(values) - count)[len(values) - count])

    def _sorted(self, ids: Ids, values: Float32Row, apart: slice | NDArray[np.bool_], limit: float) -> LikeliestTokens:
        ids = np.concatenate([ids, self.apart_ids[apart]])
        exact: Values = np.concatenate([values, self.apart_values[apart]], dtype=np.float64)
        order = np.lexsort((ids, -exact))
        return LikeliestTokens(ids[order], exact[order], -np.inf if len(ids) == len(self.row) else limit)
