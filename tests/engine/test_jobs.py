"""Jobs: what is refused by its sizes, and how many tokens are left for an answer."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from kaishu.engine.jobs import Read, Running, check_text_to_read, room_of
from kaishu.engine.output import Limits
from kaishu.engine.stream import Stream
from kaishu.errors import ContextLengthError, InvalidParameterError, InvalidRequestError
from tests.engine.engine_runs import job

LIMITS = Limits(8, frozenset({1}), 10, frozenset())


@pytest.mark.parametrize(
    ("length", "max_tokens", "room"), [(1, None, 7), (1, 3, 3), (1, 99, 7), (7, None, 1), (7, 1, 1), (4, 4, 4)]
)
def test_an_answer_gets_what_it_asks_for_within_the_context(length: int, max_tokens: Any, room: int) -> None:
    assert room_of(job([2] * length, max_tokens=max_tokens), LIMITS) == room


@pytest.mark.parametrize("length", [8, 9, 5000])
def test_a_prompt_that_fills_the_context_is_refused_with_both_numbers(length: int) -> None:
    with pytest.raises(ContextLengthError, match=f"{length:,} tokens.*holds 8"):
        room_of(job([1] * length), LIMITS)


def test_an_empty_prompt_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="The prompt is empty"):
        room_of(job([]), LIMITS)


def test_more_min_tokens_than_the_context_has_room_for_are_refused() -> None:
    with pytest.raises(InvalidParameterError, match=r"min_tokens is 6.*5 left of the context"):
        room_of(job([1] * 3, min_tokens=6), LIMITS)


def test_a_text_to_read_needs_no_room_for_an_answer() -> None:
    one = Read([1] * 8, "last_logits")
    check_text_to_read(one, LIMITS)
    with pytest.raises(InvalidRequestError, match="no token ids"):
        check_text_to_read(replace(one, token_ids=[]), LIMITS)
    with pytest.raises(ContextLengthError, match=r"token_ids has 9 tokens.*holds 8"):
        check_text_to_read(replace(one, token_ids=[1] * 9), LIMITS)


def test_rows_that_are_computed_again_are_kept_once() -> None:
    running = Running(Read([1], "all_logits"), Stream(0), [])
    rows = np.arange(12, dtype=np.float32).reshape(6, 2)
    for start, end in ((0, 2), (2, 3), (0, 2), (2, 5), (5, 6)):
        running.keep_rows(start, rows[start:end])
    np.testing.assert_array_equal(np.concatenate(running.rows), rows)
