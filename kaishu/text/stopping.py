"""Stop strings over streamed text.

Owns the question "may this text be shown yet?": text that could be the beginning of a stop string is held back until
it is decided. Knows nothing of tokens or channels.
Sits between the incremental decoder and the channel parser: stop strings are looked for in the text as the model
generated it, thinking and tool calls included, as vLLM does; so `</think>` is a possible stop string. Nothing of a
stop string is given out, and nothing after it.
"""

from __future__ import annotations

from collections.abc import Sequence


class StopStrings:
    """Text in, text out, until the first stop string is complete.

    The first to be complete wins; where two are complete at the same character, the one that began earlier. So the
    result depends on the text alone, never on how it was cut into pieces.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        assert all(stops), "an empty stop string would stop everything; SamplingParams refuses it"
        self._stops = tuple(stops)
        self._held = ""
        self.matched: str | None = None  # the stop string that ended the text, once one did

    @property
    def is_stopped(self) -> bool:
        """Whether a stop string ended the text."""
        return self.matched is not None

    def push(self, text: str) -> str:
        """What may be shown, now that `text` has arrived. Nothing any more once a stop string is complete."""
        if self.matched is not None:
            return ""
        pending = self._held + text
        found = [(start + len(stop), start, stop) for stop in self._stops if (start := pending.find(stop)) >= 0]
        if found:
            _, start, self.matched = min(found)
            self._held = ""
            return pending[:start]
        keep = unfinished_tail(pending, self._stops)
        self._held = pending[len(pending) - keep :]
        return pending[: len(pending) - keep]

    def finish(self) -> str:
        """What was held back, when the text ends without a stop string."""
        held, self._held = self._held, ""
        return held


def unfinished_tail(text: str, needles: Sequence[str]) -> int:
    """How many characters at the end of `text` are the beginning of one of `needles`, but not all of it; the most."""
    longest = min(len(text), max(map(len, needles), default=1) - 1)
    for length in range(longest, 0, -1):
        tail = text[-length:]
        if any(needle.startswith(tail) and needle != tail for needle in needles):
            return length
    return 0
