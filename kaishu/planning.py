"""What a model will take, before anything of it is loaded: memory, the context that fits, the speed at most.

Owns the arithmetic from a checkpoint's shapes to bytes, and the rule by which a bound on memory cuts the context. Reads
no weights: layouts, pages and buffers say themselves how large they will be. Knows nothing of this machine; what there
is comes from memory_limits.py and benchmark.py. Used by loading.py for `max_memory`, and shown by `kaishu plan`. Only
the CPU executor is planned.

    peak  =  process  +  packed weights  +  the larger of   loading: the largest tensor, while it is being packed
                                                            serving: buffers of a step + pages of keys and values

A process that has to compile the kernels first keeps what the compiler took, too. The logits that `LLM.logits` returns
are the caller's: 4·V bytes a token, and as much again for one chunk.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from kaishu.benchmark import Work, step_cost
from kaishu.byte_sizes import parse_size, size
from kaishu.checkpoint import Checkpoint
from kaishu.checkpoint.safetensors import StoredTensor
from kaishu.cpu.buffers import StepBuffers
from kaishu.cpu.executor import FORWARD
from kaishu.cpu.kernels import Kernels
from kaishu.cpu.layout import Layout
from kaishu.cpu.packing import plan_stored
from kaishu.cpu.pages import SEGMENT, page_bytes
from kaishu.cpu.store import KERNELS_FOLDER, cache_folder
from kaishu.cpu.target import current_target
from kaishu.cpu.threads import available_threads
from kaishu.engine.scheduler import Budget
from kaishu.errors import InvalidParameterError, OutOfMemoryError
from kaishu.executors import Choice

# Measured: what a process has beside the model. Python, libraries and kernels take the first, and each entry of the
# vocabulary the second, in the tokenizer and in what the sampler looks at.
PROCESS_BYTES = 105_000_000
PROCESS_BYTES_PER_TOKEN_ID = 600
COMPILING_BYTES = 260_000_000  # the compiler, which stays
DECODING_BYTES = 48_000_000  # a few rows of a quantised tensor as float32, and what they are made from
FEWEST_TOKENS = 256  # a context below this is of no use, so it isn't what a bound on memory leads to


@dataclass(frozen=True)
class Plan:
    """What one model takes, in one form, for some sequences of one length.

    layout:         of the packed weights
    embedding_bytes: how much of them the output head is, and the embedding where it isn't the head
    page_tokens:    positions a page
    page_bytes:     what one page of keys and values takes
    buffer_bytes:   between the stages of a step
    process_bytes:  Python, libraries, kernels, tokenizer; and the compiler, as long as the kernels aren't compiled
    compiling_bytes: how much of it that is
    loading_bytes:  beside the packed weights, while they are being packed
    """

    layout: Layout
    choice: Choice
    threads: int
    context_tokens: int
    sequences: int
    page_tokens: int
    page_bytes: int
    buffer_bytes: int
    process_bytes: int
    compiling_bytes: int
    loading_bytes: int

    @property
    def packed_bytes(self) -> int:
        """All weights, packed."""
        return self.layout.num_bytes

    @property
    def embedding_bytes(self) -> int:
        """How much of them the output head and the embedding are, which may be the same."""
        head = self.layout.packed[self.layout.head]
        config = self.layout.config
        own = 2 * config.vocab_size * config.hidden_size if self.layout.embedding >= 0 else 0
        return head.weight_bytes + head.scale_bytes * (1 if head.minimums < 0 else 2) + own

    @property
    def kv_bytes_per_token(self) -> float:
        """What keys and values of one position take in all layers."""
        return self.page_bytes / self.page_tokens

    @property
    def kv_bytes(self) -> int:
        """What all pages take once they are full."""
        return self.sequences * -(-self.context_tokens // self.page_tokens) * self.page_bytes

    @property
    def loading_peak_bytes(self) -> int:
        """The most that is in use until the model is loaded, the first time."""
        return self.process_bytes + self.packed_bytes + self.loading_bytes

    @property
    def serving_peak_bytes(self) -> int:
        """The most that is in use once every sequence is as long as it may get."""
        return self.process_bytes + self.packed_bytes + self.buffer_bytes + self.kv_bytes

    @property
    def peak_bytes(self) -> int:
        """The most that is ever in use."""
        return max(self.loading_peak_bytes, self.serving_peak_bytes)

    def with_draft(self, draft: Plan) -> Plan:
        """Both models in one process; the draft's weights are among the buffers then, and it is loaded second."""
        assert draft.page_tokens == self.page_tokens, "the pages of one machine's kernels"
        return replace(
            self,
            page_bytes=self.page_bytes + draft.page_bytes,
            buffer_bytes=self.buffer_bytes + draft.buffer_bytes + draft.packed_bytes,
            loading_bytes=max(self.loading_bytes, draft.packed_bytes + draft.loading_bytes),
        )

    def largest_context(self, available_bytes: int) -> int:
        """How many tokens each sequence may have so that all fits; up to the model's own limit, 0 if nothing fits.

        The buffers are taken as large as they are for this plan's context.
        """
        left = available_bytes - (self.serving_peak_bytes - self.kv_bytes)
        if left < 0 or self.loading_peak_bytes > available_bytes:
            return 0
        pages = left // (self.sequences * self.page_bytes)
        return min(pages * self.page_tokens, self.layout.config.max_position_embeddings)

    def most_tokens_per_second(self, read_bytes_per_second: float, context_tokens: int) -> float:
        """How fast decoding can be at most: a step reads all weights that it needs, and the keys and values.

        context_tokens: how many keys the new token of each sequence sees, itself included
        return:         of all sequences together
        """
        work = Work("decode", context_tokens, self.sequences, 1)
        cost = step_cost(self.layout, round(self.kv_bytes_per_token), work)
        return self.sequences * read_bytes_per_second / cost.read_bytes


