"""Speculation: guessing the next tokens of one request, so that a step can check several at once.

Owns where guesses come from in the request's own text (prompt lookup), and how many are worth their cost. Knows token
ids only. Used by choice.py, which has the guesses computed in the same step as the newest token, samples every row as
it would without them, and keeps what was sampled: guesses that differ are dropped. So results never depend on guesses.
"""

from __future__ import annotations

from collections.abc import Sequence

LONGEST_MATCH, SHORTEST_MATCH = 6, 3
MOST_PLACES = 64  # that are looked at for the longest match
MOST_GUESSES = 7  # with the newest token eight rows, two tiles of four
STEP_ROWS = 2.8  # what a step costs beside its rows, in rows: measured, docs/engine/speculation.md
SHARE, WEIGHT = 0.7, 0.9  # of guesses accepted: unknown at first; and how much the share before each guess weighs
FEWEST_SHARE = 1 / 3  # below this guessing is given up
PAUSE_TOKENS = 64  # until it is tried again


class Guessing:
    """Where one request's guesses come from: its own text, which costs nothing, or else a draft; each while it pays.

    looks_up: whether its own text is used
    """

    def __init__(self, *, looks_up: bool) -> None:
        self._lookup = PromptLookup() if looks_up else None
        self._own, self._drafts = GuessCount(), GuessCount()
        self._asked = self._own

    def read(self, token_ids: Sequence[int]) -> None:
        """Find one's way in the beginning of a text beforehand, so that no step has to."""
        if self._lookup is not None:
            self._lookup.index(token_ids)

    @property
    def guessed(self) -> int:
        """How many tokens were guessed."""
        return self._own.guessed + self._drafts.guessed

    @property
    def accepted(self) -> int:
        """How many of them were right."""
        return self._own.accepted + self._drafts.accepted

    def look_up(self, token_ids: Sequence[int], decoding: int, room: int) -> list[int]:
        """Guesses from the text itself; none where it has none, or they don't pay.

        decoding: how many requests decode in the step, this one included
        room:     the most that may be guessed
        """
        self._asked = self._own
        count = min(self._own.count(decoding), room)
        return self._lookup.guess(token_ids, count) if self._lookup is not None and count > 0 else []

    def num_drafted(self, decoding: int, room: int) -> int:
        """How many tokens a draft should guess, where the text itself has no guesses."""
        self._asked = self._drafts
        return max(0, min(self._drafts.count(decoding), room))

    def saw(self, guessed: int, accepted: int) -> None:
        """What became of the guesses asked for last: the first `accepted` of `guessed` were right."""
        self._asked.saw(guessed, accepted)


class PromptLookup:
    """Guesses what follows by what followed the same last tokens earlier in the same text (Saxena, 2023)."""

    def __init__(self) -> None:
        self._latest: dict[tuple[int, ...], int] = {}  # SHORTEST_MATCH tokens → the latest place behind them
        self._earlier: list[int] = []  # for each place from SHORTEST_MATCH on, the one before it of that kind; or 0

    def guess(self, token_ids: Sequence[int], count: int) -> list[int]:
        """At most `count` tokens that may follow `token_ids`, which has only grown since the last call."""
        self.index(token_ids)
        place = self._latest.get(tuple(token_ids[-SHORTEST_MATCH:]), 0)
        best, longest = 0, 0
        for _ in range(MOST_PLACES):
            if not place or longest == LONGEST_MATCH:
                break
            length = _common_end(token_ids, place)
            if length > longest:
                best, longest = place, length
            place = self._earlier[place - SHORTEST_MATCH]
        return self._continued(token_ids, best, count) if best else []

    def index(self, token_ids: Sequence[int]) -> None:
        """Note all places but the text's own end; `token_ids` begins with those of the call before, which are known."""
        for end in range(SHORTEST_MATCH + len(self._earlier), len(token_ids)):
            key = tuple(token_ids[end - SHORTEST_MATCH : end])
            self._earlier.append(self._latest.get(key, 0))
            self._latest[key] = end

    @staticmethod
    def _continued(token_ids: Sequence[int], place: int, count: int) -> list[int]:
        """What follows a place; where the text ends before that, the repetition goes on."""
        period = len(token_ids) - place
        return [token_ids[place + index % period] for index in range(count)]


def _common_end(token_ids: Sequence[int], place: int) -> int:
    """How many tokens before a place are those at the end of the text; at most LONGEST_MATCH are counted."""
    length = 0
    while length < min(LONGEST_MATCH, place) and token_ids[place - 1 - length] == token_ids[-1 - length]:
        length += 1
    return length


class GuessCount:
    """How many tokens to guess for one request, by how its guesses fared.

    A step with r rows costs about STEP_ROWS + r, and a guessed row as much as another request's. So with d requests
    that decode and a share s of guesses that are right, k guesses make d + s + s² + … + sᵏ tokens at the cost of
    STEP_ROWS + d + k. The k with the most tokens for the cost is taken.
    """

    def __init__(self) -> None:
        self._share = SHARE
        self._paused_tokens = 0
        self.guessed = self.accepted = 0

    def count(self, decoding: int) -> int:
        """How many to guess now; 0 while it doesn't pay.

        decoding: how many requests decode in the step, this one included
        """
        if self._paused_tokens > 0:
            self._paused_tokens -= 1
            return 0
        best, tokens, right = 0, float(decoding), 1.0
        most = tokens / (STEP_ROWS + decoding)
        for count in range(1, MOST_GUESSES + 1):
            right *= self._share
            tokens += right
            if tokens / (STEP_ROWS + decoding + count) > most:
                best, most = count, tokens / (STEP_ROWS + decoding + count)
        return best

    def saw(self, guessed: int, accepted: int) -> None:
        """What became of guesses: the first `accepted` of `guessed` were right."""
        if not guessed:
            return
        self.guessed += guessed
        self.accepted += accepted
        tried = min(guessed, accepted + 1)  # those after the first wrong one were never tried
        self._share = self._share * WEIGHT**tried + (1 - WEIGHT**tried) * accepted / tried
        if self._share < FEWEST_SHARE:
            self._paused_tokens, self._share = PAUSE_TOKENS, 0.5
