"""TokenBatch and Executor: the contract between whoever schedules tokens and whoever computes them.

Owns the description of one step and nothing else: no weights, no requests, no text. Prefill, decode, chunked prefill,
prefix hits and speculative verification are all the same thing here: "the tokens [start, end) of these sequences".
Built by engine/step.py, consumed by reference/executor.py and cpu/executor.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

IntArray = NDArray[np.int32]


@dataclass(frozen=True)
class TokenBatch:
    """One step's work: for each of B sequences, a run of new tokens, packed one after another.

    token_ids:    [T] int32, the new tokens of all sequences, packed
    positions:    [T] int32, each token's position in its own sequence; consecutive within a sequence
    query_starts: [B + 1] int32, sequence b owns rows query_starts[b] to query_starts[b + 1]
    page_table:   [B, P] int32, which cache page holds positions [i·p, (i + 1)·p) of sequence b; -1 where unused
    logit_rows:   [R] int32, the rows of T whose logits are wanted, in the order wanted

    Keys of earlier positions are already in the cache; the step stores the new ones.
    """

    token_ids: IntArray
    positions: IntArray
    query_starts: IntArray
    page_table: IntArray
    logit_rows: IntArray

    @property
    def num_sequences(self) -> int:
        """B, the sequences in this step."""
        return len(self.query_starts) - 1

    def rows(self, sequence: int) -> slice:
        """The rows of T that belong to one sequence."""
        return slice(int(self.query_starts[sequence]), int(self.query_starts[sequence + 1]))

    def context_tokens(self, sequence: int) -> int:
        """How many keys one sequence has after this step: its last position + 1."""
        return int(self.positions[self.query_starts[sequence + 1] - 1]) + 1


@dataclass(frozen=True)
class SequenceTokens:
    """One sequence's share of a step: its new tokens, where they start, its pages, and which of them want logits."""

    token_ids: Sequence[int]
    start: int
    pages: Sequence[int] = ()
    wants_logits: Sequence[int] = (-1,)  # indices into token_ids; the last token by default


def pack(sequences: Sequence[SequenceTokens]) -> TokenBatch:
    """Pack the sequences of one step into a ragged batch.

    sequences: at least one, each with at least one token
    return:    the batch, rows in the order given
    """
    assert sequences and all(sequence.token_ids for sequence in sequences), "a step has tokens for every sequence"
    token_ids: list[int] = []
    positions: list[int] = []
    query_starts, logit_rows = [0], []
    for sequence in sequences:  # lists, because a call of numpy takes longer than the few numbers of a decoding row
        first, length = len(token_ids), len(sequence.token_ids)
        token_ids += sequence.token_ids
        positions += range(sequence.start, sequence.start + length)
        query_starts.append(first + length)
        logit_rows += [first + index % length for index in sequence.wants_logits]
    width = max(len(sequence.pages) for sequence in sequences)
    page_table = [[*sequence.pages, *[-1] * (width - len(sequence.pages))] for sequence in sequences]  # [B, P]
    return TokenBatch(
        token_ids=np.array(token_ids, np.int32),  # [T]
        positions=np.array(positions, np.int32),  # [T]
        query_starts=np.array(query_starts, np.int32),  # [B + 1]
        page_table=np.array(page_table, np.int32).reshape(len(sequences), width),
        logit_rows=np.array(logit_rows, np.int32),  # [R]
    )


class Executor(Protocol):
    """Something that can compute a step. It owns the weights and the KV cache; the caller owns the page bookkeeping.

    page_tokens: how many positions one cache page holds
    num_pages:   how many pages there are, numbered from 0; their contents are whatever was last computed into them
    vocab_size:  V, the width of the logits (rows of the head, which may exceed the tokenizer's ids)
    """

    @property
    def page_tokens(self) -> int: ...

    @property
    def num_pages(self) -> int: ...

    @property
    def vocab_size(self) -> int: ...

    def step(self, batch: TokenBatch) -> NDArray[np.float32]:
        """Compute the new tokens of every sequence, keep their keys and values, return the logits that were asked for.

        batch:  what to compute
        return: [R, V] float32
        """
        ...

    def hidden(self, batch: TokenBatch) -> NDArray[np.float32]:
        """As `step`, but return what the head would read: the last layer's output after the final norm.

        batch:  what to compute; its logit_rows are the rows wanted
        return: [R, D] float32
        """
        ...


@runtime_checkable
class KeepsPages(Protocol):
    """An executor whose pages can be carried elsewhere, and back, bit for bit. Called between two steps only.

    page_form:  what the bytes of a page depend on beside the weights: who wrote them, and how they are laid out
    page_bytes: how many bytes a page has
    """

    @property
    def page_form(self) -> str: ...

    @property
    def page_bytes(self) -> int: ...

    def read_pages(self, pages: Sequence[int]) -> NDArray[np.uint8]:
        """What pages hold.

        pages:  n of them, all of whose positions were computed
        return: [n, page_bytes] uint8
        """
        ...

    def write_pages(self, pages: Sequence[int], contents: NDArray[np.uint8]) -> None:
        """Put contents into pages, which need not be those that they came from.

        contents: [n, page_bytes] uint8, from `read_pages` of an executor of the same form and weights
        """
        ...


BLOCK_TOKENS = 64  # neighbours in a row of logits whose largest one is kept


class Likeliest(NamedTuple):
    """What is known of one row of logits, so that few who choose a token need to look at the whole row.

    is_finite: whether all logits are; if not, nothing else is there
    ids:       [N] int64, the likeliest tokens, likeliest first, equal ones by id; all of the row, or those before which
               no other comes
    logits:    [N] float64, theirs
    maxima:    [blocks] float32, the largest logit of each BLOCK_TOKENS neighbours; the last ones may be fewer
    """

    is_finite: bool
    ids: NDArray[np.int64]
    logits: NDArray[np.float64]
    maxima: NDArray[np.float32]

    @classmethod
    def of_no_finite_row(cls) -> Likeliest:
        """For a row of which a logit is NaN or infinite."""
        return cls(False, np.zeros(0, np.int64), np.zeros(0, np.float64), np.zeros(0, np.float32))


@runtime_checkable
class FindsLikeliest(Protocol):
    """An executor that finds the likeliest tokens faster than whoever gets the logits could."""

    def likeliest(self, logits: NDArray[np.float32], rows: Sequence[int], num_token_ids: int) -> list[Likeliest]:
        """Look through rows of logits.

        logits:        [R, V] float32, from `step`
        rows:          which of them
        num_token_ids: the ids from here on count for nothing
        return:        a list for each of `rows`; their maxima stay as they are until the next call
        """
        ...
