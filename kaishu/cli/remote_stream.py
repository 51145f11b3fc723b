"""A streamed chat of OpenAI's API, read: from bytes to events, and from chunks to the deltas that views show.

Owns the reading of server-sent events (the HTML standard's "Interpreting an event stream") and of chunks as servers
really send them: thought under either of two names or within the text, calls with and without an index, usage or none,
an error in the middle. Knows nothing of connections; remote_model.py has those.
"""

from __future__ import annotations

import codecs
import json
import re
import time
from collections.abc import Iterable, Iterator
from typing import Any

from kaishu.errors import KaishuError, RemoteError, shown
from kaishu.results import ChatCompletion, FinishReason, Timing, Usage
from kaishu.text.channels import (
    ChannelCollector,
    ChannelDelta,
    ChannelParser,
    ThinkingDelta,
    ToolCallArguments,
    ToolCallEnd,
    ToolCallStart,
    new_call_id,
)
from kaishu.tool_functions import read_arguments

Json = dict[str, Any]

_LINE_END = re.compile(r"\r\n|\n|\r(?!\Z)")  # a \r at the end may be half of \r\n
_THOUGHT_NAMES = ("reasoning_content", "reasoning")  # servers that have both say the same in them


def event_data(chunks: Iterable[bytes]) -> Iterator[str]:
    """The data of each event.

    chunks: bytes, cut anywhere
    """
    data: list[str] = []
    for line in _lines(chunks):
        if not line:
            if data:
                yield "\n".join(data)
            data = []
        name, _, value = line.partition(":")  # a comment begins with the colon
        if name == "data":
            data.append(value.removeprefix(" "))
    # What no empty line follows is no event; the connection broke off in it.


def _lines(chunks: Iterable[bytes]) -> Iterator[str]:
    decoder = codecs.getincrementaldecoder("utf-8-sig")("replace")
    rest = ""
    for chunk in chunks:
        *lines, rest = _LINE_END.split(rest + decoder.decode(chunk))
        yield from lines
    if rest.endswith("\r"):
        yield rest[:-1]


