"""Many texts from a caller: what is one, what fits, and every refusal names its text."""

from __future__ import annotations

import numpy as np
import pytest

from kaishu.errors import ContextLengthError, InvalidParameterError, InvalidRequestError
from kaishu.many_texts import check_truth, checked_texts, fitted


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
