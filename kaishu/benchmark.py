"""How long steps take, and how long they must take at least.

Owns the work that is measured, its bytes and operations, and the arithmetic on times; the clock is given. Knows an
executor by its contract (batch.py) and, for what its weights weigh, by the layout of the packed model. `kaishu bench`
loads the model and prints.

The floor of a step is the longer of two times: to read its bytes at the speed that memory is read with, and to do its
operations at the speed of the instructions that its weights need (benchmark_limits.py). Processors change their speed
from second to second, with heat and with what others do; so both are tried again between a few steps and the next, and
a step is compared with the limits of its own moment. A step
- reads all packed weights once (of a layer with experts, those that its tokens choose), the head's only if it wants
  logits, and the keys and values that its tokens look at; nothing is counted for embeddings and activations;
- multiplies and adds once for each weight and token, and twice for each query head, channel and key that is looked at.
"""

from __future__ import annotations

import re
import statistics
import sys
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from kaishu.batch import Executor, SequenceTokens, pack
from kaishu.benchmark_limits import Clock, Limits
from kaishu.cpu.layout import Layout, PackedLinear

CHUNK_TOKENS = 512  # how many tokens at once fill the cache before a measurement
FEWEST_STEPS = 3
ROUND_SECONDS = 0.25  # of steps, after which the limits are tried again
SHORT_PROMPT = 16  # tokens of a question, whose first token is waited for


@dataclass(frozen=True)
class Work:
    """One kind of step.

    context:    how many keys the first new token of each sequence sees, itself included
    sequences:  B
    new_tokens: of each sequence: 1 for decoding, more for a prompt
    """

    kind: Literal["decode", "prefill"]
    context: int
    sequences: int
    new_tokens: int

    @property
    def start(self) -> int:
        """How many tokens of each sequence are in the cache before."""
        return self.context - 1

    @property
    def end(self) -> int:
        """How many are there after."""
        return self.start + self.new_tokens

    @property
    def tokens(self) -> int:
        """T, the new tokens of all sequences."""
        return self.sequences * self.new_tokens


def plan(
    contexts: Sequence[int], batch_sizes: Sequence[int], prompt: int, *, longest: int, most_tokens: int
) -> tuple[list[Work], list[Work]]:
    """All combinations: decoding at each context in each batch size, a prompt at each context, and a short prompt.

    prompt:      tokens of the prompt
    longest:     positions that the model allows
    most_tokens: cached tokens of all sequences together that may be filled to get there
    return:      what to measure, and what is left out because it would take more
    """
    short = [Work("prefill", 1, 1, SHORT_PROMPT)] if prompt > SHORT_PROMPT else []
    prompts = [*short, *(Work("prefill", context, 1, prompt) for context in contexts)]
    wanted = [Work("decode", context, size, 1) for context in contexts for size in batch_sizes] + prompts
    fits = [
        work.end <= longest and (work.sequences == 1 or work.sequences * work.end <= most_tokens) for work in wanted
    ]
    kept = [work for work, is_kept in zip(wanted, fits, strict=True) if is_kept]
    return kept, [work for work, is_kept in zip(wanted, fits, strict=True) if not is_kept]


@dataclass(frozen=True)
class Cost:
    """What a step reads and does.

    operations: by the form of weights whose instructions do it; attention is bf16
    """

    read_bytes: float
    operations: Mapping[str, float]

    @property
    def all_operations(self) -> float:
        """Multiplications and additions of every form."""
        return sum(self.operations.values())

    def floor_seconds(self, limits: Limits) -> float:
        """The shortest time that the machine allows."""
        reading = self.read_bytes / limits.read_bytes_per_second
        computing = sum(count / limits.operations_per_second[form] for form, count in self.operations.items())
        return max(reading, computing)


@dataclass(frozen=True)
class Measurement:
    """One work, and the median time of its step.

    share_of_floor: the least time that a step could have taken, as a share of the time it took; the median of rounds
    """

    work: Work
    seconds: float
    cost: Cost
    share_of_floor: float

    @property
    def tokens_per_second(self) -> float:
        """Of all sequences together."""
        return self.work.tokens / self.seconds


def packed_bytes(linear: PackedLinear) -> int:
    """What a step reads of one linear layer: weights, scales, minimums and bias."""
    scales = linear.scale_bytes * (1 if linear.minimums < 0 else 2)
    return linear.weight_bytes + scales + (4 * linear.padded_rows if linear.bias >= 0 else 0)


def step_cost(layout: Layout, kv_bytes_per_token: int, work: Work) -> Cost:
    """What a step reads and does. Of experts: what is expected when tokens choose them evenly and independently.

    kv_bytes_per_token: of all layers together
    """
    config, experts = layout.config, layout.config.experts
    chosen = experts.num_experts_per_tok / experts.num_experts if experts else 1.0  # by one token
    last = config.num_hidden_layers - 1
    read_bytes, operations = 0.0, defaultdict[str, float](float)
    for linear in layout.packed:
        tokens, is_expert = _tokens_of(linear.name, last, work), ".experts." in linear.name
        products = tokens * linear.rows * linear.inputs
        read = 1.0 - (1.0 - chosen) ** tokens if is_expert else 1.0  # by at least one token
        read_bytes += packed_bytes(linear) * read
        operations[linear.kind.removesuffix("_minimum")] += 2 * products * (chosen if is_expert else 1.0)
    for layer in range(config.num_hidden_layers):
        window = config.sliding_window(layer) or work.end
        kept, seen = _keys(work, window, work.new_tokens if layer < last else 1)
        read_bytes += work.sequences * kept * kv_bytes_per_token / config.num_hidden_layers
        operations["bf16"] += 4 * work.sequences * config.query_size * seen
    return Cost(read_bytes, dict(operations))


