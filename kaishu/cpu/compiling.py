"""A kernel and all that it calls, compiled as one piece by Numba and LLVM.

Owns the way from Python source to object code. kernels.py keeps what comes of it, and imports this module only when
there is something to compile, because it imports Numba, which takes longer than a start.

Numba itself makes machine code of each function, and links it into those that call it, which are optimised anew with
all that they contain. A step has some 170 functions, so that half of the time would go into code that is never called.
Here functions are only linked, and the whole is optimised and made machine code of once, at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numba
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler_lock import global_compiler_lock
from numba.core.registry import cpu_target

from kaishu.cpu.target import cpu_features
from kaishu.cpu.vector import KERNEL


class LinkedCode(JITCodeLibrary):  # type: ignore[misc]
    """The code of a function and of those that it calls, as Numba wrote it."""

    def _optimize_final_module(self) -> None:
        """Not yet: see compile_whole."""

    def _finalize_final_module(self) -> None:
        """Others may link it from now on; nobody calls it, so it doesn't become machine code."""
        self._finalized = True

    def get_pointer_to_function(self, name: str) -> int:
        """Zero, as for what there is no machine code of. Numba asks it for the function that Python would call."""
        return 0


def compile_whole(function: Callable[..., Any], arguments: tuple[Any, ...]) -> tuple[str, bytes]:
    """Compile a Python function and everything it calls for this CPU.

    arguments: their Numba types
    return:    the function's name in the object code, and that
    """
    codegen = cpu_target.target_context.codegen()
    assert codegen._tm_features == cpu_features(), "target.py knows what Numba generates for"
    # Without Numba's runtime, which counts references to arrays: kernels have none, and the linked code can't find it.
    outermost = numba.njit(_nrt=False, **KERNEL)(function)
    with global_compiler_lock:
        with only_linking(codegen):
            outermost.compile(arguments)
            made = outermost.overloads[arguments]
            made.library._ensure_finalized()
        made.library._verify_declare_only_symbols()
        JITCodeLibrary._optimize_final_module(made.library)
        return made.fndesc.llvm_func_name, codegen._tm.emit_object(made.library._final_module)


@contextmanager
def only_linking(codegen: Any) -> Iterator[None]:
    """What Numba compiles meanwhile is linked and nothing else."""
    before = codegen._library_class, codegen.set_env
    codegen._library_class = LinkedCode
    codegen.set_env = lambda name, environment: None  # without machine code there is no place to write it to
    try:
        yield
    finally:
        codegen._library_class, codegen.set_env = before
