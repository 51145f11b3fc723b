"""The log: one line for each thing that happened, to stderr, for people or for programs.

Owns the form of lines, and that nobody outside can forge one: whatever isn't printable is written as an escape, so what
a client sent never ends a line, moves a cursor or changes the order of letters. What is said is others'.
"""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Any, TextIO

from kaishu.server.settings import ServerSettings

OURS = ("kaishu", "uvicorn")


def configure_logs(settings: ServerSettings, stream: TextIO | None = None) -> None:
    """Have everything that the server and uvicorn say written in one form, to stderr.

    uvicorn's own line for each request is left out: access.py writes a better one.
    """
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonLines() if settings.log_format == "json" else TextLines())
    for name in OURS:
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(logging.INFO)
    for name in ("uvicorn.error", "uvicorn.access", "uvicorn.asgi"):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [], True
    logging.getLogger("uvicorn.access").setLevel(logging.WARNING)


class TextLines(logging.Formatter):
    """`2026-01-02 03:04:05.678 INFO  server: what happened`; lines of a traceback begin with two spaces."""

    def format(self, record: logging.LogRecord) -> str:
        """One line, and its traceback."""
        time = _time(record).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]
        logger = record.name.removeprefix("kaishu.")
        lines = [f"{time} {record.levelname:<5} {logger}: {one_line(record.getMessage())}"]
        lines += [f"  {one_line(line)}" for line in self._traceback(record).splitlines()]
        return "\n".join(lines)

    def _traceback(self, record: logging.LogRecord) -> str:
        return self.formatException(record.exc_info) if record.exc_info else ""


class JsonLines(TextLines):
    """An object in each line: time, level, logger, message, traceback if there is one, and the record's `fields`."""

    def format(self, record: logging.LogRecord) -> str:
        """One line of ASCII."""
        found: dict[str, Any] = {
            "time": _time(record).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            found["traceback"] = self._traceback(record)
        found |= getattr(record, "fields", {})
        return json.dumps(found, default=str)


def one_line(text: str) -> str:
    """Any text as something that can stand in a line: what isn't printable becomes an escape, as `\\n`."""
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else _escape(letter) for letter in text)


def _escape(letter: str) -> str:
    return letter.encode("unicode_escape").decode("ascii")


def _time(record: logging.LogRecord) -> datetime:
    return datetime.fromtimestamp(record.created, UTC)
