"""What docstrings say about parameters, in each of the styles, and what isn't taken for such."""

from __future__ import annotations

import pytest

from kaishu.tool_docstrings import read_docstring

OURS = """Look the weather up, as far
    as it is known.

    More that the model needn't know: how it is done.

    city: the city,
          in any language
    days: how many days ahead
    low, high: in degrees
    return: the weather
    """
GOOGLE = """Look the weather up, as far
    as it is known.

    Args:
        city (str): the city,
            in any language
        days (int, optional): how many days ahead
        low: in degrees
        high: in degrees

    Returns:
        str: the weather
    """
REST = """Look the weather up, as far
    as it is known.

    :param city: the city,
        in any language
    :param int days: how many days ahead
    :param low: in degrees
    :parameter high: in degrees
    :returns: the weather
    """
NUMPY = """Look the weather up, as far
    as it is known.

    Parameters
    ----------
    city : str
        the city,
        in any language
    days : int, optional
        how many days ahead
    low, high : float
        in degrees

    Returns
    -------
    str
        the weather
    """
NAMES = ["city", "days", "low", "high"]


@pytest.mark.parametrize("docstring", [OURS, GOOGLE, REST, NUMPY])
def test_the_styles_say_the_same(docstring):
    summary, parameters = read_docstring(docstring, NAMES)
    assert summary == "Look the weather up, as far as it is known."
    assert parameters == {
        "city": "the city, in any language",
        "days": "how many days ahead",
        "low": "in degrees",
        "high": "in degrees",
    }


def test_parameters_right_below_the_first_line_are_no_part_of_it():
    assert read_docstring("Add.\na: one\nb: other", ["a", "b"]) == ("Add.", {"a": "one", "b": "other"})
    assert read_docstring("Add.\nArgs:\n    a: one", ["a"]) == ("Add.", {"a": "one"})
    assert read_docstring("Args:\n    a: one", ["a"]) == ("", {"a": "one"})


def test_lines_about_anything_else_are_text():
    text = "Look up.\nWarning: slow. See https://example.org\n\nnote: not a parameter\nkeep: this"
    assert read_docstring(text, ["a"]) == ("Look up. Warning: slow. See https://example.org", {})


def test_the_end_of_a_description_is_an_empty_line_or_another_section():
    found = read_docstring("Add.\n\na: one\n\n   not this\n:param b: other\n   :raises ValueError: never", ["a", "b"])
    assert found.parameters == {"a": "one", "b": "other"}
    assert read_docstring("Add.\n\na: one\n   raises: ValueError", ["a"]).parameters == {"a": "one"}


def test_a_name_without_text_and_a_missing_docstring():
    assert read_docstring("Add.\n\na:\nb: other", ["a", "b"]).parameters == {"b": "other"}
    assert read_docstring(None, ["a"]) == ("", {})
    assert read_docstring("加法。\n\n数: 一个数", ["数"]) == ("加法。", {"数": "一个数"})