def _tokens_of(name: str, last: int, work: Work) -> int:
    """By how many tokens a linear layer is multiplied: the head, and in the last layer what follows its keys and
    values, by the one of each sequence whose logits are wanted."""
    is_before = not name.startswith(f"model.layers.{last}.") or name.endswith(("q_proj", "k_proj", "v_proj"))
    return work.tokens if is_before and name.startswith("model.layers.") else work.sequences


def _keys(work: Work, window: int, queries: int) -> tuple[int, int]:
    """return: how many keys of one sequence are looked at, and how often, by its last tokens, so many, together"""
    seen = sum(min(position + 1, window) for position in range(work.end - queries, work.end))
    return min(work.end, window + queries - 1), seen


class Sequences:
    """Sequences in an executor's pages, as long as the work wants them; their tokens are random.

    What is in the cache stays there from one work to the next, so each position is computed once to fill it.
    """

    def __init__(self, executor: Executor, works: Sequence[Work], random: np.random.Generator) -> None:
        """works: all that will be measured; the executor has `pages_needed` for them."""
        self._executor, self._random = executor, random
        self._pages: list[range] = []
        self._filled: list[int] = []
        first = 0
        for length in _lengths(works):
            pages = -(-length // executor.page_tokens)
            self._pages.append(range(first, first + pages))
            self._filled.append(0)
            first += pages
        assert first <= executor.num_pages, "there are pages for all sequences"

    def rounds(self, work: Work, *, seconds: float, clock: Clock) -> Iterator[list[float]]:
        """Run a step again and again, always at the same positions, and time each, after one that warms up.

        seconds: for how long in all, though three steps at least
        return:  the times of the steps of one round after another; they include packing the batch, but no choosing of
                 tokens. What is done between two rounds takes no part
        """
        for sequence in range(work.sequences):
            self._fill(sequence, work.start)
        self._timed(work, clock)
        steps, spent = 0, 0.0
        while steps < FEWEST_STEPS or spent < seconds:
            times = [self._timed(work, clock)]
            while sum(times) < ROUND_SECONDS and (steps + len(times) < FEWEST_STEPS or spent + sum(times) < seconds):
                times.append(self._timed(work, clock))
            yield times
            steps, spent = steps + len(times), spent + sum(times)

    def _timed(self, work: Work, clock: Clock) -> float:
        tokens = self._random.integers(0, self._executor.vocab_size, (work.sequences, work.new_tokens)).tolist()
        start = clock()
        batch = pack([SequenceTokens(row, work.start, self._pages[b], (-1,)) for b, row in enumerate(tokens)])
        self._executor.step(batch)
        end = clock()
        for sequence in range(work.sequences):
            self._filled[sequence] = max(self._filled[sequence], work.end)
        return end - start

    def _fill(self, sequence: int, tokens: int) -> None:
        """Have so many tokens of a sequence in the cache."""
        for start in range(self._filled[sequence], tokens, CHUNK_TOKENS):
            count = min(CHUNK_TOKENS, tokens - start)
            row = self._random.integers(0, self._executor.vocab_size, count).tolist()
            self._executor.step(pack([SequenceTokens(row, start, self._pages[sequence], ())]))
        self._filled[sequence] = max(self._filled[sequence], tokens)


def _lengths(works: Sequence[Work]) -> list[int]:
    """How long each sequence gets."""
    count = max(work.sequences for work in works)
    return [max(work.end for work in works if work.sequences > sequence) for sequence in range(count)]


def pages_needed(works: Sequence[Work], page_tokens: int) -> int:
    """How many pages all sequences take."""
    return sum(-(-length // page_tokens) for length in _lengths(works))


def measure(
    executor: Executor,
    layout: Layout,
    kv_bytes_per_token: int,
    works: Sequence[Work],
    *,
    seconds: float,
    clock: Clock,
    limits: Callable[[Collection[str]], Limits],
    seed: int = 0,
) -> Iterator[Measurement]:
    """Measure one work after another.

    seconds: for how long each is repeated
    limits:  tries what the machine can do at this moment with the instructions of some forms of weights
    """
    sequences = Sequences(executor, works, np.random.default_rng(seed))
    for work in works:
        cost = step_cost(layout, kv_bytes_per_token, work)
        times, shares = list[float](), list[float]()
        for own in sequences.rounds(work, seconds=seconds, clock=clock):
            shares.append(cost.floor_seconds(limits(cost.operations)) / statistics.median(own))
            times += own
        yield Measurement(work, statistics.median(times), cost, statistics.median(shares))


def peak_memory_bytes() -> int:
    """The most memory that this process has had at once, touched parts of mapped files included."""
    status = Path("/proc/self/status")
    if status.exists():  # ru_maxrss would begin with the parent's peak
        found = re.search(r"VmHWM:\s+(\d+) kB", status.read_text())
        assert found is not None, "Linux counts it"
        return int(found[1]) * 1024
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024  # macOS counts bytes, others kilobytes
