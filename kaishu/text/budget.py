"""How much one rendering of a template may compute and write.

Owns the limits and the counting. A limit on time alone isn't enough: it is looked at between steps, and one step of
Python (a product, a search, a format) can take hours. So whatever a step costs is asked for before it is taken.
Knows nothing of Jinja but its type of error. Used by sandbox.py, which says where the steps are.
"""

from __future__ import annotations

import time
from collections.abc import ItemsView, KeysView, Mapping, ValuesView
from typing import Any

from jinja2.exceptions import TemplateRuntimeError

CPU_SECONDS_PER_CHARACTER = 2e-7  # so that a prompt of 50 million characters has ten more
BASE_CHARACTERS = 1_000_000
CHARACTERS_PER_CHARACTER = 8  # a template may repeat its input, but not without end
COMPARISONS_PER_CHARACTER = 50  # of the characters allowed: a tenth of a second and less
MAX_NUMBER_BITS = 4096


class TooMuchError(TemplateRuntimeError):
    """A template that computes or writes more than any chat template needs to."""


class Budget:
    """How much one rendering may compute and write, in the CPU time of its thread (a busy machine changes nothing)."""

    def __init__(self, input_characters: int, cpu_seconds: float) -> None:
        self.characters = BASE_CHARACTERS + CHARACTERS_PER_CHARACTER * input_characters
        self._seconds = cpu_seconds + CPU_SECONDS_PER_CHARACTER * input_characters
        self._deadline = time.thread_time() + self._seconds

    def spend(self) -> None:
        """Called for every step of a loop and every call."""
        if time.thread_time() > self._deadline:
            raise TooMuchError(f"it computes for more than {self._seconds:.1f} s")

    def hold(self, characters: int) -> None:
        """Called before a text or list of this length is made."""
        self.spend()
        if characters > self.characters:
            raise TooMuchError(f"it makes a text of more than {self.characters:,} characters")

    def measure(self, value: Any) -> int:
        """About how long `value` is when written out; values that contain one another many times cost as often."""
        self.spend()
        if isinstance(value, str):
            size = len(value)
        elif isinstance(value, Mapping):
            size = sum(self.measure(key) + self.measure(item) for key, item in value.items())
        elif isinstance(value, list | tuple | KeysView | ValuesView | ItemsView):
            size = sum(map(self.measure, value))
        else:
            size = 8
        self.hold(size)
        return size

    def search(self, text: str, needle: str) -> None:
        """Called before `text` is looked through for each of its places and each character of `needle`."""
        self.spend()
        if len(text) * len(needle) > COMPARISONS_PER_CHARACTER * self.characters:
            raise TooMuchError("it looks for a long text in a long text")

    def number(self, value: Any) -> None:
        """Called for every number that is read or computed: what comes of small ones in one step is small enough."""
        if isinstance(value, int) and value.bit_length() > MAX_NUMBER_BITS:
            raise TooMuchError("it computes with large numbers")
