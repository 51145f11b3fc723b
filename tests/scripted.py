"""A scripted executor: it emits the tokens it was told to, through the real contract of kaishu/batch.py.

Owns a stand-in for a model, so that tests of the engine, the server and the command line need no weights. Its "keys
and values" are the token ids themselves, kept in pages: the answer depends on the context that the caller's batches
and page tables spell, so wrong pages, positions or a prefix that was never computed are errors here, as they would be
wrong text with a real model. Knows nothing of text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from kaishu.batch import TokenBatch

NextToken = Callable[[tuple[int, ...]], int]  # the whole context → the token that follows it

CERTAIN = 100.0  # the logit of the scripted token; all others are 0, so that at temperature 1 nothing else is drawn
NOTHING = -1  # in a page: no token was computed here


class Script:
    """Answers, given out one to each new prompt, in the order in which prompts first want logits.

    A context that is a known prompt followed by the beginning of its answer goes on with that answer, however the
    tokens arrived (whole, in chunks, again after a pre-emption). Any other context is a new prompt. After the answer,
    or when no answer is left, comes `end`.
    """

    def __init__(self, answers: Iterable[Sequence[int]], end: int) -> None:
        self._answers = iter(answers)
        self._end = end
        self.prompts: list[tuple[int, ...]] = []
        self._given: list[tuple[int, ...]] = []

    def __call__(self, context: tuple[int, ...]) -> int:
        for prompt, answer in zip(reversed(self.prompts), reversed(self._given), strict=True):
            spoken = context[len(prompt) :]
            if context[: len(prompt)] == prompt and spoken == answer[: len(spoken)]:
                return answer[len(spoken)] if len(spoken) < len(answer) else self._end
        self.prompts.append(context)
        self._given.append((*next(self._answers, ()), self._end))
        return self._given[-1][0]


class ScriptedExecutor:
    """An Executor whose next token is a function of the context.

    next_token: a Script, or any function from a context to the id that follows it
    steps:      every batch it was given, in order, for tests that look at how work was cut
    """

    def __init__(
        self,
        next_token: NextToken,
        *,
        vocab_size: int,
        page_tokens: int = 16,
        num_pages: int = 256,
    ) -> None:
        self._next_token = next_token
        self._vocab_size = vocab_size
        self._pages = np.full((num_pages, page_tokens), NOTHING, np.int64)  # [P, p]
        self.steps: list[TokenBatch] = []

    @property
    def page_tokens(self) -> int:
        """How many positions one cache page holds."""
        return self._pages.shape[1]

    @property
    def num_pages(self) -> int:
        """How many pages there are."""
        return self._pages.shape[0]

    @property
    def vocab_size(self) -> int:
        """V, the width of the logits."""
        return self._vocab_size

    def step(self, batch: TokenBatch) -> NDArray[np.float32]:
        """Keep the new tokens in their pages, then answer each wanted row from the context that ends there.

        batch:  what to compute
        return: [R, V] float32, CERTAIN at the next token, 0 elsewhere
        """
        self.steps.append(batch)
        owners = np.repeat(np.arange(batch.num_sequences), np.diff(batch.query_starts))  # [T]
        for token_id, position, owner in zip(batch.token_ids, batch.positions, owners, strict=True):
            assert 0 <= token_id < self._vocab_size, f"token id {token_id} is outside the vocabulary"
            page, offset = self._place(batch, int(owner), int(position))
            self._pages[page, offset] = token_id
        logits = np.zeros((len(batch.logit_rows), self._vocab_size), np.float32)  # [R, V]
        for row, wanted in zip(logits, batch.logit_rows, strict=True):
            row[self._next_token(self._context(batch, int(owners[wanted]), int(batch.positions[wanted])))] = CERTAIN
        return logits

    def _place(self, batch: TokenBatch, sequence: int, position: int) -> tuple[int, int]:
        index, offset = divmod(position, self.page_tokens)
        assert index < batch.page_table.shape[1], f"sequence {sequence} has no page for position {position}"
        page = int(batch.page_table[sequence, index])
        assert 0 <= page < self.num_pages, f"sequence {sequence} has page {page} for position {position}"
        return page, offset

    def _context(self, batch: TokenBatch, sequence: int, last: int) -> tuple[int, ...]:
        places = [self._place(batch, sequence, position) for position in range(last + 1)]
        context = tuple(int(self._pages[place]) for place in places)
        assert NOTHING not in context, f"sequence {sequence} reads a position that was never computed"
        return context
