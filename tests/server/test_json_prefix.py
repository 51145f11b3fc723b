"""JSON in pieces, against the parser that Anthropic's client has for what arrived so far, and against Python's."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jiter import from_json

from kaishu.server.json_prefix import JsonPrefix

# No two objects are compared beyond what floats can say, so numbers keep to that.
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**20), 10**20)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4),
    max_leaves=12,
)
OBJECTS = st.dictionaries(st.text(max_size=6), VALUES, max_size=4)
TEXTS = st.builds(
    lambda value, ascii_only, indent: json.dumps(value, ensure_ascii=ascii_only, indent=indent),
    OBJECTS,
    st.booleans(),
    st.sampled_from([None, 1]),
)


def pushed(text: str, cuts: list[int]) -> tuple[JsonPrefix, str]:
    """return: the prefix, and what of the text it took"""
    prefix, taken = JsonPrefix(), ""
    places = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    for start, end in pairwise(places):
        taken += prefix.push(text[start:end])
    return prefix, taken


@given(TEXTS, st.lists(st.integers(0, 10**4), max_size=5))
def test_a_whole_object_is_taken_as_it_is_however_it_is_cut(text: str, cuts: list[int]) -> None:
    prefix, taken = pushed(text, cuts)
    assert taken == text and prefix.is_whole and not prefix.is_broken
    assert prefix.value() == json.loads(text)


@given(TEXTS, st.integers(0, 10**4))
def test_what_is_there_so_far_is_what_a_client_finds_in_it(text: str, cut: int) -> None:
    begun = text[: cut % (len(text) + 1)]
    prefix, taken = pushed(begun, [])
    assert taken == begun and prefix.is_whole == (begun == text)
    assert prefix.value() == (from_json(begun.encode(), partial_mode=True) if begun else {})


@given(TEXTS, st.integers(0, 10**4), st.text(alphabet='{}[]",:\\ut0e-.x \n1', min_size=1, max_size=3))
def test_what_is_taken_of_a_damaged_text_is_never_more_than_a_client_can_read(text: str, place: int, odd: str) -> None:
    place %= len(text) + 1
    damaged = text[:place] + odd + text[place:]
    prefix, taken = pushed(damaged, [place])
    assert damaged.startswith(taken)
    if taken.strip():
        assert from_json(taken.encode(), partial_mode=True) == prefix.value()
    if not prefix.is_broken:
        assert taken == damaged
    else:  # it isn't JSON, or has what can't be written again
        with pytest.raises(ValueError):  # of one kind or another
            json.dumps(json.loads(damaged), ensure_ascii=False, allow_nan=False).encode()


@pytest.mark.parametrize(
    ("text", "taken"),
    [
        ("[1]", ""),
        ("1", ""),
        ('{"a": 1}}', '{"a": 1}'),
        ('{"a": 1} x', '{"a": 1} '),
        ('{"a": 01', '{"a": 0'),
        ('{"a": NaN', '{"a": '),
        ('{"a": "x\ny"', '{"a": "x'),
        ('{"a": "\\x"', '{"a": "\\'),
        ('{"a" 1', '{"a" '),
        ("{a", "{"),
        ('{"a": 1,}', '{"a": 1,'),
        ('{"a": [1, ]', '{"a": [1, '),
        ('{"a": [1}', '{"a": [1'),
        ('{"a": 1.}', '{"a": 1.'),
        ('{"a": tru}', '{"a": tru'),
        ('{"a": "\\ud83d\\ude00"}', '{"a": "\\ud83d\\ude00"}'),
        ('{"a": "\\ud83d"}', '{"a": "\\ud83d'),
        ('{"a": "\\ude00"}', '{"a": "\\ude0'),
        ('{"a": "\\ud83dx"}', '{"a": "\\ud83d'),
        ('{"a": 1e400}', '{"a": 1e40'),
        ('{"a": ' + "9" * 401, '{"a": ' + "9" * 400),
        ('{"a": ' + "[" * 120, '{"a": ' + "[" * 99),
    ],
)
def test_nothing_is_taken_from_the_first_character_on_that_cannot_be(text: str, taken: str) -> None:
    prefix, found = pushed(text, [1, 5])
    assert (found, prefix.is_broken, prefix.is_whole) == (taken, taken != text, taken == text)
    assert prefix.push("}") == ("" if taken != text else prefix.push("")), "what is broken stays so"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", {}),
        ("{", {}),
        ('{"a": "Ber', {}),
        ('{"a": "Berlin"', {"a": "Berlin"}),
        ('{"a": 12', {"a": 12}),
        ('{"a": 12.', {}),
        ('{"a": 12, "b', {"a": 12}),
        ('{"a": [1, {"b": [true, fal', {"a": [1, {"b": [True]}]}),
    ],
)
def test_the_value_so_far_has_what_is_complete(text: str, value: dict[str, Any]) -> None:
    assert pushed(text, [])[0].value() == value
