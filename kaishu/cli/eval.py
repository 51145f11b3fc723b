"""`kaishu eval`: what it costs in accuracy to keep a model's weights in fewer bits.

Owns the options and how the result is shown. The measuring is eval_forms.py's, the picture eval_plot.py's.
"""

# No `from __future__ import annotations`: typer reads the annotations as objects.

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, get_args

import typer

from kaishu.cli.lists import choices_of
from kaishu.cli.options import DEFAULT_MODEL, Adapters, MaxMemory
from kaishu.errors import InvalidParameterError

if TYPE_CHECKING:
    from kaishu.cli.eval_forms import Evaluation

DEFAULT_TOKENS = 512
MAX_TOKENS = 1_000_000


def evaluate(
    model: Annotated[
        str, typer.Argument(help="A folder, a GGUF file, a hub's name, or a bundled model.")
    ] = DEFAULT_MODEL,
    *,
    weights: Annotated[
        str | None,
        typer.Option(
            help="Forms of the layers' weights, with commas between them; auto is as the files have them.",
            metavar="FORMS",
            show_default="bf16,int8,int4; auto where the files are quantised",
        ),
    ] = None,
    head: Annotated[
        str, typer.Option(help="Forms of the output head, each with each of the weights.", metavar="FORMS")
    ] = "auto",
    against: Annotated[
        str | None,
        typer.Option(
            help="The model that is the truth, in float32; else MODEL itself, adapters included.", show_default=False
        ),
    ] = None,
    lora: Adapters = None,
    text: Annotated[
        Path | None, typer.Option("--text", help="A text to predict; else one of Kaishu's.", show_default=False)
    ] = None,
    tokens: Annotated[int, typer.Option("--tokens", help="Predict at most so many tokens.", metavar="N")] = (
        DEFAULT_TOKENS
    ),
    threads: Annotated[
        int | None, typer.Option("--threads", help="CPU threads.", metavar="N", show_default=False)
    ] = None,
    max_memory: MaxMemory = None,
    plot: Annotated[
        Path | None, typer.Option(help="Draw divergence against bytes: a .svg or .png file.", show_default=False)
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
) -> None:
    """Compare the model in fewer bits with the same model, or another, in float32."""
    from kaishu.byte_sizes import parse_size
    from kaishu.cli.eval_plot import check_plot, write_plot
    from kaishu.cli.text_file import read_text
    from kaishu.executors import CPU_WEIGHTS, HeadName

    chosen = None if weights is None else choices_of("weights", weights, ("auto", *CPU_WEIGHTS))
    heads = choices_of("head", head, get_args(HeadName))
    if not 1 <= tokens <= MAX_TOKENS:
        raise InvalidParameterError("--tokens", tokens, f"1 to {MAX_TOKENS:,}")
    if max_memory is not None:
        parse_size("--max-memory", max_memory)
    written = None if text is None else read_text("--text", text)
    if plot is not None:
        check_plot(plot)
    evaluation = _run(
        model, lora, against, chosen, heads, written=written, tokens=tokens, threads=threads, max_memory=max_memory
    )
    if plot is not None:
        write_plot(evaluation, plot)
    _show(evaluation, as_json=as_json)


def _run(
    model: str,
    lora: list[str] | None,
    against: str | None,
    weights: tuple[str, ...] | None,
    heads: tuple[str, ...],
    *,
    written: str | None,
    tokens: int,
    threads: int | None,
    max_memory: str | None,
) -> "Evaluation":
    """Open what is named, and measure with a bar."""
    from kaishu.checkpoint import open_checkpoint
    from kaishu.checkpoint.lora import with_adapters
    from kaishu.cli.eval_forms import Model, run
    from kaishu.cli.progress_bar import progress_bar
    from kaishu.cli.pull import fetch

    opened = Model(model, with_adapters(open_checkpoint(fetch(model)), lora), tuple(lora or ()))
    truth = None if against is None else Model(against, open_checkpoint(fetch(against)))
    with progress_bar() as advance:
        return run(
            opened,
            truth,
            weights,
            heads,
            written=written,
            tokens=tokens,
            threads=threads,
            max_memory=max_memory,
            advance=advance,
        )


def _show(evaluation: "Evaluation", *, as_json: bool) -> None:
    from kaishu.cli.eval_forms import lines_of
    from kaishu.cli.printable import printable, printable_json

    if as_json:
        print(printable_json(evaluation.as_json()))
        return
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False)
    for line, style in lines_of(evaluation):
        console.print(Text(printable(line), style=style), soft_wrap=True)
