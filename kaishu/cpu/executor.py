"""The CPU executor: batches in, numpy logits out, without torch.

Owns the packed model, the ranks, the KV pages and the buffers of a step, and turns a TokenBatch into the kernels'
arguments. Knows nothing of requests. Driven by llm.py (later by engine/); reference/executor.py is its counterpart.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kaishu.batch import TokenBatch
from kaishu.checkpoint import Checkpoint
from kaishu.config import ModelConfig
from kaishu.cpu.attention import SEGMENT, Scratch
from kaishu.cpu.experts import ExpertBuffers
from kaishu.cpu.forward import Buffers, PackedModel, StepInput, forward, num_stages
from kaishu.cpu.layout import GATE, GROUP, KEY, QUERY, ROUTER, VALUE, Layout, WeightKind, padded, plan_layout
from kaishu.cpu.linear import Activations
from kaishu.cpu.packing import pack_model
from kaishu.cpu.pages import allocate_pages
from kaishu.cpu.rope import rope_attention_factor, rope_frequencies
from kaishu.cpu.target import current_target
from kaishu.cpu.threads import Ranks, available_threads, shared_state

NO_WINDOW = 1 << 40


class CpuExecutor:
    """Computes steps with Numba kernels. Satisfies kaishu.batch.Executor.

    A row's logits are the same bits whoever else is in the step, however a prompt was cut into steps, in whichever
    pages it lies and on however many threads.
    """

    def __init__(
        self, layout: Layout, memory: NDArray[np.uint8], ranks: Ranks, num_pages: int, page_tokens: int
    ) -> None:
        """Use a packed model.

        memory:      [layout.num_bytes] uint8, as pack_model left it
        page_tokens: p, a multiple of twice the lanes
        """
        self._layout, self._memory, self._ranks = layout, memory, ranks
        self._target = current_target()
        self._num_pages, self._page_tokens = num_pages, page_tokens
        self._pages = allocate_pages(layout.config, num_pages, page_tokens, layout.lanes)
        self._model = _packed_model(layout, memory)
        self._shared = shared_state(num_stages(layout.config.num_hidden_layers))
        self._buffers = _make_buffers(layout, ranks.count, self._target.tokens, rows=1, logit_rows=1, pieces=1)
        self._room = (1, 1, 1)

    @classmethod
    def from_checkpoint(
        cls,
        checkpoint: Checkpoint,
        *,
        weights: WeightKind = "bf16",
        head: WeightKind | None = None,
        threads: int | None = None,
        num_pages: int,
        page_tokens: int | None = None,
    ) -> CpuExecutor:
        """Pack a checkpoint and be ready to compute with it.

        head:        the head's kind; None for the same as the layers
        threads:     ranks; None for as many as can really run at once
        page_tokens: p, a multiple of twice the lanes; None for that multiple that is at least 16
        """
        lanes = current_target().lanes
        ranks = Ranks(threads or available_threads())
        layout = plan_layout(checkpoint.config, weights, head or weights, lanes)
        memory = aligned_memory(layout.num_bytes)
        pack_model(checkpoint, layout, memory, ranks)
        return cls(layout, memory, ranks, num_pages, page_tokens or padded(16, 2 * lanes))

    @property
    def page_tokens(self) -> int:
        """p, how many positions one page holds."""
        return self._page_tokens

    @property
    def num_pages(self) -> int:
        """P, how many pages there are."""
        return self._num_pages

    @property
    def vocab_size(self) -> int:
        """V, the width of the logits."""
        return self._layout.config.vocab_size

    @property
    def threads(self) -> int:
        """How many ranks compute."""
        return self._ranks.count

    def step(self, batch: TokenBatch) -> NDArray[np.float32]:
        """Compute the new tokens of every sequence, keep their keys and values, return the logits that were asked for.

        return: [R, V] float32
        """
        step = _step_input(batch, self._model, self._target.tokens)
        self._make_room(len(batch.token_ids), len(batch.logit_rows), int(step.piece_starts[-1]))
        self._shared[:] = 0
        shared, model, buffers, pages, ranks = self._shared, self._model, self._buffers, self._pages, self._ranks

        self._ranks.run(lambda rank: forward(rank, ranks.count, shared, model, step, buffers, pages))
        return np.array(self._buffers.logits[: len(batch.logit_rows), : self.vocab_size])

    def close(self) -> None:
        """End the ranks' threads."""
        self._ranks.close()

    def _make_room(self, rows: int, logit_rows: int, pieces: int) -> None:
        wanted = tuple(max(one, other) for one, other in zip(self._room, (rows, logit_rows, pieces), strict=True))
        if wanted != self._room:
            self._room = wanted
            self._buffers = _make_buffers(self._layout, self._ranks.count, self._target.tokens, *wanted)


def aligned_memory(num_bytes: int) -> NDArray[np.uint8]:
    """Zeros that begin on a cache line."""
    raw = np.zeros(num_bytes + 64, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + num_bytes]


