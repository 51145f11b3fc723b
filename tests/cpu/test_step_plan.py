"""What follows from a batch: which rows and pieces each sequence gets, and that nothing outside of it is pointed to."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kaishu.batch import SequenceTokens, pack
from kaishu.cpu.executor import STEP_PROBLEMS
from kaishu.cpu.pages import SEGMENT
from kaishu.cpu.records import MODEL, STEP, address, record
from kaishu.cpu.step_plan import plan_step
from tests.cpu.from_python import from_python

VOCAB, PAGES, PAGE_TOKENS, TILE = 100, 50, 32, 4
planned = from_python(plan_step)


def plan(sequences, *, heads=6, key_heads=2, logit_rows=None):
    """return: what the kernel returned, and its three tables"""
    batch = pack(sequences)
    rows = batch.logit_rows if logit_rows is None else np.array(logit_rows, np.int32)
    tokens = len(batch.token_ids)
    tables = [np.full(size, -7, np.int32) for size in (tokens, batch.num_sequences + 1, tokens)]
    given = [batch.token_ids, batch.positions, batch.query_starts, batch.page_table, rows]
    sizes = tokens, batch.num_sequences, batch.page_table.shape[1], len(rows)
    step = np.array((*map(address, [*given, *tables]), (0, 0), (0, 0), *sizes), STEP)
    fields = dict.fromkeys(MODEL.names, 0) | {"num_heads": heads, "num_key_value_heads": key_heads}
    return planned(record(MODEL, fields), step, VOCAB, PAGES, PAGE_TOKENS, TILE), *tables


@settings(deadline=None)  # the first call compiles
@given(st.lists(st.tuples(st.integers(1, 40), st.integers(0, 1200)), min_size=1, max_size=6))
def test_few_rows_have_a_piece_for_every_segment_and_others_for_every_tile(shapes):
    sequences = [SequenceTokens([1] * count, first, range(40)) for count, first in shapes]
    total, sequence_of, piece_starts, all_rows = plan(sequences)
    starts = [0]
    for count, first in shapes:
        segments, tiles = len(range(0, first + count, SEGMENT)), len(range(0, count * 3, TILE))
        starts.append(starts[-1] + 2 * (segments if count * 3 <= TILE else tiles))
    assert piece_starts.tolist() == starts and total == starts[-1]
    assert sequence_of.tolist() == [b for b, (count, _) in enumerate(shapes) for _ in range(count)]
    assert all_rows.tolist() == list(range(len(all_rows)))


@pytest.mark.parametrize(
    "sequence, logit_rows, problem",
    [
        (SequenceTokens([1, VOCAB], 0, (0,)), None, "row for"),
        (SequenceTokens([-1], 0, (0,)), None, "row for"),
        (SequenceTokens([1], 32, (0,)), None, "covers"),
        (SequenceTokens([1] * 33, 0, (0, PAGES)), None, "exist"),
        (SequenceTokens([1] * 33, 0, (-1, 0)), None, "exist"),
        (SequenceTokens([1], 0, (0,)), [1], "rows of the step"),
        (SequenceTokens([1], 0, (0,)), [-1], "rows of the step"),
    ],
)
def test_what_points_nowhere_is_found(sequence, logit_rows, problem):
    good = SequenceTokens([VOCAB - 1] * 32, 0, (PAGES - 1,))
    assert plan([good])[0] > 0
    rows = None if logit_rows is None else logit_rows
    found = plan([sequence] if rows else [good, sequence], logit_rows=rows)[0]
    assert problem in STEP_PROBLEMS[found]
