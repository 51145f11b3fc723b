"""`kaishu plan`: what a model will take, before anything of it is loaded.

Owns the options and how the answer is shown. The arithmetic is planning.py, what the machine has memory_limits.py and
benchmark.py. Reads headers alone, and downloads nothing but the config.json of a hub's model that isn't here.
"""

# No `from __future__ import annotations`: typer reads the annotations as objects.

import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kaishu.errors import InvalidParameterError

if TYPE_CHECKING:
    from rich.text import Text

    from kaishu.memory_limits import MachineMemory
    from kaishu.planning import Plan

_MOST_GIGABYTES = 100_000


def plan(
    model: Annotated[str, typer.Argument(help="A folder, a GGUF file, a hub's name, or a bundled model.")],
    *,
    weights: Annotated[str, typer.Option(help="auto, bf16, int8 or int4.", metavar="FORM")] = "auto",
    head: Annotated[str, typer.Option(help="auto, bf16, int8 or int4.", metavar="FORM")] = "auto",
    kv: Annotated[str, typer.Option(help="Keys and values: auto, bf16 or int8.", metavar="FORM")] = "auto",
    context: Annotated[
        int | None,
        typer.Option(help="Prompt and answer together.", metavar="TOKENS", show_default="the model's limit"),
    ] = None,
    sequences: Annotated[int, typer.Option(help="How many there are at once.", metavar="N")] = 1,
    threads: Annotated[int | None, typer.Option(help="CPU threads.", metavar="N", show_default=False)] = None,
    max_memory: Annotated[
        str | None,
        typer.Option("--max-memory", help="Plan for so much, such as 4GB.", metavar="SIZE", show_default=False),
    ] = None,
    bandwidth: Annotated[
        float | None,
        typer.Option(help="How fast memory is read, in GB/s.", metavar="GB/s", show_default="measured, in a second"),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
) -> None:
    """Say what a model takes, whether it fits this machine, and how fast it can be at most."""
    if bandwidth is not None and not 0 < bandwidth <= _MOST_GIGABYTES:
        raise InvalidParameterError("--bandwidth", bandwidth, f"more than 0, at most {_MOST_GIGABYTES:,}")
    planned = _planned(model, weights, head, kv, context, sequences, threads)
    machine, speed = _available(max_memory), _read_bytes_per_second(bandwidth, planned.threads)
    answer = Answer(model, planned, machine, max_memory is not None, speed)
    if as_json:
        from kaishu.cli.printable import printable_json

        print(printable_json(answer.as_json()))
        return
    from rich.console import Console

    console = Console(highlight=False)
    for line in lines_of(answer):
        console.print(line, soft_wrap=True)


def _planned(  # noqa: PLR0917  # the options, once
    model: str, weights: str, head: str, kv: str, context: int | None, sequences: int, threads: int | None
) -> "Plan":
    """raises: KaishuError for options out of their range, and for a model that isn't here"""
    from kaishu.checkpoint.described import describe
    from kaishu.cli.printable import show_notes
    from kaishu.executors import choose, quantised_formats
    from kaishu.loading import MAX_SEQUENCES, MAX_THREADS
    from kaishu.planning import plan_model

    for flag, number, most in (("--threads", threads, MAX_THREADS), ("--sequences", sequences, MAX_SEQUENCES)):
        if number is not None and not 1 <= number <= most:
            raise InvalidParameterError(flag, number, f"a whole number from 1 to {most:,}")
    checkpoint = describe(model)
    show_notes(checkpoint.notes)
    longest = checkpoint.config.max_position_embeddings
    if context is not None and not 2 <= context <= longest:
        raise InvalidParameterError("--context", context, f"a whole number from 2 to the model's limit of {longest:,}")
    choice = choose(checkpoint.config, "cpu", weights, head, "cpu", kv=kv, formats=quantised_formats(checkpoint))
    return plan_model(checkpoint, choice, context_tokens=context, sequences=sequences, threads=threads)


def _available(max_memory: str | None) -> "MachineMemory | None":
    """What the machine has, or what the user says that there is."""
    from kaishu.byte_sizes import parse_size
    from kaishu.memory_limits import MachineMemory, machine_memory

    if max_memory is None:
        return machine_memory()
    bound = parse_size("--max-memory", max_memory)
    return MachineMemory(bound, bound, is_group=False)


def _read_bytes_per_second(bandwidth: float | None, threads: int) -> float:
    if bandwidth is not None:
        return 1e9 * bandwidth
    from kaishu.benchmark_limits import Machine

    print("kaishu: Measuring how fast this machine reads memory; --bandwidth saves that.", file=sys.stderr, flush=True)
    with Machine(threads, clock=time.perf_counter) as machine:
        return max(machine.tried(()).read_bytes_per_second for _ in range(3))


@dataclass(frozen=True)
class Answer:
    """All that there is to say.

    machine:    None where the system doesn't say what it has
    is_assumed: it isn't the machine that was asked, but the user who said what there is
    """

    model: str
    plan: "Plan"
    machine: "MachineMemory | None"
    is_assumed: bool
    read_bytes_per_second: float

    @property
    def fits(self) -> bool | None:
        """Whether the peak is within what is available; None where that isn't known."""
        return None if self.machine is None else self.plan.peak_bytes <= self.machine.available_bytes

    @property
    def largest_context(self) -> int | None:
        """The longest context that fits, in tokens; 0 if not even the weights do."""
        return None if self.machine is None else self.plan.largest_context(self.machine.available_bytes)

    def as_json(self) -> dict[str, Any]:
        """Plain JSON values; bytes, tokens and seconds without prefixes."""
        plan, machine = self.plan, self.machine
        speed = self.read_bytes_per_second
        return {
            "model": self.model,
            "weights": plan.choice.weights,
            "head": plan.choice.head,
            "kv": plan.choice.kv,
            "threads": plan.threads,
            "context_tokens": plan.context_tokens,
            "sequences": plan.sequences,
            "packed_bytes": plan.packed_bytes,
            "embedding_bytes": plan.embedding_bytes,
            "kv_bytes_per_token": plan.kv_bytes_per_token,
            "kv_bytes": plan.kv_bytes,
            "buffer_bytes": plan.buffer_bytes,
            "process_bytes": plan.process_bytes,
            "compiling_bytes": plan.compiling_bytes,
            "loading_peak_bytes": plan.loading_peak_bytes,
            "serving_peak_bytes": plan.serving_peak_bytes,
            "available_bytes": machine.available_bytes if machine else None,
            "machine_bytes": machine.total_bytes if machine else None,
            "is_limited_by_group": machine.is_group if machine else None,
            "fits": self.fits,
            "largest_context_tokens": self.largest_context,
            "read_bytes_per_second": speed,
            "most_tokens_per_second": {
                "empty_context": plan.most_tokens_per_second(speed, 1),
                "full_context": plan.most_tokens_per_second(speed, plan.context_tokens),
            },
        }


def lines_of(answer: Answer) -> "Iterator[Text]":
    """A line for each thing that takes memory, the verdict, and the speed."""
    from rich.text import Text

    from kaishu.byte_sizes import size
    from kaishu.cli.printable import counted, printable

    plan, machine = answer.plan, answer.machine
    forms = "weights as stored" if plan.choice.weights == "stored" else f"{plan.choice.weights} weights"
    head = "" if plan.choice.head == plan.choice.weights else f", {plan.choice.head} head"
    kept = f"{forms} ({plan.choice.reason}){head}, {plan.choice.kv} keys and values"
    yield Text(printable(f"{answer.model}: {kept}, {counted(plan.threads, 'thread')}"), style="bold")
    longest = f"{counted(plan.sequences, 'sequence')} of {counted(plan.context_tokens, 'token')}"
    once = f", {size(plan.compiling_bytes)} of it once, to compile the kernels" if plan.compiling_bytes else ""
    facts = [
        ("weights", f"{size(plan.packed_bytes)} packed; {size(plan.embedding_bytes)} of it embedding and output head"),
        ("keys, values", f"{size(round(plan.kv_bytes_per_token))} a token; {size(plan.kv_bytes)} for {longest}"),
        (
            "beside them",
            f"{size(plan.buffer_bytes)} of buffers; {size(plan.process_bytes)} of Python and libraries{once}",
        ),
        (
            "peak",
            f"{size(plan.serving_peak_bytes)} with a full context; {size(plan.loading_peak_bytes)} while packing",
        ),
    ]
    if machine is not None:
        whole = f"{'its control group of ' if machine.is_group else ''}{size(machine.total_bytes)}"
        is_said = f"{size(machine.available_bytes)}, as given" if answer.is_assumed else ""
        facts.append(("machine", is_said or f"{size(machine.available_bytes)} available of {whole}"))
    for name, fact in facts:
        yield Text.assemble((f"{name:<14}", "cyan"), fact)
    yield Text.assemble(("fits          ", "cyan"), *_verdict(answer))
    speeds = [plan.most_tokens_per_second(answer.read_bytes_per_second, keys) for keys in (1, plan.context_tokens)]
    yield Text.assemble(
        (f"{'speed':<14}", "cyan"),
        f"at most {speeds[0]:,.1f} tok/s with an empty context, {speeds[1]:,.1f} tok/s with a full one: "
        f"memory is read at {answer.read_bytes_per_second / 1e9:.1f} GB/s",
    )


def _verdict(answer: Answer) -> tuple[tuple[str, str], str]:
    longest = answer.plan.layout.config.max_position_embeddings
    if answer.fits is None or answer.largest_context is None:
        return ("unknown", "yellow"), "; this system doesn't say how much memory it has"
    if answer.fits:
        is_all = answer.largest_context >= longest
        most = f"all {longest:,}" if is_all else f"{answer.largest_context:,} of its {longest:,}"
        return ("yes", "green"), f"; the context may be {most} tokens"
    if answer.largest_context:
        return ("no", "red"), f"; a context of {answer.largest_context:,} tokens would (--context)"
    return ("no", "red"), "; not even the weights do: take fewer bits (--weights int4), or a smaller model"
