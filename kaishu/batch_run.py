"""Many requests of a batch file, in the engine at once, each answered as soon as it is done.

Owns what a line becomes (one job for the engine, or one for each prompt or text that it has) and how many are on their
way. A request's failure is its own answer. Knows nothing of how lines are kept in files (batch_file.py) or of
terminals. Used by cli/batch.py.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from kaishu.batch_file import ID_PREFIX, BatchLine, BatchOutput, answer_line, error_line
from kaishu.deltas import ChatDeltas, CompletionDeltas
from kaishu.engine.jobs import Generate, Read
from kaishu.engine.stream import Stream
from kaishu.errors import ModelNotFoundError, QueueFullError, shown
from kaishu.llm import AT_ONCE, LLM
from kaishu.openai_embeddings import embedding_jobs, embedding_response, read_embedding
from kaishu.openai_fields import spelt
from kaishu.openai_requests import Call, CompletionCall, read_chat, read_completion
from kaishu.openai_responses import (
    Echo,
    chat_response,
    completion_response,
    echo_of,
    error_response,
    error_status,
    new_id,
)
from kaishu.results import ChatEnd, CompletionEnd

Answer = dict[str, Any]


@dataclass
class Totals:
    """What a run has done.

    skipped:                          lines that an earlier run had answered
    answered, failed:                 lines that got an answer, or an error
    prompt_tokens, completion_tokens: of those answered; cached_tokens is how many of the prompts' were computed before
    is_stopped:                       it ended before its work did
    """

    skipped: int = 0
    answered: int = 0
    failed: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    is_stopped: bool = False

    def count(self, body: Mapping[str, Any]) -> None:
        """Add an answer's usage."""
        usage = body["usage"]
        self.answered += 1
        self.prompt_tokens += usage["prompt_tokens"]
        self.completion_tokens += usage.get("completion_tokens", 0)
        self.cached_tokens += usage.get("prompt_tokens_details", {}).get("cached_tokens", 0)


@dataclass(eq=False)
class _Work:
    """One line's jobs, and what came of those that are done.

    new_deltas: what reads a job's events; None for jobs whose result is a row
    body:       makes the answer of all results
    """

    line: BatchLine
    call: Call
    jobs: Sequence[Generate | Read]
    new_deltas: Callable[[], ChatDeltas | CompletionDeltas] | None
    body: Callable[[list[Any]], Mapping[str, Any]]
    results: dict[int, Any] = field(default_factory=dict)


@dataclass(eq=False)
class _Running:
    """One job in the engine."""

    work: _Work
    place: int
    stream: Stream
    deltas: ChatDeltas | CompletionDeltas | None


def run_batch(
    llm: LLM,
    lines: Iterable[BatchLine],
    output: BatchOutput,
    *,
    model: str | None,
    should_stop: Callable[[], bool] = lambda: False,
    on_answers: Callable[[int], None] = lambda _: None,
) -> Totals:
    """Answer all lines that the output doesn't have yet.

    model:       the one name that requests may give; None for any
    should_stop: looked at after every step; when true, what is on its way is given up
    on_answers:  told how many lines were answered, whenever some were
    raises:      OSError where a file fails; what a line asks for raises nothing
    """
    run = _Run(llm, lines, output.done, model, should_stop)
    while True:
        run.fill()
        if run.answers:
            output.write(run.answers)
            on_answers(len(run.answers))
            run.answers = []
        if run.is_over and not run.running:
            return run.totals
        if should_stop():
            run.give_up()
            run.totals.is_stopped = True
            return run.totals
        if run.running:
            llm.engine.advance(run.running[0].stream)
            run.collect()


