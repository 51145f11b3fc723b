"""The likeliest tokens of rows equal sorting them whole, on however many ranks; a row that isn't finite is named."""

from __future__ import annotations

import numpy as np
import pytest

from kaishu.batch import BLOCK_TOKENS, SequenceTokens, pack
from kaishu.cpu.executor import CpuExecutor
from kaishu.cpu.likeliest import BLOCK, LISTED
from kaishu.cpu.list_room import LISTED as KNOWN_LISTED
from kaishu.sampling.logit_row import FIRST_LOOK
from tests.likeliest import likeliest_of
from tests.reference.parity import random_ids


@pytest.fixture
def executor(packed, start, request) -> CpuExecutor:
    return start(packed("dense_tied", "int4"), threads=request.param)


on_ranks = pytest.mark.parametrize("executor", [1, 2, 5], indirect=True, ids="{} ranks".format)


def sorted_whole(row: np.ndarray) -> tuple[list[int], list[float]]:
    order = np.lexsort((np.arange(len(row)), -row.astype(np.float64)))[:LISTED]
    return order.tolist(), row[order].tolist()


def rows_of(kind: str, rng: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
    rows = rng.normal(size=shape).astype(np.float32) * 4
    return {
        "drawn": rows,
        "ties": np.round(rows),
        "all equal": np.full(shape, -3, np.float32),
        "rising": np.sort(rows, axis=1),
        "falling": np.sort(rows, axis=1)[:, ::-1],
        "enormous": rows * np.float32(1e37),
        "largest last": np.where(np.arange(shape[1]) == shape[1] - 1, np.float32(99), rows),
    }[kind]


def test_the_executor_knows_how_many_the_kernel_lists() -> None:
    assert KNOWN_LISTED == LISTED >= FIRST_LOOK and BLOCK == BLOCK_TOKENS


@on_ranks
@pytest.mark.parametrize("kind", ["drawn", "ties", "all equal", "rising", "falling", "enormous", "largest last"])
def test_lists_equal_sorting_the_whole_row(executor, kind, rng) -> None:
    sizes = [
        (1, 40_000),
        (33, 9_000),
        (2, LISTED * BLOCK),
        (3, LISTED),
        (3, LISTED + 1),
        (4, BLOCK + 5),
        (5, 3),
        (1, 1),
    ]
    for shape in sizes:
        rows = rows_of(kind, rng, shape)
        for found, row in zip(executor.likeliest(rows, range(len(rows)), shape[1]), rows, strict=True):
            assert found.is_finite and (found.ids.tolist(), found.logits.tolist()) == sorted_whole(row)
            assert np.array_equal(found.maxima, likeliest_of(row).maxima)


@on_ranks
def test_rows_may_lie_apart_and_what_has_no_token_counts_for_nothing(executor, rng) -> None:
    whole = rng.normal(size=(7, 6_400)).astype(np.float32)
    whole[:, 5_000:] = np.nan
    for rows in (whole, whole[:, :6_000], whole[::2], np.asfortranarray(whole), whole.astype(np.float64)):
        for found, row in zip(executor.likeliest(rows, range(len(rows)), 5_000), rows, strict=True):
            assert found.is_finite and (found.ids.tolist(), found.logits.tolist()) == sorted_whole(row[:5_000])
            assert np.array_equal(found.maxima, likeliest_of(row[:5_000].astype(np.float32)).maxima)


@on_ranks
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_row_with_a_logit_that_is_no_number_is_named_wherever_it_is(executor, bad, rng) -> None:
    for size in (1, 70, 4_099):
        for place in {0, size // 2, size - 2, size - 1} - {-1}:
            rows = rng.normal(size=(4, size)).astype(np.float32)
            rows[2, place] = bad
            found = executor.likeliest(rows, range(4), size)
            assert [one.is_finite for one in found] == [True, True, False, True]
            assert (found[2].ids.tolist(), found[3].ids.tolist()) == ([], sorted_whole(rows[3])[0])


@on_ranks
def test_no_rows_have_no_lists(executor) -> None:
    assert executor.likeliest(np.zeros((0, 300), np.float32), [], 300) == []
    assert executor.likeliest(np.zeros((3, 300), np.float32), [], 300) == []


@on_ranks
def test_only_the_rows_that_are_wanted_are_looked_at(executor, rng) -> None:
    rows = rng.normal(size=(9, 5_000)).astype(np.float32)
    wanted = [7, 0, 3, 3]
    found = executor.likeliest(rows, wanted, 5_000)
    assert [(one.ids.tolist(), one.logits.tolist()) for one in found] == [sorted_whole(rows[row]) for row in wanted]
    with pytest.raises(AssertionError, match="rows of these logits"):
        executor.likeliest(rows, [9], 5_000)
    with pytest.raises(AssertionError, match="tokens of these rows"):
        executor.likeliest(rows, [0], 5_001)


@pytest.mark.parametrize("weights", ["bf16", "int8", "int4"])
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("vocab_size", [512, 1000])
def test_of_the_latest_step_the_head_has_kept_the_maxima(
    weights, threads, vocab_size, packed, start, monkeypatch
) -> None:
    """They are used for its logits whole, and for nothing that only lies in the same memory."""
    executor = start(packed("dense_tied", weights, vocab_size=vocab_size), threads=threads)
    looked_through: list[bool] = []
    known = CpuExecutor._known_maxima
    monkeypatch.setattr(
        CpuExecutor,
        "_known_maxima",
        lambda self, logits: looked_through.append((found := known(self, logits)) == (0, 0)) or found,
    )
    for rows in (1, 5, 40):
        batch = pack([SequenceTokens(random_ids(vocab_size, 40, seed=rows), 0, range(2), range(rows))])
        earlier, logits = executor.step(batch), executor.step(batch)
        for tokens in (vocab_size, vocab_size - 1, 448, 70, 64, 3):
            for some, is_known in [
                (logits, True),
                (earlier, False),
                (logits.copy(), False),
                (logits[rows // 2 :], False),
            ]:
                for found, row in zip(executor.likeliest(some, range(len(some)), tokens), some, strict=True):
                    expected = likeliest_of(row[:tokens])
                    assert found.is_finite and found.ids.tolist() == expected.ids.tolist()
                    assert found.maxima.tolist() == expected.maxima.tolist()
                assert looked_through.pop() != is_known
