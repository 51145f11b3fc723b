"""Text that counts how many characters are read or copied through it, for tests of cost that don't look at a clock."""

from __future__ import annotations

from typing import Any


class Work:
    """How many characters were read or copied."""

    def __init__(self) -> None:
        self.characters = 0

    def text(self, text: str) -> CountedText:
        counted = CountedText(text)
        counted.work = self
        return counted


class CountedText(str):
    """A string of which each operation counts its whole length, and gives text that counts too."""

    work: Work

    def _again(self, value: Any, characters: int) -> Any:
        self.work.characters += characters
        if isinstance(value, str):
            return self.work.text(value)
        return tuple(map(self.work.text, value)) if isinstance(value, tuple) else value

    def __add__(self, other: str) -> Any:
        return self._again(str.__add__(self, other), len(self) + len(other))

    def __radd__(self, other: str) -> Any:
        return self._again(str.__add__(other, self), len(self) + len(other))

    def __getitem__(self, key: Any) -> Any:
        part = str.__getitem__(self, key)
        return self._again(part, len(part))

    def __contains__(self, other: Any) -> bool:
        self.work.characters += len(self)
        return str.__contains__(self, other)

    def partition(self, *how: Any) -> Any:
        return self._again(str.partition(self, *how), len(self))

    def lstrip(self, *how: Any) -> Any:
        return self._again(str.lstrip(self, *how), len(self))

    def rstrip(self, *how: Any) -> Any:
        return self._again(str.rstrip(self, *how), len(self))

    def strip(self, *how: Any) -> Any:
        return self._again(str.strip(self, *how), len(self))
