"""Text through a pipe: whole, exact, or a clear error."""

from __future__ import annotations

import io

import pytest

from kaishu.cli.stdin import read_lines, read_stdin
from kaishu.errors import InvalidRequestError


def give(monkeypatch, raw: bytes, *, is_terminal: bool = False):
    stream = io.TextIOWrapper(io.BytesIO(raw))
    stream.isatty = lambda: is_terminal
    monkeypatch.setattr("sys.stdin", stream)


@pytest.mark.parametrize("text", [" 楷书\r\n\n ", "a\n", "a\r\n", "a\n\n", "a"])
def test_text_arrives_exactly_but_for_the_newline_that_echo_adds(monkeypatch, text):
    give(monkeypatch, text.encode())
    without_last = {"a\n": "a", "a\r\n": "a", "a\n\n": "a\n"}.get(text, text)
    assert read_stdin("prompt", instead="Give -p TEXT") == without_last


@pytest.mark.parametrize(
    "raw, message", [(b"", "is empty"), (b" \n", "is empty"), (b"ab\xff", "not UTF-8: byte 0xff at offset 2")]
)
def test_what_is_no_text_is_an_error(monkeypatch, raw, message):
    give(monkeypatch, raw)
    with pytest.raises(InvalidRequestError, match=message):
        read_stdin("prompt", instead="Give -p TEXT")


def test_a_terminal_is_not_waited_for(monkeypatch):
    give(monkeypatch, b"", is_terminal=True)
    with pytest.raises(InvalidRequestError, match=r"no prompt.\n  Give -p TEXT, or send it through a pipe"):
        read_stdin("prompt", instead="Give -p TEXT")


def test_lines_are_texts_of_their_own_and_empty_ones_are_not_lost(monkeypatch):
    give(monkeypatch, "a\r\n\n楷书\u2028b\n".encode())
    assert read_lines("text", instead="Give TEXT") == ["a", "", "楷书\u2028b"]
