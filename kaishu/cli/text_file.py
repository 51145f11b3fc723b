"""A text file that an option names.

Owns how it is read and what is said about one that isn't text. What it is for is the command's.
"""

from __future__ import annotations

from pathlib import Path

from kaishu.errors import InvalidParameterError


def read_text(option: str, path: Path) -> str:
    """A file's text.

    option: as the user typed it, for the message
    raises: InvalidParameterError when it can't be read, isn't UTF-8 or is empty
    """
    allowed = "a file with a text in UTF-8"
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise InvalidParameterError(option, str(path), allowed, hint="This file isn't UTF-8.") from None
    except OSError as problem:
        hint = f"It can't be read: {problem.strerror or problem}."
        raise InvalidParameterError(option, str(path), allowed, hint=hint) from None
    if not text.strip():
        raise InvalidParameterError(option, str(path), allowed, hint="This file is empty.")
    return text