class _Run:
    """The lines on their way.

    answers: made and not written yet
    is_over: all lines were read
    """

    def __init__(
        self,
        llm: LLM,
        lines: Iterable[BatchLine],
        done: set[str | int],
        model: str | None,
        should_stop: Callable[[], bool],
    ) -> None:
        self._llm, self._lines, self._done, self._model = llm, iter(lines), done, model
        self._should_stop = should_stop
        self._waiting: deque[tuple[_Work, int]] = deque()  # a line's jobs that aren't in the engine yet
        self.running: list[_Running] = []
        self.answers: list[Answer] = []
        self.is_over = False
        self.totals = Totals()

    def fill(self) -> None:
        """Let jobs into the engine, as many as it should have."""
        while len(self.running) < AT_ONCE and len(self.answers) < AT_ONCE and not self._should_stop():
            if not self._waiting:
                line = next(self._lines, None)
                if line is None:
                    self.is_over = True
                    return
                self._open(line)
                continue
            work, place = self._waiting[0]
            try:
                with spelt(work.call.names):
                    stream = self._llm.engine.core.add(work.jobs[place])
            except QueueFullError:  # many choices wait; they will end
                return
            except Exception as error:
                self._fail(work, error)
                continue
            self._waiting.popleft()
            self.running.append(_Running(work, place, stream, work.new_deltas() if work.new_deltas else None))

    def collect(self) -> None:
        """Take what the jobs have got since the last time."""
        for one in list(self.running):
            if one in self.running:  # else its line has failed meanwhile
                try:
                    self._take(one)
                except Exception as error:
                    self._fail(one.work, error)

    def give_up(self) -> None:
        """End everything that is on its way."""
        for one in self.running:
            self._llm.engine.core.abort(one.stream.number)
        self._llm.engine.core.settle()
        self.running = []
        self._waiting.clear()

    def _open(self, line: BatchLine) -> None:
        if line.key in self._done:
            self.totals.skipped += 1
            return
        try:
            if line.error is not None:
                raise line.error
            work = work_of(line, self._llm, self._model)
        except Exception as error:
            self._answer_error(line, error)
            return
        self._waiting.extend((work, place) for place in range(len(work.jobs)))

    def _take(self, one: _Running) -> None:
        with spelt(one.work.call.names):
            events = one.stream.take()
        result: Any = None
        for event in events:
            for found in one.deltas.push(event) if one.deltas else ():
                if isinstance(found.delta, ChatEnd | CompletionEnd):
                    result = found.delta.completion
        if not one.stream.is_over:
            return
        if one.deltas is None:
            assert one.stream.rows is not None, "a request for rows that is over has them"
            result = one.stream.rows[0]
        work = one.work
        work.results[one.place] = result
        self.running.remove(one)
        if len(work.results) == len(work.jobs):
            body = work.body([work.results[place] for place in range(len(work.jobs))])
            self._answer(work.line, 200, body)
            self.totals.count(body)

    def _fail(self, work: _Work, error: Exception) -> None:
        """One job's failure is its line's."""
        for one in self.running:
            if one.work is work:
                self._llm.engine.core.abort(one.stream.number)
        self.running = [one for one in self.running if one.work is not work]
        self._waiting = deque((other, place) for other, place in self._waiting if other is not work)
        self._answer_error(work.line, error)

    def _answer_error(self, line: BatchLine, error: Exception) -> None:
        self.totals.failed += 1
        if line.custom_id is None:
            assert line.error is not None, "a line that can be answered has a custom_id"
            self.answers.append(error_line(new_id(ID_PREFIX), line.number, line.error))
        else:
            self._answer(line, error_status(error), error_response(error))

    def _answer(self, line: BatchLine, status: int, body: Mapping[str, Any]) -> None:
        assert line.custom_id is not None, "an answer has its request's custom_id"
        self.answers.append(answer_line(new_id(ID_PREFIX), line.custom_id, status, new_id("req_"), body))


def work_of(line: BatchLine, llm: LLM, model: str | None) -> _Work:
    """What the engine has to do for a line.

    raises: InvalidRequestError and its kinds, naming the field as the line spells it; ModelNotFoundError, TemplateError
    """
    makers = {
        "/v1/chat/completions": _chat_work,
        "/v1/completions": _completion_work,
        "/v1/embeddings": _embedding_work,
    }
    return makers[line.url](line, llm, model)


def _check_model(call: Call, model: str | None) -> None:
    if model is not None and call.model != model:
        raise ModelNotFoundError(f"The model is {shown(call.model)}; this batch is answered by {shown(model)}.")


def _chat_work(line: BatchLine, llm: LLM, model: str | None) -> _Work:
    call = read_chat(line.body)
    _check_model(call, model)
    with spelt(call.names):
        chat = llm.prompting.chat(call.request, call.params)
    return _Work(
        line,
        call,
        [chat.job],
        lambda: ChatDeltas(chat.new_parser),
        lambda answers: chat_response(answers[0], call.model, only_first_call=call.only_first_call),
    )


def _completion_work(line: BatchLine, llm: LLM, model: str | None) -> _Work:
    call = read_completion(line.body)
    _check_model(call, model)
    with spelt(call.names):
        jobs = [llm.prompting.completion(prompt, call.params, priority=call.priority) for prompt in call.prompts]

    def body(answers: list[Any]) -> Mapping[str, Any]:
        return completion_response(answers, call.model, echoes=_echoes(call, jobs, llm) if call.echo else None)

    return _Work(line, call, jobs, call.new_deltas, body)


def _echoes(call: CompletionCall, jobs: Sequence[Generate], llm: LLM) -> list[Echo]:
    return [echo_of(prompt, job.prompt_ids, llm.tokenizer) for prompt, job in zip(call.prompts, jobs, strict=True)]


def _embedding_work(line: BatchLine, llm: LLM, model: str | None) -> _Work:
    call = read_embedding(line.body)
    _check_model(call, model)
    with spelt(call.names):
        jobs = embedding_jobs(call, llm.loaded, llm.prompting)
    return _Work(line, call, jobs, None, lambda rows: embedding_response(call, np.array(rows), jobs))
