"""`kaishu pull`: the folder on stdout, everything else elsewhere."""

from __future__ import annotations

import pytest

from kaishu.cli.main import main
from kaishu.cli.pull import fetch


@pytest.fixture
def hub(monkeypatch, tmp_path):
    """A hub that has everything; keeps what it was asked."""
    asked = []

    def resolve(name, *, progress, refresh):
        asked.append((name, refresh))
        for done in (0, 5_000_000, 10_000_000):
            progress(done, 10_000_000)
        return tmp_path

    monkeypatch.setattr("kaishu.checkpoint.hub.resolve", resolve)
    return asked


def test_the_folder_is_printed_and_the_progress_is_not_in_the_way(hub, capsys, tmp_path):
    with pytest.raises(SystemExit) as ended:
        main(["pull", "Qwen/Qwen3-0.6B"])
    captured = capsys.readouterr()
    assert (ended.value.code, captured.out) == (0, f"{tmp_path}\n")
    assert "Qwen/Qwen3-0.6B: 5 of 10 MB" in captured.err
    assert hub == [("Qwen/Qwen3-0.6B", True)]


def test_other_commands_take_what_is_here(hub, tmp_path):
    assert fetch("Qwen/Qwen3-0.6B") == tmp_path
    assert hub == [("Qwen/Qwen3-0.6B", False)]


def test_a_hub_that_does_not_answer_is_a_clear_error(monkeypatch, capsys, tmp_path):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    with pytest.raises(SystemExit) as ended:
        main(["pull", "Qwen/Qwen3-0.6B"])
    captured = capsys.readouterr()
    assert (ended.value.code, captured.out) == (2, "")
    assert captured.err.startswith("kaishu: error: ")
    assert all(line.startswith("  ") for line in captured.err.splitlines()[1:])
