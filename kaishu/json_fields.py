"""JSON that strangers wrote, read one field at a time: each value has the type and range we expect, or is an error.

Owns bounded parsing (size, number of values, no key twice) and the words for a wrong value. Knows nothing of what the
fields mean. Used by config.py for config.json, by checkpoint/ for safetensors headers, indices and hub answers.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kaishu import errors
from kaishu.errors import KaishuError, shortened

MAX_BYTES = 16 << 20  # the largest honest ones, the headers and indices of 30,000 experts' tensors, take 5 to 10 MB
MAX_VALUES = 500_000  # a Python object takes ten times the bytes of its JSON text; this bounds what parsing can cost


class _RepeatedKeyError(ValueError):
    """A key that occurs twice in one object."""


def _no_key_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise _RepeatedKeyError(f"the key {key[:80]!r} occurs twice")
            seen.add(key)
    return values


def parse_json(text: bytes, source: str, error: type[KaishuError]) -> Any:
    """Parse one JSON value, in time and memory that don't depend on how hostile the text is.

    text:   UTF-8
    source: what the text is, for messages: "config.json"
    error:  the type to raise when it isn't JSON, is too large or says a key twice
    return: the value
    """
    if len(text) > MAX_BYTES:
        raise error(f"{source} is {len(text):,} bytes of JSON; at most {MAX_BYTES:,} are read.")
    num_values = sum(text.count(sign) for sign in b",[{")  # more where strings hold such signs, never fewer
    if num_values > MAX_VALUES:
        raise error(f"{source} has about {num_values:,} values; at most {MAX_VALUES:,} are read.")
    try:
        return json.loads(text.decode("utf-8"), object_pairs_hook=_no_key_twice)
    except RecursionError:
        raise error(f"{source} is nested too deeply to be read.") from None
    except ValueError as problem:  # also JSONDecodeError, UnicodeDecodeError and numbers of thousands of digits
        raise error(f"{source} is not valid JSON: {problem}.") from None


def parse_json_object(text: bytes, source: str, error: type[KaishuError]) -> dict[str, Any]:
    """Parse one JSON object: as parse_json, and any other value is an error too."""
    return _as_object(parse_json(text, source, error), source, error)


def _as_object(parsed: Any, source: str, error: type[KaishuError]) -> dict[str, Any]:
    if not isinstance(parsed, dict):
        raise error(f"{source} holds a JSON {type(parsed).__name__}; allowed: an object, {{...}}.")
    return parsed


def read_json(path: Path, error: type[KaishuError]) -> Any:
    """Read and parse one file that holds a JSON value.

    path:   the file; its name is what messages call it
    error:  the type to raise when the file can't be read, or as parse_json does
    return: the value
    """
    try:
        with path.open("rb") as file:
            text = file.read(MAX_BYTES + 1)
    except OSError as problem:
        raise error(f"{path} can't be read: {problem.strerror or problem}.") from None
    except ValueError as problem:  # a path that no file can have: with a zero character, or half of a surrogate pair
        raise error(f"{str(path)!r} can't be read: {problem}.") from None
    return parse_json(text, path.name, error)


def read_json_object(path: Path, error: type[KaishuError]) -> dict[str, Any]:
    """Read and parse one file that holds a JSON object: as read_json, and any other value is an error too."""
    return _as_object(read_json(path, error), path.name, error)


def shown(value: object) -> str:
    """A value as a message shows it: as JSON spells it, cut at 80 characters."""
    try:
        return shortened(json.dumps(value, ensure_ascii=False, default=repr))
    except ValueError:  # a whole number too long to write out
        return errors.shown(value)


@dataclass(frozen=True)
class JsonFields:
    """One JSON object and where it stands, for reading field by field.

    A field that is absent or null yields the default; without a default that is an error.
    """

    values: Mapping[str, Any]
    source: str
    error: type[KaishuError]

    def has(self, name: str) -> bool:
        """Whether the field is there and not null."""
        return self.values.get(name) is not None

    def wrong(self, name: str, allowed: str, *, hint: str | None = None) -> KaishuError:
        """The error for a field's value."""
        return self.error(f"{self.source}: {name} is {shown(self.values.get(name))}; allowed: {allowed}.", hint=hint)

    def missing(self, name: str, *, hint: str | None = None) -> KaishuError:
        """The error for a field that must be there."""
        found = "null" if name in self.values else "missing"
        return self.error(f"{self.source}: {name} is {found}, and has no value that could be assumed.", hint=hint)

    def integer(self, name: str, low: int, high: int, default: int | None = None) -> int:
        """An integer from low to high. Neither true nor 1.0 is one."""
        if not self.has(name):
            if default is None:
                raise self.missing(name)
            return default
        value = self.values[name]
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise self.wrong(name, f"an integer from {low:,} to {high:,}")
        return value

    def optional_integer(self, name: str, low: int, high: int) -> int | None:
        """An integer from low to high, or None where the field is absent or null."""
        return self.integer(name, low, high) if self.has(name) else None

    def number(self, name: str, low: float, high: float, default: float | None = None) -> float:
        """A finite number from low to high, as a float."""
        if not self.has(name):
            if default is None:
                raise self.missing(name)
            return default
        value = self.values[name]
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.wrong(name, f"a number from {low:g} to {high:g}")
        if not low <= value <= high or not math.isfinite(value):
            raise self.wrong(name, f"a number from {low:g} to {high:g}")
        return float(value)

    def optional_number(self, name: str, low: float, high: float) -> float | None:
        """A finite number from low to high, or None where the field is absent or null."""
        return self.number(name, low, high) if self.has(name) else None

    def boolean(self, name: str, default: bool) -> bool:
        """True or false. Neither 0 nor "true" is one."""
        value = self.values.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.wrong(name, "true or false")
        return value

    def one_of(self, name: str, allowed: Sequence[str], default: str | None = None) -> str:
        """One of a few words."""
        if not self.has(name):
            if default is None:
                raise self.missing(name)
            return default
        value = self.values[name]
        if not isinstance(value, str) or value not in allowed:
            raise self.wrong(name, ", ".join(allowed))
        return value

    def integers(self, name: str, low: int, high: int) -> tuple[int, ...]:
        """A list of integers from low to high; a single integer counts as a list of one; absent or null as none."""
        value = self.values.get(name)
        entries = [] if value is None else value if isinstance(value, list) else [value]
        if any(isinstance(e, bool) or not isinstance(e, int) or not low <= e <= high for e in entries):
            raise self.wrong(name, f"an integer from {low:,} to {high:,}, or a list of them")
        return tuple(entries)

    def section(self, name: str) -> JsonFields | None:
        """An object inside the object; None where it is absent, null or empty."""
        value = self.values.get(name)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self.wrong(name, "an object, {...}, or null")
        return JsonFields(value, f"{self.source}: {name}", self.error) if value else None
