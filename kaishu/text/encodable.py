"""Which characters of a Python string no encoding can carry, and where they usually come from.

Owns the words for it. A lone surrogate is half of a pair that stands for one character; Python allows it in a string,
UTF-8 doesn't.
Used by tokenizer.py for texts and by messages.py for all that is in a message or tool.
"""

from __future__ import annotations

from typing import NamedTuple


class Unencodable(NamedTuple):
    """The first lone surrogate of a text.

    found: what and where it is, to follow "has"
    hint:  where such a character usually comes from, and what to do
    """

    found: str
    hint: str


def find_unencodable(text: str) -> Unencodable | None:
    """Look for a lone surrogate. None where the text can be encoded."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        code = ord(text[error.start])
        found = f"a lone surrogate, U+{code:04X}, at character {error.start:,}"
        if 0xDC80 <= code <= 0xDCFF:  # Python's surrogateescape (PEP 383)
            hint = (
                f"It stands for the byte 0x{code - 0xDC00:02X} of something that isn't UTF-8, "
                "such as a file name or a command line; convert it to UTF-8."
            )
        else:
            hint = "It usually comes from cutting a string in the middle of an emoji; cut elsewhere."
        return Unencodable(found, hint)
    return None
