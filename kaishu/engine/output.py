"""One output while it grows: from chosen tokens to released text, and the reason why it ends.

Owns the end tokens, the stop strings, max_tokens and min_tokens, and the log probabilities that were asked for. Knows
nothing of the model or of other requests. Fed by core.py token by token; what is released goes into the request's
stream.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from kaishu.results import FinishReason, Origin, PositionLogprobs, TokenLogprob
from kaishu.sampling import SampledToken, SamplingParams, prompt_logprobs
from kaishu.text.stopping import StopStrings
from kaishu.text.tokenizer import IncrementalDecoder, Tokenizer


@dataclass(frozen=True)
class Limits:
    """What the model, not the request, says about its tokens. `context_tokens` counts prompt and output together."""

    context_tokens: int
    end_token_ids: frozenset[int]
    num_token_ids: int  # ids from here on have no token
    absent_token_ids: frozenset[int]  # nor do these


class Output:
    """The tokens and the text of one choice.

    token_ids:     what was generated, without the end token
    num_taken:     how many tokens were chosen, the end token among them
    finish_reason: "stop" or "length" once it is over; None before
    """

    def __init__(self, tokenizer: Tokenizer, params: SamplingParams, limits: Limits, max_tokens: int) -> None:
        self._tokenizer, self._params, self._max_tokens = tokenizer, params, max_tokens
        self._ends = limits.end_token_ids.union(params.stop_token_ids)
        self._decoder = IncrementalDecoder(tokenizer, hidden=tokenizer.special_token_ids)
        self._stopping = StopStrings(params.stop)
        self._released: list[str] = []
        self.token_ids: list[int] = []
        self.logprobs: list[PositionLogprobs] = []
        self._num_reported = 0  # of the log probabilities
        self.num_taken = 0
        self.finish_reason: FinishReason | None = None

    @property
    def stop_string(self) -> str | None:
        """The stop string that ended it, if one did."""
        return self._stopping.matched

    @property
    def text(self) -> str:
        """Everything released so far."""
        return "".join(self._released)

    @property
    def room_tokens(self) -> int:
        """How many more tokens it may get."""
        return self._max_tokens - self.num_taken

    def take(self, token: SampledToken, origin: Origin = "sampled") -> str:
        """One more token. return: the text that is certain now, which may be none"""
        assert self.finish_reason is None, "nothing follows the end"
        self.num_taken += 1
        if token.token_id in self._ends:
            return self._release(self._last_text("stop"))
        self.token_ids.append(token.token_id)
        if token.logprob is not None:
            self.logprobs.append(self._described(token, token.logprob, origin))
        new = self._decoder.push(token.token_id)
        piece = self._stopping.push(new) if self.num_taken > self._params.min_tokens else new
        if self._stopping.is_stopped:
            self.finish_reason = "stop"
        elif self.num_taken == self._max_tokens:
            piece += self._last_text("length")
        return self._release(piece)

    def take_logprobs(self) -> tuple[PositionLogprobs, ...]:
        """The log probabilities that are new since the last time."""
        fresh = tuple(self.logprobs[self._num_reported :])
        self._num_reported += len(fresh)
        return fresh

    def _last_text(self, reason: FinishReason) -> str:
        """What was held back, unless it completes a stop string."""
        piece = self._stopping.push(self._decoder.finish())
        self.finish_reason = "stop" if self._stopping.is_stopped else reason
        return piece + self._stopping.finish()

    def _release(self, piece: str) -> str:
        if piece:
            self._released.append(piece)
        return piece

    def _described(self, token: SampledToken, logprob: float, origin: Origin) -> PositionLogprobs:
        chosen = described(self._tokenizer, token.token_id, logprob)
        if token.token_id in self._tokenizer.special_token_ids:  # it is no part of the text, so it adds no bytes
            chosen = replace(chosen, text="", bytes=b"")
        return PositionLogprobs(
            chosen, tuple(described(self._tokenizer, one.token_id, one.logprob) for one in token.top), origin
        )


def described_prompt(
    tokenizer: Tokenizer, limits: Limits, rows: NDArray[np.float32], followed: Sequence[int], count: int
) -> list[PositionLogprobs]:
    """The log probabilities of a prompt's tokens.

    rows:     [n, V] float32
    followed: n tokens, the one that followed each row
    count:    how many of the likeliest to list beside each
    """
    absent = sorted(limits.absent_token_ids)
    given = prompt_logprobs(rows, followed, count, num_token_ids=limits.num_token_ids, absent_ids=absent)
    return [
        PositionLogprobs(
            described(tokenizer, token.token_id, token.logprob if token.logprob is not None else -math.inf),
            tuple(described(tokenizer, one.token_id, one.logprob) for one in token.top),
        )
        for token in given
    ]


def described(tokenizer: Tokenizer, token_id: int, logprob: float) -> TokenLogprob:
    """A token with its own bytes."""
    raw = tokenizer.token_bytes(token_id)
    return TokenLogprob(token_id, raw.decode("utf-8", errors="replace"), raw, logprob)
