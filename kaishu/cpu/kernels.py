"""Compiled kernels on disk: made once for a machine, found again at the next start.

Owns where Numba keeps its machine code, and when that is out of date. Numba itself only notices that the file of the
outermost function has changed; here the folder's name is a digest of every file of kaishu/cpu, of Numba's and LLVM's
versions and of the CPU, so that code from another state of the world is never found. Used by executor.py.
"""

from __future__ import annotations

import hashlib
import platform
import tempfile
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any


def kernel_folder(kernels: Path) -> Path:
    """Where this version's machine code for this CPU is kept, below the folder for all kernels."""
    import llvmlite
    import llvmlite.binding
    import numba
    from numba.core.registry import cpu_target

    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.name.encode() + path.read_bytes())
    codegen = cpu_target.target_context.codegen()
    versions = (numba.__version__, llvmlite.__version__, platform.python_version(), platform.machine())
    for part in (*versions, llvmlite.binding.get_host_cpu_name(), codegen._tm_features):
        digest.update(b"\0" + part.encode())
    return kernels / digest.hexdigest()[:16]


def keep_compiled(functions: Iterable[Any], folder: Path) -> bool:
    """Have Numba look for these functions' machine code in `folder`, and leave it there after compiling.

    return: whether it isn't there yet, so that the first use will take long

    A folder that can't be written is no error, nor is a full disk: then they are compiled at every start.
    """
    import numba

    is_new = not folder.is_dir() or not any(folder.rglob("*.nbi"))
    if not _can_keep_files(folder):  # Numba would try __pycache__ next, and there find code of another state
        return is_new
    kept = numba.config.CACHE_DIR
    numba.config.CACHE_DIR = str(folder)  # read when a function's cache is set up, and only then
    try:
        for function in functions:
            function.enable_caching()
            function._cache.save_overload = _saving_if_possible(function._cache.save_overload)
    except RuntimeError:  # Numba found no place that can be written
        pass
    finally:
        numba.config.CACHE_DIR = kept
    return is_new


def _can_keep_files(folder: Path) -> bool:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError:
        return False
    return True


def _saving_if_possible(save: Callable[[Any, Any], None]) -> Callable[[Any, Any], None]:
    """Numba raises what goes wrong while it saves, although the code that it was asked for is there."""

    def save_if_possible(signature: Any, compiled: Any) -> None:
        with suppress(OSError):
            save(signature, compiled)

    return save_if_possible
