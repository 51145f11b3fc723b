"""The likeliest tokens of each row of logits, and whether the row is finite: what sampling asks of every row.

Owns that search. Knows nothing of requests: which of the listed tokens may come, and which is drawn, is
kaishu/sampling's. Ranks claim whole rows. Called by executor.py after a step; a single row isn't worth waking anybody.

One pass over a row keeps the maximum of each block of 64 tokens. The LISTED-th largest of the maxima is a logit that so
many tokens reach, so that only blocks that reach it are looked at again: about LISTED of 2,370.

A row is finite if its sum of 0·x is: 0·∞ and 0·NaN aren't numbers, and stay in the sum, one instruction a vector.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from kaishu.batch import BLOCK_TOKENS
from kaishu.cpu.barriers import claim
from kaishu.cpu.vector import INLINE, KERNEL, at_least, floats_at, fma, int32_at, lanes, load, max_lanes, moved, splat

LISTED = 64  # tokens of a row; kaishu/sampling asks for at most so many
BLOCK = BLOCK_TOKENS  # four cache lines


@njit(**KERNEL)
def likeliest(rank, shared, logits, width, wanted, rows, tokens, maxima, values, ids, finite):
    """List the likeliest tokens of the rows that this rank claims, likeliest first, equal ones by id.

    logits: the address of float32, row by row, `width` from one row to the next, of which the first `tokens` count
    wanted: the address of [rows] int32: which rows
    maxima: the address of [rows, tokens / BLOCK rounded up] float32, which get the largest logit of each block
    values: the address of [rows, LISTED] float32, which get the logits
    ids:    the address of [rows, LISTED] int32, their tokens; fewer than LISTED if there are fewer tokens
    finite: the address of [rows] int32, which get 1 where all logits are finite; otherwise nothing is listed
    """
    blocks = (tokens + BLOCK - 1) // BLOCK
    row = claim(shared, 0, 1)
    while row < rows:
        at, own = moved(floats_at(logits), int32_at(wanted)[row] * width), floats_at(maxima + row * blocks * 4)
        int32_at(finite)[row] = keep_maxima(at, tokens, own)
        if int32_at(finite)[row]:
            list_row(at, tokens, own, floats_at(values + row * LISTED * 4), int32_at(ids + row * LISTED * 4))
        row = claim(shared, 0, 1)
    return 0


@njit(**KERNEL)
def keep_maxima(row, tokens, maxima):
    """Keep the maximum of each block of a row; the last one may be shorter.

    return: 1 if all logits are finite, otherwise 0
    """
    zero, whole = splat(np.float32(0.0)), tokens // BLOCK
    a = b = c = d = zero
    for block in range(whole):
        start = block * BLOCK
        largest = load(row, start)
        more = load(row, start + lanes())
        for place in range(start, start + BLOCK, 4 * lanes()):
            first, second = load(row, place), load(row, place + lanes())
            third, fourth = load(row, place + 2 * lanes()), load(row, place + 3 * lanes())
            largest, more = at_least(at_least(largest, first), third), at_least(at_least(more, second), fourth)
            a, b, c, d = fma(first, zero, a), fma(second, zero, b), fma(third, zero, c), fma(fourth, zero, d)
        maxima[block] = max_lanes(at_least(largest, more))
    zeros = max_lanes(a) + max_lanes(b) + max_lanes(c) + max_lanes(d)
    if whole * BLOCK < tokens:
        zeros += keep_last_maximum(row, whole * BLOCK, tokens, maxima, whole)
    return 1 if zeros == np.float32(0.0) else 0


@njit(**KERNEL)
def keep_last_maximum(row, start, end, maxima, block):
    """The same for a block that isn't whole. return: the sum of 0·x"""
    largest, zeros = row[start], np.float32(0.0)
    for token in range(start, end):
        zeros += row[token] * np.float32(0.0)
        largest = max(largest, row[token])
    maxima[block] = largest
    return zeros


@njit(**KERNEL)
def list_row(row, tokens, maxima, values, ids):
    """Write a row's list. `values` first serves for the largest maxima, and `ids` for their blocks."""
    blocks, found = (tokens + BLOCK - 1) // BLOCK, 0
    limit = -np.float32(np.inf)
    for block in range(blocks):
        found = insert(values, ids, found, maxima[block], block)
    if found == LISTED:
        limit = values[LISTED - 1]
    found = 0
    for block in range(blocks):
        # Once the list is full, whatever only equals its last token comes behind it: its id is larger.
        if maxima[block] >= limit and (found < LISTED or maxima[block] > values[LISTED - 1]):
            for token in range(block * BLOCK, min(tokens, (block + 1) * BLOCK)):
                if row[token] >= limit:
                    found = insert(values, ids, found, row[token], token)


@njit(**INLINE)
def insert(values, ids, found, value, token):
    """Insert a token into a list of the likeliest so far, behind equal ones; the last falls out of a full list.

    return: how many are listed now
    """
    place = found
    if found == LISTED:
        if not value > values[LISTED - 1]:
            return found
        place = LISTED - 1
    while place > 0 and values[place - 1] < value:
        values[place], ids[place] = values[place - 1], ids[place - 1]
        place -= 1
    values[place], ids[place] = value, np.int32(token)
    return min(found + 1, LISTED)
