"""No control character from outside reaches a terminal."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kaishu.cli.printable import printable, printable_json, printable_json_line

CONTROLS = {*map(chr, range(0x20)), "\x7f", *map(chr, range(0x80, 0xA0))}


@pytest.mark.parametrize(
    "sequence, shown",
    [
        ("\x1b[31mred\x1b[0m", "␛[31mred␛[0m"),
        ("\x1b]52;c;aGk=\x07", "␛]52;c;aGk=␇"),  # writes to the clipboard
        ("\x9b2J", "\\x9b2J"),  # the eight-bit form of ESC [
        ("a\rb\x08\x7f", "a␍b␈␡"),
        ("line\n\ttab 中文 🙂 [bold]", "line\n\ttab 中文 🙂 [bold]"),
    ],
)
def test_control_characters_are_shown_and_text_is_left_alone(sequence, shown):
    assert printable(sequence) == shown


@given(st.lists(st.text()))
def test_nothing_but_newlines_and_tabs_is_left_and_pieces_add_up(pieces):
    whole = printable("".join(pieces))
    assert CONTROLS & set(whole) <= {"\n", "\t"}
    assert "".join(map(printable, pieces)) == whole


@given(
    st.recursive(
        st.text() | st.integers() | st.floats(allow_nan=False) | st.none(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    )
)
def test_json_has_no_control_characters_and_says_the_same(value):
    text = printable_json(value)
    assert CONTROLS & set(text) <= {"\n"}
    assert json.loads(text) == value
    line = printable_json_line(value)
    assert not CONTROLS & set(line)
    assert json.loads(line) == value


def test_lists_of_numbers_take_one_line():
    value = {"ids": [1, 2], "mixed": [1, "a\n1"], "nested": [[1, -2], [3.5]], "texts": ["1", "[\n  1\n]"]}
    text = printable_json(value)
    assert '"ids": [1, 2],\n' in text
    assert "[1, -2],\n" in text
    assert json.loads(text) == value


def test_chinese_stays_readable_in_json():
    assert printable_json({"a": "楷书"}) == '{\n  "a": "楷书"\n}'
