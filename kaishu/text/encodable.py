"""Which characters of a Python string can't become ids, and where they usually come from.

Owns the words for it. A lone surrogate is half of a pair that stands for one character; Python allows it in a string,
UTF-8 doesn't. And a model's tokenizer may have no token for some bytes, because nothing in its training had them.
Used by tokenizer.py for texts and by messages.py for all that is in a message or tool.
"""

from __future__ import annotations

from typing import NamedTuple


class Unencodable(NamedTuple):
    """The first such character of a text.

    found: what and where it is, to follow "has"
    hint:  where such a character usually comes from, and what to do
    """

    found: str
    hint: str


def find_unencodable(text: str, bytes_without_token: bytes = b"") -> Unencodable | None:
    """Look for a lone surrogate, and for characters that have one of these bytes. None where all can be encoded."""
    try:
        encoded = text.encode()
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
    if len(encoded.translate(None, bytes_without_token)) == len(encoded):
        return None
    lost = set(bytes_without_token)
    place = next(i for i, letter in enumerate(text) if lost.intersection(letter.encode()))
    found = f"U+{ord(text[place]):04X} at character {place:,}, for which this model's tokenizer has no token,"
    return Unencodable(found, "The model has never seen it; leave it out.")
