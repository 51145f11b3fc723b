"""A function and what it calls become one piece of machine code, and Numba is left as it was found."""

from __future__ import annotations

import ctypes
import re
import threading

import llvmlite.binding as llvm
import numba
import numpy as np
import pytest
from numba.core.codegen import JITCodeLibrary, JITCPUCodegen
from numba.core.registry import cpu_target

from kaishu.cpu.compiling import compile_whole
from kaishu.cpu.vector import KERNEL, floats_at

ONE = (numba.int64,)


@pytest.fixture(autouse=True)
def numba_as_it_is(monkeypatch):
    """Without what conftest.py has made of Numba, which is much the same as what is tested here."""
    codegen = cpu_target.target_context.codegen()
    monkeypatch.setattr(codegen, "_library_class", JITCodeLibrary)
    monkeypatch.setattr(codegen, "set_env", JITCPUCodegen.set_env.__get__(codegen))


@numba.njit(**KERNEL)
def tripled(x):
    return 3 * x


@numba.njit(**KERNEL)
def tripled_and_more(x, times):
    for _ in range(times):
        x = tripled(x) + 1
    return x


def twice(x):
    return tripled_and_more(x, 2) + tripled(x)


def scaled(address, count):
    numbers = floats_at(address)
    for index in range(count):
        numbers[index] *= np.float32(tripled(index))


def called(symbol: str, code: bytes, *arguments: int) -> int:
    """Link object code that needs nothing else, and call its function by Numba's convention."""
    linker = llvm.create_lljit_compiler()
    linked = llvm.JITLibraryBuilder().add_object_img(code).add_current_process().export_symbol(symbol).link(linker, "x")
    result, exception = ctypes.c_int64(), ctypes.c_void_p()
    kinds = (ctypes.c_void_p,) * 2 + (ctypes.c_int64,) * len(arguments)
    function = ctypes.CFUNCTYPE(ctypes.c_int32, *kinds)(linked[symbol])
    assert function(ctypes.addressof(result), ctypes.addressof(exception), *arguments) == 0
    return result.value


def test_what_a_function_calls_is_in_its_code():
    assert called(*compile_whole(twice, ONE), 5) == 64
    numbers = np.array([5, 7, 0.5], np.float32)
    called(*compile_whole(scaled, (numba.int64, numba.int64)), numbers.ctypes.data, 3)
    assert numbers.tolist() == [0, 21, 3]


def test_nothing_but_the_whole_becomes_machine_code(monkeypatch):
    made = []
    add = JITCPUCodegen._add_module
    monkeypatch.setattr(
        JITCPUCodegen, "_add_module", lambda self, module: made.append(module.name) or add(self, module)
    )

    @numba.njit(**KERNEL)
    def not_compiled_before(x):
        return x + 12345

    compile_whole(lambda x: not_compiled_before(np.int64(x)), ONE)
    assert not made


def test_the_whole_is_optimised():
    """What is called is inlined: nothing else is left to call, and a loop of two turns is none any more."""
    functions = []
    optimise = JITCodeLibrary._optimize_final_module

    def seen(library):
        optimise(library)
        functions.append(str(library._final_module))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(JITCodeLibrary, "_optimize_final_module", seen)
        compile_whole(twice, ONE)
    (text,) = functions
    outermost = re.search(r"^define [^@]*@\S*twiceB.*?^}", text, re.DOTALL | re.MULTILINE)
    assert outermost and "call" not in outermost[0] and "br " not in outermost[0]


def test_numba_compiles_as_before_afterwards():
    codegen = cpu_target.target_context.codegen()
    before = codegen._library_class, codegen.set_env
    compile_whole(twice, ONE)

    @numba.njit
    def from_python(x):
        return tripled_and_more(x, 2)

    assert from_python(5) == 49, "it links what was compiled for the kernel, and is called"
    with pytest.raises(numba.TypingError):
        compile_whole(lambda x: x.nothing, ONE)
    assert (codegen._library_class, codegen.set_env) == before


def test_two_threads_compile_one_after_the_other():
    codegen = cpu_target.target_context.codegen()
    before, found, together = (codegen._library_class, codegen.set_env), [], threading.Barrier(3)

    def work(number):
        together.wait()
        found.append(called(*compile_whole(lambda x: tripled(x) + number, ONE), 1))

    threads = [threading.Thread(target=work, args=(number,)) for number in (10, 20, 30)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == [13, 23, 33]
    assert (codegen._library_class, codegen.set_env) == before
