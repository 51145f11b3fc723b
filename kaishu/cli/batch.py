"""`kaishu batch`: answer a file of requests, as OpenAI's batch API takes it, into another file.

Owns which model answers, the bar, and what is said at the end. Lines and files are batch_file.py's, the work is
batch_run.py's.
"""

# No `from __future__ import annotations`: typer reads the annotations as objects.

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kaishu.cli.options import GENERATING_MODEL_OPTIONS, ModelOptions, with_options
from kaishu.errors import InvalidRequestError

if TYPE_CHECKING:
    from kaishu.batch_run import Totals

STOPPED = 130


@with_options(model_options=GENERATING_MODEL_OPTIONS)
def batch(
    requests: Annotated[Path, typer.Argument(help="A JSONL file: custom_id, method, url and body on each line.")],
    answers: Annotated[Path, typer.Argument(help="The file to write; a run that was interrupted goes on with it.")],
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            "-m",
            help="What answers: a folder, a hub's name, or a bundled model; else what the first request names.",
            show_default=False,
        ),
    ] = None,
    any_model: Annotated[
        bool, typer.Option("--any-model", help="Answer requests that name another model, too.")
    ] = False,
    *,
    model_options: ModelOptions,
) -> None:
    """Answer a file of requests (chat, completions, embeddings), many at once."""
    from kaishu.batch_file import BatchOutput, read_batch
    from kaishu.batch_run import run_batch
    from kaishu.cli.interrupt import stop_on_interrupt
    from kaishu.cli.printable import printable, show_notes
    from kaishu.cli.progress_bar import progress_bar

    if answers.exists() and requests.exists() and answers.samefile(requests):
        raise InvalidRequestError("The answers can't go into the file of the requests.", field="answers")
    num_lines, first_model = _survey(requests)
    with BatchOutput(answers) as output:
        num_done = sum(line.key in output.done for line in read_batch(requests)) if output.done else 0
        if num_done == num_lines:
            print(printable(f"Nothing to do: {answers} has all {num_lines:,} answers."))
            return
        name = model or first_model
        if name is None:
            raise InvalidRequestError(
                f"No line of {requests} names a model.", field="model", hint="Give --model, or a model in each body."
            )
        llm = model_options.load(name)
        show_notes(llm.notes)
        start = time.monotonic()
        with stop_on_interrupt() as stop, progress_bar() as advance:

            def count(more: int) -> None:
                nonlocal num_done
                num_done += more
                advance("Answering", num_done, num_lines)

            totals = run_batch(
                llm,
                read_batch(requests),
                output,
                model=None if any_model else name,
                should_stop=lambda: stop.is_made,
                on_answers=count,
            )
    print(printable(summary(totals, time.monotonic() - start)))
    if totals.is_stopped:
        print(printable(f"Stopped with {num_lines - num_done:,} to go; the same command goes on with them."))
        raise typer.Exit(STOPPED)


def _survey(requests: Path) -> tuple[int, str | None]:
    """return: how many lines there are, and the first model that one of them names"""
    from kaishu.batch_file import read_batch

    num_lines, first_model = 0, None
    for line in read_batch(requests):
        num_lines += 1
        named = (line.body or {}).get("model")
        if first_model is None and isinstance(named, str) and named:
            first_model = named
    if not num_lines:
        raise InvalidRequestError(f"{requests} has no requests.", field="requests", hint="Write one on each line.")
    return num_lines, first_model


def summary(totals: "Totals", seconds: float) -> str:
    """What a run did, in a line."""
    from kaishu.cli.printable import counted

    parts = [f"{counted(totals.answered, 'answer')}, {counted(totals.failed, 'error')}"]
    if totals.skipped:
        parts.append(f"{totals.skipped:,} from earlier runs")
    cached = f" ({totals.cached_tokens:,} from the cache)" if totals.cached_tokens else ""
    parts.append(f"{totals.prompt_tokens:,} prompt tokens{cached}, {totals.completion_tokens:,} completion tokens")
    return "; ".join(parts) + f"; {seconds:.1f} s."
