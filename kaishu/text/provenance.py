"""Who wrote which character of a prompt: the template, or somebody outside.

Owns one idea. A control token such as `<|im_end|>` is a control token only if the template wrote it. So before
rendering, every character in outside text that could *begin* a control token (for Qwen: `<`) is swapped for a lone
surrogate. Lone surrogates can't occur in outside text (messages.py refuses them, UTF-8 can't carry them), so after
rendering they say exactly where such characters came from, however the template cut, joined or repeated the text;
then they are swapped back.

The template's own logic must not notice: `'</think>' in message.content` has to be true. MarkedText is a string that
holds the swapped characters and answers every question by the original ones.
Knows nothing of Jinja or of which tokens a model has. Used by template.py and sandbox.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, SupportsIndex, TypeVar

FIRST_MARK = 0xD800  # the first of 2,048 surrogates
T = TypeVar("T")


class Marks:
    """The swap, for one set of control tokens."""

    def __init__(self, control_tokens: Iterable[str]) -> None:
        beginnings = sorted({token[0] for token in control_tokens})
        assert len(beginnings) < 1024, "more first characters than marks"
        self._mark = {ord(character): FIRST_MARK + i for i, character in enumerate(beginnings)}
        self._unmark = {mark: character for character, mark in self._mark.items()}
        marks = "".join(map(chr, self._unmark))
        self._any_mark = re.compile(f"[{marks}]" if marks else r"(?!)")

    def mark(self, value: T, keep: Sequence[str] = ()) -> T:
        """A deep copy of JSON data in which outside text is marked, keys included.

        keep: tokens that outside text is allowed to write
        """
        if isinstance(value, dict):
            return {self.mark(k): self.mark(v, keep) for k, v in value.items()}  # type: ignore[return-value]
        if isinstance(value, list):
            return [self.mark(item, keep) for item in value]  # type: ignore[return-value]
        if not isinstance(value, str):
            return value
        if not keep:
            return self.seen(value.translate(self._mark))  # type: ignore[return-value]
        parts = re.split("(" + "|".join(map(re.escape, keep)) + ")", value)  # every second part is one of `keep`
        marked = [part if i % 2 else part.translate(self._mark) for i, part in enumerate(parts)]
        return self.seen("".join(marked))  # type: ignore[return-value]

    def seen(self, text: str) -> str:
        """Text made from marked text by plain means, as a MarkedText again; unmarked text as it is."""
        if isinstance(text, MarkedText) or not self._any_mark.search(text):
            return text
        return _text(text, self.plain(text))

    def plain(self, text: str) -> str:
        """The text as the user would see it."""
        return str.__str__(text).translate(self._unmark)

    def positions(self, text: str) -> frozenset[int]:
        """Where the marks are: the characters that could begin a control token, but came from outside."""
        return frozenset(match.start() for match in self._any_mark.finditer(text))


def plain_of(value: Any) -> Any:
    """The original characters of a MarkedText (or of each in a tuple); anything else as it is."""
    if isinstance(value, tuple):
        return tuple(plain_of(item) for item in value)
    return value._plain if isinstance(value, MarkedText) else value


def as_marked(text: str) -> MarkedText:
    """A text that the template wrote as one that understands marked text."""
    return text if isinstance(text, MarkedText) else MarkedText(text, text)


class MarkedText(str):
    """A string that holds marked characters and answers by the original ones, which have the same positions.

    Tests and searches look at the original; what cuts or joins, cuts or joins both. Methods that aren't here (upper,
    isdigit, ...) work on the marked characters, which no such method changes.
    """

    _plain: str

    def __new__(cls, marked: str, plain: str) -> MarkedText:
        assert len(marked) == len(plain)
        text = super().__new__(cls, marked)
        text._plain = plain
        return text

    def __str__(self) -> str:
        return self

    def __repr__(self) -> str:
        plain = repr(self._plain)
        swapped = {ord(p): m for m, p in zip(str.__iter__(self), self._plain, strict=True) if m != p}
        return _text(plain.translate(swapped), plain)

    def __hash__(self) -> int:
        return hash(self._plain)

    def __eq__(self, other: object) -> bool:
        return bool(self._plain == plain_of(other))

    def __ne__(self, other: object) -> bool:
        return bool(self._plain != plain_of(other))

    def __lt__(self, other: str) -> bool:
        return bool(self._plain < plain_of(other))

    def __gt__(self, other: str) -> bool:
        return bool(self._plain > plain_of(other))

    def __le__(self, other: str) -> bool:
        return not self > other

    def __ge__(self, other: str) -> bool:
        return not self < other

    def __contains__(self, other: object) -> bool:
        return plain_of(other) in self._plain

    def __add__(self, other: str) -> str:
        return _text(str.__add__(self, other), self._plain + plain_of(other))

    def __radd__(self, other: str) -> str:
        return _text(str.__add__(other, self), other + self._plain)

    def __getitem__(self, key: SupportsIndex | slice) -> str:
        return _text(str.__getitem__(self, key), self._plain[key])

    def __iter__(self) -> Iterator[str]:
        return (self[i] for i in range(len(self)))

    def find(self, *where: Any) -> int:
        return self._plain.find(*map(plain_of, where))

    def rfind(self, *where: Any) -> int:
        return self._plain.rfind(*map(plain_of, where))

    def index(self, *where: Any) -> int:
        return self._plain.index(*map(plain_of, where))

    def rindex(self, *where: Any) -> int:
        return self._plain.rindex(*map(plain_of, where))

    def count(self, *where: Any) -> int:
        return self._plain.count(*map(plain_of, where))

    def startswith(self, *prefix: Any) -> bool:
        return self._plain.startswith(*map(plain_of, prefix))

    def endswith(self, *suffix: Any) -> bool:
        return self._plain.endswith(*map(plain_of, suffix))

    def lstrip(self, characters: str | None = None) -> str:
        return self[len(self) - len(self._plain.lstrip(plain_of(characters))) :]

    def rstrip(self, characters: str | None = None) -> str:
        return self[: len(self._plain.rstrip(plain_of(characters)))]

    def strip(self, characters: str | None = None) -> str:
        return self.rstrip(characters).lstrip(characters)

    def removeprefix(self, prefix: str) -> str:
        return self[len(prefix) :] if self.startswith(prefix) else self

    def removesuffix(self, suffix: str) -> str:
        return self[: len(self) - len(suffix)] if suffix and self.endswith(suffix) else self

    def split(self, separator: str | None = None, maxsplit: SupportsIndex = -1) -> list[str]:
        return self._cut(self._plain.split(plain_of(separator), maxsplit), len(separator or ""))

    def rsplit(self, separator: str | None = None, maxsplit: SupportsIndex = -1) -> list[str]:
        return self._cut(self._plain.rsplit(plain_of(separator), maxsplit), len(separator or ""))

    def splitlines(self, keepends: bool = False) -> list[str]:
        return self._cut(self._plain.splitlines(keepends))

    def partition(self, separator: str) -> tuple[str, str, str]:
        head, found, tail = self._plain.partition(plain_of(separator))
        end = len(head) + len(found)
        return self[: len(head)], self[len(head) : end], self[end : end + len(tail)]

    def rpartition(self, separator: str) -> tuple[str, str, str]:
        head, found, tail = self._plain.rpartition(plain_of(separator))
        end = len(head) + len(found)
        return self[: len(head)], self[len(head) : end], self[end : end + len(tail)]

    def replace(self, old: str, new: str, count: SupportsIndex = -1) -> str:
        if not old:
            return str.replace(self, old, new, count)
        pieces = self.split(old, count)
        return _text(str.join(new, pieces), str.join(plain_of(new), map(plain_of, pieces)))

    def _cut(self, parts: Sequence[str], gap: int = 0) -> list[str]:
        """The same cut through the marked characters. Between the parts stand `gap` characters or else white space."""
        pieces, position = [], 0
        for part in parts:
            position = self._plain.index(part, position)
            pieces.append(self[position : position + len(part)])
            position += len(part) + gap
        return pieces


def _text(marked: str, plain: str) -> str:
    return plain if marked == plain else MarkedText(marked, plain)
