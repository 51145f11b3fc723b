"""The bar is for terminals: elsewhere nothing is written, and at one nothing stays."""

from __future__ import annotations

import io
import sys

from kaishu.cli.progress_bar import progress_bar


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def show(monkeypatch, stream) -> str:
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setenv("TERM", "xterm")
    with progress_bar() as advance:
        advance("int4 → \x1b[2Jout", 1, 4)
        advance("int4 → \x1b[2Jout", 4, 4)
    return stream.getvalue()


def test_through_a_pipe_there_is_no_bar(monkeypatch):
    assert show(monkeypatch, io.StringIO()) == ""


def test_at_a_terminal_it_shows_what_is_done_and_obeys_nothing_in_a_name(monkeypatch):
    shown = show(monkeypatch, Terminal())
    assert "int4 → ␛[2Jout" in shown and "100%" in shown
    assert "\x1b[2Jout" not in shown
