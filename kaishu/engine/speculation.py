"""Speculation: guessing the next tokens of one request, so that a step can check several at once.

Owns where guesses come from in the request's own text (prompt lookup), and how many are worth their cost. Knows token
ids only. Used by core.py, which has the guesses computed in the same step as the newest token, samples every row as it
would without them, and keeps what was sampled: guesses that differ are dropped. So results never depend on guesses.
"""

from __future__ import annotations

from collections.abc import Sequence

LONGEST_MATCH, SHORTEST_MATCH = 4, 2
MOST_GUESSES = 7  # with the newest token eight rows, two tiles of four
WEIGHT = 0.85  # of what was seen before in the share that is accepted
PAUSE_TOKENS = 64  # after guessing was given up, until it is tried again


class PromptLookup:
    """Guesses what follows by what followed the same last tokens earlier in the same text (Saxena, 2023)."""

    def __init__(self) -> None:
        self._ends: dict[tuple[int, ...], int] = {}  # some last tokens → the latest place behind them
        self._indexed = 0

    def guess(self, token_ids: Sequence[int], count: int) -> list[int]:
        """At most `count` tokens that may follow `token_ids`, which has only grown since the last call."""
        self._index(token_ids)
        for length in range(LONGEST_MATCH, SHORTEST_MATCH - 1, -1):
            if len(token_ids) > length:
                place = self._ends.get(tuple(token_ids[-length:]))
                if place is not None:
                    return self._continued(token_ids, place, count)
        return []

    def _index(self, token_ids: Sequence[int]) -> None:
        """All ends but the text's own."""
        for end in range(max(self._indexed, SHORTEST_MATCH), len(token_ids)):
            for length in range(SHORTEST_MATCH, min(LONGEST_MATCH, end) + 1):
                self._ends[tuple(token_ids[end - length : end])] = end
        self._indexed = max(self._indexed, len(token_ids))

    @staticmethod
    def _continued(token_ids: Sequence[int], place: int, count: int) -> list[int]:
        """What follows a place; where the text ends before that, the repetition goes on."""
        period = len(token_ids) - place
        return [token_ids[place + index % period] for index in range(count)]


class GuessCount:
    """How many tokens to guess for one request, by how its guesses fared.

    A guessed row costs a step about as much as another request's row. It pays as long as the share of guesses that are
    accepted is above that of a row in the cost of a token, which grows with the rows that decode anyway.
    """

    def __init__(self) -> None:
        self._share = 0.7  # of guesses accepted; unknown at first
        self._next = 3
        self._paused_tokens = 0
        self.guessed = self.accepted = 0

    def count(self, decoding: int) -> int:
        """How many to guess now; 0 while it doesn't pay.

        decoding: how many requests decode in the step, this one included
        """
        if self._paused_tokens > 0:
            self._paused_tokens -= 1
            return 0
        return self._next if self._share > decoding / (decoding + 2) else 0

    def saw(self, guessed: int, accepted: int) -> None:
        """What became of the last guesses: the first `accepted` of `guessed` were right."""
        if not guessed:
            return
        self.guessed += guessed
        self.accepted += accepted
        tried = min(guessed, accepted + 1)  # those after the first wrong one were never tried
        self._share = self._share * WEIGHT**tried + (1 - WEIGHT**tried) * accepted / tried
        self._next = (
            min(2 * self._next + 1, MOST_GUESSES) if accepted == guessed else max(1, min(self._next, accepted + 1))
        )
        if self._share < 1 / 3:
            self._paused_tokens, self._share, self._next = PAUSE_TOKENS, 0.5, 2
