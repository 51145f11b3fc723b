"""Compiled kernels: made once for a machine, kept as object code, and called by address.

Owns the few kernels' way to something that Python can call, and the files that keep it. compiling.py makes object code
of them, but only the first time: it is linked by LLVM alone, so a later start needn't import Numba, which would take
half of its time. A kernel therefore takes nothing but whole numbers and addresses of records, and is named by its
module instead of imported. Used by executor.py, packing.py and measure.py.

    kernels/DIGEST/NAME.kernel      SHA-256 of the rest | name of the function | zero | object code

DIGEST is of every file of kaishu/cpu, of Numba's and LLVM's versions and of the CPU, so that code from another state of
the world is never found.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import llvmlite
import llvmlite.binding as llvm
import numpy as np

from kaishu.cpu.target import cpu_features, current_target

_DIGEST_BYTES = 32


@dataclass(frozen=True)
class Entry:
    """A kernel that Python calls.

    name:      of its file
    module:    where it is written, and
    function:  which of the module's functions it is
    arguments: for each, None for an int64, or the dtype of the record whose address is passed
    """

    name: str
    module: str
    function: str
    arguments: tuple[np.dtype[Any] | None, ...]


class Kernel:
    """A compiled kernel. Calling it lets other threads run."""

    def __init__(self, entry: Entry, symbol: str, code: bytes) -> None:
        """Link the object code into this process.

        symbol: the function's name in it
        raises: RuntimeError when it needs what the process doesn't have
        """
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        self._linker = llvm.create_lljit_compiler()  # code lives as long as these two
        library = llvm.JITLibraryBuilder().add_object_img(code).add_current_process().export_symbol(symbol)
        self._linked = library.link(self._linker, entry.name)
        # Numba's convention: a status, and before the arguments where the result goes and where an exception goes.
        pointers, numbers = (ctypes.c_void_p,) * 2, (ctypes.c_int64,) * len(entry.arguments)
        self._call = ctypes.CFUNCTYPE(ctypes.c_int32, *pointers, *numbers)(self._linked[symbol])

    def __call__(self, *arguments: int) -> int:
        """Numbers and addresses; return: what the kernel returns, if it is a whole number"""
        result, exception = ctypes.c_int64(), ctypes.c_void_p()
        status = self._call(ctypes.addressof(result), ctypes.addressof(exception), *arguments)
        assert status == 0, "kernels raise nothing"
        return result.value


class Kernels:
    """The kernels of one folder, compiled into it when they are first wanted."""

    def __init__(self, kernels: Path, say: Callable[[str], None] = lambda _: None) -> None:
        """Find them below the folder for all kernels.

        say: told, in a sentence and once, that compiling takes a while
        """
        self._folder, self._say, self._loaded = kernel_folder(kernels), say, dict[str, Kernel]()

    def is_compiled(self, entry: Entry) -> bool:
        """Whether a kernel is in the folder, so that `load` won't compile it, unless its file is damaged."""
        return entry.name in self._loaded or (self._folder / f"{entry.name}.kernel").exists()

    def load(self, entry: Entry) -> Kernel:
        """Have a kernel ready to be called. A folder that can't be written is no error, nor is a full disk: then it is
        compiled at every start."""
        if entry.name not in self._loaded:
            path = self._folder / f"{entry.name}.kernel"
            found = _read(path)
            if found is None:
                self._say("Compiling the kernels for this CPU; that is done once and takes up to half a minute.")
                self._say = lambda _: None
                found = _compiled(entry)
                with suppress(OSError):
                    _write(path, *found)
            self._loaded[entry.name] = Kernel(entry, *found)
        return self._loaded[entry.name]


def kernel_folder(kernels: Path) -> Path:
    """Where this version's machine code for this CPU is kept, below the folder for all kernels."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.name.encode() + path.read_bytes())
    versions = (_numba_version(), llvmlite.__version__, platform.python_version(), platform.machine())
    cpu = (llvm.get_host_cpu_name(), os.environ.get("NUMBA_CPU_NAME", ""), cpu_features(), current_target().name)
    for part in (*versions, *cpu):
        digest.update(b"\0" + part.encode())
    return kernels / digest.hexdigest()[:16]


def _numba_version() -> str:
    """Numba's version as its own file has it: to import Numba, or importlib.metadata, takes longer than to start."""
    found = find_spec("numba")
    assert found is not None and found.origin is not None, "Numba is a base dependency"
    return (Path(found.origin).parent / "_version.py").read_text(encoding="utf-8")


def _read(path: Path) -> tuple[str, bytes] | None:
    """return: the function's name and the object code; None if there is no whole file"""
    try:
        kept = path.read_bytes()
    except OSError:
        return None
    digest, rest = kept[:_DIGEST_BYTES], kept[_DIGEST_BYTES:]
    if hashlib.sha256(rest).digest() != digest:
        return None
    symbol, _, code = rest.partition(b"\0")
    return symbol.decode(), code


def _write(path: Path, symbol: str, code: bytes) -> None:
    """Keep object code; another process sees all of it or nothing.

    raises: OSError
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    rest = symbol.encode() + b"\0" + code
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    try:
        partial.write_bytes(hashlib.sha256(rest).digest() + rest)
        partial.replace(path)
    except OSError:
        partial.unlink(missing_ok=True)
        raise


def _compiled(entry: Entry) -> tuple[str, bytes]:
    """Have Numba and LLVM compile a kernel and everything it calls.

    return: the function's name in the object code, and that
    """
    import numba

    from kaishu.cpu.compiling import compile_whole

    types = tuple(numba.int64 if dtype is None else numba.from_dtype(dtype) for dtype in entry.arguments)
    return compile_whole(getattr(import_module(entry.module), entry.function).py_func, types)
