"""llama.cpp serving many requests: continuous batching as its server does it, over the C API (llama_cpp_peer.py).

A request takes one of `parallel` sequences, waiting its turn for one. A batch holds the last token of each sequence
that is being continued, then prompt tokens, oldest request first, until it has `n_batch` rows; the most likely token of
each finished row is picked with one pass over its logits. Where prompts share their beginning, a sequence starts from
the longest one that any other has computed; that is more than its server does, which only looks into the sequence that
becomes free. The cache is then one for all sequences (`kv_unified`), where it costs nothing to give a sequence what
another has; else each has its own, which is faster. (Copying from one's own to another's ends llama-cpp-python 0.3.36
with a segmentation fault.)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Protocol

from benchmarks import llama_cpp_peer
from benchmarks.llama_cpp_peer import LlamaCppEngine, Row
from benchmarks.serving_load import Load, Request

NAME = llama_cpp_peer.NAME
missing = llama_cpp_peer.missing
SETTINGS: Mapping[str, int] = MappingProxyType({"parallel": 32, "n_batch": 512, "n_ubatch": 512})


class Context(Protocol):
    """What LlamaCppContext offers; its methods say what they do."""

    def run(self, rows: Sequence[Row]) -> None: ...

    def most_likely(self, at: int) -> int: ...

    def keep(self, sequence: int, tokens: int) -> None: ...

    def copy(self, source: int, target: int) -> None: ...


def load(
    path: Path, width: str, threads: int, load: Load, executor: str, settings: Mapping[str, int]
) -> LlamaCppServer:
    """Load a GGUF file.

    settings: SETTINGS, or others under the same names: `parallel`, and fields of llama.cpp's context parameters
    """
    engine = LlamaCppEngine(path, threads)
    parallel = settings["parallel"]
    fields = {name: value for name, value in settings.items() if name != "parallel"}
    shares = load.shared_prompt > 0
    context = engine.context(parallel, load.most_tokens, kv_unified=shares, **fields)
    return LlamaCppServer(context, engine.vocab_size, parallel, settings["n_batch"], shares=shares)


@dataclass
class _Slot:
    """One sequence of the context.

    cached:  the tokens whose keys and values it has; they stay when a request ends
    tokens:  the prompt and what was made of it
    turn:    its place among all requests, in the order in which they got a sequence
    started: whether the request has been given its beginning
    """

    sequence: int
    cached: list[int] = field(default_factory=list)
    request: Request | None = None
    tokens: list[int] = field(default_factory=list)
    turn: int = 0
    started: bool = False


class LlamaCppServer:
    """Requests, and the sequences that they have."""

    def __init__(self, context: Context, vocab_size: int, parallel: int, most_rows: int, *, shares: bool) -> None:
        assert parallel <= most_rows, "every sequence can be continued in one step"
        self.vocab_size = vocab_size
        self._context = context
        self._most_rows = most_rows
        self._shares = shares
        self._slots = [_Slot(sequence) for sequence in range(parallel)]
        self._waiting: list[Request] = []
        self._turns = 0

    def add(self, request: Request) -> None:
        """Queue a request."""
        self._waiting.append(request)

    def step(self) -> Iterator[tuple[int, int]]:
        """Run one batch. return: the numbers of the requests that got a token each, and 1"""
        self._admit()
        # The oldest first. Their prompts end in that order, so those who are being continued come before all prompts.
        busy = sorted((slot for slot in self._slots if slot.request), key=lambda slot: slot.turn)
        rows: list[Row] = []
        ends: list[tuple[_Slot, int]] = []
        shares: list[tuple[_Slot, list[int]]] = []
        for slot in busy:
            room = self._most_rows - len(rows)
            if room == 0:
                break
            if not slot.started:
                self._start(slot)
            start = len(slot.cached)
            new = slot.tokens[start : start + room]
            is_end = start + len(new) == len(slot.tokens)
            rows += [(token, start + at, slot.sequence, is_end and at == len(new) - 1) for at, token in enumerate(new)]
            shares.append((slot, new))
            if is_end:
                ends.append((slot, len(rows) - 1))
        self._context.run(rows)
        for slot, new in shares:
            slot.cached += new
        for slot, at in ends:
            yield self._append(slot, self._context.most_likely(at))

    def _admit(self) -> None:
        """Give free sequences to those who wait longest."""
        for slot in self._slots:
            if slot.request is None and self._waiting:
                slot.request = self._waiting.pop(0)
                slot.tokens = list(slot.request.prompt)
                self._turns += 1
                slot.turn = self._turns
                slot.started = False

    def _start(self, slot: _Slot) -> None:
        """Keep or copy what is computed already of a prompt, but for its last token, whose logits are needed."""
        common, kept = 0, slot
        if self._shares:
            for other in self._slots:
                if (found := _common(other.cached, slot.tokens[:-1])) > common:
                    common, kept = found, other
        if kept is not slot:
            self._context.copy(kept.sequence, slot.sequence)
        self._context.keep(slot.sequence, common)
        slot.cached = slot.tokens[:common]
        slot.started = True

    @staticmethod
    def _append(slot: _Slot, token: int) -> tuple[int, int]:
        assert slot.request is not None
        slot.tokens.append(token)
        number = slot.request.number
        if len(slot.tokens) == slot.request.tokens:
            slot.request = None
        return number, 1


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    """How many tokens both begin with."""
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
