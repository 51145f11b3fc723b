"""Output text, split into thinking, content and tool calls while it streams.

Owns the form of the model's output: `<think>\\n…\\n</think>\\n\\n`, then content, then any number of
`<tool_call>\\n{"name": …, "arguments": …}\\n</tool_call>`. Knows nothing of tokens, sampling or HTTP.
Text comes from StopStrings, with control tokens other than end tokens written out; deltas go to llm.py and from there
to a terminal or a server.

The rules, which hold however the text is cut into pieces:

- Whether the model starts inside a thought comes from the prompt (RenderedPrompt.thinking). Where the prompt left it
  open, a thought is one that the output begins with. A tag anywhere else is text.
- Newlines at either end of a thought, and white space around a tool call, are layout, not text.
- A call's arguments are passed on exactly as written. A call that writes none has `{}`.
- A block that breaks off before its name and the beginning of its arguments are known becomes content, verbatim.
- One that breaks off later keeps the arguments given out so far, ends with `is_whole` False, and what follows is
  content. So no text is ever lost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal
from uuid import uuid4

from kaishu.text.stopping import unfinished_tail
from kaishu.text.tool_calls import CALL_START, WHITE_SPACE, ToolCallScanner

THINK_START, THINK_END = "<think>", "</think>"
Thinking = Literal["none", "open", "closed"]


@dataclass(frozen=True)
class ThinkingDelta:
    """More of the thought."""

    text: str


@dataclass(frozen=True)
class ContentDelta:
    """More of the answer."""

    text: str


@dataclass(frozen=True)
class ToolCallStart:
    """A call begins. Calls are numbered from 0; its arguments follow."""

    index: int
    id: str
    name: str


@dataclass(frozen=True)
class ToolCallArguments:
    """More of a call's arguments, as the model wrote them."""

    index: int
    text: str


@dataclass(frozen=True)
class ToolCallEnd:
    """A call is over. `is_whole`: it is complete and its arguments are a valid JSON object."""

    index: int
    is_whole: bool


ChannelDelta = ThinkingDelta | ContentDelta | ToolCallStart | ToolCallArguments | ToolCallEnd


@dataclass(frozen=True)
class ToolCall:
    """A call as a whole. `arguments` is JSON text, as the model wrote it; `is_whole` says whether it is valid."""

    id: str
    name: str
    arguments: str
    is_whole: bool


@dataclass(frozen=True)
class Answer:
    """What all deltas of one output add up to. `reasoning` is None where the model didn't think."""

    content: str
    reasoning: str | None
    tool_calls: tuple[ToolCall, ...]


def new_call_id() -> str:
    """An id that no other call has."""
    return f"call_{uuid4().hex[:24]}"


