"""What a docstring says about a function and its parameters.

Owns the ways to write that down: `name: text` lines as in this project, Google's `Args:`, reST's `:param name:`, and
NumPy's `name : type` with the text below. Knows nothing of annotations or schemas. Used by tool_annotations.py and
tool_functions.py, for which it is the description that a model reads.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Collection, Iterator
from typing import NamedTuple

# `city: …`, `city (str, optional): …`, `low, high: …`, `city : str` · `:param str city: …`
ENTRY = re.compile(r"(?P<names>\*{0,2}\w+(?:\s*[,/]\s*\w+)*)(?:\s*\([^()]*\))?(?P<space>\s*):(?:\s+(?P<text>.*))?")
FIELD = re.compile(r":(?:param|parameter|arg|argument|key|keyword)\s+(?:[^:]*\s)?(?P<names>\w+)\s*:\s*(?P<text>.*)")
HEADER = re.compile(r"(?:args|arguments|parameters|params|returns?|yields|raises|attributes|examples?|notes?):?", re.I)
# What can't go on with an entry's text, though it is moved in: the next field, or a section.
OTHER = re.compile(r":\w+[^:]*:|(?:returns?|raises|yields):", re.I)


class Described(NamedTuple):
    """What was found.

    summary:    the first paragraph, on one line; "" where there is none
    parameters: name → text, on one line, of those that are described
    """

    summary: str
    parameters: dict[str, str]


def read_docstring(docstring: str | None, names: Collection[str]) -> Described:
    """Find the first paragraph, and the descriptions of parameters.

    docstring: as Python keeps it; None where there is none
    names:     the parameters that there are; a line about anything else is text
    """
    lines = inspect.cleandoc(docstring or "").splitlines()
    entries = list(_entries(lines, names))
    first_entry = min((start for start, _, _ in entries), default=len(lines))
    summary = []
    for line in lines[:first_entry]:
        text = line.strip()
        if not text or HEADER.fullmatch(text):
            break
        summary.append(text)
    parameters: dict[str, str] = {}
    for _, described, text in entries:
        for name in described:
            parameters.setdefault(name, text)
    return Described(" ".join(summary), {name: text for name, text in parameters.items() if text})


def _entries(lines: list[str], names: Collection[str]) -> Iterator[tuple[int, list[str], str]]:
    """Each description of parameters: the line where it starts, whom it is about, its text on one line."""
    for start, line in enumerate(lines):
        text = line.strip()
        found = FIELD.fullmatch(text) or ENTRY.fullmatch(text)
        about = re.split(r"\s*[,/]\s*", found["names"].lstrip("*")) if found else []
        if not found or not set(about) <= set(names):
            continue
        following = _continuation(lines, start)
        is_numpy = found.re is ENTRY and found["space"] and following
        parts = following if is_numpy else [found["text"] or "", *following]
        yield start, about, " ".join(part for part in parts if part)


def _continuation(lines: list[str], start: int) -> list[str]:
    """The lines that go on with the text of line `start`: moved in further, up to an empty one."""
    depth = _depth(lines[start])
    following = []
    for line in lines[start + 1 :]:
        text = line.strip()
        if not text or _depth(line) <= depth or OTHER.match(text):
            break
        following.append(text)
    return following


def _depth(line: str) -> int:
    return len(line) - len(line.lstrip())
