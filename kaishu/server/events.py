"""Server-sent events as bytes, after the HTML standard's "Server-sent events".

Owns that form alone.
"""

from __future__ import annotations

import json
from typing import Any

DONE = b"data: [DONE]\n\n"


def event(data: Any, name: str | None = None) -> bytes:
    """One event with JSON in it; JSON has no line ends of its own, so it is one line.

    name: its type, where clients tell events apart by that
    """
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    head = f"event: {name}\n" if name else ""
    return f"{head}data: {text}\n\n".encode("utf-8", errors="replace")
