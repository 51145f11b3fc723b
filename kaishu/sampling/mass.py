"""How much of the probability lies where, as exactly as a question needs it and no more.

Owns the sums of weights over a whole row, which are what is expensive about sampling: 150,000 exponentials. Asked by
candidates.py, whether a token is inside top-p, and by log_probabilities.py. Knows nothing of requests.

A token's weight is exp((logit - highest) / temperature); divided by the sum of all weights it is the probability. The
likeliest tokens' weights are taken in float64. For the others there are three ways, each closer and dearer:

    ceilings   each block's maximum, BLOCK_TOKENS times: an upper bound, one exponential for 64 tokens
    float32    all of them, within ROUNDING of their sum
    float64    the definition
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kaishu.batch import BLOCK_TOKENS
from kaishu.sampling.logit_row import Float32Row, LikeliestTokens, LogitRow, Values

# An exponent of at most 104 (beyond, float32 knows only 0) is rounded three times by 2^-24 of itself, the largest logit
# by at most 1e-5 temperatures, the exponentials and their sum by less than all that.
ROUNDING = 2.0**-14
LARGEST_FLOAT32 = float(np.finfo(np.float32).max)


@dataclass(frozen=True)
class Bounds:
    """Two masses, of the tokens likelier than one token and of all, each between two numbers."""

    likelier: tuple[float, float]
    total: tuple[float, float]


class Mass:
    """The weights of one row under one temperature.

    row:         the logits
    likeliest:   some of its likeliest tokens
    temperature: above 0

    weights:     [N] float64, of `likeliest`
    cumulative:  [N] float64, the sum of the first, of the first two, …
    """

    def __init__(self, row: LogitRow, likeliest: LikeliestTokens, temperature: float) -> None:
        self.row, self.likeliest, self.temperature = row, likeliest, temperature
        self.weights = weights_of(likeliest.values, row.highest, temperature)
        self.cumulative: Values = self.weights.cumsum()
        self._apart: Values | None = None
        self._ceilings: Values | Float32Row | None = None
        self._envelope: Values | None = None
        self._rest: Float32Row | None = None

    @property
    def of_likeliest(self) -> float:
        """The sum of the likeliest tokens' weights."""
        return float(self.cumulative[-1])

    def ceilings(self) -> Values | Float32Row:
        """Of every block, a weight that none of its tokens beyond the likeliest exceeds.

        return: [number of blocks] float32 or float64, 0 where a block has no such token
        """
        if self._ceilings is None:
            if self._fits_float32():
                highest = np.minimum(self.row.bounds, np.float32(self.likeliest.limit))
                # Rounded once more, which twice the rounding has room for.
                self._ceilings = np.float32(1 + 2 * ROUNDING) * self._weights_in_float32(highest)
            else:
                exact = np.minimum(self.row.bounds.astype(np.float64), self.likeliest.limit)
                self._ceilings = weights_of(exact, self.row.highest, self.temperature)
        return self._ceilings

    def envelope(self) -> Values:
        """The sums of the ceilings of the first block's tokens, of the first two blocks', …

        return: [number of blocks] float64
        """
        if self._envelope is None:
            self._envelope = BLOCK_TOKENS * self.ceilings().astype(np.float64).cumsum()
        return self._envelope

    def apart(self) -> Values:
        """The weights of the tokens that the row keeps apart.

        return: [A] float64, 0 for those among the likeliest
        """
        if not len(self.row.apart_ids):
            return self.row.apart_values
        if self._apart is None:
            self._apart = weights_of(self.row.apart_values, self.row.highest, self.temperature)
            self._apart[self.row.apart_values >= self.likeliest.limit] = 0.0
        return self._apart

    def bound(self) -> float:
        """What the mass of all tokens doesn't exceed."""
        if self.likeliest.is_all:
            return self.of_likeliest
        return self.of_likeliest + float(self.apart().sum()) + float(self.envelope()[-1])

    def total(self) -> float:
        """The mass of all tokens, within ROUNDING of what the likeliest tokens leave."""
        if self.likeliest.is_all:
            return self.of_likeliest
        if not self._fits_float32():
            return self.of_likeliest + float(self._rest_in_float64().sum())
        return self.of_likeliest + float(self._rest_in_float32().sum())

    def around(self, token_id: int, position: int | None) -> Iterator[Bounds]:
        """Bound the mass of the tokens likelier than one token and the mass of all, each time closer, at last exactly.

        token_id: the token
        position: where it is among `likeliest`; None if it isn't
        """
        head = self.of_likeliest
        before = head if position is None else float(self.cumulative[position] - self.weights[position])
        if self.likeliest.is_all:
            yield Bounds((before, before), (head, head))
            return
        bound = self.bound()
        yield Bounds((before, before if position is not None else bound), (head, bound))
        is_likelier = None if position is not None else self._likelier(token_id)
        if self._fits_float32():
            rest = self._rest_in_float32()
            more = 0.0 if is_likelier is None else float((rest * is_likelier).sum())
            yield Bounds(_within(before, more), _within(head, float(rest.sum())))
        exact = self._rest_in_float64()
        likelier = before if is_likelier is None else before + float(exact[is_likelier].sum())
        total = head + float(exact.sum())
        yield Bounds((likelier, likelier), (total, total))

    def _fits_float32(self) -> bool:
        # The largest logit itself may need float64; then it is rounded, which mustn't matter.
        if abs(self.row.highest) > LARGEST_FLOAT32:
            return False
        off = abs(float(np.float32(self.row.highest)) - self.row.highest)
        return 1e-3 <= self.temperature <= 1e6 and off <= 1e-5 * self.temperature

    def _rest_in_float32(self) -> Float32Row:
        """[V] float32, every token's weight; 0 for the likeliest."""
        if self._rest is None:
            rest = self._weights_in_float32(self.row.row)
            rest[self.row.apart_ids] = self.apart()
            rest[self.likeliest.ids] = 0.0
            self._rest = rest
        return self._rest

    def _weights_in_float32(self, logits: Float32Row) -> Float32Row:
        with np.errstate(over="ignore", under="ignore"):
            exponents = logits - np.float32(self.row.highest)
            if self.temperature != 1.0:
                exponents /= np.float32(self.temperature)
            weights: Float32Row = np.exp(exponents)
        return weights

    def _rest_in_float64(self) -> Values:
        """[V] float64, the same by the definition."""
        rest = weights_of(self._logits(), self.row.highest, self.temperature)
        rest[self.likeliest.ids] = 0.0
        return rest

    def _logits(self) -> Values:
        logits: Values = self.row.row.astype(np.float64)
        logits[self.row.apart_ids] = self.row.apart_values
        return logits

    def _likelier(self, token_id: int) -> NDArray[np.bool_]:
        """[V] bool, the tokens that come before one token: larger logits, and equal ones of smaller id."""
        logits = self._logits()
        likelier: NDArray[np.bool_] = logits > logits[token_id]
        likelier[:token_id] |= logits[:token_id] == logits[token_id]
        return likelier


def weights_of(logits: Values, highest: float, temperature: float) -> Values:
    """exp((logit - highest) / temperature), in float64.

    logits: [N] float64, none above `highest`; -inf where no token may come
    return: [N] float64, 0 to 1
    """
    exponents = logits - highest
    if temperature != 1.0:
        with np.errstate(over="ignore"):  # a tiny temperature sends the rest to -inf, and their weights to 0
            exponents /= temperature
    weights: Values = np.exp(exponents)  # what is too small for float64 becomes 0, of which numpy doesn't warn
    return weights


def _within(exact: float, rounded: float) -> tuple[float, float]:
    return exact + rounded * (1 - ROUNDING), exact + rounded * (1 + ROUNDING) + 1e-30
