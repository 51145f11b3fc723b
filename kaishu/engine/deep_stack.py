"""Calls with a deep stack: for code of libraries that recurses as deep as what it is given nests.

Owns such threads. llguidance follows references and rules by recursion, and where a thread's stack ends, the process
ends, with all requests in it. How deep a schema or a grammar may be is bounded by those who call this
(grammar_schema.py, grammar_texts.py); the stack here holds what they let through. Its pages are the system's promise
until something is written to them, so a shallow call costs no more than any other thread.
"""

from __future__ import annotations

import atexit
import threading
import time
from collections.abc import Callable
from typing import TypeVar

STACK_BYTES = 512 << 20
EXIT_SECONDS = 5.0  # that the end of the process waits for such threads
_STARTING = threading.Lock()  # the size belongs to the process: two at a time would each set back what the other set

T = TypeVar("T")


class _DeepThread(threading.Thread):
    """Known by its type to who waits for all of them."""


def _wait_for_all() -> None:
    """A thread that comes back from a library once Python has begun to go ends the process with a fault."""
    end = time.monotonic() + EXIT_SECONDS
    for thread in threading.enumerate():
        if isinstance(thread, _DeepThread):
            thread.join(max(0.0, end - time.monotonic()))


def start_deep(target: Callable[[], object], name: str) -> threading.Thread:
    """Start a daemon thread that has a deep stack. The process waits for it before it ends, but not for ever."""
    thread = _DeepThread(target=target, name=name, daemon=True)
    with _STARTING:
        atexit.unregister(_wait_for_all)  # so that it is there once
        atexit.register(_wait_for_all)
        before = threading.stack_size(STACK_BYTES)  # of all threads that are started until it is set back: no harm
        try:
            thread.start()
        finally:
            threading.stack_size(before)
    return thread


def deeply(make: Callable[[], T]) -> T:
    """Call `make` on a deep stack, and wait. raises: what it raises"""
    made: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            made.append(make())
        except BaseException as error:  # raised again where it is waited for
            errors.append(error)

    start_deep(run, "kaishu-grammar-check").join()
    if errors:
        raise errors[0]
    return made[0]
