"""A streamed completion in OpenAI's older form: from deltas to text_completion objects.

Owns these objects. Knows nothing of HTTP.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from kaishu.deltas import ChoiceDelta
from kaishu.openai_requests import CompletionCall
from kaishu.openai_responses import Echo, Json, LogprobLists, new_id, total_usage, usage_object
from kaishu.results import CompletionEnd, PositionLogprobs, TextDelta, Usage


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
        self._usages: list[Usage] = []

    def beginning(self) -> Iterator[Json]:
        """With `echo`, the prompts."""
        for place, echo in enumerate(self._echoes or ()):
            for choice in range(self._call.params.n):
                yield self._chunk(place * self._call.params.n + choice, echo.text)

    def push(self, place: int, found: ChoiceDelta) -> Iterator[Json]:
        """The chunks of one delta of the prompt at `place`; of its last one, the ends of its choices."""
        first = place * self._call.params.n
        match found.delta:
            case TextDelta(text):
                logprobs = self._logprobs(first + found.choice, found.logprobs)
                if text or logprobs:
                    yield self._chunk(first + found.choice, text, logprobs)
            case CompletionEnd(completion):
                for choice, answer in enumerate((completion, *completion.alternatives), first):
                    unsaid = (answer.logprobs or ())[self._num_logprobs.get(choice, 0) :]
                    yield self._chunk(choice, "", self._logprobs(choice, unsaid), answer.finish_reason)
                self._usages.append(completion.usage)

    def end(self) -> Iterator[Json]:
        """The usage of all prompts, if it was asked for."""
        if self._call.include_usage:
            yield {**self._common, "choices": [], "usage": usage_object(total_usage(self._usages))}

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
