"""Output text, split into thinking, content and tool calls while it streams.

Owns the form of the model's output: `<think>\\n…\\n</think>\\n\\n`, then content, then any number of
`<tool_call>\\n{"name": …, "arguments": …}\\n</tool_call>`. Knows nothing of tokens, sampling or HTTP.
Text comes from engine/output.py through StopStrings: tokens marked special (`<|im_start|>`) have left no text there,
other control tokens (`<think>`, `<tool_call>`) are written out. Deltas go to deltas.py and from there to a terminal or
a server.

The rules, which hold however the text is cut into pieces:

- Whether the model starts inside a thought comes from the prompt (RenderedPrompt.thinking). Where the prompt left it
  open, a thought is one that the output begins with. A tag anywhere else is text.
- Newlines at either end of a thought, and white space around a tool call, are layout, not text.
- A call's arguments are passed on exactly as written. A call that writes none has `{}`.
- A block that breaks off before its name and the beginning of its arguments are known becomes content, verbatim.
- One that breaks off later keeps the arguments given out so far, ends with `is_whole` False, and what follows is
  content. So no text is ever lost.

Each character is looked at a fixed number of times, however long a run of layout is held back.
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
MAX_PIECE_CHARACTERS = 4096  # what follows a tag is copied; so that a long text at once costs no more than in pieces


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
        self._layout: list[str] = []  # characters that are layout if a tag follows them, text if text does
        self._pending = ""  # after those: new text, or what may be the beginning of a tag
        self._skipped = "\n" if thinking == "open" else ""  # characters that are layout until others come
        self._before_call = ""  # white space before the call that is being read
        self._scanner = ToolCallScanner()
        self._is_announced = False
        self._num_calls = 0

    def push(self, text: str) -> list[ChannelDelta]:
        """The deltas that this text completes; may be none."""
        deltas: list[ChannelDelta] = []
        for start in range(0, len(text), MAX_PIECE_CHARACTERS):
            self._pending += text[start : start + MAX_PIECE_CHARACTERS]
            deltas += self._run()
        return deltas

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
        self._layout.append(self._pending[: len(self._pending) - len(begun)])
        self._pending = begun
        if begun.startswith(THINK_START):
            self._layout, self._pending = [], begun[len(THINK_START) :]
            self._channel, self._skipped = "thinking", "\n"
        elif not THINK_START.startswith(begun):
            self._channel, self._pending = "content", self._with_layout(begun)
        yield from ()

    def _think(self) -> Iterator[ChannelDelta]:
        text, is_over = self._take_text(THINK_END, "\n")
        if is_over:
            self._layout, self._channel, self._skipped = [], "content", "\n"
        if text:
            yield ThinkingDelta(text)

    def _answer(self) -> Iterator[ChannelDelta]:
        if self._parse_tool_calls:
            text, is_over = self._take_text(CALL_START, WHITE_SPACE)
        else:
            self._skip_layout()
            text, is_over, self._pending = self._pending, False, ""
        if is_over:
            self._before_call = self._with_layout("")
            self._channel, self._scanner, self._is_announced = "call", ToolCallScanner(), False
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
            return
        text = self._with_layout(self._pending)
        if self._channel == "thinking":
            if self._pending:
                yield ThinkingDelta(text)
        elif text:
            yield ContentDelta(text)
        self._pending = ""

    def _skip_layout(self) -> None:
        if self._skipped:
            self._pending = self._pending.lstrip(self._skipped)
            if self._pending:
                self._skipped = ""

    def _take_text(self, tag: str, layout: str) -> tuple[str, bool]:
        """Take what is neither `tag`, nor the beginning of it, nor layout that may stand before it.

        No tag has layout in it, so a tag is looked for only in what is new and the few characters that may begin one.
        return: the text, and whether `tag` came, of which then nothing is left
        """
        self._skip_layout()
        before, found, rest = self._pending.partition(tag)
        if not found:
            keep = unfinished_tail(before, (tag,))
            before, rest = before[: len(before) - keep], before[len(before) - keep :]
        text = before.rstrip(layout)
        after = before[len(text) :]
        if text:
            text = self._with_layout(text)
        if after:
            self._layout.append(after)
        self._pending = rest
        return text, bool(found)

    def _with_layout(self, text: str) -> str:
        """What was held back as layout, which nothing remains of, and `text` after it."""
        text = "".join([*self._layout, text])
        self._layout = []
        return text


class ChannelCollector:
    """Adds deltas up."""

    def __init__(self) -> None:
        self._content: list[str] = []
        self._reasoning: list[str] = []
        self._calls: list[ToolCallStart] = []
        self._arguments: list[list[str]] = []  # of each call
        self._whole: set[int] = set()

    def add(self, delta: ChannelDelta) -> None:
        """Take one delta, in the order in which the parser gave it."""
        match delta:
            case ThinkingDelta(text):
                self._reasoning.append(text)
            case ContentDelta(text):
                self._content.append(text)
            case ToolCallStart():
                self._calls.append(delta)
                self._arguments.append([])
            case ToolCallArguments(index, text):
                self._arguments[index].append(text)
            case ToolCallEnd(index, is_whole=True):
                self._whole.add(index)

    def result(self) -> Answer:
        """The whole answer so far."""
        reasoning = "".join(self._reasoning) if self._reasoning else None
        calls = [
            ToolCall(call.id, call.name, "".join(arguments), is_whole=index in self._whole)
            for index, (call, arguments) in enumerate(zip(self._calls, self._arguments, strict=True))
        ]
        return Answer("".join(self._content), reasoning, tuple(calls))
