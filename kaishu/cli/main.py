"""The command `kaishu`: which subcommands there are, and how every failure ends.

Owns the list of commands, the standard streams, and the exit codes: 0 done, 1 a comparison that differs or a reader
that has gone, 2 an error that the user can act on, 130 stopped with Ctrl-C. Knows nothing of models. Nothing heavy is
imported here or at the top of the command modules, so that `kaishu --help` answers at once; each command imports what
it needs when it runs.
"""

import os
import sys
from contextlib import suppress
from typing import Annotated, Any

import typer

from kaishu.cli import (
    batch,
    bench,
    cache,
    chat,
    embed,
    generate,
    inspect,
    plan,
    pull,
    quantize,
    rerank,
    serve,
    tokenize,
    verify,
)
from kaishu.cli import eval as evaluation
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
    app.command("serve")(serve.serve)
    app.command("generate")(generate.generate)
    app.command("batch")(batch.batch)
    app.command("embed")(embed.embed)
    app.command("rerank")(rerank.rerank)
    app.command("inspect")(inspect.inspect)
    app.command("tokenize")(tokenize.tokenize)
    app.command("pull")(pull.pull)
    app.command("verify")(verify.verify)
    app.command("quantize")(quantize.quantize)
    app.command("plan")(plan.plan)
    app.command("bench")(bench.bench)
    app.command("eval")(evaluation.evaluate)
    app.add_typer(cache.build_cache_app(), name="cache")
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
    _prepare_streams()
    code = _exit_code(arguments)
    _let_go_of_streams_that_fail()
    sys.exit(code)


def _exit_code(arguments: list[str] | None) -> int:
    """Run the command; every failure that isn't a bug of ours becomes a line on stderr and a code."""
    command = typer.main.get_command(build_app())
    try:
        # None after a command that simply ended, a code after typer.Exit.
        code = command.main(args=arguments, prog_name="kaishu", standalone_mode=False)
        sys.stdout.flush()
    except KaishuError as error:
        show_error(str(as_typed(error) if isinstance(error, InvalidParameterError) else error))
        return 2
    except UsageError as error:
        return _show_usage_error(error)
    except (KeyboardInterrupt, typer.Abort):
        return STOPPED
    except BrokenPipeError:  # the reader has gone, as with `kaishu … | head`; nobody is left to be told
        return 1
    except OSError as error:  # a full disk, a device that fails
        show_error(f"{error.strerror or error}{f': {error.filename}' if error.filename else ''}.")
        return 2
    return code if isinstance(code, int) else 0


def show_error(message: str) -> None:
    """Print an error to stderr: one line that says what is wrong, then its hints, indented."""
    with suppress(OSError):  # a stderr that can't be written: the exit code is all that can be said
        print(f"kaishu: error: {printable(message)}", file=sys.stderr, flush=True)


def _show_usage_error(error: Any) -> int:
    if type(error).__name__ == "NoArgsIsHelpError":
        print(error.message, end="")  # empty where rich has printed the help already
        return 0
    path = error.ctx.command_path if error.ctx else "kaishu"
    message = error.format_message().rstrip()
    show_error(f"{message}\n  `{path} --help` lists what there is.")
    return 2


def _prepare_streams() -> None:
    """Make the three streams usable, whatever the process was started with."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # closed by the shell (`<&-`): nothing to read, and nobody reads
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115, PTH123  # until the process ends
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # a terminal that isn't UTF-8 shows \u escapes instead of failing
            stream.reconfigure(errors="backslashreplace")


def _let_go_of_streams_that_fail() -> None:
    """Python flushes at exit, and complains about what can't be written: give that nowhere to fail."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
