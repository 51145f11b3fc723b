"""A JSON object that arrives in pieces: how far it is one, and what it holds so far.

Owns the grammar (RFC 8259), one character at a time. A client that parses what a stream has said so far stops at the
first character that can't be JSON, so messages_events.py asks here before it passes a call's arguments on. What parses
elsewhere but has no meaning that everybody shares is refused, too: half of a surrogate pair, numbers beyond a float.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any, Literal

MAX_DEPTH = 100  # as text/messages.py allows in what comes back
MAX_NUMBER_CHARACTERS = 400
WHITE_SPACE = " \t\r\n"
_LITERALS = {"t": "rue", "f": "alse", "n": "ull"}
_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_BEGUN_NUMBER = re.compile(r"-?((0|[1-9][0-9]*)(\.[0-9]*|(\.[0-9]+)?[eE][+-]?[0-9]*)?)?")

Next = Literal["value", "value or end", "key", "key or end", "colon", "comma or end", "nothing"]


class JsonPrefix:
    """Feed it with `push`.

    is_broken: something came that can't go on the JSON before it; from there on nothing counts
    """

    def __init__(self) -> None:
        self.is_broken = False
        self._text: list[str] = []
        self._length = 0
        self._closers: list[str] = []  # of what is open, the innermost last
        self._next: Next = "value"
        self._reading: Literal["key", "string", "literal", "number"] | None = None
        self._token = ""  # of a number what was read, of a literal what is to come
        self._escape = ""  # of a string, the one that is being read
        self._needs_low = False  # the first half of a surrogate pair was read
        self._settled: tuple[int, str] = (0, "")  # a length up to which values are complete, and what closes it

    @property
    def is_whole(self) -> bool:
        """Whether it is a complete object, with nothing but white space behind it."""
        return self._next == "nothing" and not self.is_broken

    def push(self, text: str) -> str:
        """return: as much of the text as goes on the JSON"""
        if self.is_broken:
            return ""
        for position, character in enumerate(text):
            if not self._read(character):
                self.is_broken = True
                text = text[:position]
                break
            self._length += 1
        self._text.append(text)
        return text

    def value(self) -> dict[str, Any]:
        """What is complete so far: a string that hasn't ended is left out with its key, a number is as far as it is."""
        length, closers = self._settled
        if self._reading == "number" and _NUMBER.fullmatch(self._token):
            length, closers = self._length, self._closing()
        found: dict[str, Any] = json.loads("".join(self._text)[:length] + closers) if length else {}
        return found

    def _read(self, character: str) -> bool:
        """Take one character; False if the JSON can't go on with it."""
        if self._reading in ("string", "key"):
            return self._read_string(character)
        if self._reading == "literal":
            return self._read_literal(character)
        if self._reading == "number":
            number = self._token + character
            if _BEGUN_NUMBER.fullmatch(number):
                self._token = number
                return len(number) <= MAX_NUMBER_CHARACTERS and _is_finite(number)
            if not _NUMBER.fullmatch(self._token):
                return False
            self._end_value(self._length)
        return character in WHITE_SPACE or self._go_on(character)

    def _go_on(self, character: str) -> bool:
        """A character outside of strings, literals and numbers."""
        if character in "}]":
            return self._close(character)
        if self._next in ("key", "key or end") and character == '"':
            self._reading, self._escape = "key", ""
        elif self._next == "colon" and character == ":":
            self._next = "value"
        elif self._next == "comma or end" and character == ",":
            self._next = "key" if self._closers[-1] == "}" else "value"
        else:
            return self._next in ("value", "value or end") and self._begin_value(character)
        return True

    def _begin_value(self, character: str) -> bool:
        if not self._closers and character != "{":
            return False  # it has to be an object
        if character in "{[":
            self._closers.append("}" if character == "{" else "]")
            self._next = "key or end" if character == "{" else "value or end"
            self._settled = self._length + 1, self._closing()
            return len(self._closers) <= MAX_DEPTH
        if character == '"':
            self._reading, self._escape = "string", ""
        elif character in _LITERALS:
            self._reading, self._token = "literal", _LITERALS[character]
        elif character == "-" or (character.isascii() and character.isdigit()):
            self._reading, self._token = "number", character
        else:
            return False
        return True

    def _close(self, character: str) -> bool:
        may_end = self._next in ("comma or end", "key or end", "value or end")
        if not may_end or not self._closers or self._closers[-1] != character:
            return False
        self._closers.pop()
        self._end_value(self._length + 1)
        return True

    def _end_value(self, length: int) -> None:
        self._reading = None
        self._next = "comma or end" if self._closers else "nothing"
        self._settled = length, self._closing()

    def _read_literal(self, character: str) -> bool:
        if not self._token.startswith(character):
            return False
        self._token = self._token[1:]
        if not self._token:
            self._end_value(self._length + 1)
        return True

    def _read_string(self, character: str) -> bool:
        if self._escape:
            return self._read_escape(character)
        if character == "\\":
            self._escape = character
            return True
        if self._needs_low or character < " ":
            return False
        if character == '"' and self._reading == "key":
            self._reading, self._next = None, "colon"
        elif character == '"':
            self._end_value(self._length + 1)
        return True

    def _read_escape(self, character: str) -> bool:
        if self._escape == "\\":
            self._escape = "\\u" if character == "u" else ""
            return character == "u" or (not self._needs_low and character in '"\\/bfnrt')
        self._escape += character
        if character not in "0123456789abcdefABCDEF":
            return False
        if len(self._escape) == len("\\u0000"):
            unit = int(self._escape[2:], 16)
            self._escape = ""
            if (0xDC00 <= unit < 0xE000) != self._needs_low:
                return False
            self._needs_low = 0xD800 <= unit < 0xDC00
        return True

    def _closing(self) -> str:
        return "".join(reversed(self._closers))


def _is_finite(number: str) -> bool:
    """Whole numbers are as large as they like; others become floats."""
    if not _NUMBER.fullmatch(number) or number.removeprefix("-").isdigit():
        return True
    return math.isfinite(float(number))
