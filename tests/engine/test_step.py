"""One step: each request gets its own rows, logits or hidden states, in the order in which it wants them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kaishu.batch import FindsLikeliest, Likeliest
from kaishu.engine.jobs import Read
from kaishu.engine.request import Request
from kaishu.engine.scheduler import Work
from kaishu.engine.step import compute, cut_apart
from kaishu.output_format import OutputFormat
from tests.engine.engine_runs import LivelyExecutor, core_of, job, lively, outcomes
from tests.likeliest import likeliest_of
from tests.scripted import ScriptedExecutor, state_of


def work(number: int, token_ids: list[int], pages: list[int], start: int, end: int, wants: range) -> Work:
    request = Request(number, token_ids, len(token_ids), pages=pages, proposed=[7, 8])
    return Work(request, start, end, wants)


def test_rows_are_cut_apart_as_they_were_wanted() -> None:
    executor = ScriptedExecutor(lambda context: sum(context) % 10, vocab_size=10, page_tokens=4)
    works = [
        work(0, [1, 2, 3], [0], 0, 3, range(2, 3)),
        work(1, [4, 5], [1], 0, 2, range(0)),
        work(2, [6, 1], [2], 0, 2, range(1, 2)),
        work(3, [2, 2], [3], 0, 4, range(1, 4)),  # with what is proposed
    ]
    runs = compute(executor, works, lambda request: request.number == 2)
    computed = cut_apart(runs, None, 10, lambda request: True)
    assert [one.work.request.number for one in computed] == [0, 1, 3, 2]
    assert all(one.likeliest is None for one in computed)
    rows = {one.work.request.number: one.rows for one in computed}
    assert rows[0] is not None and rows[0].argmax(1).tolist() == [6] and rows[1] is None
    assert rows[3] is not None and rows[3].argmax(1).tolist() == [4, (4 + 7) % 10, (4 + 7 + 8) % 10]
    assert rows[2] is not None and rows[2].tolist() == [state_of([6, 1]).tolist()]
    assert len(executor.steps) == 2


def test_without_work_nothing_is_computed() -> None:
    executor = ScriptedExecutor(lambda context: 0, vocab_size=10)
    assert compute(executor, [], lambda request: False) == [] and executor.steps == []
    assert cut_apart([], KeepsWhatWasAsked(), 10, lambda request: True) == []


class KeepsWhatWasAsked:
    """A finder that keeps which rows it was asked for."""

    def __init__(self) -> None:
        self.asked: list[list[int]] = []

    def likeliest(self, logits: NDArray[np.float32], rows: Sequence[int], num_token_ids: int) -> list[Likeliest]:
        self.asked.append(list(rows))
        counted = logits[:, :num_token_ids]
        return [likeliest_of(counted[row]) for row in rows]


def test_the_likeliest_tokens_are_looked_for_once_and_where_they_are_wanted() -> None:
    executor = ScriptedExecutor(lambda context: sum(context) % 10, vocab_size=10, page_tokens=4)
    works = [
        work(0, [1, 2, 3], [0], 0, 3, range(2, 3)),
        work(1, [4, 5], [1], 0, 2, range(0)),
        work(2, [6, 1], [2], 0, 2, range(2)),
        work(3, [2, 2], [3], 0, 4, range(1, 4)),
    ]
    finder = KeepsWhatWasAsked()
    runs = compute(executor, works, lambda request: False)
    computed = cut_apart(runs, finder, 10, lambda request: request.number != 2)
    assert finder.asked == [[0, 3, 4, 5]]
    for one in computed:
        if one.work.request.number == 2:
            assert one.likeliest is None
        else:
            assert one.likeliest is not None
            rows = [] if one.rows is None else one.rows.argmax(1).tolist()
            assert [found.ids[0] for found in one.likeliest] == rows
    assert cut_apart(runs, finder, 10, lambda request: False)[0].likeliest is None and len(finder.asked) == 1


class ListingExecutor(LivelyExecutor):
    """One that finds its rows' likeliest tokens, by sorting them; `listed` counts the rows."""

    listed = 0

    def likeliest(self, logits: NDArray[np.float32], rows: Sequence[int], num_token_ids: int) -> list[Likeliest]:
        self.listed += len(rows)
        return [likeliest_of(logits[row, :num_token_ids]) for row in rows]


def test_with_an_executor_that_finds_likeliest_tokens_every_text_is_the_same(byte_tokenizer, byte_compiler) -> None:
    grammar = byte_compiler.compile(OutputFormat.regex(r"(a|b){2,4}\{"))
    prompt = byte_tokenizer.encode("abcab")
    sampled: dict[str, Any] = {"temperature": 0.8, "seed": 4, "max_tokens": 20}
    jobs = [
        job(prompt, max_tokens=30, ignore_eos=True),
        job(prompt, **sampled, top_k=5, top_p=0.9),
        job(prompt, **sampled, min_p=0.02, n=2, thinking="none", thinking_budget=3),
        job(prompt, **sampled, top_p=0.9),
        job(prompt, **sampled, top_k=5, logprobs=2, prompt_logprobs=1),
        job(prompt, **sampled, top_k=5, frequency_penalty=0.5),
        job(prompt, **sampled, top_k=5, grammar=grammar),
        Read(prompt, "all_logits"),
    ]
    plain, listing = lively(byte_tokenizer), ListingExecutor(lively(byte_tokenizer)._favourites)
    expected = outcomes(core_of(plain, byte_tokenizer), jobs)
    found = outcomes(core_of(listing, byte_tokenizer), jobs)
    assert [one.comparable() for one in found] == [one.comparable() for one in expected]
    assert isinstance(listing, FindsLikeliest) and not isinstance(plain, FindsLikeliest)
    # Some texts end early; guesses have rows of their own.
    assert 0 < listing.listed < sum(len(batch.logit_rows) for batch in listing.steps)
