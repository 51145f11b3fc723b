"""How an answer looks while it streams.

Owns two views of the same deltas: PlainAnswer for pipes (the answer alone) and TerminalAnswer for people (thinking dim
and foldable, tool calls readable, a line of numbers at the end). What the model wrote passes through `printable` and is
never read as markup. Knows nothing of models; chat.py feeds it.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Protocol, TextIO

from kaishu.cli.printable import counted, printable
from kaishu.results import ChatCompletion
from kaishu.text.channels import (
    ChannelDelta,
    ContentDelta,
    ThinkingDelta,
    ToolCallArguments,
    ToolCallEnd,
    ToolCallStart,
)

if TYPE_CHECKING:
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

BROKEN_CALL = "(broken off: not a whole call)"
WINDOW_LINES = 6  # how much of a folded thought shows while it runs


class AnswerView(Protocol):
    """What chat.py tells a view."""

    def show(self, delta: ChannelDelta) -> None:
        """Show one more delta."""
        ...

    def finish(self, completion: ChatCompletion | None) -> None:
        """End the answer; None when it was stopped."""
        ...


class PlainAnswer:
    """The answer alone: content and tool calls, no thinking, no numbers; for pipes.

    calls: where calls go that are run and so are no part of the answer, marked with an arrow; None: with the answer
    """

    def __init__(self, out: TextIO, *, calls: TextIO | None = None) -> None:
        self._out = out
        self._calls = calls
        self._at_line_start = True

    def show(self, delta: ChannelDelta) -> None:
        """Write content as it comes, and each tool call as `name arguments` on a line of its own."""
        match delta:
            case ContentDelta(text):
                self._write(printable(text))
            case ToolCallStart(_, _, name):
                arrow = "→ " if self._calls else ""
                self._write_call(("" if self._at_line_start or self._calls else "\n") + arrow + printable(name) + " ")
            case ToolCallArguments(_, text):
                self._write_call(printable(text))
            case ToolCallEnd(_, is_whole):
                self._write_call("\n" if is_whole else f" {BROKEN_CALL}\n")
            case ThinkingDelta():
                pass

    def finish(self, completion: ChatCompletion | None) -> None:
        """End the last line."""
        if not self._at_line_start:
            self._write("\n")

    def _write_call(self, text: str) -> None:
        if self._calls is None:
            self._write(text)
        else:
            self._calls.write(text)
            self._calls.flush()

    def _write(self, text: str) -> None:
        if text:
            self._out.write(text)
            self._out.flush()
            self._at_line_start = text.endswith("\n")


class TerminalAnswer:
    """The answer for a person.

    console: where to write
    fold:    whether thinking runs in a small window and then closes to one line, or stays on the screen
    refresh_seconds: how long the window stays as it is; drawing it takes a millisecond that the model could use
    """

    def __init__(self, console: Console, *, fold: bool, refresh_seconds: float = 0.1) -> None:
        self._console, self._fold = console, fold
        self._refresh_seconds, self._refreshed_at = refresh_seconds, 0.0
        self._thought = ""
        self._thinking_since = 0.0
        self._window: Live | None = None
        self._at_line_start = True
        self._open_part = ""  # "", "thinking", "content" or "call"

    def wait(self) -> None:
        """Show that the model is reading the prompt."""
        from rich.text import Text

        self._open_window(Text("…", style="dim"))

    def show(self, delta: ChannelDelta) -> None:
        """Show one more delta."""
        match delta:
            case ThinkingDelta(text):
                self._think(printable(text))
            case ContentDelta(text):
                self._begin("content")
                self._write(printable(text))
            case ToolCallStart(_, _, name):
                self._begin("call")
                self._write(f"→ {printable(name)} ", "bold")
            case ToolCallArguments(_, text):
                self._write(printable(text), "cyan")
            case ToolCallEnd(_, is_whole) if not is_whole:
                self._write(f" {BROKEN_CALL}", "red")

    def finish(self, completion: ChatCompletion | None) -> None:
        """Close what is open and print the line of numbers."""
        self._begin("")
        if completion is None:
            self._print_dim("stopped")
        else:
            self._print_dim(numbers_line(completion))

    def _think(self, text: str) -> None:
        if not self._thought:
            self._thinking_since = time.perf_counter()
        self._thought += text
        if self._fold:
            self._open_part = "thinking"
            now = time.perf_counter()
            if now - self._refreshed_at >= self._refresh_seconds:
                self._refreshed_at = now
                self._open_window(self._window_text())
        else:
            self._begin("thinking")
            self._write(text, "dim")

    def _begin(self, part: str) -> None:
        """Close the part that is open and start another; the same part just goes on, but each call is a new one."""
        if part == self._open_part and part != "call":
            return
        self.close_window()
        if self._open_part == "thinking" and self._fold:
            seconds = time.perf_counter() - self._thinking_since
            self._print_dim(f"▸ thought for {seconds:.1f} s · /thoughts shows it")
        if not self._at_line_start:
            self._write("\n")
        if self._open_part == "thinking" and not self._fold:
            self._write("\n")
        self._open_part = part

    def _window_text(self) -> Text:
        from rich.text import Text

        width = max(self._console.width - 2, 1)
        tail = self._thought[-2 * width * WINDOW_LINES :].strip("\n")
        lines = Text(tail).wrap(self._console, width)[-WINDOW_LINES:]
        body = Text("\n").join(lines)
        return Text.assemble("thinking…\n", body, style="dim")

    def _open_window(self, text: Text) -> None:
        from rich.live import Live

        if not self._console.is_terminal or self._console.is_dumb_terminal:
            return
        if self._window is None:
            self._window = Live(console=self._console, transient=True, auto_refresh=False, redirect_stdout=False)
            self._window.start()
        self._window.update(text, refresh=True)

    def close_window(self) -> None:
        """Erase the small window, if it is open, and give the cursor back."""
        if self._window is not None:
            self._window.stop()
            self._window = None

    def _write(self, text: str, style: str = "") -> None:
        self.close_window()
        if text:
            # out(), not print(): no markup, no highlighting, no wrapping; the terminal wraps
            self._console.out(text, style=style or None, end="", highlight=False)
            self._at_line_start = text.endswith("\n")

    def _print_dim(self, text: str) -> None:
        self._console.print(text, style="dim", markup=False, highlight=False, soft_wrap=True)


def numbers_line(completion: ChatCompletion) -> str:
    """What an answer took: `42 tokens · 31.2 tok/s · first token 0.18 s`."""
    num_tokens, timing = completion.usage.completion_tokens, completion.timing
    parts = [counted(num_tokens, "token")] if num_tokens else []  # a server may not say how many
    if timing.tokens_per_second is not None:
        parts.append(f"{timing.tokens_per_second:,.1f} tok/s")
    parts.append(f"first token {timing.first_token_seconds:.2f} s")
    if completion.finish_reason == "length":
        parts.append("cut short: max_tokens or the context is used up")
    return " · ".join(parts)
