"""What every engine is asked to do, and the clock.

Owns the definition of the work and of each measure. Refuses to know how an engine does it: an engine is anything that
can open sequences, compute their prompts, and then one token more of each (the two protocols below). The four peer
modules satisfy them; one_process.py drives them.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from kaishu.benchmark import peak_memory_bytes

DECODE = "decode"
PREFILL = "prefill"
LONG_DECODE = "decode_long"
PEAK_MEMORY = "peak_memory_mb"


def streams_measure(streams: int) -> str:
    """The name of the measure of this many sequences at once."""
    return f"streams_{streams}"


class Sequences(Protocol):
    """B sequences in an engine, with empty caches until `prefill`."""

    def prefill(self, prompts: NDArray[np.int32]) -> None:
        """Compute the prompts, [B, n], up to the logits of each one's last token."""

    def step(self) -> None:
        """Compute one more token of every sequence, up to its logits."""

    def close(self) -> None:
        """Free what they hold."""


class Engine(Protocol):
    """A loaded model."""

    vocab_size: int

    def open(self, sequences: int, tokens: int) -> Sequences:
        """Room for so many sequences of at most so many tokens each."""


@dataclass(frozen=True)
class Work:
    """How much of each measure. All speeds are in tokens a second, of all sequences together.

    decode:      one sequence, `steps` tokens after `short_prompt` + `settling_steps`
    prefill:     one prompt of `prompt_tokens`, logits of its last token
    streams_N:   as decode, with N sequences in step
    decode_long: as decode, after `long_prompt` tokens; only where it isn't None
    """

    prompt_tokens: int = 512
    short_prompt: int = 16
    settling_steps: int = 4
    steps: int = 24
    repeats: int = 3
    streams: tuple[int, ...] = (4, 16, 32)
    long_prompt: int | None = None

    @property
    def most_tokens(self) -> int:
        """The most tokens that are in the caches at once, over all measures."""
        short = self.decode_tokens(self.short_prompt) * max((1, *self.streams))
        return max(short, self.prompt_tokens, self.decode_tokens(self.long_prompt) if self.long_prompt else 0)

    def decode_tokens(self, prompt: int) -> int:
        """How long a sequence gets."""
        return prompt + self.settling_steps + self.repeats * self.steps


def measure(engine: Engine, work: Work, *, seed: int) -> Iterator[tuple[str, float]]:
    """Do the work once. Each speed is the median of `repeats`; what comes first warms up and isn't counted.

    return: pairs of a measure's name and its value. Peak memory is of loading, `decode` and `prefill`
    """
    random = np.random.default_rng(seed)
    for _ in range(2):  # the first run warms up
        decode = _decode_speed(engine, work, random, sequences=1, prompt=work.short_prompt)
    yield DECODE, decode
    yield PREFILL, _prefill_speed(engine, work, random)
    yield PEAK_MEMORY, peak_memory_bytes() / 1e6
    for streams in work.streams:
        yield (
            streams_measure(streams),
            _decode_speed(engine, work, random, sequences=streams, prompt=work.short_prompt),
        )
    if work.long_prompt:
        yield LONG_DECODE, _decode_speed(engine, work, random, sequences=1, prompt=work.long_prompt)


def _prompts(engine: Engine, random: np.random.Generator, sequences: int, tokens: int) -> NDArray[np.int32]:
    return random.integers(0, engine.vocab_size, (sequences, tokens), np.int32)


def _decode_speed(engine: Engine, work: Work, random: np.random.Generator, *, sequences: int, prompt: int) -> float:
    opened = engine.open(sequences, work.decode_tokens(prompt))
    opened.prefill(_prompts(engine, random, sequences, prompt))
    for _ in range(work.settling_steps):
        opened.step()
    speeds = []
    for _ in range(work.repeats):
        start = time.perf_counter()
        for _ in range(work.steps):
            opened.step()
        speeds.append(work.steps * sequences / (time.perf_counter() - start))
    opened.close()
    return statistics.median(speeds)


def _prefill_speed(engine: Engine, work: Work, random: np.random.Generator) -> float:
    speeds = []
    for _ in range(1 + work.repeats):
        opened = engine.open(1, work.prompt_tokens + 1)
        prompt = _prompts(engine, random, 1, work.prompt_tokens)
        start = time.perf_counter()
        opened.prefill(prompt)
        speeds.append(work.prompt_tokens / (time.perf_counter() - start))
        opened.close()
    return statistics.median(speeds[1:])
