"""Statistics: shares, steps sorted by how long they took, and the times of jobs by a clock that the test sets."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest

from kaishu.engine.core import EngineCore, EngineSettings
from kaishu.engine.histograms import Histogram
from kaishu.engine.jobs import Read
from kaishu.engine.scheduler import Budget
from kaishu.engine.statistics import STEP_BOUNDS_MS, Counters, Statistics
from kaishu.errors import QueueTimeoutError
from kaishu.text.tokenizer import Tokenizer
from tests.engine.engine_runs import CONTEXT_TOKENS, LivelyExecutor, job, limits_of

NUMBERS = [field.name for field in fields(Statistics) if field.name not in ("step_histogram", "ends", "jobs")]
NOTHING = Statistics(**dict.fromkeys(NUMBERS, 0), step_histogram=())  # type: ignore[arg-type]


def test_shares_are_none_where_there_was_nothing() -> None:
    assert NOTHING.hit_rate is None and NOTHING.acceptance is None
    some = replace(NOTHING, prompt_tokens=8, cached_tokens=2, guessed=4, accepted=3)
    assert (some.hit_rate, some.acceptance) == (0.25, 0.75)


@pytest.mark.parametrize(
    ("seconds", "place"), [(0.0, 0), (0.001, 0), (0.0011, 1), (0.02, 4), (0.021, 5), (5.0, 11), (5.1, 12), (1e6, 12)]
)
def test_a_step_is_counted_under_the_first_bound_that_it_keeps(seconds: float, place: int) -> None:
    counters = Counters()
    counters.count_step(seconds, 0.5)
    assert counters.step_histogram.index(1) == place and sum(counters.step_histogram) == 1
    assert len(counters.step_histogram) == len(STEP_BOUNDS_MS) + 1
    assert (counters.steps, counters.step_seconds, counters.own_seconds) == (1, seconds, 0.5)


def test_what_is_counted_is_what_is_shown() -> None:
    assert set(vars(Counters())) <= {field.name for field in fields(Statistics)}


class SlowExecutor(LivelyExecutor):
    """Each step takes a second of the test's clock, which stands still otherwise."""

    now = 100.0

    def step(self, batch):  # type: ignore[no-untyped-def]
        self.now += 1.0
        return super().step(batch)


def slow_core(tokenizer: Tokenizer, **settings: object) -> tuple[EngineCore, SlowExecutor]:
    executor = SlowExecutor(tokenizer.encode("abcd"), num_pages=64)
    chosen = EngineSettings(**{"speculation": False, **settings})  # type: ignore[arg-type]
    limits = limits_of(tokenizer, CONTEXT_TOKENS)
    return EngineCore(executor, tokenizer, limits, chosen, clock=lambda: executor.now), executor


def numbers(histogram: Histogram) -> tuple[int, float]:
    """return: how many, and their sum"""
    return sum(histogram.counts), histogram.total


def test_a_job_is_timed_from_its_entry_to_its_last_token(byte_tokenizer: Tokenizer) -> None:
    core, executor = slow_core(byte_tokenizer, budget=Budget(running=1))
    core.add(job([1, 2, 3], max_tokens=4, ignore_eos=True))
    second = core.add(job([5] * 7, max_tokens=3, ignore_eos=True))
    executor.now += 0.5
    while core.is_busy:
        core.step()
    # The first begins after 0.5 s and takes 4 s, the second waits for it and takes 3 s.
    jobs, ends = core.statistics().jobs, core.statistics().ends
    assert numbers(jobs.queue) == (2, 0.5 + 4.5)
    assert numbers(jobs.first_token) == (2, 1.5 + 5.5)
    assert numbers(jobs.prefill) == (2, 1.0 + 1.0)
    assert numbers(jobs.decode) == (2, 3.0 + 2.0)
    assert numbers(jobs.whole) == (2, 4.5 + 7.5)
    assert numbers(jobs.gaps) == (5, 5.0) and numbers(jobs.token) == (2, 2.0)
    assert numbers(jobs.prompt_tokens) == (2, 10) and numbers(jobs.answer_tokens) == (2, 7)
    assert ends == {"stop": 0, "length": 2, "abort": 0, "error": 0}
    timing = second.take()[-1].timing  # type: ignore[union-attr]
    assert (timing.first_token_seconds, timing.decode_seconds, timing.decoded_tokens) == (5.5, 2.0, 2)


def test_of_several_choices_each_ends_by_itself_and_the_job_is_timed_once(byte_tokenizer: Tokenizer) -> None:
    core, _ = slow_core(byte_tokenizer)
    core.add(job([1, 2, 3], max_tokens=2, ignore_eos=True, n=3))
    while core.is_busy:
        core.step()
    now = core.statistics()
    assert now.ends["length"] == 3 and numbers(now.jobs.answer_tokens) == (3, 6)
    assert numbers(now.jobs.first_token) == (1, 1.0) and numbers(now.jobs.gaps) == (3, 3.0)
    assert numbers(now.jobs.queue)[0] == numbers(now.jobs.whole)[0] == numbers(now.jobs.prompt_tokens)[0] == 1
    assert (now.prompt_tokens, now.finished) == (3, 1)


def test_jobs_that_are_cut_and_texts_that_are_read_end_for_their_own_reasons(byte_tokenizer: Tokenizer) -> None:
    core, _ = slow_core(byte_tokenizer)
    left = core.add(job([1, 2], max_tokens=20, ignore_eos=True, n=2))
    core.add(job([1, 2], max_tokens=20, ignore_eos=True, n=2))
    core.add(Read([7, 7, 7], "last_logits"))
    for _ in range(3):
        core.step()
    core.abort(left.number)
    core.settle()
    core.end_all(MemoryError())
    now = core.statistics()
    assert now.ends == {"stop": 1, "length": 0, "abort": 2, "error": 2}
    assert (now.finished, now.failed, now.aborted) == (1, 1, 1)
    assert numbers(now.jobs.whole) == (1, 1.0) and numbers(now.jobs.prompt_tokens) == (1, 3)


def test_whoever_waits_too_long_fails_and_whoever_was_begun_with_goes_on(byte_tokenizer: Tokenizer) -> None:
    core, _ = slow_core(byte_tokenizer, budget=Budget(running=1), queue_timeout_s=2.5)
    running = core.add(job([1, 2], max_tokens=8, ignore_eos=True))
    waiting = [core.add(one) for one in (job([3], max_tokens=1), job([4], max_tokens=1, n=3), Read([5], "last_logits"))]
    touched = [core.step() for _ in range(4)]
    assert not running.is_over and all(stream in touched[-1] for stream in waiting), "after the third second"
    assert not any(stream in step for stream in waiting for step in touched[:-1])
    late = core.add(job([6], max_tokens=1, ignore_eos=True))
    while core.is_busy:
        core.step()
        core.check_invariants()
    for stream in waiting:
        with pytest.raises(QueueTimeoutError, match=r"within 2\.5 s"):
            stream.take()
    with pytest.raises(QueueTimeoutError):
        late.take()  # four seconds were left of the first
    assert running.take()[-1].usage.completion_tokens == 8  # type: ignore[union-attr]
    assert core.statistics().ends == {"stop": 0, "length": 1, "abort": 0, "error": 6}
