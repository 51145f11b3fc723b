"""The line editor, typed into through prompt_toolkit's pipe."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
from prompt_toolkit.completion import CompleteEvent
from prompt_toolkit.document import Document
from prompt_toolkit.history import FileHistory, InMemoryHistory
from prompt_toolkit.input import create_pipe_input
from prompt_toolkit.output import DummyOutput

from kaishu.cli.chat_input import (
    MessageReader,
    command_completer,
    finished_message,
    is_unfinished,
    open_history,
    state_folder,
)

COMMANDS = {"/help": "this list", "/set": "set a field", "/save": "save", "/stats": "numbers"}
ENTER, ALT_ENTER, CTRL_C, CTRL_D, CTRL_J = "\r", "\x1b\r", "\x03", "\x04", "\n"


def typed(keys: str, *, history: InMemoryHistory | None = None, messages: int = 1) -> list[str | None]:
    with create_pipe_input() as pipe:
        reader = MessageReader(
            history or InMemoryHistory(),
            commands=COMMANDS,
            fields=["temperature", "top_k"],
            input=pipe,
            output=DummyOutput(),
        )
        pipe.send_text(keys)
        return [reader.read() for _ in range(messages)]


@pytest.mark.parametrize(
    "keys, message",
    [
        ("hi" + ENTER, "hi"),
        ("  hi " + ENTER, "hi"),
        ("one" + ALT_ENTER + "two" + ENTER, "one\ntwo"),
        ("one" + CTRL_J + "two" + ENTER, "one\ntwo"),
        ("one\\" + ENTER + "two" + ENTER, "one\ntwo"),
        ('"""' + ENTER + "one" + ENTER + "two" + ENTER + '"""' + ENTER, "one\ntwo"),
        ("\x1b[200~one\ntwo\x1b[201~" + ENTER, "one\ntwo"),  # pasted
        (ENTER + "  " + ENTER + "hi" + ENTER, "hi"),
        ("楷书 🙂" + ENTER, "楷书 🙂"),
    ],
)
def test_a_message_is_what_was_typed(keys, message):
    assert typed(keys) == [message]


def test_ctrl_d_leaves():
    assert typed(CTRL_D) == [None]


def test_ctrl_c_clears_the_line_and_twice_leaves():
    assert typed("wrong" + CTRL_C + "right" + ENTER) == ["right"]
    assert typed(CTRL_C + CTRL_C) == [None]
    assert typed(CTRL_C + "a" + ENTER + CTRL_C + "b" + ENTER, messages=2) == ["a", "b"]


@pytest.mark.parametrize(
    "line, offered",
    [
        ("/he", ["/help"]),
        ("/s", ["/set", "/save", "/stats"]),
        ("/set te", ["temperature"]),
        ("/set temperature 1", []),
        ("hello /he", []),
        ("/he\n/he", []),
        ("", []),
    ],
)
def test_commands_and_fields_are_completed(line, offered):
    completer = command_completer(COMMANDS, ["temperature", "top_k"])
    found = list(completer.get_completions(Document(line), CompleteEvent()))
    assert [completion.text for completion in found] == offered
    assert all(line[len(line) + completion.start_position :] in completion.text for completion in found)


def test_file_names_are_completed_after_save_and_load(tmp_path):
    (tmp_path / "chat.json").write_text("")
    completer = command_completer(COMMANDS, [])
    found = list(completer.get_completions(Document(f"/save {tmp_path}/ch"), CompleteEvent()))
    assert [completion.text for completion in found] == ["at.json"]


def test_what_is_unfinished():
    assert is_unfinished("a\\")
    assert is_unfinished('"""a')
    assert not is_unfinished('say """a""" now')
    assert not is_unfinished("a")


def test_enclosing_quotes_are_taken_away_and_others_stay():
    assert finished_message('"""\n  a\nb\n"""') == "  a\nb"
    assert finished_message('x = """doc"""') == 'x = """doc"""'
    assert finished_message('"""') == '"""'


def test_the_state_folder_follows_the_platform(monkeypatch):
    monkeypatch.setattr(Path, "home", lambda: Path("/home/ada"))
    assert state_folder({}, "linux") == Path("/home/ada/.local/state/kaishu")
    assert state_folder({"XDG_STATE_HOME": "/state"}, "linux") == Path("/state/kaishu")
    assert state_folder({}, "darwin") == Path("/home/ada/Library/Application Support/kaishu")


def test_who_has_no_home_folder_has_a_history_in_memory(monkeypatch):
    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", no_home)
    assert state_folder({"XDG_STATE_HOME": "/state"}, "linux") == Path("/state/kaishu")
    assert state_folder({}, "linux") is state_folder({}, "darwin") is None
    history, note = open_history(None)
    assert isinstance(history, InMemoryHistory) and "no home folder" in note


def test_history_is_kept_in_a_file_that_only_its_owner_reads(tmp_path):
    history, note = open_history(tmp_path / "new" / "kaishu")
    assert isinstance(history, FileHistory)
    assert note is None
    file = tmp_path / "new" / "kaishu" / "chat_history"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    typed("kept" + ENTER, history=history)
    assert "kept" in file.read_text()


def test_history_that_cannot_be_written_stays_in_memory_and_says_so(tmp_path):
    (tmp_path / "file").write_text("")
    history, note = open_history(tmp_path / "file" / "kaishu")
    assert isinstance(history, InMemoryHistory)
    assert "History won't be kept" in note
