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
HIDDEN_SIZE = 8


def state_of(context: Sequence[int]) -> NDArray[np.float32]:
    """[D] float32: the hidden state after a context, other numbers for every other context."""
    return np.random.default_rng(list(context)).normal(size=HIDDEN_SIZE).astype(np.float32)


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
        wanted = [self._certain(context) for context in self._contexts(batch)]
        return np.stack(wanted) if wanted else np.zeros((0, self._vocab_size), np.float32)  # [R, V]

    def hidden(self, batch: TokenBatch) -> NDArray[np.float32]:
        """As `step`, but answer with state_of each context.

        return: [R, D] float32
        """
        wanted = [state_of(context) for context in self._contexts(batch)]
        return np.stack(wanted) if wanted else np.zeros((0, HIDDEN_SIZE), np.float32)  # [R, D]

    page_form = "scripted"

    @property
    def page_bytes(self) -> int:
        """How many bytes `read_pages` gives for a page."""
        return self.page_tokens * self._pages.itemsize

    def read_pages(self, pages: Sequence[int]) -> NDArray[np.uint8]:
        """What pages hold. return: [n, page_bytes] uint8"""
        contents = self._pages[list(pages)]
        assert NOTHING not in contents, "only pages that were computed are read"
        return contents.view(np.uint8)

    def write_pages(self, pages: Sequence[int], contents: NDArray[np.uint8]) -> None:
        """Put back what `read_pages` gave. contents: [n, page_bytes] uint8"""
        self._pages[list(pages)] = np.ascontiguousarray(contents).view(np.int64)

    def _contexts(self, batch: TokenBatch) -> list[tuple[int, ...]]:
        """Keep the new tokens in their pages. return: for each wanted row all the tokens up to it"""
        self.steps.append(batch)
        contexts: dict[int, tuple[int, ...]] = {}
        for sequence in range(batch.num_sequences):
            rows = batch.rows(sequence)
            new = batch.token_ids[rows]
            assert ((new >= 0) & (new < self._vocab_size)).all(), "token ids are outside the vocabulary"
            places = self._places(batch, sequence)
            assert (np.diff(batch.positions[rows]) == 1).all(), "positions of a sequence are consecutive"
            self._pages[tuple(place[-len(new) :] for place in places)] = new
            context = self._pages[places]  # [S]
            assert NOTHING not in context, f"sequence {sequence} reads a position that was never computed"
            for row in set(batch.logit_rows.tolist()).intersection(range(rows.start, rows.stop)):
                contexts[row] = tuple(context[: int(batch.positions[row]) + 1].tolist())
        return [contexts[row] for row in batch.logit_rows.tolist()]

    def _places(self, batch: TokenBatch, sequence: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Page and offset of every position of a sequence after this step."""
        positions = np.arange(batch.context_tokens(sequence))
        index, offsets = positions // self.page_tokens, positions % self.page_tokens
        assert index[-1] < batch.page_table.shape[1], f"sequence {sequence} has no page for position {positions[-1]}"
        pages = batch.page_table[sequence, index].astype(np.int64)
        assert ((pages >= 0) & (pages < self.num_pages)).all(), f"sequence {sequence} lacks a page it needs"
        return pages, offsets

    def _certain(self, context: tuple[int, ...]) -> NDArray[np.float32]:
        logits = np.zeros(self._vocab_size, np.float32)  # [V]
        logits[self._next_token(context)] = CERTAIN
        return logits
