"""What the engine has done and is doing, in numbers.

Owns the counters and a plain object that shows them. Knows nothing of where they are shown: the server, `/stats` and
benchmarks read `Statistics`. Counted by core.py.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field

from kaishu.engine.scheduler import Scheduler

STEP_BOUNDS_MS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000)


@dataclass(frozen=True)
class Statistics:
    """A moment of the engine. Token counts are since its start; times are in seconds.

    running, waiting:        requests
    pages, held_pages, cached_pages: of the KV cache; cached ones are held by nobody but can be used again
    prompt_tokens:           of all requests that began to run
    cached_tokens:           how many of those were found in the cache
    output_tokens:           chosen
    guessed, accepted:       tokens of speculation
    preemptions:             how often a request had to give its pages back
    finished, failed, aborted: requests
    step_seconds, own_seconds: in the executor, and in everything else of a step
    step_histogram:          how many steps took up to each bound of STEP_BOUNDS_MS, and longer than the last
    """

    running: int
    waiting: int
    pages: int
    held_pages: int
    cached_pages: int
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    guessed: int
    accepted: int
    preemptions: int
    finished: int
    failed: int
    aborted: int
    steps: int
    step_seconds: float
    own_seconds: float
    step_histogram: tuple[int, ...]

    @property
    def hit_rate(self) -> float | None:
        """The share of prompt tokens that were found in the cache."""
        return self.cached_tokens / self.prompt_tokens if self.prompt_tokens else None

    @property
    def acceptance(self) -> float | None:
        """The share of guessed tokens that were right."""
        return self.accepted / self.guessed if self.guessed else None


@dataclass
class Counters:
    """What is added up; the fields are those of Statistics."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    guessed: int = 0
    accepted: int = 0
    finished: int = 0
    failed: int = 0
    aborted: int = 0
    steps: int = 0
    step_seconds: float = 0.0
    own_seconds: float = 0.0
    step_histogram: list[int] = field(default_factory=lambda: [0] * (len(STEP_BOUNDS_MS) + 1))

    def shown(self, scheduler: Scheduler, num_new: int) -> Statistics:
        """All of it at this moment.

        num_new: requests that the scheduler hasn't been told of
        """
        counted = {name: value for name, value in vars(self).items() if name != "step_histogram"}
        return Statistics(
            running=len(scheduler.running),
            waiting=len(scheduler.waiting) + num_new,
            pages=scheduler.pool.num_pages,
            held_pages=scheduler.pool.num_held,
            cached_pages=scheduler.pool.num_cached,
            preemptions=scheduler.preemptions,
            **counted,
            step_histogram=tuple(self.step_histogram),
        )

    def count_step(self, executor_seconds: float, own_seconds: float) -> None:
        """One more step."""
        self.steps += 1
        self.step_seconds += executor_seconds
        self.own_seconds += own_seconds
        self.step_histogram[bisect_left(STEP_BOUNDS_MS, executor_seconds * 1000)] += 1
