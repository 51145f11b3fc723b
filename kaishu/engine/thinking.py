"""Where one output stands with its thinking, told by its tokens, and how long it may go on.

Owns the count of thinking tokens and the decision to end a thought. Knows token ids only; the text of a thought is
split off by text/channels.py. Used by choice.py, which appends what is `due` without asking the model.

A thought is what the output begins with, or what the prompt left open, up to `</think>`. Its end is forced by tokens
that write `\\n</think>\\n\\n`, as the model ends a thought itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from kaishu.text.channels import THINK_END, THINK_START, Thinking
from kaishu.text.tokenizer import Tokenizer

Place = Literal["before", "inside", "over"]


@dataclass(frozen=True)
class ThinkingTokens:
    """A tokenizer's tokens for thinking.

    start, end: the control tokens
    closing:    what ends a thought that is cut short
    gap:        what stands between the end of a thought and the answer
    """

    start: int
    end: int
    closing: tuple[int, ...]
    gap: tuple[int, ...]

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> ThinkingTokens | None:
        """None for a tokenizer that has no tokens for thinking."""
        start, end = tokenizer.control_tokens.get(THINK_START), tokenizer.control_tokens.get(THINK_END)
        if start is None or end is None:
            return None
        newline, gap = tokenizer.encode("\n"), tokenizer.encode("\n\n")
        return cls(start, end, (*newline, end, *gap), tuple(gap))


class ThinkingProgress:
    """One output's thinking, from its first token on."""

    def __init__(self, begins: Thinking, tokens: ThinkingTokens | None, budget: int | None) -> None:
        """Begin where the prompt ends.

        begins: RenderedPrompt.thinking; "closed" where nobody thinks, as in plain completion
        tokens: None where the model has none
        budget: how many tokens a thought may have before its end is forced; None for any number
        """
        self._tokens, self._budget = tokens, budget
        self.place: Place = "over" if begins == "closed" or tokens is None else "before"
        if begins == "open" and tokens is not None:
            self.place = "inside"
        self.num_tokens = 0  # of the thought, its tags not among them
        self._is_told_to_stop = False

    @property
    def start_token(self) -> int | None:
        """The token that would begin a thought now; None where none can begin."""
        return self._tokens.start if self._tokens is not None and self.place == "before" else None

    def push(self, token_id: int, *, is_blank: bool = False, is_layout: bool = False) -> None:
        """One more token of the output.

        is_blank:  it is white space alone, which may stand before a thought
        is_layout: it is part of an end that was forced, and not thought
        """
        if self._tokens is None or self.place == "over":
            return
        if self.place == "before":
            if token_id == self._tokens.start:
                self.place = "inside"
            elif not is_blank:
                self.place = "over"
        elif token_id == self._tokens.end:
            self.place = "over"
        elif not is_layout:
            self.num_tokens += 1

    def stop(self) -> None:
        """End the thought as soon as possible; one that has not begun won't, and one that is over stays so."""
        self._is_told_to_stop = True

    def due(self) -> tuple[int, ...]:
        """The tokens that have to follow now, because the thought has been long enough; mostly none."""
        is_enough = self._is_told_to_stop or (self._budget is not None and self.num_tokens >= self._budget)
        return self._tokens.closing if self._tokens is not None and self.place == "inside" and is_enough else ()

    @property
    def gap(self) -> tuple[int, ...]:
        """What stands between a thought and its answer."""
        return () if self._tokens is None else self._tokens.gap
