"""The sampler: from one row of logits to one token.

Owns a request's place in its output: what was taken, which random numbers are next, and the order of the rules. Each
request has its own Sampler, so that its tokens depend on its own parameters, history and seed and on nothing else.

The order is the field's usual one, each rule in its own file: bias and penalties (penalties.py), forbidden ids
(forbidden.py), then temperature, top-k, top-p, min-p and the draw (candidates.py). A token that alone is left after the
forbidden ones is taken without a random number, so that it doesn't matter whether anybody asked: whoever knows that a
grammar leaves one token may `take` it and save the model's step.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

import numpy as np
from numpy.typing import NDArray

from kaishu.batch import Likeliest
from kaishu.sampling.candidates import drawn
from kaishu.sampling.forbidden import ForbiddenTokens, Mask
from kaishu.sampling.listed import Rules, beginning, draw_listed
from kaishu.sampling.log_probabilities import (
    SampledToken,
    checked_row,
    not_finite,
    row_of_tokens,
    scanned_row,
    with_logprobs,
)
from kaishu.sampling.logit_row import (
    FIRST_LOOK,
    SMALLEST_WITH_BLOCKS,
    Float32Row,
    Ids,
    Known,
    LikeliestTokens,
    LogitRow,
    Values,
    listed_first,
)
from kaishu.sampling.params import SamplingParams
from kaishu.sampling.penalties import ChangedLogits


class Sampler:
    """Chooses the tokens of one choice of one request, one after another.

    params:        filled by `with_defaults`
    prompt_ids:    the prompt, for the repetition penalty
    num_token_ids: ids from here on are rows of the head without a token; they are never chosen nor listed
    end_token_ids: the model's end tokens, forbidden before min_tokens and always under ignore_eos
    absent_ids:    smaller ids without a token, where a tokenizer has gaps; never chosen nor listed either
    choice:        which of the request's n choices; choice 0 is what a request for one gets, the others have seeds of
                   their own, made from the request's seed and `choice`
    """

    def __init__(
        self,
        params: SamplingParams,
        *,
        prompt_ids: Sequence[int],
        num_token_ids: int,
        end_token_ids: Collection[int],
        absent_ids: Collection[int] = (),
        choice: int = 0,
    ) -> None:
        assert params.temperature is not None, "call with_defaults first"
        params.check_vocabulary(num_token_ids)
        self.params = params
        self._num_token_ids = num_token_ids
        self._forbidden = ForbiddenTokens(
            params, num_token_ids=num_token_ids, absent_ids=absent_ids, end_token_ids=end_token_ids
        )
        self._changed = ChangedLogits(params, prompt_ids, num_token_ids)
        self._rules = Rules(
            params.temperature,
            max(params.top_k or 0, 0),
            1.0 if params.top_p is None else params.top_p,
            params.min_p or 0.0,
        )
        self._num_taken = 0
        self._random = np.random.Generator(np.random.PCG64(_seed_of(params.seed, choice)))

    @property
    def wants_likeliest(self) -> bool:
        """Whether it helps to know a row's likeliest tokens, where no grammar has a say."""
        return self.params.logprobs is None

    def sample(
        self, logits: NDArray[np.float32], allowed: Mask | None = None, likeliest: Likeliest | None = None
    ) -> SampledToken:
        """Choose the next token and remember it.

        logits:    [V] float32, one row from the executor; left as it is
        allowed:   [W] uint32 or int32, W ≥ num_token_ids / 32: a grammar's mask, bit i % 32 of word i // 32 says if
                   token i may come. What it allows comes before min_tokens and ignore_eos, if they leave nothing of it
        likeliest: the row's likeliest tokens, if somebody knows them; the token is the same one without
        return:    the token; log probabilities are taken from `logits` as they came, before any rule
        raises:    NumericalError if a logit is NaN or infinite, or if every token is forbidden
        """
        if likeliest is not None:
            if not likeliest.is_finite:
                raise not_finite()
            if allowed is None and (token_id := self._of_listed(logits, likeliest)) is not None:
                return self._taken(token_id, None)
        row, maxima = scanned_row(logits, self._num_token_ids, likeliest)
        left = self._forbidden.rule(self._num_taken, allowed)
        if left.count == 1:
            return self._taken(left.only_one(), row)
        ids, values = self._changed.changed(row) if len(self._changed) else (None, None)
        if ids is not None and values is not None:
            values[left.are_forbidden(ids)] = -np.inf
        kept = row if left.is_all_but_a_few else left.keep(row)
        hidden = left.few_forbidden if ids is None else np.concatenate([left.few_forbidden, ids])
        first = self._first_look(row, likeliest) if ids is None and allowed is None else None
        known = Known(maxima, hidden, first) if kept is row else None
        if not len(hidden):
            token_id, prepared = self._chosen(kept, ids, values, known)
            return self._taken(token_id, row, prepared if kept is row else None)
        if kept is row and not row.flags.writeable:
            kept = row.copy()
        # Hidden in the row itself and put back afterwards: a copy would cost as much as a look at every token.
        before = kept[hidden]
        kept[hidden] = -np.inf
        try:
            token_id, _ = self._chosen(kept, ids, values, known)
        finally:
            kept[hidden] = before
        return self._taken(token_id, row)

    def _of_listed(self, row: Float32Row, likeliest: Likeliest) -> int | None:
        """return: the next token, if a row's likeliest tokens suffice to choose it, and those that were changed"""
        forbidden, is_greedy = self._forbidden.without_mask(self._num_taken), self.params.temperature == 0.0
        if not (is_greedy or self._rules.keep_a_list) or not self.wants_likeliest:
            return None
        if self._num_token_ids - len(forbidden) <= 1:
            return None
        if is_greedy and not len(self._changed) and (first := int(likeliest.ids[0])) not in forbidden:
            return first
        ids, logits = likeliest.ids.tolist(), likeliest.logits.tolist()
        are_all = len(ids) == self._num_token_ids
        if len(self._changed):
            ids, logits = self._with_changed(row, ids, logits, lowest=-math.inf if are_all else logits[-1])
        if not forbidden.isdisjoint(ids):
            left = [place for place, token_id in enumerate(ids) if token_id not in forbidden]
            ids, logits = [ids[place] for place in left], [logits[place] for place in left]
        if not ids or is_greedy:
            return ids[0] if ids else None
        count = beginning(logits, self._rules, are_all=are_all)
        return None if count is None else draw_listed(ids[:count], logits[:count], self._rules, self._random)

    def _with_changed(
        self, row: Float32Row, ids: list[int], logits: list[float], lowest: float
    ) -> tuple[list[int], list[float]]:
        """The list as it is after biases and penalties, as far down as it is known.

        lowest: no token that isn't listed has a larger logit
        return: all tokens whose logit is larger than that, likeliest first, equal ones by id; theirs
        """
        changed_ids, values = self._changed.changed(row)
        are_known = values > lowest
        found = list(zip((-values[are_known]).tolist(), changed_ids[are_known].tolist(), strict=True))
        listed = zip(ids, logits, strict=True)
        found += [(-logit, token_id) for token_id, logit in listed if logit > lowest and token_id not in self._changed]
        found.sort()
        return [token_id for _, token_id in found], [-negated for negated, _ in found]

    def _first_look(self, row: Float32Row, likeliest: Likeliest | None) -> LikeliestTokens | None:
        """return: what a LogitRow would find with its first look, if the executor's list says it"""
        if likeliest is None or len(likeliest.ids) < FIRST_LOOK or len(row) < SMALLEST_WITH_BLOCKS:
            return None
        forbidden = self._forbidden.without_mask(self._num_taken)
        if forbidden and not forbidden.isdisjoint(likeliest.ids.tolist()):
            return None
        return listed_first(likeliest.ids, likeliest.logits)

    def _chosen(
        self, kept: Float32Row, ids: Ids | None, values: Values | None, known: Known | None
    ) -> tuple[int, LogitRow | None]:
        """return: the token, and what was made of the row to find it"""
        if self.params.temperature == 0.0:
            return _likeliest(kept, ids, values), None
        prepared = LogitRow(kept, ids, values, known)
        return drawn(prepared, self._rules, self._random), prepared

    def take(self, token_id: int, logits: NDArray[np.float32] | None = None) -> SampledToken:
        """Remember a token that was decided elsewhere, by a grammar or by the end of a thinking budget.

        logits: [V] float32, where log probabilities are wanted
        return: the token; with log probabilities if `logits` came and the request asks for them
        raises: NumericalError if a logit is NaN or infinite
        """
        assert 0 <= token_id < self._num_token_ids
        return self._taken(token_id, None if logits is None else checked_row(logits, self._num_token_ids))

    def _taken(self, token_id: int, row: Float32Row | None, prepared: LogitRow | None = None) -> SampledToken:
        self._changed.remember(token_id)
        self._num_taken += 1
        if self.params.logprobs is None or row is None:
            return SampledToken(token_id)
        prepared = prepared or row_of_tokens(row, self._forbidden.absent)
        return with_logprobs(token_id, prepared, self.params.logprobs)


def _likeliest(row: Float32Row, apart_ids: Ids | None, apart_values: Values | None) -> int:
    """The token with the largest logit, the smallest id among equal ones; arguments as for LogitRow."""
    best = int(row.argmax())
    if apart_ids is None or apart_values is None:
        return best
    highest = float(apart_values.max())
    other = int(apart_ids[apart_values == highest].min())
    value = float(row[best])
    return other if highest > value or (highest == value and other < best) else best


def _seed_of(seed: int | None, choice: int) -> np.random.SeedSequence | int | None:
    return seed if seed is None or choice == 0 else np.random.SeedSequence(seed, spawn_key=(choice,))
