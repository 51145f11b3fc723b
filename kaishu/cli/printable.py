"""Text from outside, made safe for a terminal.

Owns one rule: a control character that came from a model, a file or a message is shown, never sent. Otherwise an escape
sequence in a model's answer or in a checkpoint's tensor name could move the cursor, retitle the window or write to the
clipboard. Used wherever the command line prints what it didn't write itself; exact text is what `--json` is for.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable
from typing import Any

_C0 = {code: chr(0x2400 + code) for code in range(0x20) if chr(code) not in "\n\t"}  # ESC → ␛
_C1 = {
    code: f"\\x{code:02x}" for code in range(0x80, 0xA0)
}  # some terminals obey these eight-bit forms of ESC-something
_SHOWN = {**_C0, 0x7F: "\u2421", **_C1}

_JSON_ESCAPES = {code: f"\\u{code:04x}" for code in (0x7F, *range(0x80, 0xA0), 0x2028, 0x2029)}


def printable(text: str) -> str:
    """Show control characters instead of sending them; newlines and tabs pass. Works piece by piece.

    text:   anything
    return: the same with C0 controls as ␀…␟, DEL as ␡ and C1 controls as \\x80…\\x9f
    """
    return text.translate(_SHOWN)


def printable_json(value: Any) -> str:
    """JSON with readable Chinese, and with every control character escaped, so that the terminal sees none.

    value:  what json.dumps takes
    return: indented text without a final newline
    """
    # json.dumps escapes C0; outside strings JSON has none of these characters, so escaping afterwards is still JSON.
    text = json.dumps(value, ensure_ascii=False, indent=2).translate(_JSON_ESCAPES)
    # Lists of numbers (ids, shapes, bytes) go on one line. No string has a raw newline, so none can match.
    return re.sub(r"\[\n\s+(-?\d[^\[\]{}\"]*)\n\s*\]", lambda numbers: f"[{' '.join(numbers[1].split())}]", text)


def printable_json_line(value: Any) -> str:
    """As printable_json, on one line."""
    return json.dumps(value, ensure_ascii=False).translate(_JSON_ESCAPES)


def counted(number: int, noun: str) -> str:
    """A number and its noun: `1 token`, `1,200 tokens`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def show_notes(notes: Iterable[str]) -> None:
    """Print what a user should know, though it is no error and no part of the answer, to stderr."""
    for note in notes:
        print(printable(note), file=sys.stderr)
