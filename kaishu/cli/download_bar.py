"""The progress of a download on stderr: a bar in a terminal, a line for each tenth elsewhere.

Owns how it looks. It appears with the first bytes, so that a model that is already here shows nothing. The numbers come
from checkpoint/hub.py.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress as Bar

    from kaishu.checkpoint.hub import Progress


@contextmanager
def download_bar(model: str) -> Iterator[Progress]:
    """Show a download while it runs.

    model:  its name, as shown
    yields: what to call with the bytes that are here and the bytes in all
    """
    if not sys.stderr.isatty():
        from kaishu.checkpoint.download import ProgressLines

        yield ProgressLines(model)
        return
    bar = _Bar(model)
    try:
        yield bar
    finally:
        bar.close()


class _Bar:
    def __init__(self, model: str) -> None:
        self._model = model
        self._bar: Bar | None = None

    def __call__(self, done: int, total: int) -> None:
        if self._bar is None:
            self._bar = _new_bar()
            self._bar.start()
            self._bar.add_task("", total=total, completed=done, model=self._model)
        self._bar.update(self._bar.task_ids[0], completed=done, total=total)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.stop()


def _new_bar() -> Bar:
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    columns = (
        TextColumn("{task.fields[model]}", markup=False),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(compact=True),
    )
    return Progress(*columns, console=Console(stderr=True))
