"""What the engine has done and is doing, in numbers.

Owns the counters and a plain object that shows them. Knows nothing of where they are shown: the server, `/stats` and
benchmarks read `Statistics`. Counted by core.py.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from kaishu.engine.choice import Choice
from kaishu.engine.histograms import JobHistograms
from kaishu.engine.jobs import Generate, Running
from kaishu.engine.scheduler import Scheduler

ENDS = ("stop", "length", "abort", "error")
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
    ends:                    how many choices ended for each reason of ENDS; a text that is only read ends with stop
    jobs:                    how long jobs took, and how many tokens they had
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
    ends: Mapping[str, int] = field(default_factory=dict)
    jobs: JobHistograms = field(default_factory=JobHistograms, repr=False)

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
    ends: dict[str, int] = field(default_factory=lambda: dict.fromkeys(ENDS, 0))
    jobs: JobHistograms = field(default_factory=JobHistograms)

    def shown(self, scheduler: Scheduler, num_new: int) -> Statistics:
        """All of it at this moment.

        num_new: requests that the scheduler hasn't been told of
        """
        copied = ("step_histogram", "ends", "jobs")
        counted = {name: value for name, value in vars(self).items() if name not in copied}
        return Statistics(
            running=len(scheduler.running),
            waiting=len(scheduler.waiting) + num_new,
            pages=scheduler.pool.num_pages,
            held_pages=scheduler.pool.num_held,
            cached_pages=scheduler.pool.num_cached,
            preemptions=scheduler.preemptions,
            **counted,
            step_histogram=tuple(self.step_histogram),
            ends=dict(self.ends),
            jobs=self.jobs.copied(),
        )

    def count_step(self, executor_seconds: float, own_seconds: float) -> None:
        """One more step."""
        self.steps += 1
        self.step_seconds += executor_seconds
        self.own_seconds += own_seconds
        self.step_histogram[bisect_left(STEP_BOUNDS_MS, executor_seconds * 1000)] += 1

    def count_begun(self, running: Running, now: float) -> None:
        """The first step with some of a job is planned. Its other choices' prompts aren't counted again."""
        running.begun = now
        self.prompt_tokens += running.requests[0].prompt_tokens
        self.cached_tokens += running.requests[0].cached_tokens or 0

    def count_tokens(self, running: Running, index: int, count: int, now: float) -> None:
        """A choice of a job got tokens."""
        self.output_tokens += count
        if index in running.chosen_at:
            self.jobs.gaps.add(now - running.chosen_at[index])
        elif not running.chosen_at:
            self.jobs.first_token.add(now - running.started)
            running.first_token = now
        running.chosen_at[index] = running.last_token = now

    def count_choice(self, choice: Choice) -> None:
        """A choice is over."""
        self.ends[choice.output.finish_reason or "stop"] += 1
        self.jobs.answer_tokens.add(choice.output.num_taken)
        if choice.guessing is not None:
            self.guessed += choice.guessing.guessed
            self.accepted += choice.guessing.accepted

    def count_whole(self, running: Running, now: float) -> None:
        """A job is over, as it should be."""
        self.finished += 1
        jobs, begun = self.jobs, running.started if running.begun is None else running.begun
        jobs.prompt_tokens.add(running.requests[0].prompt_tokens)
        jobs.queue.add(begun - running.started)
        if not isinstance(running.job, Generate):
            self.ends["stop"] += 1
            jobs.whole.add(now - running.started)
            return
        decode = running.last_token - running.first_token
        jobs.prefill.add(running.first_token - begun)
        jobs.decode.add(decode)
        jobs.whole.add(running.last_token - running.started)
        followed = sum(choice.output.num_taken - 1 for choice in running.choices)
        if followed > 0:
            jobs.token.add(decode / followed)

    def count_cut(self, running: Running, reason: Literal["abort", "error"]) -> None:
        """A job ended before it was whole: somebody ended it, or it failed."""
        if reason == "abort":
            self.aborted += 1
        else:
            self.failed += 1
        self.ends[reason] += running.num_open
