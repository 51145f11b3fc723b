"""One choice of a request while it runs: its sampler, grammar, thinking, text and guesses, in one place.

Owns what happens between a row of logits and the next token: the grammar's mask, the tokens that are forced, the
guesses for the next step. Knows nothing of batches, pages or other requests; the scheduler's view of it is `request`.
Driven by core.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from kaishu.batch import Likeliest
from kaishu.engine.grammar import GrammarState
from kaishu.engine.output import Output
from kaishu.engine.request import Request
from kaishu.engine.speculation import Guessing
from kaishu.engine.thinking import ThinkingProgress
from kaishu.results import Origin
from kaishu.sampling import SampledToken, Sampler

MOST_FORCED = 64  # tokens at once
Proposal = Literal["none", "closing", "forced", "guessed"]


@dataclass(frozen=True)
class Piece:
    """What one token added to an output; the text may be empty while it isn't certain."""

    text: str
    token_id: int


class Choice:
    """See the module. `guessing`: None for a request that is not speculated on."""

    def __init__(
        self,
        request: Request,
        *,
        sampler: Sampler,
        output: Output,
        thinking: ThinkingProgress,
        grammar: GrammarState | None,
        guessing: Guessing | None,
    ) -> None:
        self.request, self.sampler, self.output, self.thinking = request, sampler, output, thinking
        self._grammar, self.guessing = grammar, guessing
        self._proposal: Proposal = "none"
        self._gap_is_due = False
        self._wants_logprobs = sampler.params.logprobs is not None

    @property
    def wants_likeliest(self) -> bool:
        """Whether the next tokens can probably be chosen by their rows' likeliest tokens alone."""
        return self.sampler.wants_likeliest and (self._grammar is None or self.thinking.place == "inside")

    def advance(self, rows: NDArray[np.float32], likeliest: Sequence[Likeliest] | None = None) -> list[Piece]:
        """Take as many tokens as a step's rows decide; at least one.

        rows:      [R, V] float32: of the newest token and of what was proposed after it, or the last of these alone
        likeliest: each row's likeliest tokens, where they are known
        raises:    NumericalError, InvalidRequestError from a grammar that can't be followed
        """
        proposed, kind = self.request.proposed, self._proposal
        self.request.proposed, self._proposal = [], "none"
        pieces: list[Piece] = []
        right = 0
        for index, token_id in enumerate(proposed):
            if kind == "guessed":
                token = self._sampled(rows, likeliest, index)
            else:
                token = self.sampler.take(token_id, rows[index] if self._wants_logprobs else None)
            origin: Origin = "forced" if kind != "guessed" else "guessed" if token.token_id == token_id else "sampled"
            pieces.append(self._append(token, origin, is_layout=kind == "closing"))
            right += token.token_id == token_id
            is_certain = kind != "guessed" or (token.token_id == token_id and not self._due())
            if self.output.finish_reason is not None or not is_certain:
                break
        else:
            pieces.append(self._append(self._sampled(rows, likeliest, -1)))
        if kind == "guessed" and self.guessing is not None:
            self.guessing.saw(len(proposed), right)
        return pieces

    def propose_forced(self, limit: int = MOST_FORCED) -> bool:
        """Have what must follow computed together with the newest token.

        limit:  of tokens that a grammar forces; what ends a thought is short, and comes whole
        return: whether there is something
        """
        assert not self.request.proposed, "one proposal at a time"
        self._proposal = "none"  # also where a guess was dropped
        forced: list[int] = list(self._due())
        kind: Proposal = "closing"
        if not forced and self._grammar is not None and self.thinking.place == "over":
            kind, forced = "forced", self._grammar.forced(min(limit, self.output.room_tokens))
        if forced:
            self._propose(kind, forced[: self.output.room_tokens])
        return bool(forced)

    def propose_looked_up(self, decoding: int, limit: int = MOST_FORCED) -> bool:
        """Have checked what the request's own text makes likely, if that pays in a step in which so many decode.

        limit:  of tokens
        return: whether there is something
        """
        if self.guessing is not None and self._proposal == "none":
            self.propose_guesses(
                self.guessing.look_up(self.request.token_ids, decoding, min(limit, self._room_for_guesses()))
            )
        return self._proposal != "none"

    def num_drafted(self, decoding: int) -> int:
        """How many guesses of a draft are worth their cost in a step in which so many decode."""
        if self.guessing is None or self._proposal != "none":
            return 0
        return self.guessing.num_drafted(decoding, self._room_for_guesses())

    def propose_guesses(self, token_ids: Sequence[int]) -> None:
        """Have these checked in the next step."""
        if token_ids:
            self._propose("guessed", token_ids)

    def _room_for_guesses(self) -> int:
        return self.output.room_tokens - 1  # a token that is sampled follows them

    def _propose(self, kind: Proposal, token_ids: Sequence[int]) -> None:
        self._proposal, self.request.proposed = kind, list(token_ids)
        self.request.proposed_rows = kind == "guessed" or self._wants_logprobs
        self.request.proposed_is_guess = kind == "guessed"

    def _due(self) -> tuple[int, ...]:
        """What has to follow a thought now: its end, or between its end and an answer of a given form the usual gap."""
        return self.thinking.gap if self._gap_is_due else self.thinking.due()

    def _sampled(self, rows: NDArray[np.float32], likeliest: Sequence[Likeliest] | None, index: int) -> SampledToken:
        return self.sampler.sample(rows[index], self._mask(), None if likeliest is None else likeliest[index])

    def _mask(self) -> NDArray[np.uint32] | None:
        if self._grammar is None:
            return None
        if self.thinking.place == "inside":
            return self._grammar.all_but_the_end()  # or there would be no answer, whose form was asked for
        allowed = self._grammar.allowed()
        start = self.thinking.start_token
        if start is not None:  # it may think first
            allowed = allowed.copy()
            allowed[start >> 5] |= np.uint32(1 << (start & 31))
        return allowed

    def _append(self, token: SampledToken, origin: Origin = "sampled", *, is_layout: bool = False) -> Piece:
        """is_layout: it ends a thought, or stands behind its end, and is no part of the answer"""
        before = self.thinking.place
        text = self.output.take(token, origin)
        self.request.token_ids.append(token.token_id)
        is_blank = before == "before" and not text.strip()
        self.thinking.push(token.token_id, is_blank=is_blank, is_layout=is_layout)
        self._gap_is_due = False
        if self._grammar is not None and self.output.finish_reason is None and not is_layout:
            if before == "inside":
                self._gap_is_due = self.thinking.place == "over"
            elif self.thinking.place != "inside":
                self._grammar.accept(token.token_id)
        return Piece(text, token.token_id)
