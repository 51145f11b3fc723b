"""Ctrl-C while an answer streams: the first asks it to stop, the second breaks in.

Owns the signal handler for that time and puts the old one back. Stopping between two tokens leaves the model, the cache
and the screen in order, which an exception from the middle of a step might not.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class StopRequest:
    """Whether Ctrl-C has been pressed.

    at_once: break in the first time already
    """

    def __init__(self, *, at_once: bool = False) -> None:
        self.is_made = False
        self._at_once = at_once

    def make(self, _signal: int, _frame: FrameType | None) -> None:
        """The signal handler.

        raises: KeyboardInterrupt the second time, or at once
        """
        if self.is_made or self._at_once:
            raise KeyboardInterrupt
        self.is_made = True


@contextmanager
def stop_on_interrupt(*, at_once: bool = False) -> Iterator[StopRequest]:
    """Within this context Ctrl-C makes a request that the loop can look at between two deltas.

    at_once: it breaks in instead, where deltas may be a long time coming and nothing can be left in disorder
    """
    request = StopRequest(at_once=at_once)
    if threading.current_thread() is not threading.main_thread():  # Python lets only the main thread set handlers
        yield request
        return
    previous = signal.signal(signal.SIGINT, request.make)
    try:
        yield request
    finally:
        signal.signal(signal.SIGINT, previous)
