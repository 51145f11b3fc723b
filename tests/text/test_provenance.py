"""Marked text behaves as the text it stands for, and remembers who wrote what."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kaishu.text import provenance
from kaishu.text.provenance import MarkedText, Marks

MARKS = Marks(["<|im_end|>", "<think>", "[INST]"])
ALPHABET = st.text("<[|>ab \n\té", max_size=12)
SHORT = st.text("<[a ", min_size=1, max_size=3)

QUESTIONS = [
    lambda text, other: other in text,
    lambda text, other: text == other,
    lambda text, other: text != other,
    lambda text, other: text < other,
    lambda text, other: other == text,
    lambda text, other: hash(text) == hash(other),
    lambda text, other: {other: 1}.get(text),
    lambda text, other: len(text),
    lambda text, other: text.find(other),
    lambda text, other: text.rfind(other, 1),
    lambda text, other: text.count(other),
    lambda text, other: text.startswith(other),
    lambda text, other: text.startswith((other, "b")),
    lambda text, other: text.endswith(other),
    lambda text, other: text.isspace(),
]
CUTS = [
    lambda text, other: text.strip(),
    lambda text, other: text.strip(other),
    lambda text, other: text.lstrip(other),
    lambda text, other: text.rstrip(other),
    lambda text, other: text.split(),
    lambda text, other: text.split(None, 1),
    lambda text, other: text.split(other),
    lambda text, other: text.split(other, 1),
    lambda text, other: text.rsplit(other, 1),
    lambda text, other: text.rsplit(None, 1),
    lambda text, other: text.splitlines(),
    lambda text, other: text.splitlines(True),
    lambda text, other: text.partition(other),
    lambda text, other: text.rpartition(other),
    lambda text, other: text.removeprefix(other),
    lambda text, other: text.removesuffix(other),
    lambda text, other: text.replace(other, "x<"),
    lambda text, other: text.replace(other, "", 1),
    lambda text, other: text.replace("", "-"),
    lambda text, other: text.replace(other, other + ">" + other),
    lambda text, other: text + other,
    lambda text, other: other + text,
    lambda text, other: text[1:],
    lambda text, other: text[::-1],
    lambda text, other: text[-3:-1],
    lambda text, other: list(text),
    lambda text, other: text.upper(),
    lambda text, other: str(text),
    lambda text, other: repr(text),
]


def plain(value):
    if isinstance(value, list | tuple):
        return type(value)(map(plain, value))
    return MARKS.plain(value) if isinstance(value, str) else value


@given(ALPHABET, SHORT)
def test_questions_are_answered_by_the_original(text, other):
    for question in QUESTIONS:
        assert question(MARKS.mark(text), other) == question(text, other)
        assert question(MARKS.mark(text), MARKS.mark(other)) == question(text, other)


@given(ALPHABET, SHORT)
def test_cuts_and_joins_give_the_same_pieces(text, other):
    for cut in CUTS:
        assert plain(cut(MARKS.mark(text), other)) == cut(text, other)
        assert plain(cut(MARKS.mark(text), MARKS.mark(other))) == cut(text, other)


@given(ALPHABET, ALPHABET)
def test_positions_say_who_wrote_what(outside, template):
    text = template + MARKS.mark(outside) + template
    expected = {len(template) + i for i, letter in enumerate(outside) if letter in "<["}
    assert MARKS.positions(text) == expected
    assert MARKS.positions((text + " ").strip()) == {i - len(text) + len(text.lstrip()) for i in expected}


def test_text_without_first_letters_of_control_tokens_is_left_alone():
    assert type(MARKS.mark("plain |> text")) is str
    assert isinstance(MARKS.mark("<"), MarkedText)


def test_keys_and_values_are_marked_all_the_way_down():
    data = {"<k>": ["<", {"a": "<b>"}], "n": 1.5, "t": True, "z": None}
    marked = MARKS.mark(data)
    assert marked == data and marked["n"] == 1.5
    assert MARKS.positions(next(iter(marked))) == {0} and MARKS.positions(marked["<k>"][1]["a"]) == {0}


def test_tokens_that_outside_text_may_write_are_not_marked():
    assert MARKS.positions(MARKS.mark("<think>a<b></think>", keep=("<think>", "</think>"))) == {8}


def test_replacing_costs_in_proportion_to_the_text(monkeypatch):
    """Counted in characters of the texts that are made on the way."""
    made: list[int] = []
    make = provenance._text
    monkeypatch.setattr(provenance, "_text", lambda marked, plain: made.append(len(marked)) or make(marked, plain))
    assert MARKS.mark("<b>" * 10_000).replace("b", "xy") == "<xy>" * 10_000
    assert sum(made) < 200_000
