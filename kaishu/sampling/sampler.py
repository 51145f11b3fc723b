"""The sampler: from one row of logits to one token.

Owns every rule that changes which token is chosen, and the log probabilities reported beside it. Each request has its
own Sampler, so that its tokens depend on its own parameters, history and seed and on nothing else. Called by
generation.py once per generated token.

The order of the rules is the field's usual one: bias, penalties, forbidden ids, temperature, top-k, top-p, min-p, draw.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kaishu.errors import NumericalError
from kaishu.sampling.params import SamplingParams

Row = NDArray[np.float64]


@dataclass(frozen=True)
class TokenProbability:
    """One token and the natural logarithm of its probability under the model's unmodified distribution."""

    token_id: int
    logprob: float


@dataclass(frozen=True)
class SampledToken:
    """What the sampler chose. `logprob` and `top` (likeliest first) are there if log probabilities were asked for."""

    token_id: int
    logprob: float | None = None
    top: tuple[TokenProbability, ...] = ()


class Sampler:
    """Chooses the tokens of one request, one after another.

    params:        filled by `with_defaults`
    prompt_ids:    the prompt, for the repetition penalty
    num_token_ids: ids from here on are rows of the head without a token; they are never chosen nor listed
    absent_ids:    smaller ids without a token, where a tokenizer has gaps; likewise
    end_token_ids: the model's end tokens, forbidden before min_tokens and always under ignore_eos
    """

    def __init__(
        self,
        params: SamplingParams,
        *,
        prompt_ids: Sequence[int],
        num_token_ids: int,
        end_token_ids: Collection[int],
        absent_ids: Collection[int] = (),
    ) -> None:
        assert params.temperature is not None, "call with_defaults first"
        params.check_vocabulary(num_token_ids)
        self.params = params
        self._num_token_ids = num_token_ids
        self._absent_ids = np.array(sorted(i for i in absent_ids if i < num_token_ids), np.int64)
        self._end_ids = np.array(sorted(i for i in end_token_ids if i < num_token_ids), np.int64)
        self._stop_ids = np.array(sorted(params.stop_token_ids), np.int64)
        self._bias = dict(params.logit_bias or {})
        self._seen = np.zeros(num_token_ids, bool)  # in the prompt or the output
        self._seen[[i for i in prompt_ids if i < num_token_ids]] = True
        self._counts = np.zeros(num_token_ids, np.int64)  # in the output
        self._num_sampled = 0
        self._random = np.random.Generator(np.random.PCG64(params.seed))

    def sample(self, logits: NDArray[np.float32]) -> SampledToken:
        """Choose the next token and remember it.

        logits: [V] float32, one row from the executor
        return: the token; log probabilities are taken from `logits` as they came, before any rule
        raises: NumericalError if a logit is NaN or infinite
        """
        raw = logits[: self._num_token_ids].astype(np.float64)
        if not np.isfinite(raw).all():
            raise NumericalError(
                "The model's output is not a number (NaN or infinity), so no token can be chosen.",
                hint="The weights may be damaged, or overflow in low precision: try weights='float32'.",
            )
        raw[self._absent_ids] = -np.inf
        token_id = self._choose(self._adjusted(raw.copy()))
        self._seen[token_id] = True
        self._counts[token_id] += 1
        self._num_sampled += 1
        if self.params.logprobs is None:
            return SampledToken(token_id)
        return _with_logprobs(token_id, raw, self.params.logprobs)

    def _adjusted(self, logits: Row) -> Row:
        params = self.params
        for token_id, bias in self._bias.items():
            logits[token_id] += bias
        if params.repetition_penalty != 1.0:
            apply_repetition_penalty(logits, self._seen, params.repetition_penalty or 1.0)
        if params.presence_penalty or params.frequency_penalty:
            apply_count_penalties(logits, self._counts, params.presence_penalty, params.frequency_penalty)
        too_early = self._num_sampled < params.min_tokens
        if too_early or params.ignore_eos:
            logits[self._end_ids] = -np.inf
        if too_early:
            logits[self._stop_ids] = -np.inf
        return logits

    def _choose(self, logits: Row) -> int:
        params = self.params
        if not np.isfinite(logits).any():
            raise NumericalError("Every token is forbidden by min_tokens, ignore_eos and stop_token_ids together.")
        if params.temperature == 0.0:
            return int(logits.argmax())
        token_ids, weights = candidates(
            logits, params.temperature or 1.0, params.top_k or 0, _given(params.top_p, 1.0), params.min_p or 0.0
        )
        cumulative = np.cumsum(weights)
        drawn = np.searchsorted(cumulative, self._random.random() * cumulative[-1], side="right")
        return int(token_ids[min(int(drawn), len(token_ids) - 1)])


