"""A streamed chat in OpenAI's form: from deltas to chat.completion.chunk objects.

Owns these objects. What a delta is was decided by text/channels.py, for whole answers as for streamed ones, so that the
pieces add up to what the whole answer would be. Knows nothing of HTTP.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

from kaishu.deltas import ChoiceDelta
from kaishu.openai_responses import Json, chat_logprobs, new_id, usage_object
from kaishu.results import ChatEnd, ChoiceOver, PositionLogprobs
from kaishu.text.channels import ContentDelta, ThinkingDelta, ToolCallArguments, ToolCallStart


class ChatChunks:
    """One chat's chunks.

    model:           the name that the request used
    include_usage:   end with a chunk that has it
    wants_logprobs:  give each choice's
    only_first_call: ChatCall.only_first_call

    Where log probabilities were asked for, each choice has also `"kaishu": {"origins": [...]}`, of each token what
    PositionLogprobs.origin says.
    """

    def __init__(self, model: str, *, include_usage: bool, wants_logprobs: bool, only_first_call: bool) -> None:
        self.id = new_id("chatcmpl-")
        self._common = {
            "id": self.id,
            "object": "chat.completion.chunk",
            "created": int(time.time()),
            "model": model,
        }
        self._include_usage, self._wants_logprobs = include_usage, wants_logprobs
        self._only_first_call = only_first_call
        self._begun: set[int] = set()
        self._num_logprobs: dict[int, int] = {}  # said so far, of each choice

    def push(self, found: ChoiceDelta) -> Iterator[Json]:
        """The chunks of one delta; of the last one, the usage if it was asked for."""
        match found.delta:
            case ChatEnd(completion):
                if self._include_usage:
                    yield {**self._common, "choices": [], "usage": usage_object(completion.usage)}
                return
            case ChoiceOver(answer):
                unsaid = (answer.logprobs or ())[self._num_logprobs.get(found.choice, 0) :]
                yield self._chunk(found.choice, {}, answer.finish_reason, unsaid)
                return
            case ThinkingDelta(text):
                # Some clients read the one name, some the other.
                delta: Json = {"reasoning_content": text, "reasoning": text}
            case ContentDelta(text):
                delta = {"content": text}
            case ToolCallStart(index, call_id, name) if not (self._only_first_call and index):
                function = {"name": name, "arguments": ""}
                delta = {"tool_calls": [{"index": index, "id": call_id, "type": "function", "function": function}]}
            case ToolCallArguments(index, text) if not (self._only_first_call and index):
                delta = {"tool_calls": [{"index": index, "function": {"arguments": text}}]}
            case _:
                delta = {}
        if delta or found.logprobs:
            yield self._chunk(found.choice, delta, logprobs=found.logprobs)

    def _chunk(
        self, choice: int, delta: Json, finish_reason: str | None = None, logprobs: tuple[PositionLogprobs, ...] = ()
    ) -> Json:
        if choice not in self._begun:
            self._begun.add(choice)
            delta = {"role": "assistant", "content": "", **delta}
        self._num_logprobs[choice] = self._num_logprobs.get(choice, 0) + len(logprobs)
        said = chat_logprobs(logprobs) if self._wants_logprobs and logprobs else None
        made_choice: Json = {"index": choice, "delta": delta, "logprobs": said, "finish_reason": finish_reason}
        if said is not None:
            made_choice["kaishu"] = {"origins": [position.origin for position in logprobs]}
        made = {**self._common, "choices": [made_choice]}
        return {**made, "usage": None} if self._include_usage else made
