"""What is too much is seen in the text, and schemas inside Lark are checked as any other."""

from __future__ import annotations

import re

import pytest

from kaishu.engine.grammar_texts import (
    MAX_UNROLLED,
    check_unrolled,
    lark_with_checked_schemas,
    literal_regex,
    names_in_lark,
    unrolled_length,
)
from kaishu.errors import InvalidRequestError


@pytest.mark.parametrize(
    ("expression", "length"),
    [
        ("abc", 3),
        ("a{3}", 3),
        ("(ab){3}", 6),
        ("((ab){2}c){10}d", 51),
        ("a{2,5}b", 6),
        ("a{2,}", 2),
        (r"[^\]x]{4}", 4),
        (r"\p{L}{3}\d", 4),
        ("[[:alpha:]]{7}", 7),
        ("a*b+c?", 3),
        ("{", 1),
        (r"\{9\}", 3),
        ("a{0}", 1),
        ("((a{3}", 3),
        (")", 1),
    ],
)
def test_the_length_with_repetitions_written_out(expression, length):
    assert unrolled_length(expression) == length


@pytest.mark.parametrize(
    "expression", ["a{1000000}", "(a{1000}){1000}", "((x{1,100}y){1,100}z){1,100}", "a{9999999999999}"]
)
def test_expressions_that_repeat_themselves_too_often_are_refused(expression):
    with pytest.raises(InvalidRequestError, match=f"{MAX_UNROLLED:,} characters"):
        check_unrolled(expression, "guided_regex")
    with pytest.raises(InvalidRequestError, match=f"{MAX_UNROLLED:,} characters"):
        lark_with_checked_schemas(f"start: A\nA: /{expression}/", "g")


@pytest.mark.parametrize("text", ["a", "a.b|c", "(北京)*", "\n\t ", "_-#&~", "e\u0301", '"\\/'])
def test_a_literal_matches_its_text(text):
    assert re.fullmatch(literal_regex(text), text)
    assert not re.fullmatch(literal_regex(text), text + "x")


def test_schemas_in_lark_are_checked_and_the_rest_stays_as_it_is():
    lark = (
        '// a %json {"not": {}}\nstart: "%json {" /%json\\/ {/ x # %json {\nx: %json {"type": "null", "title": "t"} "b"'
    )
    made = lark_with_checked_schemas(lark, "grammar")
    assert made.startswith(lark[: lark.index("x: %json") + 8])
    assert made.endswith('} "b"')
    assert "title" not in made and "whitespace_pattern" in made
    with pytest.raises(InvalidRequestError, match=r"grammar: %json at character 7: #/items/not") as raised:
        lark_with_checked_schemas('start: %json {"items": {"not": {}}}', "grammar")
    assert raised.value.field == "grammar"


@pytest.mark.parametrize(
    ("lark", "says"),
    [
        ("start: %json [", "can't be read"),
        ("start: %json 5", "can't be read"),
        ("start: %json", "can't be read"),
        ('start: %json {"a": 1, "a": 2}', "can't be read"),
        ("start: %json " + '{"a":' * 10_000, "can't be read"),
        ('start: %json {"x-guidance": {"lenient": true}}', "x-guidance"),
        ("\n".join(["start: a0", *(f"a{i}: a{i + 1}" for i in range(3000))]), "too many rules; allowed: 3,000"),
        ('%llguidance {"no_forcing": true}\nstart: "a"', "%llguidance"),
        ('start[stop="x"]: /.*/', "uses stop"),
        ("start[max_tokens=5]: /.*/", "uses max_tokens"),
        ("start[temperature = 0.5]: /.*/", "uses temperature"),
    ],
)
def test_what_would_switch_checks_off_or_do_more_than_a_grammar_is_refused(lark, says):
    with pytest.raises(InvalidRequestError, match=says):
        lark_with_checked_schemas(lark, "grammar")


def test_names_are_what_is_left_without_strings_comments_and_expressions():
    assert names_in_lark('start: "<|im_end|>" <tool_call> /<a>/ // <b>\n# <c>').split() == ["start:", "<tool_call>"]
