"""Log probabilities equal the log softmax of the model's own logits, for an output's tokens and for a prompt's."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.testing import assert_allclose

from kaishu.errors import NumericalError
from kaishu.sampling import prompt_logprobs
from kaishu.sampling.log_probabilities import checked_row, row_of_tokens, with_logprobs

NONE = np.empty(0, np.int64)


def test_they_stay_finite_where_probabilities_underflow() -> None:
    row = row_of_tokens(np.array([1000.0, 0.0, -1e30], np.float32), NONE)
    got = [with_logprobs(token_id, row, 0).logprob for token_id in range(3)]
    assert_allclose(got, [0.0, -1000.0, float(np.float32(-1e30))])


@pytest.mark.parametrize("spread", [0.0, 0.1, 3.0, 30.0])
def test_a_whole_vocabulary_equals_float64(spread, rng) -> None:
    logits = (rng.normal(size=(3, 60_000)) * spread).astype(np.float32)
    exact = logits[:, :50_000].astype(np.float64)
    expected = exact - np.logaddexp.reduce(exact, axis=1, keepdims=True)
    next_ids = [0, 49_999, 777]
    for row, token_id, got in zip(
        expected, next_ids, prompt_logprobs(logits, next_ids, 20, num_token_ids=50_000), strict=True
    ):
        assert got.token_id == token_id and got.logprob == pytest.approx(row[token_id], abs=1e-6)
        order = np.lexsort((np.arange(50_000), -row))[:20]
        assert [entry.token_id for entry in got.top] == order.tolist()
        assert_allclose([entry.logprob for entry in got.top], row[order], atol=1e-6)


def test_ids_without_a_token_count_for_nothing() -> None:
    logits = np.zeros((1, 6), np.float32)
    logits[0, [1, 5]] = 90.0
    (got,) = prompt_logprobs(logits, [0], 20, num_token_ids=5, absent_ids=(1, 9))
    assert got.logprob == pytest.approx(-math.log(4))
    assert [entry.token_id for entry in got.top] == [0, 2, 3, 4]
    assert logits[0, 1] == 90.0


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", [0, 7, 99])
def test_a_row_that_is_not_a_number_is_an_error(bad, place) -> None:
    logits = np.zeros(100, np.float32)
    logits[place] = bad
    with pytest.raises(NumericalError, match="not a number"):
        checked_row(logits, 100)
    with pytest.raises(NumericalError, match="not a number"):
        prompt_logprobs(logits[None], [1], 0, num_token_ids=100)
    if place == 99:  # the row of an id without a token
        assert len(checked_row(logits, 99)) == 99


def test_a_row_is_used_where_it_lies_unless_it_is_scattered() -> None:
    logits = np.arange(40, dtype=np.float32).reshape(4, 10)
    assert np.shares_memory(checked_row(logits[1], 8), logits)
    assert checked_row(logits[:, 3], 4).tolist() == [3, 13, 23, 33]
    assert checked_row(logits[:, 3], 4).flags.c_contiguous
