"""Requests that arrive over time, the loop that hands them to an engine, and the clock.

Owns what is asked (`Load`), the one loop that all engines share (`serve`), and what is made of its record (`values`).
Refuses to know how an engine batches: it is anything that takes requests and can be stepped (`Server`), which the
three serving_*.py modules about engines satisfy. serving_process.py drives it.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np

OUTPUT_SPEED = "output_tokens_per_second"
TOTAL_SPEED = "total_tokens_per_second"
REQUEST_SPEEDS = ("request_speed_median", "request_speed_p5")
WALL = "wall_seconds"
TITLES: Mapping[str, str] = MappingProxyType(
    {
        OUTPUT_SPEED: "output tokens/s",
        TOTAL_SPEED: "prompt and output tokens/s",
        "first_token_median_seconds": "first token after, s, median",
        "first_token_p95_seconds": "first token after, s, 95th percentile",
        "token_median_ms": "time per token of a request, ms, median",
        "token_p95_ms": "time per token of a request, ms, 95th percentile",
        "request_speed_median": "a request's tokens/s, its wait included, median",
        "request_speed_p5": "a request's tokens/s, its wait included, 5th percentile",
        "gap_median_ms": "gap between tokens, ms, median",
        "gap_p95_ms": "gap between tokens, ms, 95th percentile",
        "gap_max_ms": "gap between tokens, ms, longest",
        WALL: "first arrival to last token, s",
    }
)
COSTS = tuple(measure for measure in TITLES if measure not in (OUTPUT_SPEED, TOTAL_SPEED, *REQUEST_SPEEDS))
_WARM_UP = 4


@dataclass(frozen=True)
class Request:
    """One request.

    number:        its name in every engine
    arrival:       seconds after the start
    output_tokens: how many tokens are made of it, whatever they are
    """

    number: int
    arrival: float
    prompt: tuple[int, ...]
    output_tokens: int

    @property
    def tokens(self) -> int:
        """All its tokens; the last one's key is never needed."""
        return len(self.prompt) + self.output_tokens


@dataclass(frozen=True)
class Load:
    """How many requests of what lengths, and how fast they come.

    prompt, output: fewest and most tokens; every length between is as likely
    rate:           requests a second, with exponential gaps; None: all arrive at once
    shared_prompt:  so many tokens stand in front of every prompt, the same in all; 0: prompts have nothing in common
    """

    requests: int = 64
    prompt: tuple[int, int] = (128, 512)
    output: tuple[int, int] = (64, 256)
    rate: float | None = 2.0
    shared_prompt: int = 0

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any]) -> Load:
        """Read what `dataclasses.asdict` and JSON made of one."""
        return cls(**{**fields, "prompt": tuple(fields["prompt"]), "output": tuple(fields["output"])})

    @property
    def most_tokens(self) -> int:
        """The most tokens that a sequence gets."""
        return self.shared_prompt + self.prompt[1] + self.output[1]

    def draw(self, vocab_size: int, seed: int) -> list[Request]:
        """The requests, in the order in which they arrive; the first arrives at 0."""
        random = np.random.default_rng(seed)
        shared = random.integers(0, vocab_size, self.shared_prompt)
        gaps = random.exponential(1.0, self.requests)  # drawn even if all come at once: the rest stays the same
        gaps[0] = 0.0
        arrivals = np.cumsum(gaps) * (1 / self.rate if self.rate else 0.0)
        prompts = random.integers(self.prompt[0], self.prompt[1] + 1, self.requests)
        outputs = random.integers(self.output[0], self.output[1] + 1, self.requests)
        return [
            Request(
                number,
                float(arrivals[number]),
                (*shared.tolist(), *random.integers(0, vocab_size, int(prompts[number])).tolist()),
                int(outputs[number]),
            )
            for number in range(self.requests)
        ]

    def draw_warm_up(self, vocab_size: int, seed: int) -> list[Request]:
        """A few short requests that have nothing in common with the load's, numbered behind them."""
        few = replace(self, requests=_WARM_UP, output=(8, 8), rate=None, shared_prompt=0)
        return [replace(r, number=self.requests + r.number) for r in few.draw(vocab_size, seed + 1_000_000)]


