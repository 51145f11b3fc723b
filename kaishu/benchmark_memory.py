"""What `kaishu bench` takes beside the weights, and which of its work a bound on memory leaves.

Owns the sum over all that is measured in one process: the pages of every sequence, buffers that grow to the largest
step, and the memory that is read to find the machine's limits. What a model takes is planning.py's, the work
benchmark.py's. Reads no weights.

    peak  =  process  +  what is read to measure how fast memory is  +  the larger of   loading the model
                                                                                       packed weights + pages
                                                                                       + buffers + logits
"""

from __future__ import annotations

from collections.abc import Sequence

from kaishu.benchmark import CHUNK_TOKENS, Work, pages_needed
from kaishu.benchmark_limits import limits_bytes
from kaishu.byte_sizes import parse_size, size
from kaishu.checkpoint import Checkpoint
from kaishu.cpu.buffers import StepBuffers
from kaishu.cpu.kernels import Kernels
from kaishu.cpu.measure import MULTIPLY, READ
from kaishu.cpu.pages import SEGMENT
from kaishu.cpu.store import KERNELS_FOLDER, cache_folder
from kaishu.cpu.target import current_target
from kaishu.errors import OutOfMemoryError
from kaishu.executors import Choice
from kaishu.planning import COMPILING_BYTES, Plan, plan_model

NUMBA_BYTES = 27_000_000  # measured: imported to measure the machine, which no other command does once all is compiled


def works_within(
    max_memory: object, checkpoint: Checkpoint, choice: Choice, works: Sequence[Work], *, threads: int | None
) -> tuple[list[Work], list[Work]]:
    """What can be measured in so much memory: of the work that takes least, as much as fits.

    max_memory: for the whole process, see parse_size
    return:     what to measure, and what to leave out; both in the order of `works`
    raises:     OutOfMemoryError, before anything is loaded, when not even one work fits; InvalidParameterError
    """
    bound = parse_size("max_memory", max_memory)
    plan = plan_model(checkpoint, choice, context_tokens=max(work.end for work in works), threads=threads)
    process = plan.process_bytes + _more_compiling_bytes(plan) + NUMBA_BYTES + limits_bytes()
    least = process + plan.packed_bytes + plan.loading_bytes
    kept: list[Work] = []
    for work in sorted(works, key=lambda work: (work.sequences * work.end, work.tokens)):
        if max(least, process + plan.packed_bytes + working_bytes(plan, [*kept, work])) <= bound:
            kept.append(work)
    if not kept:
        raise _too_much(plan, process, bound)
    return [work for work in works if work in kept], [work for work in works if work not in kept]


def working_bytes(plan: Plan, works: Sequence[Work]) -> int:
    """What one process takes beside the model, for all of some work: pages stay, buffers grow to the largest step.

    plan: of the model, for one sequence at least as long as any of the work's
    """
    config, target = plan.layout.config, current_target()
    buffers = StepBuffers(plan.layout, plan.threads, target.query_rows)
    for work in works:
        steps = [(work.new_tokens, work.sequences, work.end)]
        steps += [(min(CHUNK_TOKENS, work.start), 1, work.start)] if work.start else []
        for tokens, sequences, context in steps:
            tiles = -(-tokens * config.queries_per_key // target.query_rows)
            pieces = sequences * config.num_key_value_heads * max(-(-context // SEGMENT), tiles)
            buffers.make_room(tokens * sequences, sequences, pieces)
    logits = 4 * config.vocab_size * max(work.sequences for work in works)
    return buffers.num_bytes + pages_needed(works, plan.page_tokens) * plan.page_bytes + logits


def _more_compiling_bytes(plan: Plan) -> int:
    """What compiling the kernels that measure the machine takes, where the plan doesn't count the compiler already."""
    kernels = Kernels(cache_folder() / KERNELS_FOLDER)
    is_needed = not all(kernels.is_compiled(entry) for entry in (READ, MULTIPLY))
    return COMPILING_BYTES if is_needed and not plan.compiling_bytes else 0


def _too_much(plan: Plan, process: int, bound: int) -> OutOfMemoryError:
    libraries = f"Python and libraries {size(process - limits_bytes())}"
    limits = f"{size(limits_bytes())} to measure how fast this machine reads memory"
    ways = ["weights of fewer bits (--weights int4)"] if plan.choice.weights != "int4" else []
    ways += ["shorter --contexts, fewer --batch-sizes or a shorter --prefill", "a smaller model"]
    return OutOfMemoryError(
        f"Not even the smallest step can be measured: {libraries}, packed weights {size(plan.packed_bytes)}, packing "
        f"them {size(plan.loading_bytes)}, keys, values and buffers more, and {limits}; max_memory is {size(bound)}.",
        hint=f"Take {', or '.join(ways)}; `kaishu plan` shows what a model takes.",
    )
