"""Text from standard input, whole and checked.

Owns what counts as text there: UTF-8, not empty. Used by the commands that take text when the command line has none.
"""

from __future__ import annotations

import sys

from kaishu.errors import InvalidRequestError


def read_stdin(what: str, *, instead: str) -> str:
    """Read all of standard input.

    what:    what the text is to be, for messages
    instead: how else to give it
    return:  the text; one newline at its very end is taken as the pipe's (echo adds it), everything else is exact
    raises:  InvalidRequestError when it is a terminal, empty or not UTF-8
    """
    if sys.stdin.isatty():
        raise InvalidRequestError(f"There is no {what}.", field=what, hint=f"{instead}, or send it through a pipe.")
    raw = sys.stdin.buffer.read()
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidRequestError(
            f"The {what} on standard input is not UTF-8: byte {raw[error.start]:#04x} at offset {error.start:,}.",
            field=what,
            hint="Convert it first, for instance with iconv.",
        ) from None
    if not text.strip():
        raise InvalidRequestError(f"The {what} is empty.", field=what, hint=f"{instead}, or send it through a pipe.")
    return text.removesuffix("\n").removesuffix("\r")


def read_lines(what: str, *, instead: str) -> list[str]:
    """As read_stdin, for several texts: one a line.

    return: every line, empty ones too, without what ends it
    """
    return [line.removesuffix("\r") for line in read_stdin(what, instead=instead).split("\n")]
