"""The line editor of a chat: several lines, history, completion.

Owns the keys and what counts as an unfinished message. Knows nothing of models or sessions; gives chat.py one message
after another. Built on prompt_toolkit, which is imported only when somebody really types.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from prompt_toolkit import PromptSession
    from prompt_toolkit.completion import Completer
    from prompt_toolkit.history import History
    from prompt_toolkit.key_binding import KeyBindings

QUOTES = '"""'


def is_unfinished(text: str) -> bool:
    """Whether Enter adds a line instead of sending: after a backslash, or inside triple quotes."""
    return text.endswith("\\") or text.count(QUOTES) % 2 == 1


def finished_message(text: str) -> str:
    """The message that the typed lines mean: continuation backslashes and enclosing triple quotes taken away."""
    stripped = text.strip()
    if stripped.startswith(QUOTES) and stripped.endswith(QUOTES) and len(stripped) >= 2 * len(QUOTES):
        return stripped[len(QUOTES) : -len(QUOTES)].strip("\n")
    return stripped


def state_folder(environment: Mapping[str, str] = os.environ, platform: str = sys.platform) -> Path | None:
    """Where this platform keeps what programs remember between runs; None for a user who has no home folder."""
    if platform != "darwin" and environment.get("XDG_STATE_HOME"):
        return Path(environment["XDG_STATE_HOME"]) / "kaishu"
    try:
        home = Path.home()
    except RuntimeError:
        return None
    return home / ("Library/Application Support" if platform == "darwin" else ".local/state") / "kaishu"


def open_history(folder: Path | None) -> tuple[History, str | None]:
    """The history file, readable by its owner alone; or one in memory when there is no folder that can be written.

    return: the history, and a line about why it won't be kept
    """
    from prompt_toolkit.history import FileHistory, InMemoryHistory

    if folder is None:
        return InMemoryHistory(), "History won't be kept: this user has no home folder."
    file = folder / "chat_history"
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        os.close(os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600))
        file.read_bytes()
    except OSError as error:
        return InMemoryHistory(), f"History won't be kept: {file}: {error.strerror or error}."
    return FileHistory(str(file)), None


class MessageReader:
    """Reads messages from a terminal.

    commands:    slash command → its help, for completion
    fields:      names that may follow /set
    input/output: prompt_toolkit's; None is the terminal
    """

    def __init__(
        self,
        history: History,
        *,
        commands: Mapping[str, str],
        fields: Sequence[str],
        input: Any = None,
        output: Any = None,
    ) -> None:
        self._session = _prompt_session(history, commands, fields, input, output)

    def read(self) -> str | None:
        """One message, or None to leave (Ctrl-D, or Ctrl-C twice in a row).

        return: text that isn't empty
        """
        note = ""
        while True:
            try:
                typed = self._session.prompt(_prompt(note))
            except EOFError:
                return None
            except KeyboardInterrupt:
                if note:
                    return None
                note = "Ctrl-C again leaves"
                continue
            note = ""
            message = finished_message(typed)
            if message:
                return message


def _prompt(note: str = "") -> Any:
    return [("class:note", f"({note}) " if note else ""), ("class:prompt", "› ")]


def _keys() -> KeyBindings:
    from prompt_toolkit.filters import completion_is_selected
    from prompt_toolkit.key_binding import KeyBindings

    keys = KeyBindings()

    @keys.add("enter", filter=~completion_is_selected)
    def _(event: Any) -> None:
        buffer = event.current_buffer
        if is_unfinished(buffer.document.text_before_cursor) or is_unfinished(buffer.text):
            if buffer.document.text_before_cursor.endswith("\\"):
                buffer.delete_before_cursor(1)
            buffer.insert_text("\n")
        else:
            buffer.validate_and_handle()

    @keys.add("enter", filter=completion_is_selected)
    def _(event: Any) -> None:
        event.current_buffer.complete_state = None  # take the completion; the next Enter sends

    @keys.add("escape", "enter")
    @keys.add("c-j")
    def _(event: Any) -> None:
        event.current_buffer.insert_text("\n")

    return keys


def command_completer(commands: Mapping[str, str], fields: Sequence[str]) -> Completer:
    """What Tab offers: commands at the start of a message, fields after /set, files after /save and /load."""
    from prompt_toolkit.completion import Completer, Completion, PathCompleter
    from prompt_toolkit.document import Document

    class CommandCompleter(Completer):
        def get_completions(self, document: Document, complete_event: Any) -> Iterator[Completion]:
            line = document.text_before_cursor
            command, space, argument = line.partition(" ")
            if not line.startswith("/") or "\n" in line:
                return
            if not space:
                for name, meaning in commands.items():
                    if name.startswith(command):
                        yield Completion(name, -len(command), display_meta=meaning)
            elif command == "/set" and " " not in argument:
                for field in fields:
                    if field.startswith(argument):
                        yield Completion(field, -len(argument))
            elif command in ("/save", "/load"):
                paths = PathCompleter(expanduser=True)
                yield from paths.get_completions(Document(argument), complete_event)

    return CommandCompleter()


def _prompt_session(
    history: History, commands: Mapping[str, str], fields: Sequence[str], input: Any, output: Any
) -> PromptSession[str]:
    from prompt_toolkit import PromptSession
    from prompt_toolkit.styles import Style

    return PromptSession(
        multiline=True,
        prompt_continuation=lambda width, *_: "· ".rjust(width),
        history=history,
        key_bindings=_keys(),
        completer=command_completer(commands, fields),
        complete_while_typing=False,
        enable_history_search=False,
        style=Style.from_dict({"prompt": "bold ansicyan", "note": "ansibrightblack"}),
        input=input,
        output=output,
    )
