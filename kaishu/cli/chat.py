"""`kaishu chat`: talk with a model, in a terminal or through a pipe.

Owns the loop: read a message, run it as a command or ask the model, show the answer. The parts are beside it: what a
conversation is (chat_session.py), the commands (chat_commands.py), typing (chat_input.py), showing (answer_view.py).
"""

# No `from __future__ import annotations`: typer reads the annotations as objects.

import sys
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kaishu.cli.options import (
    DEFAULT_MODEL,
    MODEL_OPTIONS,
    SAMPLING_OPTIONS,
    ModelOptions,
    with_options,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.console import Console

    from kaishu.cli.answer_view import AnswerView
    from kaishu.cli.chat_commands import Chat
    from kaishu.cli.chat_session import Session
    from kaishu.llm import LLM
    from kaishu.results import ChatCompletion
    from kaishu.sampling import SamplingParams

TINY_NOTE = (
    "No model was named, so this is the bundled one: tiny, with a world of sums, lists and small talk. "
    "For the real one: `kaishu pull Qwen/Qwen3-0.6B`, then `kaishu chat Qwen/Qwen3-0.6B`."
)


@with_options(model_options=MODEL_OPTIONS, params=SAMPLING_OPTIONS)
def chat(
    model: Annotated[
        str | None, typer.Argument(help="A folder, a hub's name, or a bundled model.", show_default=False)
    ] = None,
    system: Annotated[str | None, typer.Option(help="The system message.", show_default=False)] = None,
    thinking: Annotated[
        bool | None,
        typer.Option("--thinking/--no-thinking", help="Whether the model thinks first.", show_default=False),
    ] = None,
    tools: Annotated[
        Path | None, typer.Option(help="A JSON file with tools the model may call.", show_default=False)
    ] = None,
    *,
    model_options: ModelOptions,
    params: "SamplingParams",
) -> None:
    """Chat with a model. Through a pipe: one question in, one answer out."""
    from kaishu.cli.chat_file import read_tools
    from kaishu.cli.chat_session import Session, said_fields
    from kaishu.cli.printable import show_notes
    from kaishu.cli.stdin import read_stdin

    session = Session(
        model=model or DEFAULT_MODEL,
        system=system,
        thinking=thinking,
        sampling=said_fields(params),
        tools=None if tools is None else read_tools(tools),
    )
    is_interactive = sys.stdin.isatty() and sys.stdout.isatty()
    question = None if is_interactive else read_stdin("question", instead="Type `kaishu chat` in a terminal")
    if model is None and not is_interactive:
        show_notes([TINY_NOTE])
    llm = model_options.load(session.model)
    if question is None:
        _talk(llm, session, is_default=model is None)
    else:
        show_notes(llm.notes)
        answer_once(llm, session, question)


def answer_once(llm: "LLM", session: "Session", question: str) -> None:
    """Answer one question to stdout, the answer alone.

    raises: KaishuError
    """
    from kaishu.cli.answer_view import PlainAnswer

    session.ask(question.strip())
    view = PlainAnswer(sys.stdout)
    completion = None
    try:
        with closing(_stream(llm, session)) as deltas:
            for delta in deltas:
                completion = _shown(view, delta)
    finally:
        view.finish(completion)


def _talk(llm: "LLM", session: "Session", *, is_default: bool) -> None:
    """Set the terminal up, then converse until the user leaves."""
    from rich.console import Console

    from kaishu.cli.chat_commands import COMMANDS, Chat
    from kaishu.cli.chat_input import MessageReader, open_history, state_folder
    from kaishu.cli.chat_session import chat_fields

    console = Console(highlight=False)
    state = Chat(session, console, context_tokens=llm.context_tokens, description=llm.description)
    history, history_note = open_history(state_folder())
    console.print(f"[bold]Kaishu[/] · {_escaped(session.model)}")
    state.say(f"{llm.description} · context {llm.context_tokens:,} tokens")
    for note in (TINY_NOTE if is_default else None, *llm.notes, history_note):
        if note:
            state.say(note)
    state.say("/help lists the commands · Alt-Enter starts a new line · Ctrl-D leaves\n")
    reader = MessageReader(
        history,
        commands={name: command.help for name, command in COMMANDS.items()},
        fields=chat_fields(),
    )
    converse(llm, state, reader.read)


def converse(llm: "LLM", chat_state: "Chat", read: "Callable[[], str | None]") -> None:
    """Read messages and answer them until `read` says None or a command says leave.

    read: gives the next message, never empty
    """
    from kaishu.cli.chat_commands import Next, is_command, run_command
    from kaishu.errors import KaishuError

    while (message := read()) is not None:
        try:
            if is_command(message):
                following = run_command(chat_state, message)
            else:
                chat_state.session.ask(message[1:] if message.startswith("//") else message)
                following = Next.ANSWER
        except KaishuError as error:
            _show_error(chat_state.console, error)
            following = Next.READ
        if following is Next.LEAVE:
            return
        if following is Next.ANSWER:
            _answer(llm, chat_state)
        chat_state.console.print()  # a line of air before the next prompt


def _answer(llm: "LLM", chat_state: "Chat") -> None:
    """Stream one answer to the last turn. Ctrl-C stops it, an error takes the turn back; the session goes on."""
    from kaishu.cli.answer_view import TerminalAnswer
    from kaishu.cli.interrupt import stop_on_interrupt
    from kaishu.cli.quiet_keys import quiet_keys
    from kaishu.errors import KaishuError
    from kaishu.text.channels import ContentDelta

    session, view = chat_state.session, TerminalAnswer(chat_state.console, fold=chat_state.fold)
    completion, content = None, ""
    try:
        with quiet_keys(sys.stdin), stop_on_interrupt() as stop, closing(_stream(llm, session)) as deltas:
            view.wait()
            for delta in deltas:
                completion = _shown(view, delta)
                content += delta.text if isinstance(delta, ContentDelta) else ""
                if stop.is_made:
                    break
    except KaishuError as error:
        view.finish(None)
        session.take_back()
        _show_error(chat_state.console, error)
        return
    except KeyboardInterrupt:
        pass  # the second Ctrl-C, in the middle of a step
    finally:
        view.close_window()
    view.finish(completion)
    if completion is not None:
        session.keep(completion)
        if session.pending_calls():
            chat_state.say("/tool RESULT gives the call its result.")
    elif not session.keep_partial(content):
        chat_state.say("Nothing had been said yet, so the question is taken back.")


def _shown(view: "AnswerView", delta: Any) -> "ChatCompletion | None":
    """Show a delta; the last one isn't text but the whole answer, which is returned."""
    from kaishu.results import ChatEnd

    if isinstance(delta, ChatEnd):
        return delta.completion
    view.show(delta)
    return None


def _stream(llm: "LLM", session: "Session") -> Any:
    return llm.stream_chat(session.messages, tools=session.tools, thinking=session.thinking, params=session.params)


def _show_error(console: "Console", error: Exception) -> None:
    from rich.text import Text

    from kaishu.cli.printable import printable

    console.print(Text(printable(str(error)), style="red"))


def _escaped(text: str) -> str:
    from rich.markup import escape

    from kaishu.cli.printable import printable

    return escape(printable(text))
