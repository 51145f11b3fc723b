"""`kaishu bench`: how fast a model runs here, beside how fast this machine could run it at most.

Owns which model is loaded, for random weights where they lie meanwhile, and how the result is shown. What is measured
and counted is benchmark.py.
"""

# No `from __future__ import annotations`: typer reads the annotations as objects.

import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kaishu.cli.lists import numbers_of
from kaishu.cli.options import DEFAULT_MODEL, Adapters, MaxMemory
from kaishu.errors import InvalidParameterError, InvalidRequestError

if TYPE_CHECKING:
    from rich.text import Text

    from kaishu.benchmark import Measurement, Work
    from kaishu.benchmark_limits import Limits
    from kaishu.checkpoint import Checkpoint
    from kaishu.executors import Choice

DEFAULT_CONTEXTS = (1, 1024, 8192)
MAX_SEQUENCES = 1024
MOST_TOKENS = 16_384
_SMALLEST_PAGE = 16


def bench(
    model: Annotated[
        str | None, typer.Argument(help="A folder, a hub's name, or a bundled model.", show_default=DEFAULT_MODEL)
    ] = None,
    *,
    shape: Annotated[
        str | None,
        typer.Option(
            help="Random weights of this shape: 0.6b, 1.7b, 4b, 8b, 14b, 32b, 30b-a3b, 235b-a22b, qwen2.5-0.5b.",
            show_default=False,
        ),
    ] = None,
    layers: Annotated[
        int | None, typer.Option(help="With --shape: so many layers.", metavar="N", show_default=False)
    ] = None,
    lora: Adapters = None,
    weights: Annotated[str, typer.Option(help="auto, bf16, int8 or int4.", metavar="FORM")] = "auto",
    head: Annotated[str, typer.Option(help="auto, bf16, int8 or int4.", metavar="FORM")] = "auto",
    kv: Annotated[str, typer.Option(help="Keys and values: auto, bf16 or int8.", metavar="FORM")] = "auto",
    threads: Annotated[int | None, typer.Option(help="CPU threads.", metavar="N", show_default=False)] = None,
    contexts: Annotated[
        str | None,
        typer.Option(help="Keys that a token sees.", metavar="N,N,…", show_default="1,1024,8192 as far as they fit"),
    ] = None,
    batch_sizes: Annotated[
        str, typer.Option("--batch-sizes", help="Sequences that are decoded together.", metavar="N,N,…")
    ] = "1,4,16,32",
    prefill: Annotated[int, typer.Option(help="Tokens of a prompt.", metavar="N")] = 512,
    most_tokens: Annotated[
        int, typer.Option("--most-tokens", help="Leave out batches that cache more tokens together.", metavar="N")
    ] = MOST_TOKENS,
    max_memory: MaxMemory = None,
    seconds: Annotated[float, typer.Option(help="For how long each is repeated.", metavar="S")] = 2.0,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
) -> None:
    """Measure decoding and prefill, beside the machine's own limits."""
    from kaishu.checkpoint.lora import with_adapters

    _check(model, shape, layers, seconds, most_tokens, max_memory)
    with ExitStack() as until_done:
        name, checkpoint, packed_folder = _opened(model, shape, layers, until_done)
        checkpoint = with_adapters(checkpoint, lora)
        choice = _choice(checkpoint, weights, head, kv, threads)
        works, left_out = _planned(checkpoint, contexts, batch_sizes, prefill, most_tokens)
        works, too_large = _within(max_memory, checkpoint, choice, works, threads)
        report = run(
            name,
            checkpoint,
            choice,
            threads=threads,
            works=works,
            left_out=[*left_out, *too_large],
            packed_folder=packed_folder,
            seconds=seconds,
        )
    _show(report, as_json=as_json)


def _check(  # noqa: PLR0917  # options that need no model to be judged
    model: str | None,
    shape: str | None,
    layers: int | None,
    seconds: float,
    most_tokens: int,
    max_memory: str | None,
) -> None:
    from kaishu.byte_sizes import parse_size

    if shape is not None and model is not None:
        raise InvalidRequestError("There is a MODEL and a --shape.", field="--shape", hint="Give one of them.")
    if layers is not None and shape is None:
        raise InvalidRequestError("--layers goes with --shape only.", field="--layers", hint="A model has its own.")
    if not 0 < seconds <= 3600:
        raise InvalidParameterError("--seconds", seconds, "more than 0, at most 3,600")
    if most_tokens < 0:
        raise InvalidParameterError("--most-tokens", most_tokens, "at least 0")
    if max_memory is not None:
        parse_size("--max-memory", max_memory)


