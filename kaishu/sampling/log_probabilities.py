"""Log probabilities: how likely the model itself held a token, and which tokens it held likeliest.

Owns what is reported beside a token. Taken from the logits as they came, at temperature 1, before any rule of the
request: they say what the model thinks, not what the request allowed. Used by sampler.py for the tokens of an output
and by the engine for those of a prompt.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kaishu.batch import Likeliest
from kaishu.errors import NumericalError
from kaishu.sampling.logit_row import Float32Row, Ids, LogitRow, block_maxima
from kaishu.sampling.mass import Mass

EXACT = 20  # so many of the likeliest tokens' probabilities are summed in float64, the others in float32


@dataclass(frozen=True)
class TokenProbability:
    """One token and the natural logarithm of its probability under the model's unmodified distribution."""

    token_id: int
    logprob: float


@dataclass(frozen=True)
class SampledToken:
    """One token of a text. `logprob` and `top` (likeliest first) are there if log probabilities were asked for."""

    token_id: int
    logprob: float | None = None
    top: tuple[TokenProbability, ...] = ()


def prompt_logprobs(
    logits: NDArray[np.float32],
    next_ids: Sequence[int],
    count: int,
    *,
    num_token_ids: int,
    absent_ids: Ids | Sequence[int] = (),
) -> list[SampledToken]:
    """The log probabilities of tokens that were given, not chosen.

    logits:        [R, V] float32, rows from the executor
    next_ids:      R tokens, the one that followed each row
    count:         how many of the likeliest tokens to list beside each; 0 or more
    num_token_ids: ids from here on are rows of the head without a token, which count for nothing
    absent_ids:    smaller ids without a token; likewise
    return:        R tokens, each with its log probability and the likeliest
    raises:        NumericalError if a logit is NaN or infinite
    """
    assert len(logits) == len(next_ids), "one token follows each row"
    absent = np.array([i for i in absent_ids if i < num_token_ids], np.int64)
    return [
        with_logprobs(token_id, row_of_tokens(checked_row(row, num_token_ids), absent), count)
        for row, token_id in zip(logits, next_ids, strict=True)
    ]


def checked_row(logits: NDArray[np.float32], num_token_ids: int) -> Float32Row:
    """The part of a row that has tokens.

    logits: [V] float32, one row from the executor
    return: [num_token_ids] float32, contiguous; shares memory with `logits` where that is possible
    raises: NumericalError if a logit is NaN or infinite
    """
    row = _tokens_of(logits, num_token_ids)
    _check_finite(row, float(row.max()))
    return row


def scanned_row(
    logits: NDArray[np.float32], num_token_ids: int, likeliest: Likeliest | None
) -> tuple[Float32Row, Float32Row]:
    """As `checked_row`, and the maxima that a LogitRow needs, for the price of one look less.

    likeliest: what the executor knows of the row, which is finite then
    return:    [num_token_ids] float32; [number of blocks] float32
    """
    row = _tokens_of(logits, num_token_ids)
    if likeliest is not None:
        return row, likeliest.maxima
    maxima = block_maxima(row)
    _check_finite(row, float(maxima.max()))
    return row, maxima


def _tokens_of(logits: NDArray[np.float32], num_token_ids: int) -> Float32Row:
    row = logits[:num_token_ids]
    if row.dtype == np.float32 and row.flags.c_contiguous and row.flags.aligned:
        return row
    required: Float32Row = np.require(row, np.float32, ["C", "A"])  # asks the same, but in several microseconds
    return required


def _check_finite(row: Float32Row, highest: float) -> None:
    """highest: the row's maximum; a NaN is both the smallest and the largest"""
    if not (math.isfinite(highest) and math.isfinite(row.min())):
        raise not_finite()


def not_finite() -> NumericalError:
    """The error for a row of which a logit is NaN or infinite."""
    return NumericalError(
        "The model's output is not a number (NaN or infinity), so no token can be chosen.",
        hint="The weights may be damaged, or overflow in low precision: try weights='float32'.",
    )


def row_of_tokens(logits: Float32Row, absent_ids: Ids) -> LogitRow:
    """A row as the model gave it, ready to be asked.

    logits:     [V] float32, finite, contiguous
    absent_ids: [N] int64, ids without a token
    """
    if len(absent_ids):
        logits = logits.copy()
        logits[absent_ids] = -np.inf
    return LogitRow(logits)


def with_logprobs(token_id: int, row: LogitRow, count: int) -> SampledToken:
    """A token with its log probability and those of the likeliest tokens.

    row:    as `row_of_tokens` makes it
    count:  how many of the likeliest tokens to list, as far as there are so many
    return: logarithms as logit - highest - log Σ exp(logit - highest), finite for all finite logits
    """
    likeliest = row.likeliest(max(EXACT, count))
    log_total = math.log(Mass(row, likeliest, 1.0).total())
    top = likeliest.first(count)
    logprobs = (top.values - row.highest - log_total).tolist()
    return SampledToken(
        token_id,
        float(row.row[token_id]) - row.highest - log_total,
        tuple(TokenProbability(i, logprob) for i, logprob in zip(top.ids.tolist(), logprobs, strict=True)),
    )
