"""Kaishu serving many requests: the core of its engine, `add` and `step`, without the thread that usually drives it.

The engine schedules, packs batches and picks tokens; all of that is inside the steps that are timed.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, Protocol

from benchmarks import kaishu_peer
from benchmarks.serving_load import Request

NAME = kaishu_peer.NAME
SETTINGS: Mapping[str, int] = MappingProxyType({})
_CORE = "kaishu.engine.core"


class Core(Protocol):
    """What is asked of the engine's core."""

    def add(self, request: Any, /) -> Any: ...

    def step(self) -> Iterable[Any]: ...


def missing(executor: str) -> str | None:
    """What isn't there to run it, in words; None if nothing."""
    if importlib.util.find_spec(_CORE) is None:
        return f"{_CORE} isn't there"
    return kaishu_peer.missing(executor)


class KaishuServer:
    """A core, and the two translations that it needs.

    asked: one of the load's requests → what the core's `add` takes; it has to be greedy and to ignore end tokens
    made:  one of the core's events → the number of its request, and how many tokens came with it (0: none did)
    """

    def __init__(
        self, core: Core, vocab_size: int, asked: Callable[[Request], Any], made: Callable[[Any], tuple[int, int]]
    ) -> None:
        self.vocab_size = vocab_size
        self._core = core
        self._asked = asked
        self._made = made

    def add(self, request: Request) -> None:
        """Add a request; the core queues it."""
        self._core.add(self._asked(request))

    def step(self) -> Iterator[tuple[int, int]]:
        """Step the core. return: request numbers and how many tokens each made"""
        for event in self._core.step():
            number, tokens = self._made(event)
            if tokens:
                yield number, tokens
