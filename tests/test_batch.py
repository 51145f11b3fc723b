"""Packing sequences into one ragged step, against the definition of each field."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kaishu.batch import SequenceTokens, pack


def test_a_mixed_step_is_packed_row_by_row() -> None:
    batch = pack(
        [
            SequenceTokens([7, 8, 9], start=0, pages=[4]),
            SequenceTokens([5], start=20, pages=[2, 0]),
            SequenceTokens([1, 2], start=6, pages=[3], wants_logits=(0, 1)),
        ]
    )
    assert batch.token_ids.tolist() == [7, 8, 9, 5, 1, 2]
    assert batch.positions.tolist() == [0, 1, 2, 20, 6, 7]
    assert batch.query_starts.tolist() == [0, 3, 4, 6]
    assert batch.page_table.tolist() == [[4, -1], [2, 0], [3, -1]]
    assert batch.logit_rows.tolist() == [2, 3, 4, 5]
    assert batch.num_sequences == 3
    assert [batch.context_tokens(b) for b in range(3)] == [3, 21, 8]
    assert all(
        array.dtype == np.int32
        for array in (batch.token_ids, batch.positions, batch.query_starts, batch.page_table, batch.logit_rows)
    )


def test_a_chunk_in_the_middle_of_a_prompt_wants_no_logits() -> None:
    batch = pack([SequenceTokens([1, 2, 3], start=0, pages=[0], wants_logits=())])
    assert batch.logit_rows.tolist() == [] and batch.logit_rows.dtype == np.int32


@given(st.lists(st.tuples(st.lists(st.integers(0, 99), min_size=1, max_size=7), st.integers(0, 50)), min_size=1))
def test_every_sequence_finds_its_own_tokens_again(sequences: list[tuple[list[int], int]]) -> None:
    batch = pack([SequenceTokens(token_ids, start) for token_ids, start in sequences])
    for index, (token_ids, start) in enumerate(sequences):
        rows = batch.rows(index)
        assert batch.token_ids[rows].tolist() == token_ids
        assert batch.positions[rows].tolist() == list(range(start, start + len(token_ids)))
        assert batch.context_tokens(index) == start + len(token_ids)
        assert batch.logit_rows[index] == rows.stop - 1


def test_an_empty_sequence_is_a_bug_of_the_caller() -> None:
    with pytest.raises(AssertionError):
        pack([SequenceTokens([], start=0)])
