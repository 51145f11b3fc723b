"""What the last layer computes: the rows whose logits are wanted, each with its own sequence's pages."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kaishu.batch import SequenceTokens, pack
from kaishu.cpu.wanted_rows import wanted_rows
from tests.cpu.packed_models import assert_same_bits
from tests.reference.parity import random_ids

PAGE_TOKENS = 32


@st.composite
def batches(draw):
    """Some sequences, of each of which any rows are wanted in any order, also twice."""
    sequences = []
    for number in range(draw(st.integers(1, 5))):
        length, start = draw(st.integers(1, 12)), draw(st.integers(0, 70))
        pages = [100 * number + place for place in range((start + length - 1) // PAGE_TOKENS + 1)]
        wanted = draw(st.lists(st.integers(0, length - 1), max_size=6))
        sequences.append(SequenceTokens(list(range(number * 20, number * 20 + length)), start, pages, wanted))
    return pack(sequences)


@given(batches())
def test_every_wanted_row_keeps_its_token_its_position_and_its_pages(batch):
    last = wanted_rows(batch)
    found = []
    for sequence in range(last.num_sequences):
        rows = last.rows(sequence)
        assert rows.start < rows.stop, "no sequence is empty"
        positions = last.positions[rows]
        assert np.array_equal(positions, np.arange(len(positions)) + positions[0]), "they follow one another"
        found += [(row, tuple(last.page_table[sequence])) for row in range(rows.start, rows.stop)]
    assert [row for row, _ in found] == list(range(len(batch.logit_rows))) == last.logit_rows.tolist()
    for (row, pages), old in zip(found, batch.logit_rows.tolist(), strict=True):
        owner = next(b for b in range(batch.num_sequences) if old in range(*batch.rows(b).indices(1 << 30)))
        assert pages == tuple(batch.page_table[owner])
        assert (last.token_ids[row], last.positions[row]) == (batch.token_ids[old], batch.positions[old])
    assert all(array.dtype == np.int32 for array in vars(last).values())


@pytest.mark.parametrize(
    "wanted, starts",
    [
        ([range(4), range(3)], [0, 4, 7]),
        ([(3,), range(3)], [0, 1, 4]),
        ([(1, 2, 3), (0, 2)], [0, 3, 4, 5]),
        ([(3, 2), (1, 1)], [0, 1, 2, 3, 4]),
        ([(), (0, 1)], [0, 2]),
        ([(), ()], [0]),
    ],
    ids=str,
)
def test_neighbours_of_one_sequence_are_attended_to_together(wanted, starts):
    four, three = SequenceTokens([1] * 4, 5, (0,), wanted[0]), SequenceTokens([2] * 3, 0, (1,), wanted[1])
    assert wanted_rows(pack([four, three])).query_starts.tolist() == starts


@pytest.mark.parametrize("name, weights", [("dense_untied", "int4"), ("qwen2", "bf16"), ("moe", "int8")])
def test_rows_in_any_order_have_the_bits_that_they_have_among_all(name, weights, packed, start):
    executor = start(packed(name, weights, dtype="bfloat16"))
    ids, page = random_ids(320, 70), range(3)
    every = pack([SequenceTokens(ids, 0, page, range(70))])
    logits, states = executor.step(every), executor.hidden(every)
    for rows in [(69,), (), (0, 69), (68, 2, 2, 40, 41, 42), (69, *range(69)), tuple(range(1, 70))]:
        some = pack([SequenceTokens(ids, 0, page, rows)])
        assert_same_bits(executor.step(some), logits[list(rows)], f"logits of {rows}:")
        assert_same_bits(executor.hidden(some), states[list(rows)], f"states of {rows}:")
