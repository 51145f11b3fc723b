"""Options of several values."""

from __future__ import annotations

import pytest

from kaishu.cli.lists import choices_of, numbers_of
from kaishu.errors import InvalidParameterError


@pytest.mark.parametrize(
    "text, read", [("int4", ("int4",)), ("int4,bf16", ("int4", "bf16")), (" int8 , int8", ("int8",))]
)
def test_words_are_read_in_their_order_and_once(text, read):
    assert choices_of("weights", text, ("bf16", "int8", "int4")) == read


@pytest.mark.parametrize(
    "text, named", [("", "''"), ("int4,", "''"), ("int4,int5", "'int5'"), ("int4 int8", "'int4 i")]
)
def test_a_word_that_does_not_exist_is_named(text, named):
    with pytest.raises(InvalidParameterError, match=f"^weights is {named}.*; allowed: bf16 or int4; several"):
        choices_of("weights", text, ("bf16", "int4"))


@pytest.mark.parametrize("text, read", [("1", (1,)), ("8192, 1,1024,1", (8192, 1, 1024))])
def test_numbers_are_read_in_their_order_and_once(text, read):
    assert numbers_of("--contexts", text, 1, 10_000) == read


@pytest.mark.parametrize("text", ["", "1,,2", "0", "-1", "1.5", "10001", "٣", "1e3", "9" * 5000])
def test_a_number_out_of_range_is_an_error_with_the_range(text):
    with pytest.raises(InvalidParameterError, match="allowed: whole numbers from 1 to 10,000, with commas"):
        numbers_of("--contexts", text, 1, 10_000)
