"""Stream: what a request has to say to whoever waits for it.

Owns the events that were made and not read yet, and how the request ended. Knows nothing of who reads: a blocking
caller takes from it between steps, async_engine.py passes its events on to an event loop. Filled by core.py.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kaishu.results import FinishReason, PositionLogprobs, PromptRead, Timing, Usage


@dataclass(frozen=True)
class TextPiece:
    """More of one choice: the tokens of a step, and the text that became certain with them; each may be empty."""

    choice: int
    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[PositionLogprobs, ...] = ()


@dataclass(frozen=True)
class ChoiceEnd:
    """One choice is over. `stop_string`: the one that ended it, if one did."""

    choice: int
    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    completion_tokens: int
    reasoning_tokens: int
    logprobs: tuple[PositionLogprobs, ...] | None
    stop_string: str | None = None


@dataclass(frozen=True)
class RequestEnd:
    """All choices are over; the last event.

    prompt_logprobs: of each token of the prompt but the first, if they were asked for
    """

    usage: Usage
    timing: Timing
    prompt_logprobs: tuple[PositionLogprobs, ...] | None


Event = PromptRead | TextPiece | ChoiceEnd | RequestEnd


class Stream:
    """One request's events, in order.

    number:        the request's
    cached_tokens: how many of its prompt's tokens were found in the cache, once it is begun with
    error:         why it failed, if it did; no event follows
    rows:          what a request for rows got, [R, V] logits or [1, D] hidden states, once it is over
    is_over:       nothing will be added any more
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self.events: deque[Event] = deque()
        self.cached_tokens: int | None = None
        self.error: BaseException | None = None
        self.rows: NDArray[np.float32] | None = None
        self.is_over = False

    def add(self, event: Event) -> None:
        """One more event."""
        assert not self.is_over, "nothing follows the end"
        self.events.append(event)

    def end(self, error: BaseException | None = None) -> None:
        """No event follows; once more does nothing."""
        if not self.is_over:
            self.error, self.is_over = error, True

    def take(self) -> list[Event]:
        """All events that weren't read yet.

        raises: what made the request fail, after all of its events were read
        """
        events = []
        while self.events:
            events.append(self.events.popleft())
        if not events and self.error is not None:
            raise self.error
        return events
