"""Errors say what was wrong, what was found, what is allowed and what to do."""

from __future__ import annotations

import inspect

import pytest

from kaishu import errors
from kaishu.errors import ContextLengthError, InvalidParameterError, KaishuError, MissingDependencyError, and_more


def test_a_hint_stands_on_its_own_line() -> None:
    assert str(KaishuError("It is broken.", hint="Mend it.")) == "It is broken.\n  Mend it."
    assert str(KaishuError("It is broken.")) == "It is broken."


def test_a_prompt_that_does_not_fit_is_told_with_both_numbers() -> None:
    message = str(ContextLengthError(41_000, 40_960))
    assert "41,000" in message and "40,960" in message


def test_a_text_that_is_only_read_needs_no_room_for_an_answer() -> None:
    error = ContextLengthError(600, 512, field="texts[3]", hint="Shorten it.")
    assert str(error) == "texts[3] has 600 tokens, but the context holds 512.\n  Shorten it."
    assert (error.field, error.prompt_tokens, error.context_tokens) == ("texts[3]", 600, 512)


def test_a_parameter_error_names_field_value_and_range() -> None:
    error = InvalidParameterError("top_p", 1.5, "a number from 0 to 1")
    assert str(error) == "top_p is 1.5; allowed: a number from 0 to 1." and error.field == "top_p"


@pytest.mark.parametrize(
    "extra, command", [("server", "pip install 'kaishu[server]'"), (None, "pip install transformers")]
)
def test_a_missing_package_is_told_with_the_command_that_installs_it(extra: str | None, command: str) -> None:
    assert command in str(MissingDependencyError("This", package="transformers", extra=extra))


@pytest.mark.parametrize("count, text", [(2, "a0, a1"), (3, "a0, a1, a2"), (5, "a0, a1, a2 and 2 more")])
def test_long_lists_of_names_are_cut_with_a_count(count: int, text: str) -> None:
    assert and_more([f"a{i}" for i in range(count)], shown=3) == text


def test_every_error_is_a_kaishu_error() -> None:
    classes = [c for _, c in inspect.getmembers(errors, inspect.isclass) if c.__module__ == errors.__name__]
    assert len(classes) > 8 and all(issubclass(c, KaishuError) for c in classes)