def _packed_model(layout: Layout, memory: NDArray[np.uint8]) -> PackedModel:
    config = layout.config
    windows = config.sliding_windows or (None,) * config.num_hidden_layers
    experts = config.experts
    return PackedModel(
        address=memory.ctypes.data,
        linears=layout.linears,
        layers=layout.layers,
        norms=layout.norms,
        head=layout.head,
        embedding=layout.embedding,
        is_quantised=any(linear.kind != "bf16" for linear in layout.packed),
        hidden_size=config.hidden_size,
        num_heads=config.num_attention_heads,
        num_key_value_heads=config.num_key_value_heads,
        head_dim=config.head_dim,
        num_experts=experts.num_experts if experts else 0,
        is_renormalised=bool(experts and experts.norm_topk_prob),
        eps=np.float32(config.rms_norm_eps),
        frequencies=rope_frequencies(config.rope, config.head_dim),
        rotary_factor=np.float32(rope_attention_factor(config.rope)),
        windows=np.array([NO_WINDOW if window is None else window for window in windows], np.int64),
    )


def _step_input(batch: TokenBatch, model: PackedModel, tile_rows: int) -> StepInput:
    starts = batch.query_starts
    lengths = np.diff(starts)
    rows = lengths * (model.num_heads // model.num_key_value_heads)
    segments = batch.positions[starts[1:] - 1] // SEGMENT + 1
    pieces = np.where(rows <= tile_rows, segments, -(-rows // tile_rows)) * model.num_key_value_heads  # [B]
    return StepInput(
        token_ids=batch.token_ids,
        positions=batch.positions,
        query_starts=starts,
        page_table=batch.page_table,
        logit_rows=batch.logit_rows,
        sequence_of=np.repeat(np.arange(len(lengths), dtype=np.int32), lengths),  # [T]
        piece_starts=np.concatenate([[0], np.cumsum(pieces)]).astype(np.int64),  # [B + 1]
        all_rows=np.arange(len(batch.token_ids), dtype=np.int32),  # [T]
    )


def _activations(rows: int, columns: int) -> Activations:
    """Zeros: kernels rely on zeros beyond the columns that are written."""
    width = padded(columns, GROUP)
    return Activations(
        words=np.zeros((rows, width), np.float32),
        whole=np.zeros((rows, width), np.int8),
        scales=np.zeros((rows, width // GROUP), np.float32),
        sums=np.zeros((rows, width // GROUP), np.int32),
    )


def _make_buffers(layout: Layout, ranks: int, tile_rows: int, rows: int, logit_rows: int, pieces: int) -> Buffers:
    config, step = layout.config, 2 * layout.lanes
    head_dim = padded(config.head_dim, GROUP)
    most = max(rows, logit_rows)
    dense = [place for place in layout.layers if place[ROUTER] < 0]
    inner = layout.packed[dense[0][GATE]].padded_rows if dense else step
    qkv = sum(layout.packed[layout.layers[0][which]].padded_rows for which in (QUERY, KEY, VALUE))
    hidden = padded(config.hidden_size, GROUP)
    return Buffers(
        hidden=np.zeros((rows, hidden), np.float32),
        normed=_activations(most, config.hidden_size),
        qkv=np.zeros((rows, qkv), np.float32),
        attended=_activations(rows, config.query_size),
        gates=np.zeros((rows, inner), np.float32),
        inner=_activations(rows, inner),
        delta=np.zeros((rows, padded(hidden, step)), np.float32),
        cos=np.zeros((rows, config.head_dim // 2), np.float32),
        sin=np.zeros((rows, config.head_dim // 2), np.float32),
        logits=np.zeros((logit_rows, layout.packed[layout.head].padded_rows), np.float32),
        heads=np.zeros((ranks, head_dim), np.float32),
        scratch=_scratch(ranks, tile_rows, head_dim, pieces),
        experts=_expert_buffers(config, layout, rows),
    )


def _scratch(ranks: int, tile_rows: int, head_dim: int, pieces: int) -> Scratch:
    def zeros(*shape: int) -> Any:
        return np.zeros(shape, np.float32)

    return Scratch(
        queries=zeros(ranks, tile_rows, head_dim),
        scores=zeros(ranks, tile_rows, SEGMENT),
        gathered=zeros(ranks, tile_rows, head_dim),
        own_largest=zeros(ranks, tile_rows),
        own_sums=zeros(ranks, tile_rows),
        largest=zeros(pieces, tile_rows),
        sums=zeros(pieces, tile_rows),
        partial=zeros(pieces, tile_rows, head_dim),
    )


def _expert_buffers(config: ModelConfig, layout: Layout, rows: int) -> ExpertBuffers:
    """Buffers for the mixture; of one row for a model without experts, because kernels need arrays of some size."""
    experts, step = config.experts, 2 * layout.lanes
    each = experts.num_experts_per_tok if experts else 1
    count, inner = (rows * each, padded(experts.moe_intermediate_size, step)) if experts else (1, step)
    tokens, number = (rows, experts.num_experts) if experts else (1, 1)
    return ExpertBuffers(
        scores=np.zeros((tokens, padded(number, step)), np.float32),
        chosen=np.zeros((tokens, each), np.int64),
        shares=np.zeros((tokens, each), np.float32),
        places=np.zeros((tokens, each), np.int64),
        starts=np.zeros(number + 1, np.int64),
        rows=_activations(count, config.hidden_size if experts else step),
        gates=np.zeros((count, inner), np.float32),
        inner=_activations(count, inner),
        out=np.zeros((count, padded(padded(config.hidden_size, GROUP), step) if experts else step), np.float32),
    )
