"""A bar on stderr for work that takes a while, at a terminal only: elsewhere it would only be in the way.

Owns how it looks. Used by `kaishu quantize` and `kaishu eval`; a download has its own, which counts bytes.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Advance = Callable[[str, float, float], None]
"""Called with what is being done, how much is done, and how much there is."""


@contextmanager
def progress_bar() -> Iterator[Advance]:
    """Show a bar while the context lasts.

    yields: what to call as the work goes on; it does nothing where stderr is no terminal
    """
    if not sys.stderr.isatty():
        yield lambda _what, _done, _all: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    from kaishu.cli.printable import printable

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TaskProgressColumn(),
        TimeRemainingColumn(compact=True),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None)
        yield lambda what, done, every: bar.update(task, description=printable(what), completed=done, total=every)
