"""Thoughts as one opaque text: what is packed is unpacked, and nothing else."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kaishu.server.responses_thoughts import packed, unpacked


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_what_is_packed_is_unpacked_and_is_one_word(thought):
    text = packed(thought)
    assert text.isascii() and not any(character.isspace() for character in text)
    assert unpacked(text) == thought


@pytest.mark.parametrize(
    "foreign", [None, 7, "", "gAAAAABo", packed("x") + "!", packed("xyz")[:-1], packed("é")[:-4] + "w6=="]
)
def test_what_others_packed_or_what_was_cut_is_none_of_ours(foreign):
    assert unpacked(foreign) is None
