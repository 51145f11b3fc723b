"""`kaishu chat`: talk with a model, in a terminal or through a pipe.

Owns the loop: read a message, run it as a command or ask the model, show the answer, run the calls that it makes. The
parts are beside it: what a conversation is (chat_session.py), the commands (chat_commands.py), typing (chat_input.py),
showing (answer_view.py), the functions of `--tools` (tool_file.py, chat_tools.py).
"""

# No `from __future__ import annotations`: typer reads the annotations as objects.

import os
import sys
from contextlib import closing, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kaishu.cli.options import (
    DEFAULT_MODEL,
    GENERATING_MODEL_OPTIONS,
    REMOTE_OPTIONS,
    SAMPLING_OPTIONS,
    ModelOptions,
    RemoteOptions,
    given_flags,
    with_options,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rich.console import Console

    from kaishu.agent import Approve
    from kaishu.cli.answer_view import AnswerView
    from kaishu.cli.chat_commands import Chat
    from kaishu.cli.chat_session import ChatModel, Session
    from kaishu.cli.chat_tools import ChatTools
    from kaishu.cli.remote_model import RemoteModel
    from kaishu.llm import LLM
    from kaishu.results import ChatCompletion
    from kaishu.sampling import SamplingParams
    from kaishu.tool_functions import ToolFunction

TINY_NOTE = (
    "No model was named, so this is the bundled one: tiny, with a world of sums, lists and small talk. "
    "For the real one: `kaishu pull Qwen/Qwen3-0.6B`, then `kaishu chat Qwen/Qwen3-0.6B`."
)

LIMIT_NOTE = "The model was still calling functions after as many answers as are allowed in a row, so it was stopped."


@with_options(remote=REMOTE_OPTIONS, model_options=GENERATING_MODEL_OPTIONS, params=SAMPLING_OPTIONS)
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
        Path | None,
        typer.Option(
            help="What the model may call: a Python file with functions, which is run with your rights, so use only "
            "one that you trust; or a JSON file with definitions.",
            show_default=False,
        ),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Run the calls of --tools FILE.py without asking.")] = False,
    *,
    remote: RemoteOptions,
    model_options: ModelOptions,
    params: "SamplingParams",
) -> None:
    """Chat with a model. Through a pipe: one question in, one answer out."""
    from kaishu.cli.chat_session import Session, said_fields
    from kaishu.cli.chat_tools import AskingUser, ChatTools, refusing
    from kaishu.cli.printable import show_notes
    from kaishu.cli.stdin import read_stdin

    definitions, functions = _tools(tools, yes=yes)
    asked = remote_model(remote, model, model_options)
    session = Session(
        model=asked.name if asked else model or DEFAULT_MODEL,
        system=system,
        thinking=thinking,
        sampling=said_fields(params),
        tools=definitions,
    )
    is_interactive = sys.stdin.isatty() and sys.stdout.isatty()
    question = None if is_interactive else read_stdin("question", instead="Type `kaishu chat` in a terminal")
    is_default = model is None and asked is None
    if is_default and not is_interactive:
        show_notes([TINY_NOTE])
    answering = asked or model_options.load(session.model)
    notes = answering.notes
    if question is None:
        greeting = [TINY_NOTE, *notes] if is_default else notes
        _talk(answering, _state_of(answering, session), functions, None if yes else AskingUser(), greeting)
    else:
        show_notes(notes)
        answer_once(answering, session, question, ChatTools(functions, None if yes else refusing(_note), _note))


