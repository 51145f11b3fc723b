"""One call, character by character. How calls stand in an output is tested in test_channels.py."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kaishu.text.tool_calls import CALL_END, ToolCallScanner

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)
# Python's own writer, in several layouts, is the oracle for what a call may look like.
LAYOUTS = st.sampled_from([{}, {"indent": 1}, {"separators": (",", ":")}, {"ensure_ascii": False}, {"sort_keys": True}])


@given(st.text(min_size=1, max_size=8), st.dictionaries(st.text(max_size=4), JSON, max_size=4), LAYOUTS, JSON)
def test_any_json_that_python_writes_is_read_and_its_arguments_are_kept_to_the_letter(name, arguments, layout, extra):
    try:
        name.encode()
    except UnicodeEncodeError:
        name = "f"
    text = json.dumps({"extra": extra, "name": name, "arguments": arguments}, **layout)
    scanner = ToolCallScanner()
    assert scanner.push(text + CALL_END + "rest") == "rest"
    assert (scanner.state, scanner.name, scanner.is_valid) == ("whole", name, True)
    taken = scanner.take_arguments()
    assert taken in text and json.loads(taken) == json.loads(json.dumps(arguments))
    assert scanner.take_arguments() == ""


@pytest.mark.parametrize("text", ['{"name": "f", "arguments": {"a": 1}}', '{"arguments": {"a": [1]}, "name": "f"}'])
def test_every_beginning_of_a_call_is_open_and_not_valid(text):
    for end in range(len(text)):
        scanner = ToolCallScanner()
        assert scanner.push(text[:end]) == ""
        assert scanner.state not in ("whole", "broken") and not scanner.is_complete and not scanner.is_valid
        assert scanner.raw == text[:end]


def test_the_character_that_breaks_a_call_is_left_for_others():
    scanner = ToolCallScanner()
    assert scanner.push('{"name": "f", oops}') == "oops}"
    assert scanner.state == "broken" and scanner.raw == '{"name": "f", '


def test_a_name_that_can_not_be_encoded_breaks_a_call():
    assert ToolCallScanner().push('{"name": "\\ud800", "arguments": {}}').startswith('"')
