"""The slash commands of a chat.

Owns their names, their help and what each does to the session. Knows the terminal only as a console to print on. A
command that can't be carried out raises a KaishuError, and the session goes on as it was.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING

from kaishu.cli import chat_file
from kaishu.cli.chat_pages import ChatPages
from kaishu.cli.chat_session import Session, chat_fields
from kaishu.cli.chat_tools import ChatTools
from kaishu.cli.printable import counted, printable
from kaishu.errors import InvalidParameterError, InvalidRequestError

if TYPE_CHECKING:
    from rich.console import Console

    from kaishu.engine.statistics import Statistics


class Next(Enum):
    """What the chat does after a command."""

    READ = "read the next message"
    ANSWER = "let the model answer"
    LEAVE = "leave"


@dataclass
class Chat:
    """What a command may look at and change.

    context_tokens: None where that isn't known
    statistics:     tells how the engine stands, for /stats
    pages:          keeps what is computed of a conversation, for /save and /load
    stops_at_once:  Ctrl-C may break in at any moment of an answer, and not only between two tokens
    """

    session: Session
    console: Console
    context_tokens: int | None
    description: str
    fold: bool = True
    tools: ChatTools = field(default_factory=ChatTools)
    statistics: Callable[[], Statistics] | None = None
    pages: ChatPages | None = None
    stops_at_once: bool = False

    def say(self, text: str) -> None:
        """Print a line of ours, which may quote text from elsewhere."""
        self.console.print(printable(text), style="dim", markup=False, highlight=False)


@dataclass(frozen=True)
class Command:
    """One slash command: how to write it, what it does, and the function that does it."""

    usage: str
    help: str
    run: Callable[[Chat, str], Next]


def is_command(message: str) -> bool:
    """Whether a message is a command: a slash and a word. `/usr/bin` is not, nor `//anything`."""
    return re.match(r"/[A-Za-z?]+(\s|$)", message) is not None


def run_command(chat: Chat, message: str) -> Next:
    """Carry out a message for which is_command holds.

    raises: KaishuError; nothing has changed then
    """
    name, *rest = message.split(maxsplit=1)
    command = COMMANDS.get(name.lower())
    if command is None:
        near = difflib.get_close_matches(name.lower(), COMMANDS, n=1)
        hint = (
            f"Did you mean {near[0]}?" if near else "/help lists the commands; // sends a message that starts with /."
        )
        raise InvalidRequestError(f"There is no command {name}.", field="command", hint=hint)
    return command.run(chat, rest[0].strip() if rest else "")


def help_text() -> str:
    """All commands and keys, aligned."""
    width = max(len(command.usage) for command in COMMANDS.values())
    lines = [f"{command.usage:<{width}}  {command.help}" for command in COMMANDS.values()]
    keys = [
        ("Enter", "sends the message"),
        ("Alt-Enter", 'starts a new line; so does \\ at the end of a line, and everything between """ and """'),
        ("Ctrl-C", "stops an answer; at the prompt it clears the line, and twice leaves"),
        ("Ctrl-D", "leaves"),
        ("Up, Ctrl-R", "earlier messages, and a search through them"),
    ]
    return "\n".join([*lines, "", *(f"{key:<{width}}  {meaning}" for key, meaning in keys)])


def _help(chat: Chat, _: str) -> Next:
    chat.say(help_text())
    return Next.READ


def _reset(chat: Chat, _: str) -> Next:
    chat.session.reset()
    chat.say("The conversation is empty again; the system message and the settings stay.")
    return Next.READ


def _system(chat: Chat, text: str) -> Next:
    if text == "none":
        chat.session.system = None
    elif text:
        chat.session.system = text
    system = chat.session.system
    chat.say("No system message." if system is None else f"System message: {system}")
    return Next.READ


def _think(chat: Chat, _: str) -> Next:
    chat.session.thinking = True
    chat.say("Thinking is on.")
    return Next.READ


def _nothink(chat: Chat, _: str) -> Next:
    chat.session.thinking = False
    chat.say("Thinking is off.")
    return Next.READ


def _fold(chat: Chat, choice: str) -> Next:
    if choice not in ("", "on", "off"):
        raise InvalidParameterError("/fold", choice, "on or off")
    chat.fold = choice == "on" if choice else not chat.fold
    chat.say("A thought closes to one line when it ends." if chat.fold else "Thoughts stay on the screen.")
    return Next.READ


def _thoughts(chat: Chat, _: str) -> Next:
    last = chat.session.last_answer
    chat.say(last.reasoning.strip("\n") if last and last.reasoning else "The last answer came without a thought.")
    return Next.READ


def _set(chat: Chat, argument: str) -> Next:
    name, _, value = argument.partition(" ")
    if name:
        value = value.strip()
        if not value:
            raise InvalidRequestError(f"/set {name} needs a value.", field=name, hint="`default` unsets it.")
        chat.session.set_field(name, None if value == "default" else value)
    sampling = chat.session.sampling
    if not name:
        chat.say(f"Fields: {', '.join(chat_fields())}.")
    said = ", ".join(f"{key} {setting!r}" for key, setting in sampling.items())
    chat.say(f"Set: {said}." if said else "Nothing is set: the model's own recommendations hold.")
    return Next.READ


def _save(chat: Chat, argument: str) -> Next:
    file = _file(argument, "/save")
    chat_file.save(chat.session, file)
    chat.say(f"Saved {counted(len(chat.session.turns), 'message')} to {file}.")
    if chat.pages is not None and (note := chat.pages.save(chat.session, file)):
        chat.say(note)
    return Next.READ


def _load(chat: Chat, argument: str) -> Next:
    file = _file(argument, "/load")
    loaded = chat_file.load(file, model=chat.session.model)
    loaded.totals = chat.session.totals
    chat.session = loaded
    chat.say(f"Loaded {counted(len(loaded.turns), 'message')} from {file}.")
    if chat.pages is not None and (note := chat.pages.load(file)):
        chat.say(note)
    return Next.READ


def _file(argument: str, command: str) -> Path:
    if not argument:
        raise InvalidRequestError(f"{command} needs a file name.", field="file", hint=f"{command} chat.json")
    try:
        return Path(argument).expanduser()
    except RuntimeError:
        user = argument.partition("/")[0]
        raise InvalidRequestError(f"{user} is nobody's home folder here.", field="file") from None


def _stats(chat: Chat, _: str) -> Next:
    totals, last = chat.session.totals, chat.session.last_answer
    used = last.usage.total_tokens if last else 0
    speed = f", {totals.decoded_tokens / totals.decode_seconds:,.1f} tok/s" if totals.decode_seconds > 0 else ""
    chat.say(f"{chat.session.model}: {chat.description}")
    chat.say(f"{counted(totals.answers, 'answer')}, {counted(totals.completion_tokens, 'token')}{speed}")
    if chat.context_tokens is not None:
        chat.say(f"context: {used:,} of {chat.context_tokens:,} tokens used by the last turn")
    if chat.statistics is not None:
        for line in _engine_lines(chat.statistics()):
            chat.say(line)
    return Next.READ


def _engine_lines(found: Statistics) -> list[str]:
    """What the engine has saved: computed tokens used again, and tokens guessed before they were computed."""
    kept = f"{found.cached_pages:,} of {counted(found.pages, 'page')} kept for what comes next"
    return [
        f"cache: {found.cached_tokens:,} of {counted(found.prompt_tokens, 'prompt token')} found in it, {kept}",
        f"speculation: {found.accepted:,} of {counted(found.guessed, 'guessed token')} right",
    ]


def _tool(chat: Chat, result: str) -> Next:
    if not result:
        waiting = [
            f"{call['function']['name']} {call['function']['arguments']}" for call in chat.session.pending_calls()
        ]
        chat.say("Waiting for a result: " + "; ".join(waiting) if waiting else "No tool call waits for a result.")
        return Next.READ
    chat.session.add_tool_result(result)
    return Next.ANSWER if chat.tools.run_calls(chat.session) else Next.READ


def _exit(_chat: Chat, _: str) -> Next:
    return Next.LEAVE


COMMANDS = {
    "/help": Command("/help", "this list", _help),
    "/reset": Command("/reset", "forget the conversation", _reset),
    "/system": Command("/system [TEXT]", "show or set the system message; `none` removes it", _system),
    "/think": Command("/think", "the model thinks before it answers", _think),
    "/nothink": Command("/nothink", "the model answers at once", _nothink),
    "/fold": Command("/fold [on|off]", "whether a thought closes to one line when it ends", _fold),
    "/thoughts": Command("/thoughts", "show the last answer's thought", _thoughts),
    "/set": Command(
        "/set [FIELD VALUE]", "show or set a sampling field: /set temperature 0.7; `default` unsets it", _set
    ),
    "/tool": Command("/tool [RESULT]", "give a tool call its result", _tool),
    "/save": Command("/save FILE", "write the conversation as JSON, and beside it what is computed of it", _save),
    "/load": Command("/load FILE", "go on with a saved conversation", _load),
    "/stats": Command("/stats", "tokens, speed and context so far", _stats),
    "/exit": Command("/exit", "leave", _exit),
}