def remote_model(remote: RemoteOptions, model: str | None, model_options: ModelOptions) -> "RemoteModel | None":
    """The model of a server, if `--url` names one.

    model:  the command's argument; with --url it is what --model is
    raises: InvalidRequestError for options that don't go together; RemoteError
    """
    from kaishu.errors import InvalidRequestError

    if remote.url is None:
        for flag, value in (("--api-key", remote.api_key), ("--model", remote.served_model)):
            if value is not None:
                hint = "A model that runs here is named without an option: kaishu chat MODEL."
                raise InvalidRequestError(f"{flag} is about a server; --url names it.", field=flag, hint=hint)
        return None
    if flags := given_flags(model_options):
        raise InvalidRequestError(
            f"{flags[0]} is about a model that runs here, but --url asks a server.", field=flags[0]
        )
    if model is not None and remote.served_model is not None:
        raise InvalidRequestError("The server's model is named twice.", field="--model", hint="Leave one out.")
    from kaishu.cli.remote_model import RemoteModel

    key = remote.api_key or os.environ.get("KAISHU_API_KEY") or None
    return RemoteModel(remote.url, model=remote.served_model or model, api_key=key)


def _tools(file: Path | None, *, yes: bool) -> tuple[list[Any] | None, dict[str, "ToolFunction"]]:
    """What `--tools` names: the definitions for the model, and the functions behind them if it is code.

    raises: KaishuError
    """
    from kaishu.cli.chat_file import read_tools
    from kaishu.cli.tool_file import is_python, load_functions
    from kaishu.errors import InvalidRequestError

    if file is not None and is_python(file):
        functions = load_functions(file)
        return [function.definition for function in functions.values()], functions
    if yes:
        raise InvalidRequestError(
            "--yes is about running functions, but there are none.", field="--yes", hint="Name them: --tools FILE.py."
        )
    return None if file is None else read_tools(file), {}


def _note(text: str) -> None:
    from kaishu.cli.printable import show_notes

    show_notes([text])


def answer_once(model: "ChatModel", session: "Session", question: str, tools: "ChatTools | None" = None) -> None:
    """Answer one question to stdout, the answer alone. With functions, their calls and results go to stderr.

    raises: KaishuError
    """
    from kaishu.agent import DEFAULT_LIMIT
    from kaishu.cli.answer_view import PlainAnswer

    session.ask(question.strip())
    runs_calls = tools is not None and bool(tools.functions)
    for _ in range(DEFAULT_LIMIT):
        view = PlainAnswer(sys.stdout, calls=sys.stderr if runs_calls else None)
        completion = None
        try:
            with closing(_stream(model, session)) as deltas:
                for delta in deltas:
                    completion = _shown(view, delta)
        finally:
            view.finish(completion)
        assert completion is not None
        session.keep(completion)
        if tools is None or not runs_calls or not session.pending_calls():
            return
        with redirect_stdout(sys.stderr):  # what functions print is no part of the answer
            tools.run_calls(session)
    _note(LIMIT_NOTE)


def _state_of(model: "LLM | RemoteModel", session: "Session") -> "Chat":
    """A session's state in the terminal, for a model here or on a server."""
    from rich.console import Console

    from kaishu.cli.chat_commands import Chat
    from kaishu.cli.chat_pages import ChatPages
    from kaishu.cli.remote_model import RemoteModel

    state = Chat(session, Console(highlight=False), context_tokens=model.context_tokens, description=model.description)
    if isinstance(model, RemoteModel):
        state.stops_at_once = True
    else:
        state.statistics, state.pages = model.statistics, ChatPages(model)
    return state


def _talk(
    model: "ChatModel",
    state: "Chat",
    functions: "dict[str, ToolFunction]",
    approve: "Approve | None",
    notes: "Sequence[str]",
) -> None:
    """Set the terminal up, then converse until the user leaves."""
    from kaishu.cli.chat_commands import COMMANDS
    from kaishu.cli.chat_input import MessageReader, open_history, state_folder
    from kaishu.cli.chat_session import chat_fields
    from kaishu.cli.chat_tools import ChatTools

    state.tools = ChatTools(functions, approve, state.say)
    history, history_note = open_history(state_folder())
    state.console.print(f"[bold]Kaishu[/] · {_escaped(state.session.model)}")
    context = "" if state.context_tokens is None else f" · context {state.context_tokens:,} tokens"
    state.say(state.description + context)
    for note in (*notes, history_note):
        if note:
            state.say(note)
    if functions:
        asks = "Each call runs at once" if approve is None else "You are asked before each call"
        state.say(f"Functions that the model may call: {', '.join(functions)}. {asks}.")
    state.say("/help lists the commands · Alt-Enter starts a new line · Ctrl-D leaves\n")
    reader = MessageReader(
        history,
        commands={name: command.help for name, command in COMMANDS.items()},
        fields=chat_fields(),
    )
    converse(model, state, reader.read)


