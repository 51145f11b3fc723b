"""The likeliest tokens of each row of logits, and whether the row is finite: what sampling asks of every row.

Owns that search. Knows nothing of requests: which of the listed tokens may come, and which is drawn, is
kaishu/sampling's. Ranks claim whole rows. Called by executor.py after a step; a single row isn't worth waking anybody.

The head keeps the maximum of each block of 64 tokens while their logits are still in the cache (forward.py). The
LISTED-th largest of the maxima is a logit that so many tokens reach, so that only blocks that reach it are looked at
again: about LISTED of 2,370.

A block is finite if its sum of 0·x is: 0·∞ and 0·NaN aren't numbers, and stay in the sum, one instruction a vector.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from kaishu.cpu.barriers import claim
from kaishu.cpu.vector import (
    INLINE,
    KERNEL,
    at_least,
    doubles_at,
    floats_at,
    fma,
    int32_at,
    int64_at,
    lanes,
    load,
    max_lanes,
    moved,
    prefetch,
    splat,
    sum_lanes,
)

LISTED = 64  # tokens of a row; kaishu/sampling asks for at most so many
LINE_FLOATS = 16  # of a cache line
BLOCK = 64  # BLOCK_TOKENS of batch.py; not imported, since compiled kernels are kept as long as their own files are


@njit(**KERNEL)
def likeliest(rank, shared, logits, width, known, known_width, wanted, rows, tokens, maxima, values, ids, finite):
    """List the likeliest tokens of the rows that this rank claims, likeliest first, equal ones by id.

    logits: the address of float32, row by row, `width` from one row to the next, of which the first `tokens` count
    known:  the address of what `keep_maxima` left of the same rows, `known_width` from one to the next; 0 if nothing
    wanted: the address of [rows] int32: which rows
    maxima: the address of [rows, tokens / BLOCK rounded up] float32, which get the largest logit of each block
    values: the address of [rows, LISTED] float64, which get the logits
    ids:    the address of [rows, LISTED] int64, their tokens; fewer than LISTED if there are fewer tokens
    finite: the address of [rows] int32, which get 1 where all logits are finite; otherwise nothing is listed
    """
    blocks = (tokens + BLOCK - 1) // BLOCK
    row = claim(shared, 0, 1)
    while row < rows:
        place = int32_at(wanted)[row]
        at, own = moved(floats_at(logits), place * width), floats_at(maxima + row * blocks * 4)
        if known != 0:
            took = floats_at(known + place * known_width * 4)
            for block in range(tokens // BLOCK):
                own[block] = took[block]
        else:
            keep_maxima(at, tokens // BLOCK, own)
        if tokens % BLOCK > 0:
            keep_last_maximum(at, tokens, own)
        int32_at(finite)[row] = are_finite(own, blocks)
        if int32_at(finite)[row]:
            list_row(at, tokens, own, doubles_at(values + row * LISTED * 8), int64_at(ids + row * LISTED * 8))
        row = claim(shared, 0, 1)
    return 0


@njit(**KERNEL)
def keep_maxima(logits, blocks, maxima):
    """Write the maximum of each of some blocks of logits, or NaN where one of them isn't finite."""
    zero = splat(np.float32(0.0))
    for block in range(blocks):
        start = block * BLOCK
        largest, more = load(logits, start), load(logits, start + lanes())
        zeros, others = zero, zero
        for place in range(start, start + BLOCK, 2 * lanes()):
            first, second = load(logits, place), load(logits, place + lanes())
            largest, more = at_least(largest, first), at_least(more, second)
            zeros, others = fma(first, zero, zeros), fma(second, zero, others)
        maxima[block] = max_lanes(at_least(largest, more)) + sum_lanes(zeros + others)


@njit(**KERNEL)
def keep_last_maximum(row, tokens, maxima):
    """The same for the last tokens of a row, which don't fill a block."""
    start = tokens // BLOCK * BLOCK
    largest, zeros = row[start], np.float32(0.0)
    for token in range(start, tokens):
        zeros += row[token] * np.float32(0.0)
        largest = max(largest, row[token])
    maxima[tokens // BLOCK] = largest + zeros


@njit(**KERNEL)
def are_finite(maxima, blocks):
    """Whether no maximum is NaN. return: 1 or 0"""
    zero, whole = splat(np.float32(0.0)), blocks // lanes() * lanes()
    zeros = zero
    for block in range(0, whole, lanes()):
        zeros = fma(load(maxima, block), zero, zeros)
    total = sum_lanes(zeros)
    for block in range(whole, blocks):
        total += maxima[block] * np.float32(0.0)
    return 1 if total == np.float32(0.0) else 0


@njit(**KERNEL)
def list_row(row, tokens, maxima, values, ids):
    """Write a row's list. `values` first serves for the largest maxima."""
    blocks, found, width = (tokens + BLOCK - 1) // BLOCK, 0, lanes()
    limit = -np.float32(np.inf)
    for start in range(0, blocks, width):  # a vector of maxima at once, of which mostly none is large enough
        is_whole = start + width <= blocks
        if found == LISTED and is_whole and not max_lanes(load(maxima, start)) > values[LISTED - 1]:
            continue
        for block in range(start, min(blocks, start + width)):
            found = insert(values, ids, found, maxima[block], block, False)
    if found == LISTED:
        limit = values[LISTED - 1]
    fetch_blocks(row, blocks, maxima, limit)
    found = 0
    for start in range(0, blocks, width):
        if start + width <= blocks and max_lanes(load(maxima, start)) < limit:
            continue
        for block in range(start, min(blocks, start + width)):
            # Once the list is full, whatever only equals its last token comes behind it: its id is larger.
            if maxima[block] >= limit and (found < LISTED or maxima[block] > values[LISTED - 1]):
                for token in range(block * BLOCK, min(tokens, (block + 1) * BLOCK)):
                    if row[token] >= limit:
                        found = insert(values, ids, found, row[token], token, True)


@njit(**KERNEL)
def fetch_blocks(row, blocks, maxima, limit):
    """Have the blocks fetched that reach the limit. Logits that another rank has written are far away: so the waits for
    them overlap."""
    for start in range(0, blocks, lanes()):
        if start + lanes() <= blocks and max_lanes(load(maxima, start)) < limit:
            continue
        for block in range(start, min(blocks, start + lanes())):
            if maxima[block] >= limit:
                for line in range(block * BLOCK, (block + 1) * BLOCK, LINE_FLOATS):
                    prefetch(row, line)


@njit(**INLINE)
def insert(values, ids, found, value, token, keeps_ids):
    """Insert a token into a list of the likeliest so far, behind equal ones; the last falls out of a full list.

    keeps_ids: a constant; if not, only its value is of interest
    return:    how many are listed now
    """
    place = found
    if found == LISTED:
        if not value > values[LISTED - 1]:
            return found
        place = LISTED - 1
    while place > 0 and values[place - 1] < value:
        values[place] = values[place - 1]
        if keeps_ids:
            ids[place] = ids[place - 1]
        place -= 1
    values[place] = value
    if keeps_ids:
        ids[place] = token
    return min(found + 1, LISTED)
