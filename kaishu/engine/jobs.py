"""Jobs: what can be asked of the engine, and what the engine keeps of it while it runs.

Owns the two kinds (generate tokens, or compute rows of a text that is only read) and the checks of their sizes. Knows
nothing of steps. Made by llm.py and the server, let in by admission.py, run by core.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from kaishu.engine.choice import Choice
from kaishu.engine.grammar import CompiledGrammar
from kaishu.engine.output import Limits
from kaishu.engine.request import Request
from kaishu.engine.stream import Stream
from kaishu.errors import ContextLengthError, InvalidParameterError, InvalidRequestError
from kaishu.results import PositionLogprobs
from kaishu.sampling import SamplingParams
from kaishu.text.channels import Thinking


@dataclass(frozen=True)
class Generate:
    """Continue a prompt.

    prompt_ids: at least one
    params:     filled by `with_defaults`
    thinking:   where the model is at the prompt's end, RenderedPrompt.thinking; "closed" for plain completion
    grammar:    the form that the answer has to have
    priority:   lower goes first
    salt:       requests of another salt never share computed pages with this one, so that nobody can find out by the
                time it takes what others have asked
    """

    prompt_ids: Sequence[int]
    params: SamplingParams
    thinking: Thinking = "closed"
    grammar: CompiledGrammar | None = None
    priority: int = 0
    salt: str = ""


@dataclass(frozen=True)
class Read:
    """Compute a text without continuing it.

    wants: "last_hidden", "last_logits" or "all_logits": which rows of what
    """

    token_ids: Sequence[int]
    wants: Literal["last_hidden", "last_logits", "all_logits"]
    priority: int = 0
    salt: str = ""


@dataclass(eq=False)
class Running:
    """A job that was let in.

    choices:   of a Generate; the first computes the prompt, the others come when that is done and find it in the cache
    started:   when it came, by the core's clock; the other times are by it, too
    begun:     when the first step with some of it was planned; None before
    chosen_at: when each choice got its newest tokens
    """

    job: Generate | Read
    stream: Stream
    requests: list[Request]
    choices: list[Choice] = field(default_factory=list)
    waiting_choices: list[int] = field(default_factory=list)
    num_over: int = 0
    started: float = 0.0
    begun: float | None = None
    chosen_at: dict[int, float] = field(default_factory=dict)
    first_token: float = 0.0
    last_token: float = 0.0
    prompt_logprobs: list[PositionLogprobs] = field(default_factory=list)
    rows: list[NDArray[np.float32]] = field(default_factory=list)
    rows_end: int = 0

    @property
    def num_open(self) -> int:
        """How many choices aren't over; a Read is one."""
        return self.job.params.n - self.num_over if isinstance(self.job, Generate) else 1

    def keep_rows(self, start: int, rows: NDArray[np.float32]) -> None:
        """Some rows of a Read, from position `start` on; those that a pre-emption had computed again are left out."""
        self.rows.append(np.array(rows[max(self.rows_end - start, 0) :]))
        self.rows_end = max(self.rows_end, start + len(rows))


def room_of(job: Generate, limits: Limits) -> int:
    """How many tokens a job may generate.

    raises: InvalidRequestError for an empty prompt, ContextLengthError for one that is too long, InvalidParameterError
            for min_tokens beyond the context
    """
    if not job.prompt_ids:
        raise InvalidRequestError(
            "The prompt is empty: there is no token to continue from.", field="prompt", hint="Give some text."
        )
    room = limits.context_tokens - len(job.prompt_ids)
    if room < 1:
        raise ContextLengthError(len(job.prompt_ids), limits.context_tokens)
    if job.params.min_tokens > room:
        raise InvalidParameterError("min_tokens", job.params.min_tokens, f"0 to the {room} left of the context")
    return min(job.params.max_tokens or room, room)


def check_text_to_read(job: Read, limits: Limits) -> None:
    """raises: InvalidRequestError for no tokens, ContextLengthError for too many"""
    if not job.token_ids:
        raise InvalidRequestError("There are no token ids to compute.", field="token_ids")
    if len(job.token_ids) > limits.context_tokens:
        raise ContextLengthError(len(job.token_ids), limits.context_tokens, field="token_ids")
