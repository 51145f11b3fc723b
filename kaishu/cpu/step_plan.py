"""What follows from a batch before its step can start: which sequence a row is of, and how attention is cut up.

Owns the check that a batch points only where there is something, and the three tables in the record STEP that are not
in the TokenBatch itself. It is a kernel because a decoding step has so little of each that numpy's calls would take
longer than the layer of a model. Called by executor.py before the ranks are woken; no other kernel checks anything.
"""

from __future__ import annotations

from numba import njit

from kaishu.cpu.pages import SEGMENT
from kaishu.cpu.vector import KERNEL, int32_at


@njit(**KERNEL)
def plan_step(model, step, vocab_size, num_pages, page_tokens, tile_rows):
    """Fill step.sequence_of, step.piece_starts and step.all_rows, which have room for T, B + 1 and T numbers.

    A sequence whose rows fit one tile has a piece for each segment of its keys and key head, another one for each tile.

    return: how many pieces attention has; or what is wrong, one of executor.py's STEP_PROBLEMS
    """
    query_starts, positions, page_table = int32_at(step.query_starts), int32_at(step.positions), step.page_table
    group, pieces = model.num_heads // model.num_key_value_heads, 0
    for sequence in range(step.sequences):
        first, stop = query_starts[sequence], query_starts[sequence + 1]
        for row in range(first, stop):
            if not 0 <= int32_at(step.token_ids)[row] < vocab_size:
                return -1
            int32_at(step.sequence_of)[row] = sequence
            int32_at(step.all_rows)[row] = row
        last, rows = positions[stop - 1], (stop - first) * group
        if last // page_tokens >= step.table_width:
            return -2
        for place in range(sequence * step.table_width, sequence * step.table_width + last // page_tokens + 1):
            if not 0 <= int32_at(page_table)[place] < num_pages:
                return -3
        int32_at(step.piece_starts)[sequence] = pieces
        cuts = last // SEGMENT + 1 if rows <= tile_rows else (rows + tile_rows - 1) // tile_rows
        pieces += cuts * model.num_key_value_heads
    int32_at(step.piece_starts)[step.sequences] = pieces
    for row in range(step.num_logit_rows):
        if not 0 <= int32_at(step.logit_rows)[row] < step.tokens:
            return -4
    return pieces
