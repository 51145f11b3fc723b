"""An answer in the form of Anthropic's Messages API: from deltas to the events of a stream, and to the whole message.

Owns the blocks of content: which is open, what it holds. What a delta is was decided by text/channels.py. The whole
message is what the events add up to, so the two can't differ. Knows nothing of HTTP.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field

from kaishu.deltas import ChoiceDelta
from kaishu.results import ChatCompletion, ChatEnd, Usage
from kaishu.server.json_prefix import JsonPrefix
from kaishu.server.messages_answers import Json, message_object, stop_of, usage_object
from kaishu.text.channels import ContentDelta, ThinkingDelta, ToolCallArguments, ToolCallEnd, ToolCallStart

UNSIGNED = "unsigned"  # clients want a signature to be there before they send a thought back; nobody checks it here
_DELTAS = {  # of each type of block: the type of its deltas, and where they have their text
    "thinking": ("thinking_delta", "thinking"),
    "text": ("text_delta", "text"),
    "tool_use": ("input_json_delta", "partial_json"),
}


@dataclass
class _Block:
    """A block of content while it grows.

    start: as it begins, empty
    input: of a call, what it is given
    """

    start: Json
    pieces: list[str] = field(default_factory=list)
    input: JsonPrefix = field(default_factory=JsonPrefix)
    is_whole: bool = False  # of a call

    @property
    def kind(self) -> str:
        return str(self.start["type"])

    def finished(self) -> Json:
        """The block as a whole message has it. Of a call that broke off, what was complete."""
        if self.kind != "tool_use":
            return {**self.start, _DELTAS[self.kind][1]: "".join(self.pieces)}
        return {**self.start, "input": json.loads("".join(self.pieces)) if self.is_whole else self.input.value()}


class MessageEvents:
    """One answer's events.

    model:           the name that the request used
    prompt_tokens:   of the request
    max_tokens:      that it allowed
    only_first_call, shows_thought: of MessageCall
    """

    def __init__(
        self, model: str, *, prompt_tokens: int, max_tokens: int, only_first_call: bool, shows_thought: bool
    ) -> None:
        self._message, self._prompt_tokens = message_object(model), prompt_tokens
        self._max_tokens, self._only_first_call, self._shows_thought = max_tokens, only_first_call, shows_thought
        self._content: list[Json] = []  # blocks that are over
        self._block: _Block | None = None
        self._has_called = False
        self.message: Json | None = None  # the whole, once it is over

    def begin(self, cached_tokens: int) -> Json:
        """The event before all others. cached_tokens: of the prompt"""
        usage = usage_object(Usage(self._prompt_tokens, 0, cached_tokens))
        return {"type": "message_start", "message": {**self._message, "usage": usage}}

    def push(self, found: ChoiceDelta) -> Iterator[Json]:
        """The events of one delta; the last delta's end the message."""
        match found.delta:
            case ChatEnd(completion):
                yield from self._end(completion)
            case ThinkingDelta(text):
                thought = text if self._shows_thought else ""
                yield from self._text({"type": "thinking", "thinking": "", "signature": ""}, thought)
            case ContentDelta(text):
                yield from self._text({"type": "text", "text": ""}, text)
            case ToolCallStart(index, call_id, name) if not (self._only_first_call and index):
                use = {"type": "tool_use", "id": f"toolu_{call_id.removeprefix('call_')}", "name": name, "input": {}}
                yield from self._begin(use)
            case ToolCallArguments(index, text) if not (self._only_first_call and index):
                assert self._block is not None and self._block.kind == "tool_use"
                yield from self._more(self._block, self._block.input.push(text))
            case ToolCallEnd(index, is_whole) if not (self._only_first_call and index):
                assert self._block is not None and self._block.kind == "tool_use"
                self._block.is_whole = is_whole and self._block.input.is_whole
                self._has_called |= self._block.is_whole
                yield from self._stop()

    def _text(self, start: Json, text: str) -> Iterator[Json]:
        if self._block is None or self._block.kind != start["type"]:
            yield from self._begin(start)
        assert self._block is not None
        yield from self._more(self._block, text)

    def _begin(self, start: Json) -> Iterator[Json]:
        yield from self._stop()
        self._block = _Block(start)
        yield {"type": "content_block_start", "index": len(self._content), "content_block": start}

    def _more(self, block: _Block, text: str) -> Iterator[Json]:
        if text:
            block.pieces.append(text)
            kind, name = _DELTAS[block.kind]
            yield self._delta({"type": kind, name: text})

    def _delta(self, delta: Json) -> Json:
        return {"type": "content_block_delta", "index": len(self._content), "delta": delta}

    def _stop(self) -> Iterator[Json]:
        if self._block is None:
            return
        finished = self._block.finished()
        if self._block.kind == "thinking":
            finished["signature"] = UNSIGNED
            yield self._delta({"type": "signature_delta", "signature": UNSIGNED})
        yield {"type": "content_block_stop", "index": len(self._content)}
        self._content.append(finished)
        self._block = None

    def _end(self, completion: ChatCompletion) -> Iterator[Json]:
        yield from self._stop()
        stop = stop_of(completion, max_tokens=self._max_tokens, has_called=self._has_called)
        usage = usage_object(completion.usage)
        self.message = {**self._message, "content": self._content, **stop, "usage": usage}
        yield {"type": "message_delta", "delta": stop, "usage": usage}
        yield {"type": "message_stop"}
