"""Attention of a whole ragged batch, cut into pieces that ranks can claim.

Owns which rows and keys make a piece. A sequence with many new tokens is cut into tiles of query rows, and a tile walks
all of its segments of keys; a sequence with so few that they fit one tile (a decoding one) is cut by segments instead,
which `join_segments` then joins in order. attention.py has the arithmetic, which is the same either way.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from kaishu.cpu.attention import attend_segment, finish_row, join, take_queries
from kaishu.cpu.barriers import claim
from kaishu.cpu.pages import SEGMENT
from kaishu.cpu.products import query_rows
from kaishu.cpu.vector import KERNEL, floats_at, int32_at, int64_at, moved


@njit(**KERNEL)
def _sequence_of_piece(step, piece):
    """Which sequence a piece of attention belongs to, by halving."""
    starts, low, high = int32_at(step.piece_starts), 0, step.sequences
    while high - low > 1:
        middle = (low + high) // 2
        if starts[middle] <= piece:
            low = middle
        else:
            high = middle
    return low


@njit(**KERNEL)
def _span(step, sequence):
    """return: a sequence's first row, how many rows, the position of the first, of the last"""
    first = int32_at(step.query_starts)[sequence]
    count = int32_at(step.query_starts)[sequence + 1] - first
    return first, count, int32_at(step.positions)[first], int32_at(step.positions)[first + count - 1]


@njit(**KERNEL)
def attend_pieces(model, buffers, layer, step, pages, rank, shared, stage):
    """Every piece of attention: a tile with all of its segments, or one segment of a sequence of few rows."""
    group, window = model.num_heads // model.num_key_value_heads, int64_at(model.windows)[layer]
    total, wide = int32_at(step.piece_starts)[step.sequences], query_rows()
    piece = claim(shared, stage, 1)
    while piece < total:
        sequence = _sequence_of_piece(step, piece)
        own = piece - int32_at(step.piece_starts)[sequence]
        first_token, tokens, start, last = _span(step, sequence)
        table = moved(int32_at(step.page_table), sequence * step.table_width)
        if tokens * group <= wide:
            segments = last // SEGMENT + 1
            head, tile = own // segments, (np.int64(0), np.int64(tokens * group), group, np.int64(start))
            take_queries(buffers.qkv, first_token, tile, head, model.head_dim, pages, rank, buffers)
            largest, sums = _piece_state(buffers, piece)
            partial, index = floats_at(buffers.partial.at), piece * wide * pages.head_dim
            segment = own % segments
            attend_segment(
                pages, table, layer, head, segment, tile, rank, window, buffers, largest, sums, partial, index, True
            )
        else:
            tiles = (tokens * group + wide - 1) // wide
            head, first_row = own // tiles, own % tiles * wide
            tile = (np.int64(first_row), np.int64(min(wide, tokens * group - first_row)), group, np.int64(start))
            take_queries(buffers.qkv, first_token, tile, head, model.head_dim, pages, rank, buffers)
            _attend_tile(model, buffers, layer, pages, rank, table, head, first_token, tile, window)
        piece = claim(shared, stage, 1)


@njit(**KERNEL)
def _piece_state(buffers, piece):
    """return: pointers to a piece's largest scores and sums, [R] each"""
    start = piece * query_rows()
    return moved(floats_at(buffers.largest.at), start), moved(floats_at(buffers.sums.at), start)


@njit(**KERNEL)
def _attend_tile(model, buffers, layer, pages, rank, table, head, first_token, tile, window):
    """All segments of one tile, joined in order; then its rows are done."""
    first_row, rows, group, start = tile
    size, wide, own = pages.head_dim, query_rows(), rank * buffers.own_largest.width
    largest, sums = moved(floats_at(buffers.joined_largest.at), own), moved(floats_at(buffers.joined_sums.at), own)
    new_largest, new_sums = moved(floats_at(buffers.own_largest.at), own), moved(floats_at(buffers.own_sums.at), own)
    total, gathered, index = floats_at(buffers.joined.at), floats_at(buffers.gathered.at), rank * wide * size
    for row in range(rows):
        largest[row] = np.float32(-np.inf)
    first_seen = max(0, start + first_row // group + 1 - window)
    for segment in range(first_seen // SEGMENT, (start + (first_row + rows - 1) // group) // SEGMENT + 1):
        attend_segment(
            pages,
            table,
            layer,
            head,
            segment,
            tile,
            rank,
            window,
            buffers,
            new_largest,
            new_sums,
            gathered,
            index,
            rows < wide,
        )
        for row in range(rows):
            place = index + row * size
            join(largest, sums, total, place, row, new_largest[row], new_sums[row], gathered, place, size)
    for row in range(rows):
        token, query_head = first_token + (first_row + row) // group, head * group + (first_row + row) % group
        place = token * buffers.attended.width + query_head * model.head_dim
        finish_row(total, index + row * size, sums[row], floats_at(buffers.attended.words), place, model.head_dim)


@njit(**KERNEL)
def join_segments(model, buffers, step, pages, shared, stage):
    """For sequences whose segments were computed apart: join them in order, head by head."""
    group, total = model.num_heads // model.num_key_value_heads, step.sequences * model.num_key_value_heads
    index = claim(shared, stage, 1)
    while index < total:
        sequence, head = index // model.num_key_value_heads, index % model.num_key_value_heads
        first_token, tokens, _, last = _span(step, sequence)
        if tokens * group <= query_rows():
            segments = last // SEGMENT + 1
            first = int32_at(step.piece_starts)[sequence] + head * segments
            for row in range(tokens * group):
                _join_row(model, buffers, pages, first, segments, row, first_token, head, group)
        index = claim(shared, stage, 1)


@njit(**KERNEL)
def _join_row(model, buffers, pages, first, segments, row, first_token, head, group):
    """One query row: its segments are the pieces from `first` on."""
    size, partial = pages.head_dim, floats_at(buffers.partial.at)
    largest, sums = _piece_state(buffers, first)
    place = (first * query_rows() + row) * size
    for piece in range(first + 1, first + segments):
        new_largest, new_sums = _piece_state(buffers, piece)
        other = (piece * query_rows() + row) * size
        join(largest, sums, partial, place, row, new_largest[row], new_sums[row], partial, other, size)
    token, query_head = first_token + row // group, head * group + row % group
    target = token * buffers.attended.width + query_head * model.head_dim
    finish_row(partial, place, sums[row], floats_at(buffers.attended.words), target, model.head_dim)
