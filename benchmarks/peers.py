"""Kaishu beside llama.cpp, OpenVINO and transformers: the same work on the same machine, in turn.

    python -m benchmarks.peers --json results.json --picture results.svg

Makes a model with random weights, measures, prints a table. It installs nothing: an engine that isn't there is said
and left out. README.md says what exactly is measured and how to install the others.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import picture, report
from benchmarks.checkpoints import ModelFiles, prepare
from benchmarks.machine import machine, versions
from benchmarks.one_process import OURS, PEERS
from benchmarks.rounds import Apart, jobs, run_apart
from benchmarks.work import Work
from kaishu.errors import KaishuError

WIDTHS = ("int4", "int8", "bf16")
_CACHE = Path(__file__).resolve().parents[1] / ".cache" / "benchmarks"


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    own = Work()
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", description=__doc__.split("\n\n")[0])
    add_common_options(parser)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--widths", nargs="+", choices=WIDTHS, default=list(WIDTHS))
    parser.add_argument("--peers", nargs="*", choices=[*PEERS], default=[*PEERS], help="which engines; ours is one")
    parser.add_argument("--prompt", type=int, default=own.prompt_tokens, help="tokens of the prefill")
    parser.add_argument("--streams", type=int, nargs="*", default=list(own.streams))
    parser.add_argument("--steps", type=int, default=own.steps, help="timed tokens of a sequence, each repeat")
    parser.add_argument("--repeats", type=int, default=own.repeats, help="inside one process")
    parser.add_argument("--long-context", type=int, metavar="TOKENS", help="also decode after so many, as 8192")
    parser.add_argument("--picture", type=Path, help="draw them, .svg or .png")
    options = parser.parse_args(arguments)
    counts = (options.threads, options.rounds, options.prompt, options.steps, options.repeats, *options.streams)
    if min(counts) < 1 or (options.long_context is not None and options.long_context < 1):
        parser.error("threads, rounds, prompt, streams, steps, repeats and the long context are at least 1")
    return options


def add_common_options(parser: argparse.ArgumentParser) -> None:
    """The options of every comparison: the model, the threads, which of ours, and where the results go."""
    parser.add_argument("--work", type=Path, default=_CACHE, help="where the models are kept (default: %(default)s)")
    parser.add_argument("--shape", default="qwen3-0.6b", help="qwen3-0.6b, 1.7b, 4b, 8b, 30b-a3b, tiny-test")
    parser.add_argument("--layers", type=int, help="fewer layers than the shape has")
    parser.add_argument("--seed", type=int, default=0, help="of the weights")
    parser.add_argument("--tokenizer", type=Path, help="folder with tokenizer.json and tokenizer_config.json")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--executor", choices=("cpu", "reference"), default="cpu", help="which of ours")
    parser.add_argument("--json", type=Path, help="write all results; rewritten after every measurement")


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and report. return: 1 where nothing could be measured"""
    options = parse(arguments)
    work = Work(
        prompt_tokens=options.prompt,
        steps=options.steps,
        repeats=options.repeats,
        streams=tuple(options.streams),
        long_prompt=options.long_context,
    )
    left_out = {name: why for name in options.peers if (why := PEERS[name].missing(options.executor))}
    files, models = find_models([name for name in options.peers if name not in left_out], options, left_out)
    for name, why in left_out.items():
        say(f"{name} is left out: {why}")
    results = _measure(options, models, files.name, work, left_out)
    rows = report.summarise(results)
    described = f"{files.name}, random weights, {options.threads} threads, medians of {options.rounds} rounds"
    print(described + (", our reference model\n" if options.executor == "reference" else "\n"))
    print(report.table(rows, work) if rows else "nothing was measured")
    for line in report.failures(results):
        print(f"failed: {line}")
    if options.picture and rows:
        if why := picture.missing():
            say(f"no picture: {why}")
        else:
            picture.draw(rows, work, f"{described}, {machine().get('processor', '')}", options.picture)
    return 0 if rows else 1


def find_models(
    peers: Sequence[str], options: argparse.Namespace, left_out: dict[str, str]
) -> tuple[ModelFiles, dict[str, dict[str, Path]]]:
    """Make the files, and match them with who reads them; who lacks one joins `left_out`.

    options: the common ones, and `widths`
    return: the files; peer → width → the model in its format
    """
    formats = {
        name: {width: PEERS[name].FORMATS[width] for width in options.widths if _does(name, width, options.executor)}
        for name in peers
    }
    say(f"making or finding the files in {options.work}")
    wanted = [file_format for asked in formats.values() for file_format in asked.values()]
    files = prepare(options.work, options.shape, options.layers, options.seed, options.tokenizer, wanted)
    models = {}
    for name, asked in formats.items():
        if lacking := [files.lacking[f] for f in asked.values() if f in files.lacking]:
            left_out[name] = lacking[0]
        else:
            models[name] = {width: files.paths[f] for width, f in asked.items()}
    return files, models


def _does(name: str, width: str, executor: str) -> bool:
    """Whether an engine is measured at a width."""
    return width in PEERS[name].FORMATS and (name != OURS or executor == "cpu" or width == "bf16")


def _measure(
    options: argparse.Namespace,
    models: Mapping[str, Mapping[str, Path]],
    model_name: str,
    work: Work,
    left_out: Mapping[str, str],
) -> list[dict[str, Any]]:
    """Run all rounds."""
    counts = {"rounds": options.rounds, "threads": options.threads, "executor": options.executor}
    told = {"model": model_name, **counts, "work": vars(work), "left_out": dict(left_out)}
    wanted = list(jobs(models, options.widths, work=work, **counts))
    return run_all(wanted, "benchmarks.one_process", told, report.summarise, options.json)


def run_all(
    wanted: Sequence[Apart],
    module: str,
    told: Mapping[str, Any],
    summarise: Callable[[list[dict[str, Any]]], list[report.Row]],
    path: Path | None,
) -> list[dict[str, Any]]:
    """Run every job apart; what has been measured is in the JSON even if the run is broken off.

    module:    what reads a job from its command line
    told:      what else the JSON says
    summarise: results → the JSON's summary
    return:    what the processes printed, or that they failed
    """
    results: list[dict[str, Any]] = []
    for number, job in enumerate(wanted, 1):
        result = run_apart(job, module)
        results.append(result)
        values = result.get("values") or {"failed": result.get("failed")}
        said = ", ".join(f"{k} {v:.1f}" if isinstance(v, float) else f"{k}: {v}" for k, v in values.items())
        say(f"[{number}/{len(wanted)}] round {job.round}, {job.width}, {job.peer}: {said}")
        if path:
            summary = [row.to_json() for row in summarise(results)]
            document = {**told, "machine": machine(), "versions": versions(), "summary": summary, "results": results}
            path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    return results


def say(line: str) -> None:
    """Tell whoever waits; what is printed to stdout is the result alone."""
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KaishuError as problem:
        sys.exit(f"benchmarks: error: {problem}")
