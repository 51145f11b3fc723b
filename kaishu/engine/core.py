"""The engine's core: requests in, one step at a time, events out.

Owns the loop's body: plan a step (scheduler.py), have it computed (step.py), and give every request its rows
(choice.py). Knows no threads and no event loop: whoever holds it calls `step` while `is_busy`; blocking.py does so for
a caller that waits, async_engine.py in a thread. Only `add`, `abort`, `stop_thinking` and `statistics` may be called
while a step runs; the first three take effect before the next.

One request's failure is its own: what its row, its grammar or its text raises ends that request and no other.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from kaishu.batch import Executor, FindsLikeliest
from kaishu.engine.admission import Admission
from kaishu.engine.choice import MOST_FORCED, Choice
from kaishu.engine.drafting import Drafting
from kaishu.engine.jobs import Generate, Read, Running
from kaishu.engine.output import Limits, described_prompt
from kaishu.engine.pages import PagePool
from kaishu.engine.request import Request
from kaishu.engine.scheduler import Budget, Scheduler, Work
from kaishu.engine.statistics import Counters, Statistics
from kaishu.engine.step import Rows, WorkRows, compute, cut_apart
from kaishu.engine.stream import ChoiceEnd, RequestEnd, Stream, TextPiece
from kaishu.errors import QueueFullError, QueueTimeoutError
from kaishu.results import PromptRead, Timing, Usage
from kaishu.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class EngineSettings:
    """How the engine works, for all requests.

    budget:          what a step may hold
    max_waiting:     requests that may wait; one more is refused
    queue_timeout_s: how long one may wait to be begun with; it fails then
    warm_pages:      see PagePool; None for no limit
    speculation:     whether tokens are guessed from the request's own text
    model_tag:       what the model is, so that saved pages are never used with another
    """

    budget: Budget = field(default_factory=Budget)
    max_waiting: int = 1024
    queue_timeout_s: float = math.inf
    warm_pages: int | None = None
    speculation: bool = True
    model_tag: bytes = b""


class EngineCore:
    """See the module.

    executor:  whose pages belong to this core alone
    limits:    of the model; its context fits into the executor's pages
    drafting:  a smaller model that guesses tokens; None for none
    """

    def __init__(
        self,
        executor: Executor,
        tokenizer: Tokenizer,
        limits: Limits,
        settings: EngineSettings | None = None,
        *,
        drafting: Drafting | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        assert executor.num_pages * executor.page_tokens >= limits.context_tokens, "the longest request fits"
        self.settings = settings or EngineSettings()
        self.executor, self._tokenizer, self._limits, self._clock = executor, tokenizer, limits, clock
        self.pool = PagePool(executor.num_pages, executor.page_tokens, warm_pages=self.settings.warm_pages)
        self._scheduler = Scheduler(self.pool, self.settings.budget)
        looks_up, has_draft = self.settings.speculation, drafting is not None
        tag = self.settings.model_tag
        self._admission = Admission(
            tokenizer, limits, vocab_size=executor.vocab_size, tag=tag, looks_up=looks_up, has_draft=has_draft
        )
        self._drafting = drafting
        self._finder = executor if isinstance(executor, FindsLikeliest) else None
        # Around what other threads may change: the four below. Re-entrant, because the garbage collector may close an
        # abandoned stream, which aborts its job, at any moment of a thread that holds the lock.
        self._lock = threading.RLock()
        self._new: deque[Running] = deque()
        self._calls: deque[Callable[[], None]] = deque()
        self._next_number = 0
        self._waiting = 0
        self._running: dict[int, Running] = {}  # by the number of the job
        self._of_request: dict[Request, tuple[Running, int]] = {}
        self._ended: list[Stream] = []  # outside of a step's result
        self._counters = Counters()

    @property
    def is_busy(self) -> bool:
        """Whether a step would have something to do."""
        return bool(self._running or self._new or self._calls)

    @property
    def has_calls(self) -> bool:
        """Whether somebody wants a job ended, or its thought, and no step has seen to it yet."""
        return bool(self._calls)

    def add(self, job: Generate | Read) -> Stream:
        """Let a job in. return: where its events come; raises: as `prepare`, and QueueFullError"""
        return self.prepare(job)()

    def prepare(self, job: Generate | Read) -> Callable[[], Stream]:
        """Check a job.

        return: lets it in
        raises: InvalidRequestError and its kinds where it can be seen that the job can't be done
        """
        made = self._admission.checked(job)
        return lambda: self._enter(made)

    def _enter(self, made: Callable[[int], Running]) -> Stream:
        with self._lock:
            if self._waiting >= self.settings.max_waiting:
                raise QueueFullError(self._waiting, self.settings.max_waiting)
            number, self._next_number = self._next_number, self._next_number + 1
            running = made(number)
            running.started = self._clock()
            self._waiting += 1
            self._new.append(running)
        return running.stream

    def abort(self, number: int) -> None:
        """End a job at once, with no further event; one that is over or unknown is no error."""
        with self._lock:
            self._calls.append(lambda: self._abort(number))

    def stop_thinking(self, number: int) -> None:
        """Have a job's thought end now, and its answer follow."""
        with self._lock:
            self._calls.append(lambda: self._stop_thinking(number))

    def step(self) -> list[Stream]:
        """Compute one step, if there is something to compute. return: the streams that got something, or ended"""
        start = self._clock()
        touched = self._let_in()
        self._end_late(start)
        self._propose()
        works = self._scheduler.plan() if self._running else []
        begin = end = self._clock()
        self._begin(works, begin)
        computed: list[WorkRows] = []
        try:
            runs = compute(self.executor, works, self._wants_hidden)
            end = self._clock()
            computed = cut_apart(runs, self._finder, self._limits.num_token_ids, self._wants_likeliest)
        except Exception as problem:  # a bug, or no memory: whoever was in the step fails, nobody else
            self._fail_all([work.request for work in works], problem)
        touched += [self._take(one) for one in computed if one.work.request.state == "running"]
        self._count_waiting()
        if works:
            self._counters.count_step(end - begin, self._clock() - start - (end - begin))
        ended, self._ended = self._ended, []
        return list(dict.fromkeys(touched + ended))

    def end_all(self, error: BaseException) -> list[Stream]:
        """Have every request fail. return: their streams"""
        self._let_in()
        return [self._fail(running, error) for running in list(self._running.values())]

    def settle(self) -> None:
        """Let in what was added and end what was aborted, without a step."""
        self._let_in()

    def statistics(self) -> Statistics:
        """How it stands between two steps."""
        return self._counters.shown(self._scheduler, len(self._new))

    def check_invariants(self) -> None:
        """What must hold between two steps."""
        self._scheduler.check_invariants()
        requests = {*self._scheduler.waiting, *self._scheduler.running}
        assert requests == set(self._of_request), "the scheduler has what the core has"
        assert {running.stream.number for running, _ in self._of_request.values()} == set(self._running)

    # Letting in

    def _let_in(self) -> list[Stream]:
        """What other threads have asked for since the last step."""
        with self._lock:
            new, self._new = self._new, deque()
            calls, self._calls = self._calls, deque()
        for running in new:
            self._running[running.stream.number] = running
            self._schedule(running, 0)
        for call in calls:
            call()
        self._count_waiting()
        ended, self._ended = self._ended, []
        return ended

    def _count_waiting(self) -> None:
        with self._lock:
            self._waiting = len(self._scheduler.waiting) + len(self._new)

    def _schedule(self, running: Running, index: int) -> None:
        request = running.requests[index]
        self._of_request[request] = running, index
        self._scheduler.add(request)
        if running.choices:
            try:
                running.choices[index].propose_forced()
            except Exception as problem:
                self._fail(running, problem)

    def _end_late(self, now: float) -> None:
        """Whoever has waited too long isn't begun with any more."""
        limit_s = self.settings.queue_timeout_s
        for running in list(self._running.values()):
            if now - running.started <= limit_s:
                return  # those after it came later
            if running.begun is None:
                self._fail(running, QueueTimeoutError(limit_s))

    # A step

    def _begin(self, works: Sequence[Work], now: float) -> None:
        for running in (self._of_request[work.request][0] for work in works):
            if running.begun is None:
                self._counters.count_begun(running, now)
                running.stream.cached_tokens = running.requests[0].cached_tokens

    def _propose(self) -> None:
        decoding = [request for request in self._scheduler.running if request.is_decoding and not request.proposed]
        wanted: list[tuple[Choice, int]] = []
        room = self.settings.budget.prefill_tokens - len(decoding)  # for all proposals: a step is bounded
        for request in decoding:
            if request.state != "running":
                continue  # another choice of its job has failed
            running, index = self._of_request[request]
            try:
                choice = running.choices[index]
                limit = max(0, min(MOST_FORCED, room))
                if choice.propose_forced(limit) or choice.propose_looked_up(len(decoding), limit):
                    room -= len(request.proposed)
                elif self._drafting is not None and (count := min(choice.num_drafted(len(decoding)), limit)):
                    wanted.append((choice, count))
                    room -= count
            except Exception as problem:
                self._fail(running, problem)
        wanted = [(choice, count) for choice, count in wanted if choice.request.state == "running"]
        if self._drafting is None or not wanted:
            return
        try:
            drafted = self._drafting.guess([(choice.request, count) for choice, count in wanted])
        except Exception as problem:  # as if it were in the step itself
            self._fail_all([choice.request for choice, _ in wanted], problem)
            return
        for (choice, _), guesses in zip(wanted, drafted, strict=True):
            choice.propose_guesses(guesses)

    def _wants_hidden(self, request: Request) -> bool:
        job = self._of_request[request][0].job
        return isinstance(job, Read) and job.wants == "last_hidden"

    def _wants_likeliest(self, request: Request) -> bool:
        running, index = self._of_request[request]
        return bool(running.choices) and not request.wants_every_row and running.choices[index].wants_likeliest

    def _take(self, computed: WorkRows) -> Stream:
        """One request's part of a step's result."""
        work = computed.work
        running, index = self._of_request[work.request]
        try:
            if isinstance(running.job, Read):
                self._read(running, work, computed.rows)
            else:
                self._generate(running, index, computed)
        except Exception as problem:
            return self._fail(running, problem)
        return running.stream

    def _read(self, running: Running, work: Work, rows: Rows | None) -> None:
        if rows is not None:
            running.keep_rows(work.start + work.wants_logits.start, rows)
        self._scheduler.computed(work, work.end)
        if work.end == len(work.request.token_ids):
            running.stream.rows = np.concatenate(running.rows)
            self._forget(running)
            self._counters.count_whole(running, self._clock())
            running.stream.end()

    def _generate(self, running: Running, index: int, computed: WorkRows) -> None:
        work, request, rows = computed.work, computed.work.request, computed.rows
        known = len(request.token_ids)
        if rows is not None and request.wants_every_row:
            rows = self._keep_prompt_logprobs(running, work, rows)
        if rows is None or not len(rows) or work.end < known:
            self._scheduler.computed(work, work.end)
            return
        now = self._clock()
        choice = running.choices[index]
        pieces = choice.advance(rows, computed.likeliest)
        self._counters.count_tokens(running, index, len(pieces), now)
        self._scheduler.computed(work, known + len(pieces) - 1)
        text = "".join(piece.text for piece in pieces)
        fresh = choice.output.take_logprobs()
        running.stream.add(TextPiece(index, text, tuple(piece.token_id for piece in pieces), fresh))
        if choice.output.finish_reason is not None:
            self._end_choice(running, index)
        self._add_waiting_choices(running)

    def _keep_prompt_logprobs(self, running: Running, work: Work, rows: Rows) -> Rows:
        """return: the rows from the newest token's on"""
        job, request = running.job, work.request
        assert isinstance(job, Generate)
        had = len(running.prompt_logprobs)  # beyond `start` where a pre-emption has them computed again
        end = max(min(work.end, request.prompt_tokens - 1), had)
        given, followed = rows[had - work.start : end - work.start], request.token_ids[had + 1 : end + 1]
        count = job.params.prompt_logprobs or 0
        running.prompt_logprobs += described_prompt(self._tokenizer, self._limits, given, followed, count)
        request.wants_every_row = end < request.prompt_tokens - 1
        if not request.wants_every_row:
            running.stream.add(PromptRead(tuple(running.prompt_logprobs)))
        return rows[max(len(request.token_ids) - 1 - work.start, 0) :]

    def _add_waiting_choices(self, running: Running) -> None:
        """The prompt is computed now, so the other choices find its pages."""
        numbers, running.waiting_choices = running.waiting_choices, []
        for number in numbers:
            if not running.stream.is_over:
                self._admission.add_choice(running, number)
                self._schedule(running, len(running.choices) - 1)

    # Ends

    def _end_choice(self, running: Running, index: int) -> None:
        choice, job = running.choices[index], running.job
        assert isinstance(job, Generate) and choice.output.finish_reason is not None
        self._leave(running.requests[index])
        self._counters.count_choice(choice)
        output, num_thought, stop_string = choice.output, choice.thinking.num_tokens, choice.output.stop_string
        logprobs = None if job.params.logprobs is None else tuple(output.logprobs)
        token_ids, reason = tuple(output.token_ids), choice.output.finish_reason
        end = ChoiceEnd(index, output.text, token_ids, reason, output.num_taken, num_thought, logprobs, stop_string)
        running.stream.add(end)
        running.num_over += 1
        if running.num_over == job.params.n:
            self._end_job(running, job)

    def _end_job(self, running: Running, job: Generate) -> None:
        taken = sum(choice.output.num_taken for choice in running.choices)
        num_thought = sum(choice.thinking.num_tokens for choice in running.choices)
        usage = Usage(len(job.prompt_ids), taken, running.requests[0].cached_tokens or 0, num_thought)
        decode_seconds = running.last_token - running.first_token
        timing = Timing(running.first_token - running.started, decode_seconds, max(taken - job.params.n, 0))
        given = None if job.params.prompt_logprobs is None else tuple(running.prompt_logprobs)
        running.stream.add(RequestEnd(usage, timing, given))
        del self._running[running.stream.number]
        self._counters.count_whole(running, running.last_token)
        running.stream.end()

    def _leave(self, request: Request) -> None:
        self._scheduler.end(request)
        self._of_request.pop(request, None)
        if self._drafting is not None:
            self._drafting.forget(request)

    def _forget(self, running: Running) -> None:
        for request in running.requests:
            self._leave(request)
        self._running.pop(running.stream.number, None)

    def _fail(self, running: Running, problem: BaseException) -> Stream:
        if not running.stream.is_over:
            self._forget(running)
            self._counters.count_cut(running, "error")
            running.stream.end(problem)
            self._ended.append(running.stream)
        return running.stream

    def _fail_all(self, requests: Sequence[Request], problem: BaseException) -> None:
        for running in {self._of_request[request][0] for request in requests}:  # once each, though of n choices
            self._fail(running, problem)

    def _abort(self, number: int) -> None:
        running = self._running.get(number)
        if running is not None:
            self._forget(running)
            self._counters.count_cut(running, "abort")
            running.stream.end()
            self._ended.append(running.stream)

    def _stop_thinking(self, number: int) -> None:
        running = self._running.get(number)
        for choice in running.choices if running is not None else ():
            choice.thinking.stop()
