"""The engine for callers that wait: whoever waits for a request runs the steps.

Owns whose turn it is to run a step. Knows nothing of what requests are. Used by llm.py: no thread is started, an error
comes up where the request was made, and Ctrl-C reaches the caller. Several threads may wait at once: one of them runs
the step that serves all.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator

from kaishu.engine.core import EngineCore
from kaishu.engine.stream import Event, Stream


class BlockingEngine:
    """Runs a core's steps for those who wait."""

    def __init__(self, core: EngineCore) -> None:
        self.core = core
        self._turn = threading.Lock()

    def events(self, stream: Stream) -> Iterator[Event]:
        """A request's events until it is over. Leaving early ends the request.

        raises: what made the request fail
        """
        try:
            while True:
                events = stream.take()
                yield from events
                if not events:
                    if stream.is_over:
                        return
                    self.advance(stream)
        finally:
            if not stream.is_over:
                self.core.abort(stream.number)
                self._settle()

    def advance(self, stream: Stream) -> None:
        """Run one step, unless somebody else's step has brought this request something meanwhile."""
        with self._turn:
            if not stream.events and not stream.is_over:
                self.core.step()

    def _settle(self) -> None:
        """Have pages given back now. Whoever is in a step does it with the next one."""
        if self._turn.acquire(blocking=False):
            try:
                self.core.settle()
            finally:
                self._turn.release()
