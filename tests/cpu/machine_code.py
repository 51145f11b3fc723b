"""Numba makes machine code of what Python calls, and of nothing else: half of the time that the tests would compile.

Numba's own way, in short, is to optimise every function that is called, with all that it contains, and to make machine
code of it; see kaishu/cpu/compiling.py, which doesn't do that either. Used by conftest.py for a whole process.
"""

from __future__ import annotations

from numba.core.codegen import JITCodeLibrary
from numba.core.registry import cpu_target

from kaishu.cpu.compiling import LinkedCode


class _CodeOnDemand(LinkedCode):
    def get_pointer_to_function(self, name: str) -> int:
        self._ensure_finalized()
        if all(function.name != name for function in self.get_defined_functions()):
            return 0
        engine = self.codegen._engine
        if not engine.is_symbol_defined(name):
            JITCodeLibrary._optimize_final_module(self)
            JITCodeLibrary._finalize_final_module(self)
        return engine.get_function_address(name)


def make_on_demand() -> None:
    """For all that this process compiles from now on."""
    codegen = cpu_target.target_context.codegen()
    set_environment = codegen.set_env

    def set_env(name, environment):
        if codegen._engine.is_symbol_defined(name):
            set_environment(name, environment)

    codegen._library_class, codegen.set_env = _CodeOnDemand, set_env
