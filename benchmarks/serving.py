"""Kaishu beside llama.cpp and OpenVINO, serving many requests that arrive over time: the same ones on the same machine.

    python -m benchmarks.serving --json serving.json

Requests are handed to each engine inside its process, with no server between; or with --over-http to a server of each,
through OpenAI's chat, and what that costs Kaishu is said. The model has random weights.
It installs nothing: an engine that isn't there is said and left out. README.md says what exactly is measured.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from statistics import median
from types import ModuleType
from typing import Any

from benchmarks import report
from benchmarks.one_process import OURS
from benchmarks.peers import WIDTHS, add_common_options, find_models, run_all, say
from benchmarks.rounds import turns
from benchmarks.serving_load import COSTS, OUTPUT_SPEED, TITLES, Load
from benchmarks.serving_process import HTTP_SERVERS, SERVERS, ServingJob
from kaishu.errors import KaishuError


def parse(arguments: Sequence[str] | None) -> tuple[argparse.Namespace, Load]:
    """The command line: the options, and the load among them. `settings` are complete, for every engine."""
    own = Load()
    parser = argparse.ArgumentParser(prog="python -m benchmarks.serving", description=__doc__.split("\n\n")[0])
    add_common_options(parser)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--weights", choices=WIDTHS, default="int4")
    parser.add_argument("--peers", nargs="*", choices=[*SERVERS], default=[*SERVERS], help="which engines; ours is one")
    parser.add_argument("--requests", type=int, default=own.requests)
    span: dict[str, Any] = {"type": int, "nargs": 2, "metavar": ("LEAST", "MOST")}
    parser.add_argument("--prompt", default=own.prompt, help="tokens of a prompt", **span)
    parser.add_argument("--output", default=own.output, help="tokens made of each request", **span)
    arriving = parser.add_mutually_exclusive_group()
    arriving.add_argument("--rate", type=float, default=own.rate, help="requests a second, at random moments")
    arriving.add_argument("--at-once", action="store_true", help="all requests arrive at the start")
    parser.add_argument(
        "--shared-prompt", type=int, default=0, metavar="TOKENS", help="the same in front of every prompt"
    )
    parser.add_argument(
        "--setting", action="append", default=[], metavar="ENGINE.NAME=NUMBER", help="as llama.cpp.parallel=32"
    )
    parser.add_argument("--over-http", action="store_true", help="the engines' servers instead of the engines")
    options = parser.parse_args(arguments)
    load = Load(
        requests=options.requests,
        prompt=tuple(options.prompt),
        output=tuple(options.output),
        rate=None if options.at_once else options.rate,
        shared_prompt=options.shared_prompt,
    )
    counts = (options.threads, options.rounds, load.requests, load.prompt[0], load.output[0])
    if min(counts) < 1 or load.shared_prompt < 0 or options.rate <= 0:
        parser.error("threads, rounds, requests, prompts and outputs are at least 1, the rate is more than 0")
    if load.prompt[0] > load.prompt[1] or load.output[0] > load.output[1]:
        parser.error("--prompt and --output name the least before the most")
    options.widths = [options.weights]
    options.servers = HTTP_SERVERS if options.over_http else SERVERS
    options.peers = [name for name in options.peers if name in options.servers]
    try:
        options.settings = _settings(options.setting, options.servers)
    except ValueError as problem:
        parser.error(str(problem))
    return options, load


def _settings(changes: Sequence[str], servers: Mapping[str, ModuleType]) -> dict[str, dict[str, int]]:
    """Every engine's own settings, with these changes; ValueError says what is wrong with one."""
    settings = {name: dict(server.SETTINGS) for name, server in servers.items()}
    for change in changes:
        left, _, value = change.partition("=")
        engine, _, name = left.rpartition(".")
        if engine not in settings or name not in settings[engine]:
            known = ", ".join(f"{engine}.{name}" for engine in settings for name in settings[engine])
            raise ValueError(f"--setting {change}: there is no such setting; there are {known}")
        if not value.isdecimal():
            raise ValueError(f"--setting {change}: {value!r} is not a number from 0")
        settings[engine][name] = int(value)
    return settings


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and report. return: 1 where nothing could be measured"""
    options, load = parse(arguments)
    left_out = {name: why for name in options.peers if (why := options.servers[name].missing(options.executor))}
    files, models = find_models([name for name in options.peers if name not in left_out], options, left_out)
    for name, why in left_out.items():
        say(f"{name} is left out: {why}")
    told = {"model": files.name, "load": asdict(load), "left_out": left_out}
    told |= {"rounds": options.rounds, "threads": options.threads, "executor": options.executor}
    wanted = list(_jobs(models, options, load))
    results = run_all(wanted, "benchmarks.serving_process", told, _summarise, options.json)
    rows = _summarise(results)
    print(f"{files.name}, random weights, {options.threads} threads, medians of {options.rounds} rounds")
    print(f"{described(load)}\n")
    print(report.tabulate(rows, "measure", lambda measure: TITLES[measure]) if rows else "nothing was measured")
    if cost := cost_of_http(results):
        print(f"\n{cost}")
    for line in report.failures(results):
        print(f"failed: {line}")
    return 0 if rows else 1


def _jobs(models: Mapping[str, Mapping[str, Path]], options: argparse.Namespace, load: Load) -> Iterator[ServingJob]:
    for number, width, peer, path in turns(models, options.widths, options.rounds):
        settings = options.settings[peer]
        job = ServingJob(peer, width, path, options.threads, options.executor, number, load, settings)
        yield replace(job, over_http=options.over_http)
        if options.over_http and peer == OURS:
            yield job  # the engine alone, beside it


def _summarise(results: Sequence[Mapping[str, Any]]) -> list[report.Row]:
    """Of the servers, where there are any; else of the engines."""
    over_http = any(result.get("over_http") for result in results)
    return report.summarise([result for result in results if result.get("over_http", over_http) == over_http], COSTS)


def cost_of_http(results: Sequence[Mapping[str, Any]]) -> str | None:
    """What HTTP takes of Kaishu's output, in words; None where it wasn't measured."""
    speeds: dict[bool, list[float]] = {True: [], False: []}
    for result in results:
        if result["peer"] == OURS and "values" in result:
            speeds[bool(result.get("over_http"))].append(result["values"][OUTPUT_SPEED])
    if not (speeds[True] and speeds[False]):
        return None
    served, alone = (median(speeds[over_http]) for over_http in (True, False))
    return (
        f"Kaishu's engine alone makes {alone:.1f} output tokens/s; HTTP takes {100 * (1 - served / alone):.1f} % of it"
    )


def described(load: Load) -> str:
    """The load in words."""
    arriving = f"{load.rate:g} arriving a second" if load.rate else "all arriving at once"
    shared = f"{load.shared_prompt:,} shared tokens and " if load.shared_prompt else ""
    prompt, output = (f"{least}–{most}" for least, most in (load.prompt, load.output))
    return f"{load.requests} requests, {arriving}; prompts of {shared}{prompt} tokens, outputs of {output}"


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KaishuError as problem:
        sys.exit(f"benchmarks: error: {problem}")
