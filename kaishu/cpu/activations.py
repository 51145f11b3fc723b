"""Where the numbers of a row of activations lie: the record ACTIVATIONS for those who write and read it.

Owns the order. Knows nothing of what is written: norm.py does that, and linear layers read it. Without tile registers
rows lie one after another. With them, 16 rows by 32 along K are one piece of memory, which is what a register holds:

    without      [T, K/32, 32]
    with         [T/16, K/32, 16, 32]

That is so of all forms but the words, which always lie row by row. What belongs to a group of 32, like its scale, has
the same order, with one number for the 32.
"""

from __future__ import annotations

from numba import njit

from kaishu.cpu.target import TILE, current_target
from kaishu.cpu.vector import INLINE, constant_of_target

# How many rows lie together, group by group.
rows_together = constant_of_target(lambda: TILE if current_target().has_tiles else 1)


@njit(**INLINE)
def row_place(x, row):
    """The place of a row's first number; that of what belongs to its first group is a 32nd."""
    together = rows_together()
    return row // together * (together * x.width) + row % together * 32


@njit(**INLINE)
def group_step():
    """From a group's first number to that of the next group of the same row."""
    return 32 * rows_together()


@njit(**INLINE)
def row_step(x):
    """From a number to that of the next row; with tile registers, of the same 16."""
    return x.width if rows_together() == 1 else 32
