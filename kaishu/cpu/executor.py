"""The CPU executor: batches in, numpy logits or hidden states out, without torch.

Owns the packed model, the ranks, the KV pages and the buffers of a step, and turns a TokenBatch into the kernels'
arguments. Knows nothing of requests. Driven by engine/core.py; reference/executor.py is its counterpart.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from kaishu.batch import BLOCK_TOKENS, Likeliest, TokenBatch
from kaishu.checkpoint import Checkpoint
from kaishu.cpu.buffers import StepBuffers, num_stages
from kaishu.cpu.kernels import Entry, Kernels, kernel_folder
from kaishu.cpu.layout import LAYOUT_VERSION, Layout, WeightKind, view
from kaishu.cpu.list_room import ListRoom
from kaishu.cpu.packing import pack_model, plan_stored
from kaishu.cpu.pages import SEGMENT, KeyValueKind, allocate_pages, page_contents
from kaishu.cpu.records import BUFFERS, INT8_PAGES, MODEL, PAGES, STEP, address, matrix, record
from kaishu.cpu.rope_frequencies import rope_attention_factor, rope_frequencies
from kaishu.cpu.store import KERNELS_FOLDER, PACKED_FOLDER, PackedStore, cache_folder
from kaishu.cpu.target import current_target
from kaishu.cpu.threads import COUNTERS, Ranks, available_threads, shared_state
from kaishu.cpu.wanted_rows import wanted_rows

NO_WINDOW = 1 << 40  # a window that no sequence fills
_FORWARD = "kaishu.cpu.forward", "forward", (None, None, None, MODEL, STEP, STEP, BUFFERS)
FORWARD: Mapping[KeyValueKind, Entry] = {
    "bf16": Entry("forward", *_FORWARD[:2], (*_FORWARD[2], PAGES)),
    "int8": Entry("forward_int8_pages", *_FORWARD[:2], (*_FORWARD[2], INT8_PAGES)),
}
STEP_PROBLEMS = {  # what plan_step returns; not in its own file, which would import Numba
    -1: "there are only ids that the embedding has a row for",
    -2: "the page table covers every position of the sequences",
    -3: "the page table has only pages that exist",
    -4: "logits are wanted only for rows of the step",
}
LIKELIEST = Entry("likeliest", "kaishu.cpu.likeliest", "likeliest", (None,) * 13)
PLAN_STEP = Entry("plan_step", "kaishu.cpu.step_plan", "plan_step", (MODEL, STEP, None, None, None, None))


@dataclass(frozen=True)
class _Latest:
    """What the latest step returned.

    logits:        they themselves, as long as somebody has them
    logits_matrix: MATRIX of them
    maxima_matrix: MATRIX of the maxima of their blocks
    maxima:        the array that this is of
    """

    logits: Callable[[], NDArray[np.float32] | None]
    logits_matrix: tuple[int, int]
    maxima_matrix: tuple[int, int]
    maxima: NDArray[np.float32] | None


class CpuExecutor:
    """Computes steps with compiled kernels. Satisfies kaishu.batch.Executor, KeepsPages and FindsLikeliest.

    A row's logits are the same bits whoever else is in the step, however a prompt was cut into steps, in whichever
    pages it lies and on however many threads.
    """

    def __init__(
        self,
        layout: Layout,
        memory: NDArray[np.uint8],
        kernels: Kernels,
        ranks: Ranks,
        num_pages: int,
        page_tokens: int,
        kv: KeyValueKind = "bf16",
    ) -> None:
        """Use a packed model.

        memory:      [layout.num_bytes] uint8, as pack_model left it
        kernels:     where the compiled step is, or will be
        page_tokens: p, a multiple of twice the lanes that divides attention's segments of 256
        kv:          how keys and values are kept
        """
        assert page_tokens % (2 * layout.lanes) == 0 and SEGMENT % page_tokens == 0, "whole blocks, whole segments"
        self._layout, self._memory, self._ranks = layout, memory, ranks
        self._forward = kernels.load(FORWARD[kv])  # now, and not with the first token
        self._plan_step, self._likeliest = kernels.load(PLAN_STEP), kernels.load(LIKELIEST)
        weakref.finalize(self, ranks.close)  # or the threads of every model of a process would wait until its end
        self._num_pages, self._page_tokens, self._tile_rows = num_pages, page_tokens, current_target().query_rows
        self._pages, memories = allocate_pages(layout.config, num_pages, page_tokens, kv)
        self._page_memory, *self._page_scales = memories
        self._page_contents, self._kv = page_contents(layout.config, num_pages, page_tokens, memories), kv
        self._model, self._model_arrays = _model_record(layout, memory)
        self._model_address, self._pages_address = address(self._model), address(self._pages)
        self._shared = shared_state(num_stages(layout.config.num_hidden_layers), ranks.count)
        self._shared_address = address(self._shared)
        self._buffers = StepBuffers(layout, ranks.count, self._tile_rows)
        self._latest, self._lists = _Latest(lambda: None, (0, 0), (0, 0), None), ListRoom(0, 0)

    @classmethod
    def from_checkpoint(
        cls,
        checkpoint: Checkpoint,
        *,
        weights: WeightKind | Literal["stored"] = "bf16",
        head: WeightKind | Literal["stored"] | None = None,
        kv: KeyValueKind = "bf16",
        threads: int | None = None,
        num_pages: int | None = None,
        context_tokens: int | None = None,
        page_tokens: int | None = None,
        cache: Path | None = None,
        packed_folder: Path | None = None,
        say: Callable[[str], None] = lambda _: None,
    ) -> CpuExecutor:
        """Pack a checkpoint, or map what was packed before, and be ready to compute with it.

        weights:        of the layers; "stored" keeps each as its file does, in the layout that loses nothing of it
        head:           the head's kind, or "stored"; None for the same as the layers
        kv:             how keys and values are kept; int8 takes half the memory, and a scale for each token and head
        threads:        ranks; None for as many as can really run at once
        num_pages:      P; None for as many as one sequence of `context_tokens` needs
        context_tokens: how many positions a sequence may have; None for the model's own limit
        page_tokens:    p, a multiple of twice the lanes; None for that multiple that is at least 16
        cache:          where packed weights and compiled kernels are kept; None for Kaishu's own folder
        packed_folder:  where packed weights are kept, if elsewhere than in the cache
        say:            told, in a sentence, what takes long or couldn't be kept
        raises:         CheckpointError when a file can't be read; OutOfMemoryError
        """
        cache = cache or cache_folder()
        kernels = Kernels(cache / KERNELS_FOLDER, say)
        kernels.load(FORWARD[kv])  # before the weights, because it may take long and is then said
        ranks, lanes = Ranks(threads or available_threads()), current_target().lanes
        layout = plan_stored(checkpoint, weights, head or weights, lanes)
        packed = PackedStore(packed_folder or cache / PACKED_FOLDER).open_or_pack(
            {
                "checkpoint": checkpoint.identity,
                "layout": LAYOUT_VERSION,
                "lanes": lanes,
                "weights": weights,
                "head": head or weights,
            },
            layout.num_bytes,
            lambda memory: pack_model(checkpoint, layout, memory, ranks, kernels),
            describe=f"{checkpoint.folder.name}, {weights}, head {head or weights}".encode(),
        )
        if packed.note:
            say(packed.note)
        page_tokens = page_tokens or 2 * lanes
        if num_pages is None:
            num_pages = -(-(context_tokens or checkpoint.config.max_position_embeddings) // page_tokens)
        return cls(layout, packed.data, kernels, ranks, num_pages, page_tokens, kv)

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

    @property
    def layout(self) -> Layout:
        """Which weights are kept in which form, and how many bytes they take."""
        return self._layout

    @property
    def kv_bytes_per_token(self) -> int:
        """What the keys and values of one position take in all layers, the padding of odd head sizes included."""
        elements = int(self._pages["layer_size"]) * self._layout.config.num_hidden_layers // self._page_tokens
        scales = sum(array.itemsize for array in self._page_scales) * elements // int(self._pages["head_dim"])
        return self._page_memory.itemsize * elements + scales

    def step(self, batch: TokenBatch) -> NDArray[np.float32]:
        """Compute the new tokens of every sequence, keep their keys and values, return the logits that were asked for.

        return: [R, V] float32
        """
        rows, columns = len(batch.logit_rows), self._layout.packed[self._layout.head].padded_rows
        logits = np.empty((rows, columns), np.float32)  # so that it needn't be copied: with 32 rows that would be 19 MB
        maxima = np.empty((rows, -(-columns // BLOCK_TOKENS)), np.float32)
        where, of_blocks = matrix(logits), matrix(maxima)
        self._compute(batch, (where, of_blocks))
        returned = logits[:, : self.vocab_size]
        self._latest = _Latest(weakref.ref(returned), where, of_blocks, maxima)
        return returned

    def hidden(self, batch: TokenBatch) -> NDArray[np.float32]:
        """As `step`, but return what the head would read, not yet rounded for the head's multiplication.

        return: [R, D] float32; the same bits in every schedule, as logits are
        """
        rows = self._compute(batch, None)
        config = self._layout.config
        offset, length = self._layout.vectors["model.norm.weight"]
        weight = view(self._memory, offset, np.float32, (length,))[: config.hidden_size]  # [D]
        x = self._buffers.hidden[rows, : config.hidden_size]  # [R, D]
        x = np.ascontiguousarray(x)  # numpy adds each row up in the same order, then
        mean = np.mean(np.square(x), axis=-1, keepdims=True)  # [R, 1]
        normed: NDArray[np.float32] = x * (np.float32(1) / np.sqrt(mean + np.float32(config.rms_norm_eps))) * weight
        return normed

    def likeliest(self, logits: NDArray[np.float32], rows: Sequence[int], num_token_ids: int) -> list[Likeliest]:
        """Find the likeliest tokens of some rows, LISTED of each if there are so many.

        logits: [R, V] float32, from `step`; of the latest one, if unchanged, the maxima are known already
        return: a list for each of `rows`
        """
        known, where = self._known_maxima(logits), self._latest.logits_matrix
        assert all(0 <= row < len(logits) for row in rows), "rows of these logits"
        assert 0 < num_token_ids <= logits.shape[1], "tokens of these rows"
        if known == (0, 0):
            if logits.strides[1:] != (logits.itemsize,) or logits.dtype != np.float32:
                logits = np.ascontiguousarray(logits, np.float32)
            where = logits.ctypes.data, logits.strides[0] // logits.itemsize
        count = len(rows)
        if not self._lists.fits(count, num_token_ids):
            self._lists = ListRoom(count, num_token_ids)
        self._lists.ask_for(rows)
        self._shared[COUNTERS] = 0  # of its one stage
        kernel, shared, lists = self._likeliest, self._shared_address, self._lists
        records = *where, *known, lists.wanted_address, count, num_token_ids, *lists.found_addresses
        if count > 1:
            self._ranks.run(lambda rank: kernel(rank, shared, *records))
        else:
            kernel(0, shared, *records)
        return lists.found(count)

    def _known_maxima(self, logits: NDArray[np.float32]) -> tuple[int, int]:
        """return: MATRIX of the blocks' maxima, if these are what the latest step returned; otherwise zeros"""
        return self._latest.maxima_matrix if self._latest.logits() is logits else (0, 0)

    def _compute(self, batch: TokenBatch, answer: tuple[tuple[int, int], tuple[int, int]] | None) -> NDArray[np.int32]:
        """Run the kernels; what they leave is in the buffers until the next step.

        answer: MATRIX of [R, padded V] float32 for the logits, and of [R, blocks] float32 for the maxima of the blocks
                of each row; None for no head
        return: [R], the rows of the buffers that are the wanted ones
        """
        step, arrays = self._step_record(batch, answer)
        pieces = self._planned(step)
        last, wanted, more_arrays = batch, step, arrays
        if len(batch.logit_rows) < len(batch.token_ids):
            last = wanted_rows(batch)
            wanted, more_arrays = self._step_record(last, answer)
            pieces = max(pieces, self._planned(wanted))
        self._buffers.make_room(len(batch.token_ids), len(batch.logit_rows), pieces)
        self._shared[COUNTERS:] = 0
        kernel, count, shared = self._forward, self._ranks.count, self._shared_address
        records = self._model_address, address(step), address(wanted), address(self._buffers.record)
        self._ranks.run(lambda rank: kernel(rank, count, shared, *records, self._pages_address))
        del arrays, more_arrays  # kept until here: the records have only their addresses
        return last.logit_rows

    def _planned(self, step: Any) -> int:
        """Fill in what follows from a batch. return: how many pieces attention has"""
        sizes = self.vocab_size, self._num_pages, self._page_tokens, self._tile_rows
        pieces: int = self._plan_step(self._model_address, address(step), *sizes)
        assert pieces >= 0, STEP_PROBLEMS[pieces]
        return pieces

    @property
    def page_form(self) -> str:
        """What the bytes of a page depend on beside the model: the machine code that wrote them, and its form."""
        return f"cpu {kernel_folder(Path()).name} {self._kv}"

    @property
    def page_bytes(self) -> int:
        """How many bytes `read_pages` gives for a page."""
        return sum(part.shape[1] for part in self._page_contents)

    def read_pages(self, pages: Sequence[int]) -> NDArray[np.uint8]:
        """What pages hold, keys, values and scales. return: [n, page_bytes] uint8"""
        return np.concatenate([part[list(pages)] for part in self._page_contents], axis=1)

    def write_pages(self, pages: Sequence[int], contents: NDArray[np.uint8]) -> None:
        """Put back what `read_pages` gave, in whichever pages. contents: [n, page_bytes] uint8"""
        start = 0
        for part in self._page_contents:
            end = start + part.shape[1]
            part[list(pages)] = contents[:, start:end]
            start = end

    def close(self) -> None:
        """End the ranks' threads."""
        self._ranks.close()

    def _step_record(
        self, batch: TokenBatch, answer: tuple[tuple[int, int], tuple[int, int]] | None
    ) -> tuple[Any, list[NDArray[np.int32]]]:
        """return: STEP, with room for what plan_step fills in, and the arrays it points to"""
        tokens, sequences = len(batch.token_ids), len(batch.query_starts) - 1
        given = (batch.token_ids, batch.positions, batch.query_starts, batch.page_table, batch.logit_rows)
        arrays = [np.ascontiguousarray(array, np.int32) for array in given]
        filled_in = np.empty(2 * tokens + sequences + 1, np.int32)  # sequence_of, piece_starts, all_rows
        start = address(filled_in)
        sequence_of, piece_starts, all_rows = start, start + 4 * tokens, start + 4 * (tokens + sequences + 1)
        sizes = tokens, sequences, batch.page_table.shape[1], len(batch.logit_rows)
        tables = (*map(address, arrays), sequence_of, piece_starts, all_rows)
        results = ((0, 0), (0, 0)) if answer is None else answer
        return np.array((*tables, *results, *sizes), STEP), [*arrays, filled_in]


