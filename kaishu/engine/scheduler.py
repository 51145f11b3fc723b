"""The scheduler: which tokens of which requests the next step computes, and in which pages.

Owns the order of requests, the budget of a step and the decision who gives pages back. Knows whole numbers only; the
work it plans is run by core.py, which reports with `computed` or `end`. Pages are counted by pages.py.

A step's work is, for each of some requests, "the tokens from `start` to `end`". The order:

1. Running requests that decode, one token each and what is proposed after it, the first in the order of requests first.
2. Then prompts, running or new, in chunks, until the step's budget is full. While anybody decodes the budget is small,
   so that the gap between two tokens of a stream is bounded however long another's prompt is.

When pages run out, the running request that is last in the order gives all of its own back and waits again; its tokens
stay, and what it had published may still be found. Until some other request is over nobody new is let in, so two
requests can't push each other out in turns: every pre-emption is paid for by an end.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterator
from dataclasses import dataclass

from kaishu.engine.pages import PagePool, page_keys
from kaishu.engine.request import Request


@dataclass(frozen=True)
class Budget:
    """What a step may hold. Tokens that are proposed after those that decode are bounded by `prefill_tokens`, too.

    prefill_tokens: of prompts, while nobody decodes; it bounds a step's memory
    beside_tokens:  of prompts, while somebody does; it bounds the gap between two tokens
    every_row_tokens: of a prompt whose every row wants logits: V numbers for each
    running:        requests at the same time
    """

    prefill_tokens: int = 512
    beside_tokens: int = 64
    every_row_tokens: int = 128
    running: int = 64


@dataclass(frozen=True)
class Work:
    """The tokens from `start` to `end` of one request; those beyond its token_ids are its proposed ones.

    wants_logits: which of them want logits, counted from `start`
    """

    request: Request
    start: int
    end: int
    wants_logits: range


class Scheduler:
    """All requests that aren't over.

    Every method leaves it consistent; nothing here is ever waited for.
    """

    def __init__(self, pool: PagePool, budget: Budget) -> None:
        self.pool, self.budget = pool, budget
        self.waiting: list[Request] = []  # both in the order of requests
        self.running: list[Request] = []
        self.preemptions = 0
        self._is_closed_until_an_end = False

    def add(self, request: Request) -> None:
        """Let a request wait. With all of its tokens, and one more, it fits into the pages if it is alone."""
        assert request.state == "waiting" and request.token_ids, "new requests with at least a token"
        insort(self.waiting, request, key=lambda one: one.place)

    def end(self, request: Request) -> None:
        """A request is over, or given up, at any moment between two steps; its pages can be used by others."""
        if request.state == "over":
            return
        was_running = request.state == "running"
        (self.running if was_running else self.waiting).remove(request)
        self._give_back(request)
        request.state, request.proposed = "over", []
        if was_running:  # whoever only waited had no page to give back
            self._is_closed_until_an_end = False

    def plan(self) -> list[Work]:
        """The next step's work, pages included; empty only if there are no requests."""
        works = [work for work in map(self._decoding_work, self._decoding()) if work]
        left = self.budget.beside_tokens if works else self.budget.prefill_tokens
        for request in self._prompts():
            work = self._prompt_work(request, left)
            if work is None:
                break
            works.append(work)
            left -= work.end - work.start
            if left <= 0:
                break
        works = [work for work in works if work.request.state == "running"]  # not who was pushed out by a later one
        assert works or not (self.waiting or self.running), "there is always progress"
        return works

    def computed(self, work: Work, tokens: int) -> None:
        """A step has run: the first `tokens` of the request are computed, and certain."""
        request = work.request
        assert work.start < tokens <= min(work.end, len(request.token_ids)), "no more than the step had"
        request.computed_tokens = tokens
        if request.reuses_prefix:
            self._publish(request)

    def check_invariants(self) -> None:
        """Pages belong to running requests alone, as many as these have computed tokens at least."""
        self.pool.check_invariants()
        held: dict[int, int] = {}
        for request in self.running:
            assert request.state == "running" and len(request.token_ids) > request.computed_tokens
            assert len(request.pages) * self.pool.page_tokens >= request.computed_tokens
            for page in request.pages:
                held[page] = held.get(page, 0) + 1
        for request in self.waiting:
            assert request.state == "waiting" and not request.pages and not request.computed_tokens
        assert held == {page: count for page, count in enumerate(self.pool.holders) if count}, "no page is lost"
        for queue in (self.waiting, self.running):
            assert queue == sorted(queue, key=lambda one: one.place)
        assert not self._is_closed_until_an_end or self.running, "the door opens again"

    def _decoding(self) -> Iterator[Request]:
        return (request for request in list(self.running) if request.is_decoding)

    def _prompts(self) -> Iterator[Request]:
        """Running ones that aren't decoding, then new ones as long as they may come in."""
        yield from (request for request in list(self.running) if request.state == "running" and not request.is_decoding)
        for request in list(self.waiting):
            if self._is_closed_until_an_end or len(self.running) >= self.budget.running:
                return
            if self._waits_for_a_prefix(request):
                continue
            if not self._let_in(request):
                return
            yield request

    def _decoding_work(self, request: Request) -> Work | None:
        if request.state != "running":
            return None  # pushed out by one before it
        if request.proposed_is_guess and not self._has_room(request, len(request.token_ids) + len(request.proposed)):
            request.proposed = []  # nobody is pushed out for a guess
        start, end = request.computed_tokens, len(request.token_ids) + len(request.proposed)
        if not self._get_pages(request, end):
            return None
        wanted = range(end - start) if request.proposed_rows else range(end - start - 1, end - start)
        return Work(request, start, end, wanted)

    def _prompt_work(self, request: Request, left: int) -> Work | None:
        """A chunk of at most `left` tokens."""
        if request.state != "running":
            return None
        start = request.computed_tokens
        limit = min(left, self.budget.every_row_tokens) if request.wants_every_row else left
        whole = len(request.token_ids) + len(request.proposed)
        end = min(start + limit, whole)
        if len(request.token_ids) <= end < whole:
            end = len(request.token_ids) - 1  # what is proposed is computed with the last token, not without it
            if end <= start:
                end = whole
        if not self._get_pages(request, end):
            return None
        return Work(request, start, end, self._wanted(request, start, end))

    def _wanted(self, request: Request, start: int, end: int) -> range:
        length = end - start
        if request.wants_every_row and start < request.prompt_tokens:
            return range(length)
        first = len(request.token_ids) - 1 - start  # the row whose logits choose the next token
        if end <= first + start:
            return range(0)
        return range(first, length) if request.proposed_rows else range(length - 1, length)

    def _let_in(self, request: Request) -> bool:
        """Give a waiting request what is computed of it already, if there are pages for the rest of its tokens."""
        tokens = len(request.token_ids)
        found: list[int] = []
        if request.reuses_prefix:
            request.keys = page_keys(request.token_ids, self.pool.page_tokens, request.tag, request.keys)
            full = (tokens - 1) // self.pool.page_tokens  # the last token is always computed: it chooses the next
            if not request.wants_every_row:
                found = self.pool.find(request.keys[:full], request.token_ids)
        self.pool.hold(found)
        needed = -(-(tokens + 1) // self.pool.page_tokens) - len(found)
        if needed > self.pool.num_available and self.running:
            self.pool.release(found)
            return False
        request.pages, request.num_published = found, len(found)
        request.computed_tokens = len(found) * self.pool.page_tokens
        if request.cached_tokens is None:
            request.cached_tokens = request.computed_tokens
        self.waiting.remove(request)
        request.state = "running"
        insort(self.running, request, key=lambda one: one.place)
        return True

    def _waits_for_a_prefix(self, request: Request) -> bool:
        """Somebody is computing a page right now that this request could use afterwards."""
        if not request.reuses_prefix or request.wants_every_row or not self.running:
            return False
        request.keys = page_keys(request.token_ids, self.pool.page_tokens, request.tag, request.keys)
        full = (len(request.token_ids) - 1) // self.pool.page_tokens
        next_page = len(self.pool.find(request.keys[:full], request.token_ids))
        if next_page >= full:
            return False
        key = request.keys[next_page]
        return any(
            other.reuses_prefix and next_page < len(other.keys) and other.keys[next_page] == key
            for other in self.running
            if other.num_published <= next_page
        )

    def _has_room(self, request: Request, end: int) -> bool:
        """Whether there are pages for positions up to `end` without pushing anybody out."""
        return -(-end // self.pool.page_tokens) - len(request.pages) <= self.pool.num_available

    def _get_pages(self, request: Request, end: int) -> bool:
        """Have pages for positions up to `end`, and push others out for it; False if it was pushed out itself."""
        needed = -(-end // self.pool.page_tokens) - len(request.pages)
        if needed <= 0:
            return True
        while (pages := self.pool.take(needed)) is None:
            last = self.running[-1]
            self._push_out(last)
            if last is request:
                return False
        request.pages += pages
        return True

    def _push_out(self, request: Request) -> None:
        self.running.remove(request)
        self._give_back(request)
        request.state, request.computed_tokens = "waiting", 0
        request.preemptions += 1
        self.preemptions += 1
        insort(self.waiting, request, key=lambda one: one.place)
        self._is_closed_until_an_end = bool(self.running)

    def _give_back(self, request: Request) -> None:
        self.pool.release(request.pages)
        request.pages, request.num_published = [], 0

    def _publish(self, request: Request) -> None:
        """Offer full pages whose tokens are computed."""
        size = self.pool.page_tokens
        full = request.computed_tokens // size
        if full > len(request.keys):
            request.keys = page_keys(request.token_ids[: full * size], size, request.tag, request.keys)
        for index in range(request.num_published, full):
            own = request.token_ids[index * size : (index + 1) * size]
            self.pool.publish(request.pages[index], request.keys[index], own)
        request.num_published = max(request.num_published, full)
