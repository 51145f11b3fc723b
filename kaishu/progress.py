"""A bar on stderr that counts requests of one call.

Owns how it looks and when it shows: where stderr is a terminal, or as asked. Used by llm.py; the command line's bars,
which show other things, are in cli/.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

T = TypeVar("T")


@contextmanager
def counting(what: str, total: int, show: bool | None) -> Iterator[Callable[[T], T]]:
    """Show how many of `total` are done while the context lasts.

    show:   None for yes where stderr is a terminal; elsewhere a bar that was asked for is one line at the end
    yields: to be called with each thing that is done; it returns that
    """
    if not (sys.stderr.isatty() if show is None else show):
        yield lambda done: done
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(compact=True))
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=console.is_terminal) as bar:
        task = bar.add_task(what, total=total)

        def count(done: T) -> T:
            bar.advance(task)
            return done

        yield count
