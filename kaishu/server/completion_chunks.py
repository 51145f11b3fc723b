"""A streamed completion in OpenAI's older form: from deltas to text_completion objects.

Owns these objects. Knows nothing of HTTP.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from kaishu.deltas import ChoiceDelta, Delta
from kaishu.openai_requests import CompletionCall
from kaishu.openai_responses import Echo, Json, LogprobLists, new_id, total_usage, usage_object
from kaishu.results import ChoiceOver, CompletionEnd, PositionLogprobs, PromptRead, TextDelta, Usage


class CompletionChunks:
    """One request's chunks, its prompts' choices numbered one after the other.

    echoes: of each prompt, where they were asked for
    """

    def __init__(self, call: CompletionCall, echoes: Sequence[Echo] | None) -> None:
        self._common = {
            "id": new_id("cmpl-"),
            "object": "text_completion",
            "created": int(time.time()),
            "model": call.model,
        }
        self._call, self._echoes = call, echoes
        self._lists: dict[int, LogprobLists] = {}  # of each choice
        self._num_logprobs: dict[int, int] = {}
        self._begun: set[int] = set()  # the prompts that were echoed
        self._usages: list[Usage] = []

    def push(self, place: int, found: ChoiceDelta) -> Iterator[Json]:
        """The chunks of one delta of the prompt at `place`; before those of its first, with `echo`, the prompt."""
        if self._echoes is not None and place not in self._begun:
            self._begun.add(place)
            yield from self._echoed(place, self._echoes[place], found.delta)
        choice = place * self._call.params.n + found.choice
        match found.delta:
            case TextDelta(text):
                logprobs = self._logprobs(choice, found.logprobs)
                if text or logprobs:
                    yield self._chunk(choice, text, logprobs)
            case ChoiceOver(answer):
                unsaid = (answer.logprobs or ())[self._num_logprobs.get(choice, 0) :]
                yield self._chunk(choice, "", self._logprobs(choice, unsaid), answer.finish_reason)
            case CompletionEnd(completion):
                self._usages.append(completion.usage)

    def end(self) -> Iterator[Json]:
        """The usage of all prompts, if it was asked for."""
        if self._call.include_usage:
            yield {**self._common, "choices": [], "usage": usage_object(total_usage(self._usages))}

    def _echoed(self, place: int, echo: Echo, delta: Delta) -> Iterator[Json]:
        for choice in range(place * self._call.params.n, (place + 1) * self._call.params.n):
            logprobs = None
            if isinstance(delta, PromptRead):  # always the first where they were asked for
                logprobs = self._lists.setdefault(choice, LogprobLists()).of(delta.logprobs, echo)
            yield self._chunk(choice, echo.text, logprobs)

    def _logprobs(self, choice: int, positions: Sequence[PositionLogprobs]) -> Json | None:
        if self._call.params.logprobs is None or not positions:
            return None
        self._num_logprobs[choice] = self._num_logprobs.get(choice, 0) + len(positions)
        lists = self._lists.setdefault(choice, LogprobLists())
        return lists.of(positions)

    def _chunk(self, choice: int, text: str, logprobs: Json | None = None, finish_reason: str | None = None) -> Json:
        said = {"index": choice, "text": text, "logprobs": logprobs, "finish_reason": finish_reason}
        made = {**self._common, "choices": [said]}
        return {**made, "usage": None} if self._call.include_usage else made