class RemoteAnswer:
    """One answer, from its chunks.

    clock: gives seconds, for how long things took
    """

    def __init__(self, clock: Any = time.perf_counter) -> None:
        self._clock, self._began_at = clock, clock()
        self._first_at: float | None = None
        self._last_at = self._began_at
        # Of servers that leave the thought in the text, the parser takes it out.
        self._parser = ChannelParser("none", parse_tool_calls=False)
        self._collector = ChannelCollector()
        self._calls: list[_Call] = []
        self._usage: Json = {}
        self._finish_reason: str | None = None

    @property
    def is_whole(self) -> bool:
        """Whether the server said that the answer has ended."""
        return self._finish_reason is not None

    def push(self, chunk: Any) -> Iterator[ChannelDelta]:
        """What a chunk says.

        chunk:  parsed JSON: a chat.completion.chunk, or a whole chat.completion
        raises: RemoteError for an error of the server, and for what is no chunk
        """
        if not isinstance(chunk, dict):
            raise _unreadable(chunk)
        if chunk.get("error"):
            raise RemoteError(f"The server failed: {error_words(chunk)}")
        if isinstance(chunk.get("usage"), dict):
            self._usage = chunk["usage"]
        choices = chunk.get("choices")
        if not isinstance(choices, list | None):
            raise _unreadable(choices)
        for choice in choices or ():  # none in the chunk with the usage
            yield from self._kept(self._choice(choice))

    def end(self) -> Iterator[ChannelDelta]:
        """What was held back."""
        yield from self._kept(self._ends())

    def completion(self) -> ChatCompletion:
        """The whole answer, after `end`. Numbers that the server didn't give are 0."""
        answer = self._collector.result()
        num_tokens = _count(self._usage, "completion_tokens")
        first = self._last_at if self._first_at is None else self._first_at
        is_timed = num_tokens > 1
        reason: FinishReason = "length" if self._finish_reason == "length" else "stop"
        if answer.tool_calls and reason == "stop":
            reason = "tool_calls"
        return ChatCompletion(
            content=answer.content,
            reasoning=answer.reasoning or "",
            tool_calls=answer.tool_calls,
            finish_reason=reason,
            token_ids=(),
            usage=Usage(
                _count(self._usage, "prompt_tokens"),
                num_tokens,
                _count(self._usage.get("prompt_tokens_details"), "cached_tokens"),
                _count(self._usage.get("completion_tokens_details"), "reasoning_tokens"),
            ),
            timing=Timing(
                first - self._began_at, self._last_at - first if is_timed else 0.0, num_tokens - 1 if is_timed else 0
            ),
        )

    def _kept(self, deltas: Iterator[ChannelDelta]) -> Iterator[ChannelDelta]:
        for delta in deltas:
            self._last_at = self._clock()
            self._first_at = self._last_at if self._first_at is None else self._first_at
            self._collector.add(delta)
            yield delta

    def _choice(self, choice: Any) -> Iterator[ChannelDelta]:
        if not isinstance(choice, dict):
            raise _unreadable(choice)
        delta = choice.get("delta") or choice.get("message") or {}
        if not isinstance(delta, dict):
            raise _unreadable(delta)
        thought = next((text for name in _THOUGHT_NAMES if (text := _text(delta.get(name)))), "")
        if thought:
            yield ThinkingDelta(thought)
        for name in ("content", "refusal"):
            yield from self._parser.push(_text(delta.get(name)))
        calls = delta.get("tool_calls") or ()
        if not isinstance(calls, list | tuple):
            raise _unreadable(calls)
        for call in calls:
            yield from self._call(call)
        if choice.get("finish_reason"):
            self._finish_reason = str(choice["finish_reason"])

    def _call(self, said: Any) -> Iterator[ChannelDelta]:
        """A piece of a call."""
        function = said.get("function") or {} if isinstance(said, dict) else None
        if not isinstance(function, dict):
            raise _unreadable(said)
        name, call_id, index = _text(function.get("name")), _text(said.get("id")), said.get("index")
        call = self._known(name, call_id, index)
        if call is None:
            yield from self._parser.finish()
            self._parser = ChannelParser("closed", parse_tool_calls=False)  # text after a call begins no thought
            yield from self._call_ends(only_whole=True)  # pieces of others may still come
            call = _Call(len(self._calls), index, call_id or new_call_id())
            self._calls.append(call)
            yield ToolCallStart(call.number, call.id, name)
        arguments = function.get("arguments")
        text = arguments if isinstance(arguments, str) else "" if arguments is None else json.dumps(arguments)
        if text:
            call.arguments += text
            yield ToolCallArguments(call.number, text)

    def _known(self, name: str, call_id: str, index: Any) -> _Call | None:
        """The call that a piece belongs to; None for a new one. Some servers give no index, some the same to all."""
        of_index = [call for call in self._calls if isinstance(index, int) and call.index == index]
        candidates = of_index if isinstance(index, int) else self._calls
        if not candidates or (name and call_id and call_id != candidates[-1].id):
            return None
        return candidates[-1]

    def _call_ends(self, *, only_whole: bool = False) -> Iterator[ChannelDelta]:
        for call in self._calls:
            is_whole = _is_object(call.arguments or "{}")
            if call.has_ended or (only_whole and not (call.arguments and is_whole)):
                continue
            call.has_ended = True
            if not call.arguments:
                yield ToolCallArguments(call.number, "{}")
            yield ToolCallEnd(call.number, is_whole=is_whole)

    def _ends(self) -> Iterator[ChannelDelta]:
        yield from self._parser.finish()
        yield from self._call_ends()


class _Call:
    """A call that is being read. number: ours; index: the server's, if it gives one"""

    def __init__(self, number: int, index: Any, call_id: str) -> None:
        self.number, self.index, self.id = number, index, call_id
        self.arguments = ""
        self.has_ended = False


def error_words(body: Any) -> str:
    """What a server says about an error, in whichever form: {"error": {"message": …}}, {"error": …}, {"detail": …}."""
    for name in ("error", "message", "detail"):
        if isinstance(body, dict) and body.get(name):
            body = body[name]
    return body if isinstance(body, str) else shown(body)


def _unreadable(found: object) -> RemoteError:
    return RemoteError(
        f"The server's answer can't be read: {shown(found)}.", hint="Does the address lead to OpenAI's API?"
    )


def _text(value: Any) -> str:
    """A text, or the texts of a list of parts."""
    if isinstance(value, list):
        return "".join(_text(part.get("text")) for part in value if isinstance(part, dict))
    return value if isinstance(value, str) else ""


def _count(usage: Any, name: str) -> int:
    value = usage.get(name) if isinstance(usage, dict) else None
    return value if isinstance(value, int) and value >= 0 else 0


def _is_object(arguments: str) -> bool:
    try:
        read_arguments(arguments)
    except KaishuError:
        return False
    return True