def _show(report: "Report", *, as_json: bool) -> None:
    if as_json:
        from kaishu.cli.printable import printable_json

        print(printable_json(report.as_json()))
        return
    from rich.console import Console

    console = Console(highlight=False)
    for line in lines_of(report):
        console.print(line, soft_wrap=True)


def _opened(
    model: str | None, shape: str | None, layers: int | None, until_done: ExitStack
) -> "tuple[str, Checkpoint, Path | None]":
    """return: the name that the user knows, the model, and where to keep packed weights that are of no use later"""
    from kaishu.checkpoint import open_checkpoint
    from kaishu.cli.pull import fetch

    if shape is None:
        named = model or DEFAULT_MODEL
        return named, open_checkpoint(fetch(named)), None
    from kaishu.byte_sizes import size
    from kaishu.checkpoint.random_weights import random_checkpoint_bytes, shape_name, write_random_checkpoint

    try:
        name, num_bytes = shape_name(shape), random_checkpoint_bytes(shape, layers)
    except InvalidParameterError as error:  # about what was typed
        raise InvalidParameterError(f"--{error.field}", error.value, error.allowed, hint=error.hint) from None
    folder = Path(until_done.enter_context(tempfile.TemporaryDirectory(prefix="kaishu-bench-")))
    _say(f"Writing {size(num_bytes)} of random weights to {folder}; they are removed at the end (TMPDIR moves them).")
    return name, open_checkpoint(write_random_checkpoint(folder / name, shape, layers)), folder / "packed"


def _choice(checkpoint: "Checkpoint", weights: str, head: str, kv: str, threads: int | None) -> "Choice":
    from kaishu.executors import choose, quantised_formats
    from kaishu.loading import MAX_THREADS

    if threads is not None and not 1 <= threads <= MAX_THREADS:
        raise InvalidParameterError("--threads", threads, f"a whole number from 1 to {MAX_THREADS:,}")
    return choose(checkpoint.config, "cpu", weights, head, "cpu", kv=kv, formats=quantised_formats(checkpoint))


def _planned(
    checkpoint: "Checkpoint", contexts: str | None, batch_sizes: str, prefill: int, most_tokens: int
) -> "tuple[list[Work], list[Work]]":
    from kaishu.benchmark import plan

    longest = checkpoint.config.max_position_embeddings
    lengths = tuple(number for number in DEFAULT_CONTEXTS if number <= longest)
    if contexts is not None:
        lengths = numbers_of("--contexts", contexts, 1, longest)
    if not 1 <= prefill <= longest:
        raise InvalidParameterError("--prefill", prefill, f"1 to the model's context of {longest:,}")
    sizes = numbers_of("--batch-sizes", batch_sizes, 1, MAX_SEQUENCES)
    return plan(lengths, sizes, prefill, longest=longest, most_tokens=most_tokens)


def _within(
    max_memory: str | None, checkpoint: "Checkpoint", choice: "Choice", works: "list[Work]", threads: int | None
) -> "tuple[list[Work], list[Work]]":
    """return: the work that fits, and what doesn't"""
    if max_memory is None:
        return works, []
    from kaishu.benchmark_memory import works_within

    return works_within(max_memory, checkpoint, choice, works, threads=threads)


@dataclass(frozen=True)
class Report:
    """All that was found out.

    packed_bytes:      of the whole packed model, with the embedding of an untied one
    peak_memory_bytes: of this process, without what was read to find the limits
    limits:            the best of all tries
    left_out:          work that would have been over the model's context, --most-tokens or --max-memory
    """

    model: str
    executor: str
    threads: int
    packed_bytes: int
    kv_bytes_per_token: int
    peak_memory_bytes: int
    limits: "Limits"
    measurements: "tuple[Measurement, ...]"
    left_out: "tuple[Work, ...]"

    def as_json(self) -> dict[str, Any]:
        """Plain JSON values; seconds, bytes and operations without prefixes."""
        from dataclasses import asdict

        return {
            "model": self.model,
            "executor": self.executor,
            "threads": self.threads,
            "packed_bytes": self.packed_bytes,
            "kv_bytes_per_token": self.kv_bytes_per_token,
            "peak_memory_bytes": self.peak_memory_bytes,
            "limits": asdict(self.limits),
            "measurements": [self._measurement_json(measurement) for measurement in self.measurements],
            "left_out": [asdict(work) for work in self.left_out],
        }

    def _measurement_json(self, measurement: "Measurement") -> dict[str, Any]:
        from dataclasses import asdict

        cost, seconds = measurement.cost, measurement.seconds
        return {
            **asdict(measurement.work),
            "step_seconds": seconds,
            "tokens_per_second": measurement.tokens_per_second,
            "read_bytes": cost.read_bytes,
            "operations": dict(cost.operations),
            "read_bytes_per_second": cost.read_bytes / seconds,
            "operations_per_second": cost.all_operations / seconds,
            "share_of_floor": measurement.share_of_floor,
        }