class ChannelParser:
    """Text in, deltas out. Feed it with `push`, end with `finish`."""

    def __init__(
        self, thinking: Thinking, *, parse_tool_calls: bool, make_call_id: Callable[[], str] = new_call_id
    ) -> None:
        """Begin where the prompt ends.

        thinking:         RenderedPrompt.thinking
        parse_tool_calls: False when the request has no tools, or chose none: then a call is content
        make_call_id:     where ids come from
        """
        self._channel: Literal["start", "thinking", "content", "call"]
        self._channel = {"none": "start", "open": "thinking", "closed": "content"}[thinking]  # type: ignore[assignment]
        self._parse_tool_calls = parse_tool_calls
        self._make_call_id = make_call_id
        self._pending = ""  # text whose meaning isn't decided yet
        self._skipped = "\n" if thinking == "open" else ""  # characters that are layout until others come
        self._before_call = ""  # white space before the call that is being read
        self._scanner = ToolCallScanner()
        self._is_announced = False
        self._num_calls = 0

    def push(self, text: str) -> list[ChannelDelta]:
        """The deltas that this text completes; may be none."""
        self._pending += text
        return list(self._run())

    def finish(self) -> list[ChannelDelta]:
        """What was held back: the text ends here."""
        return [*self._run(), *self._flush()]

    def _run(self) -> Iterator[ChannelDelta]:
        steps = {"start": self._start, "thinking": self._think, "content": self._answer, "call": self._call}
        channel = None
        while self._pending and channel != self._channel:  # a change of channel leaves text for the next one
            channel = self._channel
            yield from steps[channel]()

    def _start(self) -> Iterator[ChannelDelta]:
        begun = self._pending.lstrip()
        if begun.startswith(THINK_START):
            self._pending = begun[len(THINK_START) :]
            self._channel, self._skipped = "thinking", "\n"
        elif not THINK_START.startswith(begun):
            self._channel = "content"
        yield from ()

    def _think(self) -> Iterator[ChannelDelta]:
        self._skip_layout()
        thought, found, rest = self._pending.partition(THINK_END)
        if found:
            text = thought.rstrip("\n")
            self._pending, self._channel, self._skipped = rest, "content", "\n"
        else:
            text = self._take_decided(THINK_END, "\n")
        if text:
            yield ThinkingDelta(text)

    def _answer(self) -> Iterator[ChannelDelta]:
        self._skip_layout()
        if not self._parse_tool_calls:
            text, self._pending = self._pending, ""
        elif CALL_START in self._pending:
            before, _, self._pending = self._pending.partition(CALL_START)
            text = before.rstrip(WHITE_SPACE)
            self._before_call = before[len(text) :]
            self._channel, self._scanner, self._is_announced = "call", ToolCallScanner(), False
        else:
            text = self._take_decided(CALL_START, WHITE_SPACE)
        if text:
            yield ContentDelta(text)

    def _call(self) -> Iterator[ChannelDelta]:
        self._pending = self._scanner.push(self._pending)
        yield from self._call_progress()
        if self._scanner.state in ("whole", "broken"):
            yield from self._end_call()

    def _call_progress(self) -> Iterator[ChannelDelta]:
        scanner = self._scanner
        if not scanner.has_started:
            return
        if not self._is_announced:
            assert scanner.name is not None
            self._is_announced = True
            yield ToolCallStart(self._num_calls, self._make_call_id(), scanner.name)
        arguments = scanner.take_arguments()
        if arguments:
            yield ToolCallArguments(self._num_calls, arguments)

    def _end_call(self) -> Iterator[ChannelDelta]:
        self._channel = "content"
        if self._is_announced:
            self._skipped = WHITE_SPACE if self._scanner.is_complete else ""
            yield ToolCallEnd(self._num_calls, self._scanner.is_valid)
            self._num_calls += 1
        else:
            yield ContentDelta(self._before_call + CALL_START + self._scanner.raw)

    def _flush(self) -> Iterator[ChannelDelta]:
        if self._channel == "call":
            yield from self._end_call()
        elif self._channel == "thinking":
            if self._pending.strip("\n"):
                yield ThinkingDelta(self._pending)
        elif self._pending:
            yield ContentDelta(self._pending)
        self._pending = ""

    def _skip_layout(self) -> None:
        if self._skipped:
            self._pending = self._pending.lstrip(self._skipped)
            if self._pending:
                self._skipped = ""

    def _take_decided(self, tag: str, layout: str) -> str:
        """Take what is neither the beginning of `tag` nor layout that may stand before it."""
        keep = unfinished_tail(self._pending, (tag,))
        text = self._pending[: len(self._pending) - keep].rstrip(layout)
        self._pending = self._pending[len(text) :]
        return text


class ChannelCollector:
    """Adds deltas up."""

    def __init__(self) -> None:
        self._content: list[str] = []
        self._reasoning: list[str] = []
        self._calls: list[ToolCall] = []

    def add(self, delta: ChannelDelta) -> None:
        """Take one delta, in the order in which the parser gave it."""
        match delta:
            case ThinkingDelta(text):
                self._reasoning.append(text)
            case ContentDelta(text):
                self._content.append(text)
            case ToolCallStart(_, call_id, name):
                self._calls.append(ToolCall(call_id, name, "", is_whole=False))
            case ToolCallArguments(index, text):
                call = self._calls[index]
                self._calls[index] = ToolCall(call.id, call.name, call.arguments + text, is_whole=False)
            case ToolCallEnd(index, is_whole):
                call = self._calls[index]
                self._calls[index] = ToolCall(call.id, call.name, call.arguments, is_whole)

    def result(self) -> Answer:
        """The whole answer so far."""
        reasoning = "".join(self._reasoning) if self._reasoning else None
        return Answer("".join(self._content), reasoning, tuple(self._calls))
