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

from kaishu.cpu.threads import ARRIVED, COUNTERS, GENERATION, LINE
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
    """Wait until every rank is here. Spins a little, then yields: a rank without a core isn't kept from it."""
    if ranks == 1:
        return
    generation = _read(shared, GENERATION)
    if _add(shared, ARRIVED, 1) == ranks - 1:
        _add(shared, ARRIVED, -ranks)
        _add(shared, GENERATION, 1)
        return
    turns = 0
    while _read(shared, GENERATION) == generation:
        turns += 1
        if turns > SPINS:
            _let_others_run()


@njit(**INLINE)
def claim(shared, stage, pieces):
    """The next `pieces` pieces of a stage, which are this rank's alone; return: the first of them."""
    return _add(shared, COUNTERS + stage * LINE, pieces)
