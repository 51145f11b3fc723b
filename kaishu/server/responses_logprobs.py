"""Which tokens the text of an answer is made of.

Owns the choice. The engine gives each delta the tokens of all steps since the last one: also those of tags and of line
ends around them, which are in no text. Log probabilities of /v1/responses belong to a text, and add up to it.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import accumulate

from kaishu.results import PositionLogprobs


class TextTokens:
    """One text's tokens, as it grows."""

    def __init__(self) -> None:
        self._waiting: list[PositionLogprobs] = []  # tokens that begin where no text is yet
        self._num_said = 0  # bytes of text
        self._num_taken = 0  # bytes of tokens that were given out
        self._has_begun = False

    def push(self, text: str, tokens: Iterable[PositionLogprobs]) -> list[PositionLogprobs]:
        """More of the text, and the tokens that came with it. return: those that it is made of so far, each once"""
        self._waiting += tokens
        if not text:
            return []
        raw = text.encode("utf-8", errors="replace")
        if not self._has_begun:
            self._has_begun = True
            self._waiting = _from_the_beginning(raw, self._waiting)
        self._num_said += len(raw)
        taken = 0
        for token in self._waiting:
            if self._num_taken >= self._num_said:
                break
            self._num_taken += len(token.chosen.bytes)
            taken += 1
        given, self._waiting = self._waiting[:taken], self._waiting[taken:]
        return given


def _from_the_beginning(text: bytes, tokens: list[PositionLogprobs]) -> list[PositionLogprobs]:
    """Without those that came before the text: from the first on that it can begin with; all, if there is none."""
    spelt = b"".join(token.chosen.bytes for token in tokens)
    starts = [0, *accumulate(len(token.chosen.bytes) for token in tokens)]
    for index, start in enumerate(starts[:-1]):
        rest = spelt[start : start + len(text)]
        if rest and tokens[index].chosen.bytes and text.startswith(rest):
            return tokens[index:]
    return tokens
