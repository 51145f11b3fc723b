"""The memory between the stages of a step: how large, and that there is enough.

Owns the arrays behind the record BUFFERS, which grow to the largest step so far and begin as zeros: the kernels rely on
that beyond the columns that they write. Also owns how many counters of work a step has. Made and asked for room by
executor.py.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kaishu.cpu.layout import GATE, GROUP, KEY, QUERY, ROUTER, VALUE, Layout, padded
from kaishu.cpu.pages import SEGMENT
from kaishu.cpu.records import BUFFERS, address, matrix, record
from kaishu.cpu.target import TILE, current_target

LINE_BYTES = 64  # of a cache line
STAGES = 16  # counters of work for each layer; a layer with experts uses the most


def num_stages(num_layers: int) -> int:
    """How many counters a step needs."""
    return 3 + num_layers * STAGES


class StepBuffers:
    """Buffers with room for so many rows, rows of logits, and pieces of attention."""

    def __init__(self, layout: Layout, ranks: int, tile_rows: int) -> None:
        self._layout, self._ranks, self._tile_rows = layout, ranks, tile_rows
        self._room = (0, 0, 0)
        self._arrays: list[NDArray[Any]] = []
        self.hidden: NDArray[np.float32] = np.zeros((0, 0), np.float32)
        self.record: Any = None
        self.make_room(1, 1, 1)

    def make_room(self, rows: int, logit_rows: int, pieces: int) -> None:
        """Grow where a step needs more than there is.

        rows:       T, the step's tokens
        logit_rows: R, how many of them want logits
        pieces:     of attention
        """
        wanted = (max(rows, self._room[0]), max(logit_rows, self._room[1]), max(pieces, self._room[2]))
        if wanted == self._room:
            return
        self._room, self._arrays = (0, 0, 0), []  # should there be no memory, the next step has to ask again
        self.record = record(BUFFERS, self._dense(*wanted[:2]) | self._attention(wanted[2]) | self._experts(wanted[0]))
        self._room = wanted

    @property
    def num_bytes(self) -> int:
        """What all buffers take at most, once a step has written them: no step writes forms that no layer reads."""
        return sum(array.nbytes for array in self._arrays)

    def _zeros(self, *shape: int, dtype: Any = np.float32) -> NDArray[Any]:
        """Zeros that begin with a cache line: numpy's begin 16 bytes later, and every second vector would be in two."""
        num_bytes = int(np.prod(shape)) * np.dtype(dtype).itemsize
        memory = np.zeros(num_bytes + LINE_BYTES, np.uint8)
        start = -address(memory) % LINE_BYTES
        self._arrays.append(memory[start : start + num_bytes].view(dtype).reshape(shape))
        return self._arrays[-1]

    def _matrix(self, *shape: int, dtype: Any = np.float32) -> tuple[int, int]:
        return matrix(self._zeros(*shape, dtype=dtype))

    def _activations(self, rows: int, columns: int) -> tuple[int, ...]:
        width, has_tiles = padded(columns, GROUP), current_target().has_tiles
        together = padded(rows, TILE) if has_tiles else rows
        words, whole = self._zeros(rows, width), self._zeros(together, width, dtype=np.int8)
        scales = self._zeros(together, width // GROUP)
        sums, shifts = (self._zeros(together, width // GROUP, dtype=np.int32) for _ in range(2))
        tiles = self._zeros(together if has_tiles else 0, width, dtype=np.uint16)
        return (*map(address, (words, whole, scales, sums, shifts, tiles)), width)

    def _dense(self, rows: int, logit_rows: int) -> dict[str, Any]:
        layout, config = self._layout, self._layout.config
        dense = [place for place in layout.layers if place[ROUTER] < 0]
        inner = layout.packed[dense[0][GATE]].padded_rows if dense else GROUP
        qkv = sum(layout.packed[layout.layers[0][which]].padded_rows for which in (QUERY, KEY, VALUE))
        hidden = padded(config.hidden_size, GROUP)
        self.hidden = self._zeros(rows, hidden)
        return {
            "hidden": matrix(self.hidden),
            "normed": self._activations(max(rows, logit_rows), hidden),
            "qkv": self._matrix(rows, qkv),
            "attended": self._activations(rows, config.query_size),
            "gates": self._matrix(rows, inner),
            "values": self._matrix(rows, inner),
            "inner": self._activations(rows, inner),
            "delta": self._matrix(rows, hidden),
            "cos": self._matrix(rows, config.head_dim // 2),
            "sin": self._matrix(rows, config.head_dim // 2),
            "heads": self._matrix(self._ranks, padded(config.head_dim, GROUP)),
        }

    def _attention(self, pieces: int) -> dict[str, Any]:
        ranks, rows, head_dim = self._ranks, self._tile_rows, padded(self._layout.config.head_dim, GROUP)
        line = LINE_BYTES // 4  # what a rank writes often has a cache line of its own, or ranks would share one
        return {
            "queries": self._matrix(ranks * rows, head_dim),
            "scores": self._matrix(ranks * rows, SEGMENT),
            "gathered": self._matrix(ranks * rows, head_dim),
            "joined": self._matrix(ranks * rows, head_dim),
            "own_largest": self._matrix(ranks, line),
            "own_sums": self._matrix(ranks, line),
            "joined_largest": self._matrix(ranks, line),
            "joined_sums": self._matrix(ranks, line),
            "largest": self._matrix(pieces, rows),
            "sums": self._matrix(pieces, rows),
            "partial": self._matrix(pieces * rows, head_dim),
        }

    def _experts(self, tokens: int) -> dict[str, Any]:
        """Of a model without experts: rows of no use, because a record has all of its fields."""
        config, experts = self._layout.config, self._layout.config.experts
        each = experts.num_experts_per_tok if experts else 1
        number = experts.num_experts if experts else 1
        inner = padded(experts.moe_intermediate_size, GROUP) if experts else GROUP
        hidden = padded(config.hidden_size, GROUP)
        tokens = tokens if experts else 1
        count = tokens * each
        return {
            "router": self._matrix(tokens, padded(number, GROUP)),
            "shares": self._matrix(tokens, each),
            "chosen": self._matrix(tokens, each, dtype=np.int64),
            "places": self._matrix(tokens, each, dtype=np.int64),
            "expert_starts": self._matrix(number + 1, dtype=np.int64),
            "busy": self._matrix(number + 1, dtype=np.int64),
            "expert_rows": self._activations(count, hidden),
            "expert_gates": self._matrix(count, inner),
            "expert_values": self._matrix(count, inner),
            "expert_inner": self._activations(count, inner),
            "expert_out": self._matrix(count, hidden),
        }
