"""Python's own encoder says what can be encoded; here, what is said about the rest."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kaishu.text.encodable import find_unencodable

ANY = st.text(st.characters(), max_size=8)
LONE = st.integers(0xD800, 0xDFFF).map(chr)


@given(ANY)
def test_text_that_can_be_encoded_has_nothing_to_find(text):
    text = text.encode("utf-8", errors="ignore").decode()  # leaves out lone surrogates
    assert find_unencodable(text) is None


@given(ANY, LONE, ANY)
def test_the_first_lone_surrogate_is_named_with_its_place(before, lone, after):
    before = before.encode("utf-8", errors="ignore").decode()
    wrong = find_unencodable(before + lone + after)
    assert wrong is not None
    assert wrong.found == f"a lone surrogate, U+{ord(lone):04X}, at character {len(before)}"


@given(st.integers(0x80, 0xFF))
def test_a_byte_that_python_kept_is_named_as_that_byte(byte):
    wrong = find_unencodable(bytes([byte]).decode("ascii", errors="surrogateescape"))
    assert wrong is not None and f"the byte 0x{byte:02X} of something that isn't UTF-8" in wrong.hint


@given(LONE.filter(lambda lone: not "\udc80" <= lone <= "\udcff"))
def test_other_halves_are_taken_for_half_a_character(lone):
    wrong = find_unencodable(lone)
    assert wrong is not None and "emoji" in wrong.hint


@given(st.text(), st.binary(max_size=20))
def test_characters_whose_bytes_have_no_token_are_found(text, lost):
    wrong = find_unencodable(text.encode(errors="ignore").decode(), lost)
    text = text.encode(errors="ignore").decode()
    places = [i for i, letter in enumerate(text) if set(letter.encode()) & set(lost)]
    assert (wrong is None) == (not places)
    if wrong is not None:
        assert wrong.found.startswith(f"U+{ord(text[places[0]]):04X} at character {places[0]:,},")
