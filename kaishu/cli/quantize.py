"""`kaishu quantize`: write a model in int8 or int4, better than by rounding to the nearest.

Owns which text is read to calibrate, and how the report is shown. The work is quantiser/'s, Kaishu's own texts are
calibration_texts/'s.
"""

# No `from __future__ import annotations`: typer reads the annotations as objects.

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kaishu.errors import InvalidParameterError

if TYPE_CHECKING:
    from rich.text import Text

    from kaishu.checkpoint import Checkpoint
    from kaishu.quantiser.quantise import Report

AUTO = "auto"
DEFAULT_TOKENS = 16_384
MAX_TOKENS = 1_000_000


def quantize(
    model: Annotated[str, typer.Argument(help="A folder, a GGUF file, a hub's name, or a bundled model.")],
    out: Annotated[Path, typer.Argument(help="The folder to write; new or empty.", show_default=False)],
    *,
    weights: Annotated[str, typer.Option(help="int8 or int4.", metavar="FORM")] = "int4",
    calibrate: Annotated[
        str | None,
        typer.Option(
            help="A text file to calibrate with, of what the model will be used for; auto for Kaishu's own.",
            metavar="TEXT",
            show_default=False,
        ),
    ] = None,
    tokens: Annotated[int, typer.Option(help="Calibrate with at most so many tokens.", metavar="N")] = DEFAULT_TOKENS,
    threads: Annotated[int | None, typer.Option(help="CPU threads.", metavar="N", show_default=False)] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The report as one JSON object.")] = False,
) -> None:
    """Write a model with its linear layers in int8 or int4, as a folder that other engines read, too."""
    from kaishu.checkpoint import open_checkpoint
    from kaishu.cli.printable import printable_json
    from kaishu.cli.progress_bar import progress_bar
    from kaishu.cli.pull import fetch
    from kaishu.executors import quantised_formats
    from kaishu.quantiser.quantise import quantise
    from kaishu.quantiser.rounding import FORMS

    if weights not in FORMS:
        raise InvalidParameterError("--weights", weights, " or ".join(FORMS))
    _check_number("--tokens", tokens, MAX_TOKENS)
    if threads is not None:
        _check_number("--threads", threads, 1024)
    checkpoint = open_checkpoint(fetch(model))
    text = None if calibrate is None else _calibration(checkpoint, calibrate, tokens)
    start = time.perf_counter()
    with progress_bar() as advance:
        report = quantise(
            checkpoint,
            out,
            "int4" if weights == "int4" else "int8",
            texts=None if text is None else text.sequences,
            threads=threads,
            progress=lambda done, every: advance(f"{weights} → {out.name}", done, every),
        )
    result = Result(
        model=model,
        out=str(out),
        text=None if text is None else text.description,
        source_formats=quantised_formats(checkpoint),
        tied=checkpoint.config.tie_word_embeddings,
        seconds=time.perf_counter() - start,
        report=report,
    )
    if as_json:
        print(printable_json(result.as_json()))
        return
    from rich.console import Console

    console = Console(highlight=False)
    for line in lines_of(result):
        console.print(line, soft_wrap=True)


def _check_number(field: str, value: int, largest: int) -> None:
    if not 1 <= value <= largest:
        raise InvalidParameterError(field, value, f"a whole number from 1 to {largest:,}")


@dataclass(frozen=True)
class Calibration:
    """Sequences of token ids, and what they are, in words."""

    sequences: list[list[int]]
    description: str


