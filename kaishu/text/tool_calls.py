"""One tool call, read while the model writes it: `{"name": "f", "arguments": {...}}</tool_call>`.

Owns the little JSON that is needed to say, at every character, which part of the call it belongs to. Values are found
by their brackets and quotes and passed on exactly as written; whether the arguments are valid JSON is checked by
Python's own parser once they are complete.
Knows nothing of deltas or of the text around the call. Used by channels.py.
"""

from __future__ import annotations

import json
from typing import Literal

CALL_START, CALL_END = "<tool_call>", "</tool_call>"
WHITE_SPACE = " \t\r\n"
OUTSIDE_STRINGS = frozenset(WHITE_SPACE + '{}[]",:+-.0123456789eE' + "true" + "false" + "null")

State = Literal["before", "key", "in key", "colon", "value", "in value", "after", "whole", "broken"]


class ToolCallScanner:
    """Reads what follows `<tool_call>`, character by character.

    state:       `whole` once the closing tag was read, `broken` at the first character that can't belong to a call
    raw:         everything read so far
    name:        the function's name, once it is complete
    is_complete: its JSON is complete, with or without the closing tag
    has_started: the name is known and the arguments have begun (or the call ended without any)
    """

    def __init__(self) -> None:
        self.state: State = "before"
        self.is_complete = False
        self.name: str | None = None
        self._raw: list[str] = []
        self._key = ""
        self._part: list[str] = []  # the characters of the key, value or closing tag that is being read
        self._depth = 0
        self._in_string = False
        self._is_escaped = False
        self._arguments: list[str] | None = None
        self._taken = 0

    @property
    def raw(self) -> str:
        return "".join(self._raw)

    @property
    def has_started(self) -> bool:
        return self.name is not None and self._arguments is not None

    def push(self, text: str) -> str:
        """Read as far as the call goes. Returns the rest of `text`; the character that broke a call is part of it."""
        for position, character in enumerate(text):
            if not self._read(character):
                unread = "".join(self._part) if self.state == "after" else ""  # what began like the closing tag
                self.state = "broken"
                self._raw.append(text[:position])
                return unread + text[position:]
            if self.state == "whole":
                self._raw.append(text[: position + 1])
                return text[position + 1 :]
        self._raw.append(text)
        return ""

    def take_arguments(self) -> str:
        """The text of the arguments since the last time, exactly as written."""
        taken = (self._arguments or [])[self._taken :]
        self._taken += len(taken)
        return "".join(taken)

    @property
    def is_valid(self) -> bool:
        """Whether the call is complete and its arguments are a JSON object."""
        try:
            return self.is_complete and isinstance(json.loads("".join(self._arguments or "")), dict)
        except (ValueError, RecursionError):
            return False

    def _read(self, character: str) -> bool:
        """Take one character; False if the call can't go on with it."""
        if self.state == "in key":
            return self._read_key(character)
        if self.state == "in value":
            return self._read_value(character)
        if self.state == "after" and self._part:
            return self._read_closing_tag(character)
        if character in WHITE_SPACE or (self.state == "key" and character == ","):
            return True
        return self._begin(character)

    def _begin(self, character: str) -> bool:
        """The first character of the next part."""
        if self.state == "before":
            self.state = "key"
            return character == "{"
        if self.state == "key" and character == '"':
            self.state, self._part = "in key", ['"']
            return True
        if self.state == "key":
            return character == "}" and self._end_of_object()
        if self.state == "colon":
            self.state = "value"
            return character == ":"
        if self.state == "value":
            return self._begin_value(character)
        return self._read_closing_tag(character)

    def _read_key(self, character: str) -> bool:
        self._part.append(character)
        if self._string_goes_on(character):
            return True
        self.state = "colon"
        return self._set_key(_string("".join(self._part)))

    def _set_key(self, key: str | None) -> bool:
        again = (key == "name" and self.name is not None) or (key == "arguments" and self._arguments is not None)
        self._key = key or ""
        return key is not None and not again

    def _begin_value(self, character: str) -> bool:
        first = {"name": '"', "arguments": "{"}.get(self._key)
        if first is not None and character != first:
            return False
        self.state, self._part, self._depth = "in value", [], 0
        if self._key == "arguments":
            self._arguments = self._part
        return self._read_value(character)

    def _read_value(self, character: str) -> bool:
        is_bare = bool(self._part) and self._depth == 0 and not self._in_string
        if is_bare and (character in WHITE_SPACE or character in ",}"):  # the end of a number, true, false or null
            self.state = "key"
            return self._read(character)
        if not self._in_string and character not in OUTSIDE_STRINGS:
            return False
        self._part.append(character)
        if self._in_string:
            self._in_string = self._string_goes_on(character)
        elif character == '"':
            self._in_string = True
        else:
            self._depth += (character in "{[") - (character in "}]")
        if self._in_string or self._depth > 0 or character not in '"}]':
            return self._depth >= 0
        self.state = "key"
        if self._key == "name":
            self.name = _string("".join(self._part)) or None
        return self._key != "name" or self.name is not None

    def _string_goes_on(self, character: str) -> bool:
        was_escaped, self._is_escaped = self._is_escaped, character == "\\" and not self._is_escaped
        return was_escaped or character != '"'

    def _end_of_object(self) -> bool:
        if self.name is None:
            return False
        if self._arguments is None:
            self._arguments = ["{}"]  # a call that writes no arguments has none
        self.state, self._part, self.is_complete = "after", [], True
        return True

    def _read_closing_tag(self, character: str) -> bool:
        if not CALL_END.startswith("".join(self._part) + character):
            return False
        self._part.append(character)
        if len(self._part) == len(CALL_END):
            self.state = "whole"
        return True


def _string(text: str) -> str | None:
    """A JSON string's value; None if it isn't valid."""
    try:
        value = json.loads(text)
        value.encode()
    except ValueError:
        return None
    return str(value)
