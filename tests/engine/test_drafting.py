"""A draft: one that is the same model is always right, another one changes nothing, and pages are its own."""

from __future__ import annotations

from typing import Any

import pytest

from kaishu.engine.drafting import CHUNK_TOKENS, Drafting
from kaishu.engine.request import Request
from kaishu.text.tokenizer import Tokenizer
from tests.engine.engine_runs import LivelyExecutor, core_of, job, lively, outcomes
from tests.scripted import ScriptedExecutor


def drafted(tokenizer: Tokenizer, jobs: list[Any], drafting: Drafting | None, at_once: bool = True) -> tuple[Any, Any]:
    core = core_of(lively(tokenizer, num_pages=400), tokenizer, drafting=drafting, speculation=False)
    found = outcomes(core, jobs) if at_once else [outcomes(core, [one])[0] for one in jobs]
    return [outcome.comparable() for outcome in found], core.statistics()


def test_a_draft_of_the_same_weights_is_always_right_when_the_likeliest_is_taken(byte_tokenizer: Tokenizer) -> None:
    jobs = [job(byte_tokenizer.encode(f"abc{i}"), max_tokens=50) for i in range(4)]
    drafting = Drafting(lively(byte_tokenizer, num_pages=400), 282, 96)
    found, statistics = drafted(byte_tokenizer, jobs, drafting, at_once=False)
    expected, plain = drafted(byte_tokenizer, jobs, None, at_once=False)
    assert found == expected and statistics.guessed > 0
    wasted = statistics.guessed - statistics.accepted
    assert wasted <= 7 * len(jobs)  # behind an end alone
    assert statistics.steps < 0.5 * plain.steps
    assert drafting._pool.num_held == 0 and not drafting._drafted


@pytest.mark.parametrize("temperature", [0, 1.0])
def test_a_draft_of_other_weights_changes_nothing(byte_tokenizer: Tokenizer, temperature: float) -> None:
    jobs = [
        job(byte_tokenizer.encode(f"abc{i}"), max_tokens=40, temperature=temperature, seed=i, logprobs=1)
        for i in range(6)
    ]
    other = LivelyExecutor(byte_tokenizer.encode("abcd"), seed=1, num_pages=400)
    found, statistics = drafted(byte_tokenizer, jobs, Drafting(other, 282, 96))
    assert found == drafted(byte_tokenizer, jobs, None)[0] and statistics.guessed > statistics.accepted


def test_where_there_are_no_pages_nothing_is_guessed(byte_tokenizer: Tokenizer) -> None:
    jobs = [job([1, 2, i], max_tokens=40, ignore_eos=True) for i in range(6)]
    drafting = Drafting(lively(byte_tokenizer, num_pages=12), 282, 96)
    found, _ = drafted(byte_tokenizer, jobs, drafting)
    assert found == drafted(byte_tokenizer, jobs, None)[0] and drafting._pool.num_held == 0


def ahead(context: tuple[int, ...]) -> int:
    return (context[-1] + len(context)) % 10


def expected(token_ids: list[int], count: int) -> list[int]:
    text = list(token_ids)
    for _ in range(count):
        text.append(ahead(tuple(text)))
    return text[len(token_ids) :]


def test_it_guesses_the_likeliest_of_several_texts_also_long_ones_and_after_wrong_guesses() -> None:
    executor = ScriptedExecutor(ahead, vocab_size=12, num_pages=400)
    drafting = Drafting(executor, 10, 5000)
    texts = [[1, 2, 3], list(range(10)) * 120, [7]]
    requests = [Request(number, text, len(text)) for number, text in enumerate(texts)]
    missing, calls = len(texts[1]), 0
    while missing > CHUNK_TOKENS:  # a call reads one chunk of a long text, and guesses for the others meanwhile
        before = sum(len(step.token_ids) for step in executor.steps)
        short, long, other = drafting.guess([(request, 1) for request in requests])
        assert (short, long, other) == (expected(texts[0], 1), [], expected(texts[2], 1))
        assert sum(len(step.token_ids) for step in executor.steps) - before <= CHUNK_TOKENS + 4
        missing, calls = missing - CHUNK_TOKENS, calls + 1
    assert calls == len(texts[1]) // CHUNK_TOKENS
    for more in ([3, 3], [4], [5, 6, 7, 8], []):
        wanted = [(request, count) for request, count in zip(requests, (1, 5, 3), strict=True)]
        assert drafting.guess(wanted) == [expected(request.token_ids, count) for request, count in wanted]
        for request in requests:
            request.token_ids += more
    assert max(len(step.token_ids) for step in executor.steps) <= CHUNK_TOKENS + len(requests)
    for request in requests:
        drafting.forget(request)
        drafting.forget(request)
    assert drafting._pool.num_held == 0


def test_a_text_beyond_the_drafts_own_context_gets_no_guesses() -> None:
    drafting = Drafting(ScriptedExecutor(ahead, vocab_size=12), 10, 8)
    assert drafting.guess([(Request(0, [1] * 7, 7), 2), (Request(1, [1] * 6, 6), 2)]) == [[], expected([1] * 6, 2)]


def test_a_draft_that_raises_fails_those_it_guessed_for_and_nobody_else(byte_tokenizer: Tokenizer) -> None:
    class Broken(LivelyExecutor):
        def step(self, batch: Any) -> Any:
            raise MemoryError("no memory for the draft")

    drafting = Drafting(Broken([1]), 282, 96)
    core = core_of(lively(byte_tokenizer), byte_tokenizer, drafting=drafting, speculation=False)
    found = outcomes(core, [job([1, 2], max_tokens=9, ignore_eos=True), job([3], max_tokens=1)])
    assert isinstance(found[0].error, MemoryError) and found[1].end is not None