class Server(Protocol):
    """A loaded model that serves many requests, greedily, and ignores end tokens."""

    vocab_size: int

    def add(self, request: Request) -> None:
        """Take a request; it may wait."""

    def step(self) -> Iterable[tuple[int, int]]:
        """Compute for a moment. return: the numbers of the requests that got tokens, and how many each got"""


@dataclass(frozen=True)
class Record:
    """What happened.

    deliveries:   request number → when it got tokens, in seconds after the start, and how many
    wall_seconds: from the first arrival to the last token
    idle_seconds: time in which no request was there
    steps:        how often the engine was stepped
    """

    deliveries: Mapping[int, Sequence[tuple[float, int]]]
    wall_seconds: float
    idle_seconds: float
    steps: int


def serve(server: Server, requests: Sequence[Request]) -> Record:
    """Hand over each request once it has arrived, and step the engine until all have their tokens.

    requests: in the order in which they arrive
    """
    deliveries: dict[int, list[tuple[float, int]]] = {request.number: [] for request in requests}
    lacking = {request.number: request.output_tokens for request in requests}
    running, arrived, steps, idle = 0, 0, 0, 0.0
    start = time.perf_counter()
    while arrived < len(requests) or running:
        now = time.perf_counter() - start
        while arrived < len(requests) and requests[arrived].arrival <= now:
            server.add(requests[arrived])
            arrived, running = arrived + 1, running + 1
        if not running:
            idle += requests[arrived].arrival - now
            time.sleep(requests[arrived].arrival - now)
            continue
        made = list(server.step())
        steps += 1
        now = time.perf_counter() - start
        for number, tokens in made:
            deliveries[number].append((now, tokens))
            lacking[number] -= tokens
            running -= lacking[number] == 0
    wall = time.perf_counter() - start
    wrong = [number for number, tokens in lacking.items() if tokens]
    assert not wrong, f"requests {wrong} got more or fewer tokens than they asked for"
    return Record(deliveries, wall, idle, steps)


def values(requests: Sequence[Request], record: Record) -> dict[str, float]:
    """The measures. return: a value for each of TITLES

    A first token's time counts from the request's arrival, so also what it waited while the engine was in a step. A gap
    lies between two deliveries of a request: tokens that come together have none between them. The time per token is of
    all but a request's first: from that one to the last, over their number.
    """
    first = [record.deliveries[r.number][0][0] - r.arrival for r in requests]
    gaps = [np.diff([when for when, _ in record.deliveries[r.number]]) for r in requests]
    between = np.concatenate(gaps) * 1000
    between = between if len(between) else np.zeros(1)
    last = [record.deliveries[r.number][-1][0] - r.arrival for r in requests]
    per_token = [
        (end - begin) / (r.output_tokens - 1) * 1000
        for r, begin, end in zip(requests, first, last, strict=True)
        if r.output_tokens > 1
    ] or [0.0]
    speeds = [r.output_tokens / end for r, end in zip(requests, last, strict=True)]
    output = sum(r.output_tokens for r in requests)
    prompt = sum(len(r.prompt) for r in requests)
    measured = (
        output / record.wall_seconds,
        (prompt + output) / record.wall_seconds,
        float(np.median(first)),
        float(np.percentile(first, 95)),
        float(np.median(per_token)),
        float(np.percentile(per_token, 95)),
        float(np.median(speeds)),
        float(np.percentile(speeds, 5)),
        float(np.median(between)),
        float(np.percentile(between, 95)),
        float(between.max()),
        record.wall_seconds,
    )
    return dict(zip(TITLES, measured, strict=True))
