"""The progress of a download, in a terminal and elsewhere."""

from __future__ import annotations

import io

import pytest

from kaishu.cli.download_bar import download_bar


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("stream", [Terminal(), io.StringIO()])
def test_a_model_that_is_here_shows_nothing(monkeypatch, stream):
    monkeypatch.setattr("sys.stderr", stream)
    with download_bar("tiny"):
        pass
    assert stream.getvalue() == ""


def test_a_terminal_shows_a_bar_that_ends_full(monkeypatch):
    screen = Terminal()
    monkeypatch.setattr("sys.stderr", screen)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    with download_bar("Qwen/[b]Qwen3") as progress:
        for done in range(0, 101, 10):
            progress(done * 1_000_000, 100_000_000)
    assert "Qwen/[b]Qwen3" in screen.getvalue()
    assert "100.0/100.0" in screen.getvalue()


def test_a_log_gets_lines(monkeypatch):
    log = io.StringIO()
    monkeypatch.setattr("sys.stderr", log)
    with download_bar("m") as progress:
        progress(0, 1_000_000_000)
        progress(1_000_000_000, 1_000_000_000)
    assert log.getvalue() == "m: 0 of 1,000 MB\nm: 1,000 of 1,000 MB\n"
