"""How long jobs took and how many tokens they had, sorted into bounds.

Owns the bounds and the sorting. Knows nothing of who looks: the server shows them to Prometheus. Filled by
statistics.py.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, field, fields

SECONDS = tuple(round(step * 10.0**power, 6) for power in range(-3, 4) for step in (1, 2, 5))  # 1 ms to 5,000 s
GAP_SECONDS = tuple(round(step * 10.0**power, 6) for power in range(-3, 1) for step in (1, 1.5, 2, 3, 5, 7))  # to 7 s
TOKENS = tuple(float(1 << power) for power in range(18))  # to 131,072


@dataclass
class Histogram:
    """Numbers, sorted.

    bounds: the places' upper ends, inclusive, ascending
    counts: how many numbers there are in each place; the last one is for those above all bounds
    total:  the sum of all numbers
    """

    bounds: tuple[float, ...]
    counts: list[int] = field(default_factory=list)
    total: float = 0.0

    def __post_init__(self) -> None:
        self.counts = self.counts or [0] * (len(self.bounds) + 1)

    def add(self, number: float) -> None:
        """One more."""
        self.counts[bisect_left(self.bounds, number)] += 1
        self.total += number

    def copied(self) -> Histogram:
        """As it is at this moment."""
        return Histogram(self.bounds, list(self.counts), self.total)


def _of(bounds: tuple[float, ...]) -> Callable[[], Histogram]:
    return lambda: Histogram(bounds)


@dataclass
class JobHistograms:
    """What became of jobs. Times are in seconds; those of whole jobs are counted when the job is over.

    first_token:      from a job's entry to its first token, whichever choice got it; counted when it is there
    gaps:             from the last token of one step of a choice to that of its next
    queue:            from a job's entry to the first step that had some of it
    prefill:          from there to its first token
    decode:           from its first token to its last
    whole:            from its entry to its last token
    token:            a job's decode time by the tokens after the first of each choice; none where there are none
    prompt_tokens:    of each job
    answer_tokens:    of each choice
    """

    first_token: Histogram = field(default_factory=_of(SECONDS))
    gaps: Histogram = field(default_factory=_of(GAP_SECONDS))
    queue: Histogram = field(default_factory=_of(SECONDS))
    prefill: Histogram = field(default_factory=_of(SECONDS))
    decode: Histogram = field(default_factory=_of(SECONDS))
    whole: Histogram = field(default_factory=_of(SECONDS))
    token: Histogram = field(default_factory=_of(GAP_SECONDS))
    prompt_tokens: Histogram = field(default_factory=_of(TOKENS))
    answer_tokens: Histogram = field(default_factory=_of(TOKENS))

    def copied(self) -> JobHistograms:
        """As they are at this moment."""
        return JobHistograms(**{one.name: getattr(self, one.name).copied() for one in fields(self)})
