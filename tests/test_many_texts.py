"""Many texts in ragged steps: every text's row is that of its whole context, and every refusal names its text."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kaishu.errors import ContextLengthError, InvalidParameterError, InvalidRequestError
from kaishu.many_texts import STEP_TOKENS, check_truth, checked_texts, fitted, last_rows, ragged_steps
from tests.scripted import HIDDEN_SIZE, ScriptedExecutor, state_of

CONTEXT = 1300
LENGTHS = st.one_of(st.integers(1, 40), st.sampled_from([STEP_TOKENS - 1, STEP_TOKENS, STEP_TOKENS + 1, 1024, CONTEXT]))


@settings(deadline=None, max_examples=60)
@given(
    lengths=st.lists(LENGTHS, max_size=9),
    page_tokens=st.sampled_from([1, 16, 32, 2000]),
    spare_pages=st.integers(0, 40),
)
def test_each_row_is_that_of_its_whole_text_and_steps_are_bounded(lengths, page_tokens, spare_pages):
    """The scripted executor notices wrong pages, positions, and what was never computed."""
    num_pages = -(-CONTEXT // page_tokens) + spare_pages
    executor = ScriptedExecutor(lambda _: 0, vocab_size=100, page_tokens=page_tokens, num_pages=num_pages)
    texts = [[(7 * i + k) % 100 for k in range(length)] for i, length in enumerate(lengths)]
    found = last_rows(executor, executor.hidden, texts, HIDDEN_SIZE)
    assert found.dtype == np.float32 and found.shape == (len(texts), HIDDEN_SIZE)
    for text, row in zip(texts, found, strict=True):
        np.testing.assert_array_equal(row, state_of(text))
    assert all(len(step.token_ids) <= STEP_TOKENS for step in executor.steps)
    for step in executor.steps:  # its texts are computed at the same time, so none may write into another's pages
        pages = step.page_table[step.page_table >= 0]
        assert len(np.unique(pages)) == len(pages)
    if spare_pages * page_tokens >= 2 * CONTEXT:  # pages are no limit, so every step but the last is full
        assert all(len(step.token_ids) == STEP_TOKENS for step in executor.steps[:-1])


def test_short_texts_share_a_step():
    batches = list(ragged_steps([[1, 2], [3], [4] * 700, [5, 6]], page_tokens=16, num_pages=200))
    assert [np.diff(batch.query_starts).tolist() for batch in batches] == [[2, 1, 509], [191, 2]]
    assert [len(batch.logit_rows) for batch in batches] == [2, 2]


def test_pages_for_one_text_alone_are_enough():
    batches = list(ragged_steps([[1] * 30, [2] * 30, [3] * 10, [4] * 10], page_tokens=16, num_pages=2))
    assert [batch.num_sequences for batch in batches] == [1, 1, 2]


def test_one_text_or_many_make_a_list():
    assert checked_texts("texts", "a b") == ["a b"]
    assert checked_texts("texts", ("a", "b")) == checked_texts("texts", (t for t in "ab")) == ["a", "b"]
    assert checked_texts("texts", np.array(["a", "楷"])) == ["a", "楷"]
    assert checked_texts("texts", []) == []


@pytest.mark.parametrize("texts", [b"a", {"a": 1}, {"a"}, 5, None])
def test_what_has_no_order_or_no_texts_is_refused(texts):
    with pytest.raises(InvalidParameterError, match=r"^texts is .*allowed: a string or a list of strings"):
        checked_texts("texts", texts)


@pytest.mark.parametrize(
    "text, message", [("", r"texts\[1\] is empty"), (7, r"texts\[1\] is a int"), ("a\ud800", r"texts\[1\] has")]
)
def test_a_text_that_is_none_is_named(text, message):
    with pytest.raises(InvalidRequestError, match=message) as caught:
        checked_texts("texts", ["ok", text])
    assert caught.value.field == "texts[1]"


def test_what_fits_is_joined_and_what_does_not_is_refused_or_cut_from_its_end():
    parts = ([1], [2, 3, 4], [5, 6])
    assert fitted(parts, 6, field="texts[0]", truncate=False) == [1, 2, 3, 4, 5, 6]
    assert fitted(parts, 5, field="texts[0]", truncate=True) == [1, 2, 3, 5, 6]
    with pytest.raises(ContextLengthError, match=r"texts\[0\] has 6 tokens, but the context holds 5\.\n.*truncate"):
        fitted(parts, 5, field="texts[0]", truncate=False)
    with pytest.raises(ContextLengthError, match=r"holds 3\.\n  Shorten it\.$"):
        fitted(parts, 3, field="texts[0]", truncate=True)


@pytest.mark.parametrize("value", [0, 1, "false", None])
def test_truth_is_true_or_false(value):
    with pytest.raises(InvalidParameterError, match=r"^truncate is .*allowed: True or False"):
        check_truth("truncate", value)
