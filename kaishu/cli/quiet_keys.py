"""Keys typed while an answer streams: not echoed into it, and not lost.

Owns the terminal's modes for that time and puts the old ones back. Without this, a terminal writes what is typed into
the middle of the answer, and a newline there moves everything that is drawn afterwards.
"""

from __future__ import annotations

import termios
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO


@contextmanager
def quiet_keys(terminal: TextIO) -> Iterator[None]:
    """Within this context keys wait for the next prompt, which reads them as if typed there. Ctrl-C works as ever.

    terminal: standard input; anything that isn't a terminal is left alone
    """
    if not terminal.isatty():
        yield
        return
    before = termios.tcgetattr(terminal)
    quiet = list(before)
    quiet[0] &= ~termios.ICRNL  # Enter stays the key Enter, which the prompt takes as "send"
    quiet[3] &= ~(termios.ECHO | termios.ICANON)
    termios.tcsetattr(terminal, termios.TCSANOW, quiet)
    try:
        yield
    finally:
        termios.tcsetattr(terminal, termios.TCSANOW, before)
