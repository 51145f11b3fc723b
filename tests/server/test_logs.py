"""The log: its two forms, and that nobody who is not the server writes a line of it."""

from __future__ import annotations

import io
import json
import logging
import re
import unicodedata
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kaishu.server.logs import configure_logs, one_line
from kaishu.server.settings import ServerSettings

LINE = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} (INFO |WARNING|ERROR) [a-z.]+: .*")
FORGED = "x\n2026-01-01 00:00:00.000 INFO  server: all is well\r\x1b[2J\x85\u2028\u202e\x00"


@pytest.fixture(autouse=True)
def _loggers_as_they_were() -> Iterator[None]:
    names = ("kaishu", "uvicorn", "uvicorn.error", "uvicorn.access", "uvicorn.asgi")
    before = [(one := logging.getLogger(name), one.handlers, one.propagate, one.level) for name in names]
    yield
    for logger, handlers, propagate, level in before:
        logger.handlers, logger.propagate = handlers, propagate
        logger.setLevel(level)


def configured(form: str) -> io.StringIO:
    stream = io.StringIO()
    configure_logs(ServerSettings(log_format=form), stream)  # type: ignore[arg-type]
    return stream


@pytest.mark.parametrize("name", ["kaishu.server", "kaishu.access", "uvicorn", "uvicorn.error"])
def test_text_is_one_line_for_each_thing_that_happened(name: str) -> None:
    stream = configured("text")
    logging.getLogger(name).info("%d of %s", 3, "them")
    logging.getLogger(name).debug("never")
    (line,) = stream.getvalue().splitlines()
    assert LINE.fullmatch(line) and line.endswith(f"{name.removeprefix('kaishu.')}: 3 of them")


@pytest.mark.parametrize("name", ["kaishu.server", "uvicorn.error"])
def test_json_is_one_object_a_line(name: str) -> None:
    stream = configured("json")
    logging.getLogger(name).warning("%s", FORGED, extra={"fields": {"status": 200, "path": FORGED}})
    (line,) = stream.getvalue().splitlines()
    found = json.loads(line)
    assert found["message"] == found["path"] == FORGED, "a program gets what was sent"
    assert (found["level"], found["logger"], found["status"]) == ("WARNING", name, 200)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT[\d:.]+\+00:00", found["time"]) and line.isascii()


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_traceback_is_told_and_its_error_can_forge_nothing(form: str) -> None:
    stream = configured(form)
    try:
        raise ValueError(FORGED)
    except ValueError:
        logging.getLogger("kaishu.server").error("It failed.", exc_info=True)
    text = stream.getvalue()
    if form == "json":
        (line,) = text.splitlines()
        assert "ValueError" in json.loads(line)["traceback"]
        return
    first, *others = text.splitlines()
    assert LINE.fullmatch(first) and "ValueError" in text
    assert all(line.startswith("  ") and line.isprintable() for line in others)


def test_uvicorns_own_lines_for_requests_are_left_out() -> None:
    stream = configured("text")
    logging.getLogger("uvicorn.access").info("GET /")
    assert stream.getvalue() == ""


def test_what_others_said_before_is_said_once_and_nowhere_else() -> None:
    first = configured("text")
    second = configured("text")
    logging.getLogger("kaishu.server").info("once")
    assert first.getvalue() == "" and second.getvalue().count("once") == 1


@given(st.text(st.characters(exclude_categories=())))
def test_any_text_becomes_one_printable_line(text: str) -> None:
    line = one_line(text)
    assert len(line.splitlines()) <= 1
    # By Unicode's own classes: no control, no format (as those that turn text round), no surrogate, no line separator.
    assert not {unicodedata.category(letter) for letter in line} & {"Cc", "Cf", "Cs", "Zl", "Zp"}
    line.encode("utf-8")


@pytest.mark.parametrize(
    ("text", "line"), [("a b 北京 🙂", "a b 北京 🙂"), ("a\nb\t\x1b", "a\\nb\\t\\x1b"), ("\u202e", "\\u202e")]
)
def test_readable_text_stays_readable(text: str, line: str) -> None:
    assert one_line(text) == line
