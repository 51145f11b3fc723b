"""How far one model's predictions are from another's: divergence, agreement and perplexity, from logits alone.

Owns the arithmetic, in float64. Knows nothing of executors, files or texts: `kaishu eval` brings the logits of a model
whose weights are kept in fewer bits, and those of the same model in float32, the truth. numpy alone.

For each position, P is the truth's distribution of the next token and Q the other's (softmax of the logits):

    divergence   Σ P · ln(P / Q), Kullback and Leibler's (1951), in nats; zero where both are the same
    same choice  whether both have the same likeliest token, which is what greedy decoding takes
    surprise     -ln Q(the token that comes next in the text); perplexity is e to the power of its mean
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kaishu.errors import NumericalError

ROWS_AT_ONCE = 32  # a vocabulary of 150,000 in float64 takes a megabyte a row


@dataclass(frozen=True, eq=False)
class Predictions:
    """What is measured at each of T positions, all [T].

    divergences:    float64, nats
    same_choices:   bool
    surprises:      float64, nats
    true_surprises: float64, nats, of the truth
    """

    divergences: NDArray[np.float64]
    same_choices: NDArray[np.bool_]
    surprises: NDArray[np.float64]
    true_surprises: NDArray[np.float64]


@dataclass(frozen=True)
class Comparison:
    """Predictions in a few numbers.

    tokens:          T, how many were predicted
    kl_mean:         divergence, nats a token
    kl_99_percent:   99 of 100 positions diverge less, nats (the 99th percentile, interpolated between positions)
    top1_agreement:  share of positions with the same choice, 0 to 1
    perplexity:      of the text, under the model that is compared
    true_perplexity: under the truth
    """

    tokens: int
    kl_mean: float
    kl_99_percent: float
    top1_agreement: float
    perplexity: float
    true_perplexity: float


def compare(true_logits: NDArray[np.float32], logits: NDArray[np.float32], next_ids: Sequence[int]) -> Predictions:
    """Compare predictions position by position.

    true_logits: [T, V] float32, of the truth
    logits:      [T, V] float32
    next_ids:    T ids, the token that really comes after each position
    raises:      NumericalError when a logit is not finite
    """
    assert true_logits.shape == logits.shape and len(next_ids) == len(logits), "the same positions and vocabulary"
    parts = [_compare_rows(true_logits[part], logits[part], next_ids[part]) for part in _parts(len(logits))]
    return joined(parts)


def joined(parts: Sequence[Predictions]) -> Predictions:
    """The predictions of several texts as of one; at least one part."""
    return Predictions(
        np.concatenate([part.divergences for part in parts]),
        np.concatenate([part.same_choices for part in parts]),
        np.concatenate([part.surprises for part in parts]),
        np.concatenate([part.true_surprises for part in parts]),
    )


def summary(predictions: Predictions) -> Comparison:
    """Put predictions into a few numbers. Of at least one position."""
    return Comparison(
        tokens=len(predictions.divergences),
        kl_mean=float(predictions.divergences.mean()),
        kl_99_percent=float(np.percentile(predictions.divergences, 99)),
        top1_agreement=float(predictions.same_choices.mean()),
        perplexity=math.exp(predictions.surprises.mean()),
        true_perplexity=math.exp(predictions.true_surprises.mean()),
    )


def _parts(rows: int) -> list[slice]:
    return [slice(start, start + ROWS_AT_ONCE) for start in range(0, rows, ROWS_AT_ONCE)]


def _compare_rows(
    true_logits: NDArray[np.float32], logits: NDArray[np.float32], next_ids: Sequence[int]
) -> Predictions:
    log_p, log_q = _log_softmax(true_logits, "the truth's"), _log_softmax(logits, "the model's")  # [T, V]
    rows, ids = np.arange(len(log_p)), np.asarray(next_ids)
    divergences = (np.exp(log_p) * (log_p - log_q)).sum(axis=-1)  # [T]
    return Predictions(
        divergences=np.maximum(divergences, 0.0),  # rounding may leave -1e-17
        same_choices=log_p.argmax(axis=-1) == log_q.argmax(axis=-1),
        surprises=-log_q[rows, ids],
        true_surprises=-log_p[rows, ids],
    )


def _log_softmax(logits: NDArray[np.float32], whose: str) -> NDArray[np.float64]:
    """return: [T, V] float64, natural logarithms of probabilities"""
    if not np.isfinite(logits).all():
        raise NumericalError(
            f"Some of {whose} logits are not finite, so there is nothing to compare.",
            hint="`kaishu verify` shows in which layer that begins.",
        )
    wide = logits.astype(np.float64)
    shifted = wide - wide.max(axis=-1, keepdims=True)
    result: NDArray[np.float64] = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return result