def plan_model(
    checkpoint: Checkpoint,
    choice: Choice,
    *,
    context_tokens: int | None = None,
    sequences: int = 1,
    threads: int | None = None,
    cache: Path | None = None,
) -> Plan:
    """Find out what a model takes.

    choice:         in which form it is kept; for the CPU executor
    context_tokens: prompt and output of each sequence; None for the model's own limit
    sequences:      how many there are at once
    threads:        None for as many as can really run at once
    cache:          where kernels are kept; None for Kaishu's own folder
    """
    assert choice.executor == "cpu" and choice.weights != "float32", "only the CPU executor is planned"
    config, target = checkpoint.config, current_target()
    layout = plan_stored(checkpoint, choice.weights, choice.head or choice.weights, target.lanes)
    context = config.max_position_embeddings if context_tokens is None else context_tokens
    ranks = threads or available_threads()
    rows = max(min(Budget().prefill_tokens, context), sequences)
    buffers = StepBuffers(layout, ranks, target.query_rows)  # zeros that nobody writes take no memory
    segments, tiles = -(-context // SEGMENT), -(-rows * config.queries_per_key // target.query_rows)
    buffers.make_room(rows, sequences, sequences * config.num_key_value_heads * max(segments, tiles))
    page_tokens = 2 * target.lanes
    is_compiled = Kernels((cache or cache_folder()) / KERNELS_FOLDER).is_compiled(FORWARD[choice.kv])
    compiling = 0 if is_compiled else COMPILING_BYTES
    return Plan(
        layout=layout,
        choice=choice,
        threads=ranks,
        context_tokens=context,
        sequences=sequences,
        page_tokens=page_tokens,
        page_bytes=page_bytes(config, page_tokens, choice.kv),
        buffer_bytes=buffers.num_bytes,
        process_bytes=PROCESS_BYTES + PROCESS_BYTES_PER_TOKEN_ID * config.vocab_size + compiling,
        compiling_bytes=compiling,
        loading_bytes=_loading_bytes(checkpoint),
    )


def _loading_bytes(checkpoint: Checkpoint) -> int:
    """Of the tensors, one at a time: the pages of the file that it is read from, and rows that are decoded."""
    tensors = checkpoint.tensors.values()
    decoding = DECODING_BYTES if any(not isinstance(tensor, StoredTensor) for tensor in tensors) else 0
    return max(tensor.nbytes for tensor in tensors) + decoding


def context_within(
    max_memory: object,
    checkpoint: Checkpoint,
    choice: Choice,
    *,
    asked: int | None,
    threads: int | None,
    sequences: int = 1,
    draft: tuple[Checkpoint, Choice] | None = None,
) -> tuple[int, tuple[str, ...]]:
    """The context that a bound on memory leaves.

    max_memory: for the whole process, see parse_size
    asked:      the context that the caller asked for; None for as much as fits
    sequences:  so many of that length have keys and values at once
    draft:      a smaller model that guesses beside it
    return:     the context in tokens, and where it was cut, a note that says so
    raises:     OutOfMemoryError, before anything is loaded, when the weights don't fit, or not the context asked for;
                InvalidParameterError with an executor whose memory isn't planned
    """
    bound = parse_size("max_memory", max_memory)
    if choice.executor != "cpu":
        raise InvalidParameterError(
            "max_memory", max_memory, "only with executor='cpu', which knows beforehand what it takes"
        )
    plan = plan_model(checkpoint, choice, context_tokens=asked, sequences=sequences, threads=threads)
    if draft is not None:
        plan = plan.with_draft(plan_model(*draft, context_tokens=plan.context_tokens, threads=threads))
    if plan.peak_bytes <= bound:
        return plan.context_tokens, ()
    fits = replace(plan, context_tokens=min(plan.context_tokens, FEWEST_TOKENS))
    largest = plan.largest_context(bound)
    if asked is not None or largest < fits.context_tokens:
        raise _too_much(plan if asked is not None else fits, bound, largest)
    limit = checkpoint.config.max_position_embeddings
    note = (
        f"The context was cut from {limit:,} to {largest:,} tokens, so that all takes at most {size(bound)} of memory."
    )
    return largest, (note,)


def _too_much(plan: Plan, max_memory: int, largest: int) -> OutOfMemoryError:
    parts = (
        f"packed weights {size(plan.packed_bytes)}, keys and values {size(plan.kv_bytes)}, "
        f"buffers {size(plan.buffer_bytes)}, {_process(plan)}"
    )
    if plan.loading_peak_bytes > plan.serving_peak_bytes:
        parts = f"packed weights {size(plan.packed_bytes)}, packing them {size(plan.loading_bytes)}, {_process(plan)}"
    ways = ["weights of fewer bits (--weights int4)"] if plan.choice.weights != "int4" else []
    ways += ["keys and values in int8 (--kv int8)"] if plan.choice.kv == "bf16" else []
    shorter = f"a context of at most {largest:,} tokens (--context)" if largest >= plan.page_tokens else ""
    ways = [shorter, *ways] if shorter else [*ways, "a smaller model"]
    ways += ["kernels that are compiled already (run any small model once)"] if plan.compiling_bytes else []
    context = "a context" if plan.sequences == 1 else f"{plan.sequences:,} contexts"
    return OutOfMemoryError(
        f"With {context} of {plan.context_tokens:,} tokens the model takes {size(plan.peak_bytes)} ({parts}), "
        f"but max_memory is {size(max_memory)}.",
        hint=f"Take {', or '.join(ways)}; `kaishu plan` shows what each takes.",
    )


def _process(plan: Plan) -> str:
    compiling = f", {size(plan.compiling_bytes)} of it to compile the kernels" if plan.compiling_bytes else ""
    return f"Python and libraries {size(plan.process_bytes)}{compiling}"
