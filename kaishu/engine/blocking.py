"""The engine for callers that wait: whoever waits for a request runs the steps.

Owns whose turn it is to run a step. Knows nothing of what requests are. Used by llm.py: no thread is started, an error
comes up where the request was made, and Ctrl-C reaches the caller. Several threads may wait at once: one of them runs
the step that serves all.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import TypeVar

from kaishu.engine.core import EngineCore
from kaishu.engine.stream import Event, Stream
from kaishu.errors import QueueFullError

Result = TypeVar("Result")


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
                is_over = stream.is_over  # asked first: another thread's step may bring the last events in between
                events = stream.take()
                yield from events
                if not events:
                    if is_over:
                        return
                    self.advance(stream)
        finally:
            if not stream.is_over:
                self.core.abort(stream.number)
                self._settle()

    def many(self, starts: Iterable[Callable[[], Stream]], at_once: int) -> Generator[Stream, None, None]:
        """Each job's stream, in the order of the jobs, to be read before the next is asked for.

        starts:  the jobs, from EngineCore.prepare
        at_once: how many jobs are in the engine; fewer where others fill its queue
        raises:  as EngineCore.add. Leaving early ends all jobs that are in
        """
        streams: deque[Stream] = deque()
        try:
            for start in starts:
                while len(streams) >= at_once or (entered := _entered(start, may_wait=bool(streams))) is None:
                    yield streams[0]
                    streams.popleft()
                streams.append(entered)
            while streams:
                yield streams[0]
                streams.popleft()
        finally:
            for stream in streams:
                self.core.abort(stream.number)
            self._settle()

    def advance(self, stream: Stream) -> None:
        """Run one step, unless somebody else's step has brought this request something meanwhile."""
        with self._turn:
            if not stream.events and not stream.is_over:
                self.core.step()
        self._settle()

    def between_steps(self, call: Callable[[EngineCore], Result]) -> Result:
        """Have something done to the core while no step runs. Whoever waits for a step waits for this, too."""
        with self._turn:
            result = call(self.core)
        self._settle()
        return result

    def _settle(self) -> None:
        """Have the pages of jobs that were ended given back now. Where somebody else has the turn, they do it after it:
        it is asked for again once a turn is over, so nothing that was asked for meanwhile is left."""
        while self.core.has_calls and self._turn.acquire(blocking=False):
            try:
                self.core.settle()
            finally:
                self._turn.release()


def _entered(start: Callable[[], Stream], *, may_wait: bool) -> Stream | None:
    """Let a job in; None where it has to wait for one before it."""
    try:
        return start()
    except QueueFullError:
        if may_wait:
            return None
        raise
