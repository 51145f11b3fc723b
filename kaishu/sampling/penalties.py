"""Logits that a request changes: its biases, and its penalties for tokens that already occurred.

Owns these formulas and the counts they need. Keeps something only about the tokens that are changed, and nothing at all
for a request without biases and penalties. Changed logits are float64, and stay apart from the row they came from.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from kaishu.sampling.logit_row import Float32Row, Ids, Values
from kaishu.sampling.params import SamplingParams


class ChangedLogits:
    """The tokens of one request whose logits are changed, and how.

    params:        filled by `with_defaults`
    prompt_ids:    the prompt, for the repetition penalty
    num_token_ids: ids from here on have no token, and aren't kept
    """

    def __init__(self, params: SamplingParams, prompt_ids: Sequence[int], num_token_ids: int) -> None:
        self._repetition = params.repetition_penalty or 1.0
        self._presence, self._frequency = params.presence_penalty, params.frequency_penalty
        self._has_penalties = self._repetition != 1.0 or self._presence != 0.0 or self._frequency != 0.0
        bias = params.logit_bias or {}
        in_prompt = {i for i in prompt_ids if i < num_token_ids} if self._repetition != 1.0 else set()
        ids = sorted(in_prompt.union(bias))
        self._places = {token_id: place for place, token_id in enumerate(ids)}
        self._ids: Ids = np.array(ids, np.int64)  # [A], the first _num of which count, here and below
        self._bias: Values = np.array([bias.get(i, 0.0) for i in ids], np.float64)
        self._seen: NDArray[np.bool_] = np.array([i in in_prompt for i in ids], np.bool_)  # in the prompt or the output
        self._counts: NDArray[np.int32] = np.zeros(len(ids), np.int32)  # in the output

    def __len__(self) -> int:
        """How many tokens' logits are changed."""
        return len(self._places)

    def __contains__(self, token_id: int) -> bool:
        """Whether a token's logit is changed."""
        return token_id in self._places

    def remember(self, token_id: int) -> None:
        """Note that a token is in the output."""
        if not self._has_penalties:
            return
        place = self._places.setdefault(token_id, len(self._places))
        if place == len(self._ids):
            room = max(64, place)
            self._ids = np.concatenate([self._ids, np.zeros(room, np.int64)])
            self._bias = np.concatenate([self._bias, np.zeros(room)])
            self._seen = np.concatenate([self._seen, np.zeros(room, np.bool_)])
            self._counts = np.concatenate([self._counts, np.zeros(room, np.int32)])
        self._ids[place] = token_id
        self._seen[place] = True
        self._counts[place] += 1

    def changed(self, logits: Float32Row) -> tuple[Ids, Values]:
        """The changed logits.

        logits: [V] float32, as the model gave them
        return: [A] int64, the tokens, in no order; [A] float64, their logits
        """
        used = slice(len(self._places))
        ids = self._ids[used]
        values = logits[ids].astype(np.float64) + self._bias[used]
        if self._repetition != 1.0:
            apply_repetition_penalty(values, self._seen[used], self._repetition)
        if self._presence or self._frequency:
            apply_count_penalties(values, self._counts[used], self._presence, self._frequency)
        return ids, values


def apply_repetition_penalty(logits: Values, seen: NDArray[np.bool_], penalty: float) -> None:
    """Make tokens that already occurred less likely, in place (Keskar et al., 2019, arXiv:1909.05858).

    logits: [N] float64
    seen:   [N] bool, occurred in the prompt or the output
    """
    values = logits[seen]
    logits[seen] = np.where(values > 0, values / penalty, values * penalty)


def apply_count_penalties(logits: Values, counts: NDArray[np.integer], presence: float, frequency: float) -> None:
    """Subtract OpenAI's presence and frequency penalties, in place.

    logits: [N] float64
    counts: [N] integers, how often each token is in the output
    """
    logits -= frequency * counts
    logits[counts > 0] -= presence