def _calibration(checkpoint: "Checkpoint", calibrate: str, tokens: int) -> Calibration:
    """raises: InvalidParameterError for a file that is no text"""
    from kaishu.calibration_texts import WINDOW_TOKENS, at_most, pages, windows, world_of_tiny
    from kaishu.cli.text_file import read_text
    from kaishu.evaluation_texts import knows_world_of_tiny
    from kaishu.text_files import template_of, tokenizer_of

    tokenizer = tokenizer_of(checkpoint)
    if calibrate != AUTO:
        what, sequences = calibrate, windows(tokenizer.encode(read_text("--calibrate", Path(calibrate))), WINDOW_TOKENS)
    elif knows_world_of_tiny(tokenizer):
        what, sequences = "the bundled model's world", world_of_tiny(tokenizer, template_of(checkpoint, tokenizer))
    else:
        what, sequences = "Kaishu's own pages", pages(tokenizer)
    kept, there = at_most(sequences, tokens, checkpoint.config.max_position_embeddings), sum(map(len, sequences))
    read = sum(map(len, kept))
    return Calibration(kept, f"{read:,}{f' of {there:,}' if there > read else ''} tokens of {what}")


@dataclass(frozen=True)
class Result:
    """All there is to report.

    text:           what was calibrated with; None if nothing
    source_formats: what the source had quantised already; empty if nothing
    tied:           whether the embedding is also the head
    """

    model: str
    out: str
    text: str | None
    source_formats: str
    tied: bool
    seconds: float
    report: "Report"

    def as_json(self) -> dict[str, Any]:
        """Plain JSON values; errors as shares, root mean squares."""
        report = self.report
        kinds = {
            kind: {"weights": found.weights, "error": found.error, "error_of_nearest": found.nearest_error}
            for kind, found in report.kinds.items()
        }
        return {
            "model": self.model,
            "out": self.out,
            "weights": report.form,
            "calibrated_with": self.text,
            "calibration_tokens": report.calibration_tokens,
            "source_formats": self.source_formats,
            "source_bytes": report.source_bytes,
            "written_bytes": report.written_bytes,
            "kept_bytes": report.kept_bytes,
            "bits_per_weight": report.bits_per_weight,
            "kinds": kinds,
            "left_plain": list(report.uneven),
            "not_reached_by_the_text": report.unseen,
            "seconds": self.seconds,
        }


def lines_of(result: Result) -> "Iterator[Text]":
    """What was written, a row for each kind of matrix, and what to know."""
    from rich.text import Text

    from kaishu.byte_sizes import size
    from kaishu.cli.printable import printable
    from kaishu.errors import and_more

    report = result.report
    how = "the best scale of each group of 32" if result.text is None else f"calibrated with {result.text}"
    yield Text(printable(f"{result.model} → {result.out}: {report.form}, {how}"), style="bold")
    layers = report.written_bytes - report.kept_bytes
    yield Text(
        f"weights  {size(report.source_bytes)} → {size(report.written_bytes)}: {size(layers)} of linear layers, "
        f"{report.bits_per_weight:.2f} bits a weight; {size(report.kept_bytes)} kept as they are"
    )
    yield Text("layers       weights     error  to the nearest", style="dim")
    for kind, found in report.kinds.items():
        yield Text(f"{kind:<9} {found.weights:>10,}  {found.error:>8.3%}  {found.nearest_error:>14.3%}")
    what = "what the layers compute on that text" if result.text else "the weights"
    yield Text(f"error: of {what}, root mean square; beside it, that of rounding to the nearest", style="dim")
    for note in _notes(result):
        yield Text(printable(note))
    if report.uneven:
        yield Text(f"Left plain, as they have no multiple of 32 inputs: {and_more(report.uneven, shown=3)}.")
    if report.unseen:
        yield Text(
            f"No token of the text reached {len(report.unseen):,} matrices, so they aren't calibrated: "
            f"{and_more(report.unseen, shown=3)}. A longer text may."
        )


def _notes(result: Result) -> Iterator[str]:
    if result.tied:
        yield "The embedding is also the output head, and stays as it is; --head int8 keeps the head in fewer bits."
    else:
        yield "The output head stays as it is; --head int8 keeps it in fewer bits."
    if result.source_formats:
        yield (
            f"The source is quantised already ({result.source_formats}). What that lost is lost; the errors above are "
            "further ones, from its values."
        )
