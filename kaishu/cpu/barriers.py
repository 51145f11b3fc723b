"""How ranks meet inside a kernel: the barrier, and how the pieces of a stage are divided.

Owns the only operations on memory that several threads write at once. The memory is threads.py's `shared_state`;
`shared` is its address. Called by forward.py and the modules of its stages.

Work is claimed, not assigned: a rank takes the next piece when it is done with its last, so a core that is slow or busy
with something else gets less. Which rank computes a piece never changes its result.
"""

from __future__ import annotations

import sys
from typing import Any

from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from kaishu.cpu.threads import ARRIVED, COUNTERS, GENERATION, LINE, OWN_SIZE, OWN_START
from kaishu.cpu.vector import INLINE

SPINS = 2000  # turns of waiting, some microseconds, before a waiting rank lets others run
_YIELD = "SwitchToThread" if sys.platform == "win32" else "sched_yield"


def _counter(builder: Any, shared: Any, place: Any) -> Any:
    """Where shared[place] lies."""
    return builder.gep(builder.inttoptr(shared, ir.IntType(64).as_pointer()), [place])


@intrinsic
def _add(typing: Any, shared: Any, place: Any, amount: Any) -> Any:
    """Atomically add to shared[place]; return: what it was before."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.atomic_rmw("add", _counter(builder, *arguments[:2]), arguments[2], "seq_cst")

    return types.int64(types.int64, types.int64, types.int64), generate


@intrinsic
def _read(typing: Any, shared: Any, place: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.load_atomic(_counter(builder, *arguments), "acquire", 8)

    return types.int64(types.int64, types.int64), generate


@intrinsic
def _let_others_run(typing: Any) -> Any:
    """Give the core to another thread that wants it."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        function_type = ir.FunctionType(ir.IntType(32), [])
        builder.call(cgutils.get_or_insert_function(builder.module, function_type, _YIELD), [])
        return context.get_dummy_value()

    return types.void(), generate


@njit(**INLINE)
def barrier(shared, ranks):
    """Wait until every rank is here."""
    if comes_last(shared, ranks):
        release(shared, ranks)


@njit(**INLINE)
def comes_last(shared, ranks):
    """A barrier in two halves, for work that is too little to divide: the rank that comes last does it, while the
    others wait anyway.

    return: True at once for the last rank, which then has to call `release`; False for the others, but not before that
    """
    if ranks == 1:
        return True
    generation = _read(shared, GENERATION)
    if _add(shared, ARRIVED, 1) == ranks - 1:
        return True
    turns = 0
    while _read(shared, GENERATION) == generation:
        turns += 1  # spins a little, then yields: a rank without a core isn't kept from it
        if turns > SPINS:
            _let_others_run()
    return False


@njit(**INLINE)
def release(shared, ranks):
    """Let the other ranks go on, who see all that was written before."""
    if ranks > 1:
        _add(shared, ARRIVED, -ranks)
        _add(shared, GENERATION, 1)


@njit(**INLINE)
def claim(shared, stage, pieces):
    """The next `pieces` pieces of a stage, which are this rank's alone; return: the first of them."""
    return _add(shared, COUNTERS + stage * LINE, pieces)


@njit(**INLINE)
def own_share(rank, ranks, total):
    """A rank's part of the pieces of a stage, if all are equally fast. return: its first piece, an even one; its end"""
    pairs = (total + 1) // 2
    return pairs * rank // ranks * 2, min(total, pairs * (rank + 1) // ranks * 2)


@njit(**INLINE)
def claim_two(rank, ranks, shared, stage, pieces, total, are_two):
    """As `claim_near`, but two runs at once: one in the first half of a share, the other at the same place in the
    second half, which may be shorter. Both begin at even pieces.

    pieces:  of each run; even
    are_two: if not, the first run is all, and the other one empty
    return:  the first piece and the end of each run; `total` four times when nothing is left
    """
    start, size = _read(shared, OWN_START), _read(shared, OWN_SIZE)
    for turn in range(ranks):
        owner = (rank + turn) % ranks
        first, end = own_share(owner, ranks, total)
        half = (end - first + 3) // 4 * 2 if are_two else (end - first + 1) // 2 * 2
        begun = _add(shared, start + owner * size + stage, pieces)
        if begun < half:
            stop = min(half, begun + pieces)
            middle = first + half
            return first + begun, min(end, first + stop), min(end, middle + begun), min(end, middle + stop)
    return total, total, total, total


@njit(**INLINE)
def claim_near(rank, ranks, shared, stage, pieces, total):
    """As `claim`, but a rank takes its own share from the beginning to the end, and then what others haven't begun.

    So what a rank reads lies in one run of memory, and its counter is seldom touched by another.

    return: the first piece and the end of the run; `total` twice when nothing is left
    """
    start, size = _read(shared, OWN_START), _read(shared, OWN_SIZE)
    for turn in range(ranks):
        owner = (rank + turn) % ranks
        first, end = own_share(owner, ranks, total)
        first += _add(shared, start + owner * size + stage, pieces)
        if first < end:
            return first, min(end, first + pieces)
    return total, total
