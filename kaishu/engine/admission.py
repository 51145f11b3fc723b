"""Admission: what is decided about a job before it may wait, and how it becomes requests and choices.

Owns every refusal that needs the model's limits; after admission a job always ends with a finish reason or an error.
Knows nothing of steps and pages. Called by core.py in the thread of whoever adds a job, so that building a sampler or
starting a grammar never holds up a step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kaishu.engine.choice import Choice
from kaishu.engine.jobs import Generate, Read, Running, check_text_to_read, room_of
from kaishu.engine.output import Limits, Output
from kaishu.engine.pages import page_tag
from kaishu.engine.request import Request
from kaishu.engine.speculation import Guessing
from kaishu.engine.stream import Stream
from kaishu.engine.thinking import ThinkingProgress, ThinkingTokens
from kaishu.errors import InvalidParameterError
from kaishu.sampling import Sampler
from kaishu.text.tokenizer import Tokenizer


class Admission:
    """See the module.

    vocab_size: V, ids that the executor can embed
    tag:       what computed pages depend on beside tokens and salt
    looks_up:  whether tokens of choices are guessed from their own text
    has_draft: whether a draft guesses them
    """

    def __init__(
        self, tokenizer: Tokenizer, limits: Limits, *, vocab_size: int, tag: bytes, looks_up: bool, has_draft: bool
    ) -> None:
        self._tokenizer, self._limits, self._vocab_size, self._tag = tokenizer, limits, vocab_size, tag
        self._looks_up, self._is_guessed = looks_up, looks_up or has_draft
        self._thinking = ThinkingTokens.of(tokenizer)

    def checked(self, job: Generate | Read) -> Callable[[int], Running]:
        """Refuse what can't be done.

        return: makes the job what runs, given its number
        raises: InvalidRequestError and its kinds
        """
        if isinstance(job, Read):
            check_text_to_read(job, self._limits)
            self._check_ids("token_ids", job.token_ids)
            return lambda number: Running(job, Stream(number), [self._request(job, number, list(job.token_ids))])
        room_of(job, self._limits)
        self._check_ids("prompt", job.prompt_ids)
        if job.params.thinking_budget is not None and self._thinking is None:
            raise InvalidParameterError(
                "thinking_budget", job.params.thinking_budget, "null, since this model's tokenizer has no thinking"
            )
        sampler, guessing = self._sampler(job, 0), self._guessing()
        if guessing is not None:
            guessing.read(job.prompt_ids)

        def made(number: int) -> Running:
            running = Running(job, Stream(number), [], waiting_choices=list(range(1, job.params.n)))
            self._add(running, job, sampler, guessing)
            return running

        return made

    def _check_ids(self, field: str, token_ids: Sequence[int]) -> None:
        """An id that doesn't exist would fail all who are in a step with it."""
        for token_id in (min(token_ids), max(token_ids)):
            if not 0 <= token_id < self._vocab_size:
                raise InvalidParameterError(field, token_id, f"token ids from 0 to {self._vocab_size - 1:,}")

    def add_choice(self, running: Running, number: int) -> None:
        """One more of a job's n choices."""
        assert isinstance(running.job, Generate)
        self._add(running, running.job, self._sampler(running.job, number), self._guessing())

    def _guessing(self) -> Guessing | None:
        return Guessing(looks_up=self._looks_up) if self._is_guessed else None

    def _add(self, running: Running, job: Generate, sampler: Sampler, guessing: Guessing | None) -> None:
        request = self._request(job, running.stream.number, list(job.prompt_ids))
        request.wants_every_row = job.params.prompt_logprobs is not None and not running.choices
        running.requests.append(request)
        running.choices.append(
            Choice(
                request,
                sampler=sampler,
                output=Output(self._tokenizer, job.params, self._limits, room_of(job, self._limits)),
                thinking=ThinkingProgress(job.thinking, self._thinking, job.params.thinking_budget),
                grammar=job.grammar.start() if job.grammar is not None else None,
                guessing=guessing,
            )
        )

    def _request(self, job: Generate | Read, number: int, token_ids: list[int]) -> Request:
        return Request(
            number,
            token_ids,
            len(token_ids),
            priority=job.priority,
            tag=page_tag(self._tag, job.salt),
            wants_every_row=isinstance(job, Read) and job.wants == "all_logits",
        )

    def _sampler(self, job: Generate, choice: int) -> Sampler:
        limits = self._limits
        return Sampler(
            job.params,
            prompt_ids=job.prompt_ids,
            num_token_ids=limits.num_token_ids,
            end_token_ids=limits.end_token_ids,
            absent_ids=limits.absent_token_ids,
            choice=choice,
        )
