"""The command `kaishu`: which subcommands there are, and how every failure ends.

Owns the list of commands and the exit codes: 0 done, 1 a comparison that differs, 2 an error that the user can act on,
130 stopped with Ctrl-C. Knows nothing of models. Nothing heavy is imported here or at the top of the command modules,
so that `kaishu --help` answers at once; each command imports what it needs when it runs.
"""

import sys
from typing import Annotated, Any

import typer

from kaishu.cli import chat, generate, inspect, pull, tokenize, verify
from kaishu.cli.options import as_typed
from kaishu.cli.printable import printable
from kaishu.errors import InvalidParameterError, KaishuError

# What typer raises for a wrong command line, wherever this version of it keeps the type.
UsageError: Any = typer.BadParameter.__base__

STOPPED = 130


def build_app() -> typer.Typer:
    """The whole command line, as typer sees it."""
    app = typer.Typer(
        help="Run Qwen3 on your own machine, in Python that you can read.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_common)
    app.command("chat")(chat.chat)
    app.command("generate")(generate.generate)
    app.command("inspect")(inspect.inspect)
    app.command("tokenize")(tokenize.tokenize)
    app.command("pull")(pull.pull)
    app.command("verify")(verify.verify)
    return app


def _show_version(is_asked: bool) -> None:
    if is_asked:
        from kaishu import __version__

        print(f"kaishu {__version__}")
        raise typer.Exit


def _common(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and leave.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    """Options that stand before the command."""


def main(arguments: list[str] | None = None) -> None:
    """Run one command and exit the process with its code.

    arguments: what follows `kaishu` on the command line; None takes it from the process
    raises:    SystemExit always; any other exception is a bug of ours and shows its traceback
    """
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # a terminal that isn't UTF-8 shows \u escapes instead of failing
            stream.reconfigure(errors="backslashreplace")
    command = typer.main.get_command(build_app())
    try:
        # None after a command that simply ended, a code after typer.Exit.
        code = command.main(args=arguments, prog_name="kaishu", standalone_mode=False)
        sys.stdout.flush()
    except KaishuError as error:
        show_error(str(as_typed(error) if isinstance(error, InvalidParameterError) else error))
        code = 2
    except UsageError as error:
        code = _show_usage_error(error)
    except (KeyboardInterrupt, typer.Abort):
        code = STOPPED
    except BrokenPipeError:
        _discard_output()
        code = 0
    sys.exit(code if isinstance(code, int) else 0)


def show_error(message: str) -> None:
    """Print an error to stderr: one line that says what is wrong, then its hints, indented."""
    print(f"kaishu: error: {printable(message)}", file=sys.stderr)


def _show_usage_error(error: Any) -> int:
    if type(error).__name__ == "NoArgsIsHelpError":
        print(error.message, end="")  # empty where rich has printed the help already
        return 0
    path = error.ctx.command_path if error.ctx else "kaishu"
    message = error.format_message().rstrip()
    show_error(f"{message}\n  `{path} --help` lists what there is.")
    return 2


def _discard_output() -> None:
    # The reader has gone (`kaishu … | head`). Python would complain when it flushes at exit; give it nowhere to write.
    import os

    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
