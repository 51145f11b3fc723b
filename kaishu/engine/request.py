"""Request: what the scheduler knows of one sequence of tokens.

Owns these fields and what follows from them. Knows whole numbers only: no text, no logits, no executor. Made by
core.py, moved through its life by scheduler.py.

    waiting → running → over
       ↑_________|          when it has to give its pages back (pre-emption); its tokens stay
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from kaishu.engine.pages import Key

State = Literal["waiting", "running", "over"]


@dataclass(eq=False)
class Request:
    """One sequence: the prompt and what was generated, and how much of it is computed.

    number:             in the order of arrival
    token_ids:          the prompt, and then every token that was decided
    prompt_tokens:      how many of them are the prompt
    priority:           lower ones go first; of equals, whoever came first
    tag:                what the pages' contents depend on beside the tokens
    reuses_prefix:      whether pages that begin the same may be used, and its own be offered
    wants_every_row:    logits of every position of the prompt are (still) wanted, so none may be skipped
    proposed:           tokens that probably (a draft) or certainly (forced) follow token_ids, to be computed with them
    proposed_rows:      whether the rows of what is proposed need logits
    proposed_is_guess:  what is proposed is a draft, which may be dropped
    computed_tokens:    how many tokens have their keys and values in `pages`
    cached_tokens:      how many of the prompt's were found there when it first ran
    """

    number: int
    token_ids: list[int]
    prompt_tokens: int
    priority: int = 0
    tag: bytes = b""
    reuses_prefix: bool = True
    wants_every_row: bool = False
    state: State = "waiting"
    proposed: list[int] = field(default_factory=list)
    proposed_rows: bool = True
    proposed_is_guess: bool = False
    computed_tokens: int = 0
    cached_tokens: int | None = None
    pages: list[int] = field(default_factory=list)
    keys: list[Key] = field(default_factory=list)  # of the full pages of token_ids, as far as they were needed
    num_published: int = 0  # of `pages`, from the first on
    preemptions: int = 0

    @property
    def place(self) -> tuple[int, int]:
        """Where it stands in the order of all requests."""
        return self.priority, self.number

    @property
    def uncomputed_tokens(self) -> int:
        """Tokens that have to be computed before the next one can be chosen; at least one."""
        return len(self.token_ids) - self.computed_tokens

    @property
    def is_decoding(self) -> bool:
        """Only the newest token is left to compute, so the next step chooses one."""
        return self.uncomputed_tokens == 1 and len(self.token_ids) > self.prompt_tokens
