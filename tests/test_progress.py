"""The bar over many requests: shown where it can be seen or was asked for, and never in the way."""

from __future__ import annotations

import io
import sys

import pytest

from kaishu.progress import counting


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def terminal_as_stderr(monkeypatch) -> Terminal:
    """Called by tests and no fixture: pytest puts its own stderr back after fixtures."""
    stderr = Terminal()
    monkeypatch.setattr(sys, "stderr", stderr)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    return stderr


def count_to(total: int, show: bool | None) -> list[int]:
    with counting("Generating", total, show) as count:
        return [count(number) for number in range(total)]


def test_at_a_terminal_the_bar_shows_and_goes_away(monkeypatch):
    terminal = terminal_as_stderr(monkeypatch)
    assert count_to(3, None) == [0, 1, 2]
    assert "Generating" in terminal.getvalue() and "3/3" in terminal.getvalue()
    assert terminal.getvalue().endswith("\x1b[2K")  # the line is erased


def test_one_may_do_without_it(monkeypatch):
    terminal = terminal_as_stderr(monkeypatch)
    assert count_to(3, False) == [0, 1, 2]
    assert terminal.getvalue() == ""


def test_in_a_pipe_nothing_shows(capsys):
    assert count_to(3, None) == [0, 1, 2]
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "")


def test_in_a_pipe_it_shows_when_asked_for_and_never_on_stdout(capsys):
    assert count_to(2, True) == [0, 1]
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.startswith("Generating") and "2/2" in captured.err


def test_an_error_goes_through_and_the_bar_goes_away(monkeypatch):
    terminal = terminal_as_stderr(monkeypatch)
    with pytest.raises(LookupError), counting("Generating", 2, None) as count:
        count(1)
        raise LookupError
    assert terminal.getvalue().endswith("\x1b[2K")


def test_what_is_counted_comes_back_as_it_is():
    thing = object()
    with counting("Generating", 1, False) as count:
        assert count(thing) is thing
