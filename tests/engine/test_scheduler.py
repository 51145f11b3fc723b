"""The scheduler alone, over whole numbers: any arrivals, any sizes; nobody starves, no page is lost, no order broken.

`Simulation` stands in for core.py and the executor: it keeps in each page the tokens that were computed into it, and
reads each request's context from them, so that a page that was found too early or given away too soon is an error.
"""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from kaishu.engine.pages import PagePool
from kaishu.engine.request import Request
from kaishu.engine.scheduler import Budget, Scheduler, Work

COMMON = [0, 1, 0, 0, 1, 1, 0, 1, 1, 1, 0, 0]


class Simulation:
    """Requests that want so many tokens each, and pages that remember what was computed into them."""

    def __init__(self, num_pages: int = 64, page_tokens: int = 4, budget: Budget | None = None) -> None:
        self.pool = PagePool(num_pages, page_tokens)
        self.scheduler = Scheduler(self.pool, budget or Budget())
        self.pages: list[list[int | None]] = [[None] * page_tokens for _ in range(num_pages)]
        self.left: dict[Request, int] = {}  # tokens that a request still wants
        self.numbers = itertools.count()
        self.ends = 0
        self.ends_at_push: dict[Request, int] = {}
        self.computed_tokens = 0

    def add(self, token_ids: list[int], wants: int = 1, **fields: Any) -> Request:
        request = Request(next(self.numbers), list(token_ids), len(token_ids), **fields)
        self.left[request] = wants
        self.scheduler.add(request)
        return request

    def end(self, request: Request) -> None:
        self.scheduler.end(request)
        del self.left[request]
        self.ends += 1

    def step(self, accepted: Any = lambda work, most: most) -> list[Work]:
        """One step; `accepted` says how many of a work's proposed tokens turn out right."""
        scheduler = self.scheduler
        before = list(scheduler.running)
        works = scheduler.plan()
        scheduler.check_invariants()
        self._check_plan(works, before)
        for work in works:
            self._compute(work)
        for work in works:
            self._take(work, accepted)
        scheduler.check_invariants()
        return works

    def run(self, limit: int = 10_000) -> int:
        """Until nobody is left. return: steps"""
        for count in range(limit):
            if not self.left:
                return count
            self.step()
        raise AssertionError("it doesn't come to an end")

    def _check_plan(self, works: list[Work], before: list[Request]) -> None:
        scheduler, budget = self.scheduler, self.scheduler.budget
        assert len({work.request for work in works}) == len(works), "one work for each"
        assert len(scheduler.running) <= budget.running
        if scheduler.running:
            assert scheduler.running[0] in {work.request for work in works}, "the first one always goes on"
        pushed = [request for request in before if request.state == "waiting"]
        for request in pushed:
            staying = [other.place for other in before if other.state == "running"]
            assert max(staying, default=request.place) <= request.place, "the last ones give way"
            assert self.ends_at_push.get(request, -1) < self.ends, "every pre-emption is paid for by an end"
            self.ends_at_push[request] = self.ends
        # One that was pushed out, and comes back to find all but its newest token in pages, was not among those whose
        # stream a step must not hold up: it takes of the prompts' budget like all that come in.
        decoding = [work for work in works if work.request in before and work.request.is_decoding]
        prompts = [work for work in works if work not in decoding]
        assert [work.request.place for work in decoding] == sorted(work.request.place for work in decoding)
        known = sum(min(work.end, len(work.request.token_ids)) - work.start for work in prompts)
        assert known <= (budget.beside_tokens if decoding else budget.prefill_tokens)

    def _compute(self, work: Work) -> None:
        request, size = work.request, self.pool.page_tokens
        assert work.start == request.computed_tokens < work.end
        whole = request.token_ids + request.proposed
        for position in range(work.start, work.end):
            page = request.pages[position // size]
            assert self.pool.holders[page] == 1, "nobody writes into a page that others read"
            self.pages[page][position % size] = whole[position]
        context = [self.pages[request.pages[i // size]][i % size] for i in range(work.end)]
        assert context == whole[: work.end], "the context is what the request says"
        self.computed_tokens += work.end - work.start

    def _take(self, work: Work, accepted: Any) -> None:
        request = work.request
        known = len(request.token_ids)
        if work.end < known:
            assert not len(work.wants_logits) or request.wants_every_row
            self.scheduler.computed(work, work.end)
            return
        assert work.end == known + len(request.proposed), "what is proposed is computed with the last token"
        last_row = work.wants_logits[-1] + work.start
        assert last_row == work.end - 1, "the row that chooses the next token"
        if request.proposed_rows and request.proposed:
            assert len(work.wants_logits) >= len(request.proposed) + 1
        proposed, request.proposed = request.proposed, []
        right = accepted(work, len(proposed))
        new = [*proposed[:right], 1 - proposed[right] if right < len(proposed) else 0][: self.left[request]]
        request.token_ids += new
        self.left[request] -= len(new)
        self.scheduler.computed(work, known + len(new) - 1)
        if not self.left[request]:
            self.end(request)


class SchedulerMachine(RuleBasedStateMachine):
    @initialize(
        num_pages=st.integers(8, 24),
        page_tokens=st.integers(1, 4),
        prefill=st.integers(1, 24),
        beside=st.integers(1, 8),
        every_row=st.integers(1, 8),
        running=st.integers(1, 6),
    )
    def make(self, num_pages: int, page_tokens: int, prefill: int, beside: int, every_row: int, running: int) -> None:
        self.simulation = Simulation(num_pages, page_tokens, Budget(prefill, beside, every_row, running))
        self.room = num_pages * page_tokens  # tokens of the longest request

    @rule(
        shared=st.integers(0, 12),
        own=st.lists(st.integers(0, 1), max_size=12),
        wants=st.integers(1, 12),
        priority=st.integers(-1, 1),
        tag=st.sampled_from([b"", b"", b"other"]),
        form=st.sampled_from(["", "", "every row", "no reuse"]),
    )
    def arrive(self, shared: int, own: list[int], wants: int, priority: int, tag: bytes, form: str) -> None:
        token_ids = [*COMMON[:shared], *own, 1][: self.room - 1]
        request = self.simulation.add(
            token_ids,
            min(wants, self.room - len(token_ids)),
            priority=priority,
            tag=tag,
            reuses_prefix=not form,
            wants_every_row=form == "every row",
        )
        if form == "" and priority == 1:
            self.propose_for(request, [0, 1])

    @rule(data=st.data(), tokens=st.lists(st.integers(0, 1), min_size=1, max_size=6), rows=st.booleans())
    def propose(self, data: Any, tokens: list[int], rows: bool) -> None:
        able = [one for one in self.simulation.scheduler.running if one.is_decoding and not one.proposed]
        if able:
            self.propose_for(data.draw(st.sampled_from(able)), tokens, rows)

    def propose_for(self, request: Request, tokens: list[int], rows: bool = True) -> None:
        request.proposed = tokens[: self.simulation.left[request] - 1]
        request.proposed_rows = rows

    @rule(data=st.data())
    def abort(self, data: Any) -> None:
        if self.simulation.left:
            self.simulation.end(data.draw(st.sampled_from(list(self.simulation.left))))

    @rule(data=st.data(), times=st.integers(1, 4))
    def step(self, data: Any, times: int) -> None:
        for _ in range(times):
            if self.simulation.left:
                self.simulation.step(lambda work, most: data.draw(st.integers(0, most)) if most else 0)

    @invariant()
    def nothing_is_lost(self) -> None:
        if hasattr(self, "simulation"):
            self.simulation.scheduler.check_invariants()
            queues = self.simulation.scheduler.waiting + self.simulation.scheduler.running
            assert set(queues) == set(self.simulation.left) and len(queues) == len(set(queues))

    def teardown(self) -> None:
        if hasattr(self, "simulation"):
            self.simulation.run()
            assert self.simulation.pool.num_held == 0
            assert self.simulation.scheduler.plan() == []


TestAnyArrivals = SchedulerMachine.TestCase
TestAnyArrivals.settings = settings(max_examples=250, stateful_step_count=40, deadline=None)


def test_decoding_rows_come_first_and_prompts_fill_what_is_left() -> None:
    simulation = Simulation(budget=Budget(prefill_tokens=16, beside_tokens=4))
    first = simulation.add([1] * 5, wants=20)
    simulation.step()
    long = simulation.add([0] * 40, wants=3, priority=-1)
    for _ in range(10):
        works = simulation.step()
        assert [(work.request, work.end - work.start) for work in works] == [(first, 1), (long, 4)]
    assert first.token_ids[5:] == [0] * 11 and long.computed_tokens == 40 and len(long.token_ids) == 41


def test_while_nobody_decodes_a_step_is_filled_with_prompts_in_the_order_of_priority_and_arrival() -> None:
    simulation = Simulation(budget=Budget(prefill_tokens=16))
    third, first, second = (simulation.add([0, 1, 1] + [i] * 3, priority=p) for i, p in ((4, 5), (5, -1), (6, 0)))
    works = simulation.step()
    assert [(work.request, work.end) for work in works] == [(first, 6), (second, 6), (third, 4)]


def test_two_equal_prompts_in_one_step_compute_their_pages_once_and_only_after_they_are_there() -> None:
    simulation = Simulation(page_tokens=4)
    first, second = simulation.add([1] * 10, wants=2), simulation.add([1] * 10, wants=2)
    (work,) = simulation.step()
    assert work.request is first and second.state == "waiting"
    works = simulation.step()
    assert [work.request for work in works] == [first, second]
    assert (first.cached_tokens, second.cached_tokens) == (0, 8) and works[1].start == 8
    simulation.run()


def test_an_aborted_prefill_leaves_only_what_was_computed() -> None:
    simulation = Simulation(page_tokens=4, budget=Budget(prefill_tokens=6))
    first, second = simulation.add([1] * 16), simulation.add([1] * 16)
    simulation.step()
    assert first.computed_tokens == 6 and simulation.pool.num_held == 2
    simulation.end(first)
    assert simulation.pool.num_cached == 1
    simulation.step()
    assert second.cached_tokens == 4
    third = simulation.add([1] * 16)
    simulation.run()
    assert third.cached_tokens == 12  # a page short: the last token is always computed


@pytest.mark.parametrize("length", [1, 4, 5, 8, 9])
def test_the_last_token_of_a_text_that_is_all_there_is_computed_again(length: int) -> None:
    simulation = Simulation(page_tokens=4)
    simulation.add([1] * 12)
    simulation.run()
    request = simulation.add([1] * length)
    (work,) = simulation.step()
    assert request.cached_tokens == (length - 1) // 4 * 4 == work.start and work.end == length


def test_requests_of_another_tag_share_nothing() -> None:
    simulation = Simulation(page_tokens=2)
    simulation.add([1] * 8, tag=b"a")
    simulation.run()
    other, same = simulation.add([1] * 8, tag=b"b"), simulation.add([1] * 8, tag=b"a")
    simulation.run()
    assert (other.cached_tokens, same.cached_tokens) == (0, 6)


def test_one_that_wants_every_row_skips_none_and_its_pages_are_of_use_to_others() -> None:
    simulation = Simulation(page_tokens=2, budget=Budget(every_row_tokens=3))
    simulation.add([1] * 8)
    simulation.run()
    every = simulation.add([1] * 8, wants_every_row=True, reuses_prefix=False)
    ends = [simulation.step()[0] for _ in range(3)]
    assert every.cached_tokens == 0 and [list(work.wants_logits) for work in ends] == [[0, 1, 2], [0, 1, 2], [0, 1]]


def test_requests_that_grow_together_do_not_push_each_other_out_in_turns() -> None:
    simulation = Simulation(num_pages=8, page_tokens=4)
    requests = [simulation.add([i, 1, i], wants=29) for i in range(4)]  # each fills the pool alone
    ends, order = 0, []
    while simulation.left:
        simulation.step()
        if simulation.ends > ends:
            ends = simulation.ends
            order += [request for request in requests if request.state == "over" and request not in order]
    assert order == requests
    assert simulation.scheduler.preemptions <= 3 + 2 + 1  # whoever is pushed out waits until somebody is over


def test_one_that_does_not_fit_yet_blocks_nobody_who_runs() -> None:
    simulation = Simulation(num_pages=4, page_tokens=4)
    first = simulation.add([1] * 8, wants=5)
    large = simulation.add([0] * 12, wants=1)
    for _ in range(4):
        simulation.step()
        assert large.state == "waiting" and first.state == "running"
    simulation.run()
    assert simulation.scheduler.preemptions == 0


def test_no_more_run_at_once_than_are_allowed() -> None:
    simulation = Simulation(budget=Budget(running=2))
    for i in range(5):
        simulation.add([i], wants=3)
    assert [len(simulation.step()) for _ in range(9)] == [2, 2, 2, 2, 2, 2, 1, 1, 1]


def test_proposed_tokens_that_are_wrong_are_computed_over() -> None:
    simulation = Simulation(page_tokens=4)
    request = simulation.add([1] * 6, wants=6)
    simulation.step()
    request.proposed = [0, 0, 0, 0]
    (work,) = simulation.step(lambda work, most: 1)
    assert (work.start, work.end, work.wants_logits) == (6, 11, range(5))
    assert request.token_ids[7:] == [0, 1] and request.computed_tokens == 8  # 2 taken: the newest isn't computed yet
    assert simulation.pool.num_held == 3
    simulation.run()


def test_ending_twice_is_ending_once() -> None:
    simulation = Simulation()
    request = simulation.add([1, 2])
    simulation.scheduler.end(request)
    simulation.scheduler.end(request)
    simulation.scheduler.check_invariants()
    assert request.state == "over" and simulation.scheduler.plan() == []


def test_whoever_is_pushed_out_stays_out_until_somebody_is_over() -> None:
    """Guessed tokens need pages that a request gives back without them, so it could come in again at once, in vain."""
    simulation = Simulation(num_pages=8, page_tokens=4)
    first = simulation.add([1] * 13, wants=12)
    second = simulation.add([0] * 4, wants=20)
    came_in = []
    while first.state != "over":
        if second.state == "running" and second.is_decoding:
            second.proposed = [1] * 8
        was_waiting = second.state == "waiting"
        simulation.step(lambda work, most: 0)
        if was_waiting and second.state == "running":
            came_in.append(simulation.ends)
    assert second.preemptions == 1 and came_in[1:] in ([], [1])
    simulation.run()


def test_nobody_is_pushed_out_for_a_guess() -> None:
    """Both have their last free position in a page; the guesses of the first would need a page that the other holds."""
    pool = PagePool(2, 4)
    scheduler = Scheduler(pool, Budget())
    requests = [Request(number, [number * 10 + i for i in range(3)], 3) for number in range(2)]
    for request in requests:
        scheduler.add(request)
    for work in scheduler.plan():
        work.request.token_ids.append(7)
        scheduler.computed(work, 3)
    requests[0].proposed, requests[0].proposed_is_guess = [1, 2, 3], True
    works = scheduler.plan()
    assert [(work.request, work.start, work.end) for work in works] == [(requests[0], 3, 4), (requests[1], 3, 4)]
    assert scheduler.preemptions == 0 and requests[0].proposed == []
    scheduler.check_invariants()


def test_one_that_comes_back_to_find_all_but_its_newest_token_takes_of_the_prompts_budget() -> None:
    simulation = Simulation(num_pages=8, page_tokens=3, budget=Budget(prefill_tokens=3, beside_tokens=1, running=2))
    first, second = simulation.add([0] * 9, wants=10), simulation.add([0, 1], wants=6, priority=1)
    for _ in range(100):
        if second.preemptions:
            break
        simulation.step()
    assert second.preemptions == 1 and len(second.token_ids) == 7
    simulation.add([0, 1], priority=1)
    for _ in range(100):
        if first.state == "over":
            break
        simulation.step()
    works = simulation.step()
    assert [(work.start, work.end) for work in works] == [(6, 7), (0, 2)]