def apply_repetition_penalty(logits: Row, seen: NDArray[np.bool_], penalty: float) -> None:
    """Make tokens that already occurred less likely, in place (Keskar et al., 2019, arXiv:1909.05858).

    logits: [V] float64
    seen:   [V] bool, occurred in the prompt or the output
    """
    values = logits[seen]
    logits[seen] = np.where(values > 0, values / penalty, values * penalty)


def apply_count_penalties(logits: Row, counts: NDArray[np.int64], presence: float, frequency: float) -> None:
    """Subtract OpenAI's presence and frequency penalties, in place.

    logits: [V] float64
    counts: [V] int64, how often each token is in the output
    """
    logits -= frequency * counts
    logits[counts > 0] -= presence


def candidates(
    logits: Row, temperature: float, top_k: int, top_p: float, min_p: float
) -> tuple[NDArray[np.int64], Row]:
    """The tokens that may be drawn and their weights; at least one is always left.

    logits: [V] float64, -inf where a token is forbidden
    return: token ids and weights exp((logit - max) / temperature), unnormalised; both likeliest first (equal ones by
            id) when a rule needs the order, else in id order
    """
    token_ids = np.flatnonzero(np.isfinite(logits))
    kept = logits[token_ids]
    if 0 < top_k < len(kept):
        # Partial selection first; equal logits at the edge are settled by id, so that the result is exact.
        edge = np.partition(kept, -top_k)[-top_k]
        inside = np.flatnonzero(kept >= edge)
        token_ids, kept = token_ids[inside], kept[inside]
    if top_k > 0 or top_p < 1.0:
        order = np.argsort(-kept, kind="stable")
        order = order[:top_k] if top_k > 0 else order
        token_ids, kept = token_ids[order], kept[order]
    with np.errstate(over="ignore"):  # a tiny temperature sends the rest to -inf, and their weights to 0, as it should
        weights = np.exp((kept - kept.max()) / temperature)
    if top_p < 1.0:
        before = np.cumsum(weights) - weights  # probability mass of the likelier tokens
        keep = before < top_p * weights.sum()
        keep[0] = True
        token_ids, weights = token_ids[keep], weights[keep]
    if min_p > 0.0:
        keep = weights >= min_p  # the likeliest token's weight is 1
        token_ids, weights = token_ids[keep], weights[keep]
    return token_ids, weights


def log_softmax(logits: Row) -> Row:
    """The logarithm of each token's probability, exact enough to stay finite for any finite logits.

    logits: [V] float64
    return: [V] float64
    """
    shifted = logits - logits.max()
    log_probabilities: Row = shifted - math.log(np.exp(shifted).sum())
    return log_probabilities


def _with_logprobs(token_id: int, logits: Row, count: int) -> SampledToken:
    logprobs = log_softmax(logits)
    count = min(count, int(np.isfinite(logprobs).sum()))
    best = np.argpartition(-logprobs, count - 1)[:count] if count else np.empty(0, np.int64)
    best = best[np.lexsort((best, -logprobs[best]))]
    top = tuple(TokenProbability(int(i), float(logprobs[i])) for i in best)
    return SampledToken(token_id, float(logprobs[token_id]), top)


def _given(value: float | None, otherwise: float) -> float:
    return otherwise if value is None else value