def run(
    name: str,
    checkpoint: "Checkpoint",
    choice: "Choice",
    *,
    threads: int | None,
    works: "list[Work]",
    left_out: "list[Work]",
    packed_folder: Path | None,
    seconds: float,
) -> Report:
    """Load the model, and measure it and the machine in turn."""
    from kaishu.benchmark import measure, pages_needed, peak_memory_bytes
    from kaishu.benchmark_limits import Machine
    from kaishu.cpu.executor import CpuExecutor
    from kaishu.cpu.target import current_target
    from kaishu.cpu.threads import available_threads

    assert choice.weights != "float32", "the CPU executor has no float32"
    threads, clock = threads or available_threads(), time.perf_counter
    with Machine(threads, clock=clock) as machine:  # before the model, so that its memory is in every peak
        executor = CpuExecutor.from_checkpoint(
            checkpoint,
            weights=choice.weights,
            head=choice.head,
            kv=choice.kv,
            threads=threads,
            num_pages=pages_needed(works, _SMALLEST_PAGE),
            packed_folder=packed_folder,
            say=_say,
        )
        layout, kv_bytes = executor.layout, executor.kv_bytes_per_token
        _say(
            f"Measuring {len(works)} kinds of steps, each for {seconds:g} s or three times, and this machine's limits."
        )
        with closing(executor):
            found = measure(executor, layout, kv_bytes, works, seconds=seconds, clock=clock, limits=machine.tried)
            measurements = tuple(found)
        peak, limits = peak_memory_bytes() - machine.num_bytes, machine.best(repeats=3)
    kv = "" if choice.kv == "bf16" else f", {choice.kv} keys and values"
    return Report(
        model=name,
        executor=f"CPU kernels ({current_target().name}), {choice.weights} weights, {choice.head} head{kv}",
        threads=threads,
        packed_bytes=layout.num_bytes,
        kv_bytes_per_token=kv_bytes,
        peak_memory_bytes=peak,
        limits=limits,
        measurements=measurements,
        left_out=tuple(left_out),
    )


def _say(sentence: str) -> None:
    from kaishu.cli.printable import printable

    print(f"kaishu: {printable(sentence)}", file=sys.stderr, flush=True)


def lines_of(report: Report) -> "Iterator[Text]":
    """The model, the machine, and a row for each kind of step."""
    from rich.text import Text

    from kaishu.byte_sizes import size
    from kaishu.cli.printable import counted, printable

    yield Text(printable(f"{report.model}: {report.executor}, {counted(report.threads, 'thread')}"), style="bold")
    kv, peak = size(report.kv_bytes_per_token), size(report.peak_memory_bytes)
    yield Text(
        f"memory   weights {size(report.packed_bytes)} packed; keys and values {kv} a token; at most {peak} in use"
    )
    limits = report.limits
    rates = ", ".join(f"{form} {rate / 1e9:,.0f}" for form, rate in limits.operations_per_second.items())
    yield Text(
        f"machine  at best, reads {limits.read_bytes_per_second / 1e9:.1f} GB/s; "
        f"multiplies and adds, in GFLOP/s: {rates}"
    )
    yield Text("")
    yield Text("work     context  sequences  tokens      tok/s      step    GB/s  GFLOP/s  of the floor", style="dim")
    for measurement in report.measurements:
        yield Text(_row(measurement))
    yield Text(
        "The floor: a step reads its weights, keys and values, and does its operations, no faster than the machine did "
        "in the same moments.",
        "dim",
    )
    if report.left_out:
        yield Text(
            f"Left out, as over the model's context, --most-tokens or --max-memory: {_named(report.left_out)}.",
            style="yellow",
        )
    for measurement in report.measurements:
        work = measurement.work
        if work.kind == "prefill" and work.context == 1:
            tokens = counted(work.new_tokens, "token")
            yield Text(f"first token after {measurement.seconds:.3f} s of a prompt of {tokens}, from a warm executor")


def _row(measurement: "Measurement") -> str:
    work, seconds, cost = measurement.work, measurement.seconds, measurement.cost
    speeds = f"{cost.read_bytes / seconds / 1e9:>6.1f} {cost.all_operations / seconds / 1e9:>8,.0f}"
    return (
        f"{work.kind:<7} {work.context:>8,} {work.sequences:>10} {work.tokens:>7} "
        f"{measurement.tokens_per_second:>10,.1f} {1000 * seconds:>7.1f} ms {speeds} "
        f"{measurement.share_of_floor:>12.0%}"
    )


def _named(works: "tuple[Work, ...]") -> str:
    return ", ".join(f"{work.kind} {work.context:,} × {work.sequences}" for work in works)