def _model_record(layout: Layout, memory: NDArray[np.uint8]) -> tuple[Any, list[NDArray[Any]]]:
    """return: MODEL, and the arrays it points to"""
    config, experts = layout.config, layout.config.experts
    sizes = config.sliding_windows or (None,) * config.num_hidden_layers
    windows = np.array([NO_WINDOW if size is None else size for size in sizes], np.int64)
    frequencies = rope_frequencies(config.rope, config.head_dim)
    fields = {
        "address": address(memory),
        "linears": address(layout.linears),
        "layers": address(layout.layers),
        "norms": address(layout.norms),
        "windows": address(windows),
        "frequencies": address(frequencies),
        "num_layers": config.num_hidden_layers,
        "head": layout.head,
        "embedding": layout.embedding,
        "forms": layout.forms_read,
        "head_forms": layout.packed[layout.head].form_read,
        "hidden_size": config.hidden_size,
        "num_heads": config.num_attention_heads,
        "num_key_value_heads": config.num_key_value_heads,
        "head_dim": config.head_dim,
        "num_experts": experts.num_experts if experts else 0,
        "experts_per_token": experts.num_experts_per_tok if experts else 0,
        "is_renormalised": bool(experts and experts.norm_topk_prob),
        "eps": config.rms_norm_eps,
        "rotary_factor": rope_attention_factor(config.rope),
    }
    return record(MODEL, fields), [memory, layout.linears, layout.layers, layout.norms, windows, frequencies]