def converse(model: "ChatModel", chat_state: "Chat", read: "Callable[[], str | None]") -> None:
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
            _answer(model, chat_state)
        chat_state.console.print()  # a line of air before the next prompt


def _answer(model: "ChatModel", chat_state: "Chat") -> None:
    """Answer the last turn: run the calls that the model makes, and let it go on, until it answers without one.

    Ctrl-C stops that, an error takes the turn back, with the calls since; the session goes on.
    """
    from kaishu.agent import DEFAULT_LIMIT

    session = chat_state.session
    start = len(session.turns) - 1
    for _ in range(DEFAULT_LIMIT):
        if not _one_answer(model, chat_state, start) or not session.pending_calls():
            return
        try:
            if not chat_state.tools.run_calls(session):
                chat_state.say("/tool RESULT gives the call its result.")
                return
        except KeyboardInterrupt:
            chat_state.say("\nstopped")  # below what the terminal shows of Ctrl-C
            return
    chat_state.say(LIMIT_NOTE)


def _one_answer(model: "ChatModel", chat_state: "Chat", start: int) -> bool:
    """Stream one answer.

    start:  the turn that is being answered; after calls, there are others behind it
    return: whether it is whole
    """
    from kaishu.cli.answer_view import TerminalAnswer
    from kaishu.cli.interrupt import stop_on_interrupt
    from kaishu.cli.quiet_keys import quiet_keys
    from kaishu.errors import KaishuError
    from kaishu.text.channels import ContentDelta

    session, view = chat_state.session, TerminalAnswer(chat_state.console, fold=chat_state.fold)
    completion, content = None, ""
    try:
        at_once = chat_state.stops_at_once
        with (
            quiet_keys(sys.stdin),
            stop_on_interrupt(at_once=at_once) as stop,
            closing(_stream(model, session)) as deltas,
        ):
            view.wait()
            for delta in deltas:
                completion = _shown(view, delta)
                content += delta.text if isinstance(delta, ContentDelta) else ""
                if stop.is_made:
                    break
    except KaishuError as error:
        view.finish(None)
        session.take_back(start)
        _show_error(chat_state.console, error)
        return False
    except KeyboardInterrupt:
        pass  # the second Ctrl-C, in the middle of a step, or the first where a server answers
    finally:
        view.close_window()
    view.finish(completion)
    if completion is not None:
        session.keep(completion)
        return True
    has_run_calls = len(session.turns) > start + 1  # which can't be taken back
    if (content or not has_run_calls) and not session.keep_partial(content):
        chat_state.say("Nothing had been said yet, so the question is taken back.")
    return False


def _shown(view: "AnswerView", delta: Any) -> "ChatCompletion | None":
    """Show a delta; the last one isn't text but the whole answer, which is returned."""
    from kaishu.results import ChatEnd

    if isinstance(delta, ChatEnd):
        return delta.completion
    view.show(delta)
    return None


def _stream(model: "ChatModel", session: "Session") -> Any:
    return model.stream_chat(session.messages, tools=session.tools, thinking=session.thinking, params=session.params)


def _show_error(console: "Console", error: Exception) -> None:
    from rich.text import Text

    from kaishu.cli.printable import printable

    console.print(Text(printable(str(error)), style="red"))


def _escaped(text: str) -> str:
    from rich.markup import escape

    from kaishu.cli.printable import printable

    return escape(printable(text))
