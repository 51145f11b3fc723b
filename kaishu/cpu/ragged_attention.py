"""Attention of a whole ragged batch, cut into pieces that ranks can claim.

Owns which rows and keys make a piece. A sequence with many new tokens is cut into tiles of query rows, and a tile walks
all of its segments of keys; a sequence with so few that they fit one tile (a decoding one) is cut by segments instead,
which `join_segments` then joins in order. attention.py has the arithmetic, which is the same either way.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from kaishu.cpu.attention import SEGMENT, attend_segment, finish_row, join, take_queries
from kaishu.cpu.products import wide_tokens
from kaishu.cpu.threads import claim
from kaishu.cpu.vector import KERNEL


@njit(**KERNEL)
def _sequence_of_piece(piece_starts, piece):  # type: ignore[no-untyped-def]
    """Which sequence a piece of attention belongs to, by halving."""
    low, high = 0, len(piece_starts) - 1
    while high - low > 1:
        middle = (low + high) // 2
        if piece_starts[middle] <= piece:
            low = middle
        else:
            high = middle
    return low


@njit(**KERNEL)
def attend_pieces(model, buffers, layer, step, pages, rank, shared, stage):  # type: ignore[no-untyped-def]
    """Every piece of attention: a tile with all of its segments, or one segment of a sequence of few rows."""
    group, window = model.num_heads // model.num_key_value_heads, model.windows[layer]
    scratch, total = buffers.scratch, step.piece_starts[-1]
    queries, scores = scratch.queries[rank], scratch.scores[rank]
    piece = claim(shared, stage, 1)
    while piece < total:
        sequence = _sequence_of_piece(step.piece_starts, piece)
        own = piece - step.piece_starts[sequence]
        first_token = step.query_starts[sequence]
        start, table = step.positions[first_token], step.page_table[sequence]
        all_rows = (step.query_starts[sequence + 1] - first_token) * group
        if all_rows <= wide_tokens():
            segments = step.positions[step.query_starts[sequence + 1] - 1] // SEGMENT + 1
            head = own // segments
            take_queries(buffers.qkv, first_token, 0, all_rows, group, head, model.head_dim, queries)
            attend_segment(
                pages,
                table,
                layer,
                head,
                own % segments,
                queries,
                all_rows,
                0,
                group,
                start,
                window,
                scores,
                scratch.largest[piece],
                scratch.sums[piece],
                scratch.partial[piece],
            )
        else:
            tiles = (all_rows + wide_tokens() - 1) // wide_tokens()
            head, first_row = own // tiles, own % tiles * wide_tokens()
            rows = min(wide_tokens(), all_rows - first_row)
            take_queries(buffers.qkv, first_token, first_row, rows, group, head, model.head_dim, queries)
            _attend_tile(model, buffers, layer, step, pages, rank, piece, table, head, first_token, first_row, rows)
        piece = claim(shared, stage, 1)


@njit(**KERNEL)
def _attend_tile(model, buffers, layer, step, pages, rank, piece, table, head, first_token, first_row, rows):  # type: ignore[no-untyped-def]
    """All segments of one tile, joined in order; then its rows are done."""
    group, window, scratch = model.num_heads // model.num_key_value_heads, model.windows[layer], buffers.scratch
    start = step.positions[first_token]
    first_position, last_position = start + first_row // group, start + (first_row + rows - 1) // group
    largest, sums, total = scratch.largest[piece], scratch.sums[piece], scratch.partial[piece]
    new_largest, new_sums, gathered = scratch.own_largest[rank], scratch.own_sums[rank], scratch.gathered[rank]
    largest[:] = np.float32(-np.inf)
    for segment in range(max(0, first_position + 1 - window) // SEGMENT, last_position // SEGMENT + 1):
        attend_segment(
            pages,
            table,
            layer,
            head,
            segment,
            scratch.queries[rank],
            rows,
            first_row,
            group,
            start,
            window,
            scratch.scores[rank],
            new_largest,
            new_sums,
            gathered,
        )
        for row in range(rows):
            join(largest, sums, total, row, new_largest[row], new_sums[row], gathered, pages.head_dim)
    for row in range(rows):
        token, column = first_token + (first_row + row) // group, (head * group + (first_row + row) % group)
        finish_row(total, row, sums, buffers.attended.words, token, column * model.head_dim, model.head_dim)


@njit(**KERNEL)
def join_segments(model, buffers, step, pages, shared, stage):  # type: ignore[no-untyped-def]
    """For sequences whose segments were computed apart: join them in order, head by head."""
    group, scratch = model.num_heads // model.num_key_value_heads, buffers.scratch
    total = (len(step.query_starts) - 1) * model.num_key_value_heads
    index = claim(shared, stage, 1)
    while index < total:
        sequence, head = index // model.num_key_value_heads, index % model.num_key_value_heads
        index = claim(shared, stage, 1)
        first_token = step.query_starts[sequence]
        rows = (step.query_starts[sequence + 1] - first_token) * group
        if rows > wide_tokens():
            continue
        segments = step.positions[step.query_starts[sequence + 1] - 1] // SEGMENT + 1
        first = step.piece_starts[sequence] + head * segments
        largest, sums, joined = scratch.largest[first], scratch.sums[first], scratch.partial[first]
        for row in range(rows):
            for piece in range(first + 1, first + segments):
                new_largest, new_sum = scratch.largest[piece, row], scratch.sums[piece, row]
                join(largest, sums, joined, row, new_largest, new_sum, scratch.partial[piece], pages.head_dim)
            token, column = first_token + row // group, head * group + row % group
            finish_row(joined, row, sums, buffers.attended.words, token, column * model.head_dim, model.head_dim)
