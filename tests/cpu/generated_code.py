"""Prints the assembly that the innermost loops would become on some CPU, be it this one or not.

Run as `python -m tests.cpu.generated_code TRIPLE FEATURES`. A process of its own, because Numba keeps what it has
generated for one target; it runs nothing of what it compiles. Numba makes LLVM's optimised code, which is then
compiled for the triple by LLVM's own cross compiler, as Numba does on that CPU. Used by test_target.py.
"""

from __future__ import annotations

import sys

import llvmlite.binding as llvm
import numba
from numba import types
from numba.core import compiler
from numba.core.compiler_lock import global_compiler_lock
from numba.core.registry import cpu_target

from kaishu.cpu import bfloat_products, blocks, products, target, tile_blocks, tiles, vector
from kaishu.cpu.compiling import only_linking
from kaishu.cpu.products import WIDE
from kaishu.cpu.records import ACTIVATIONS


def linked(function, arguments) -> str:
    """LLVM's text of one function and of what it calls; Numba's steps up to machine code."""
    flags = compiler.Flags()
    flags.no_compile = flags.no_cpython_wrapper = flags.no_cfunc_wrapper = True
    flags.error_model = "numpy"
    context = cpu_target.target_context
    with global_compiler_lock, only_linking(context.codegen()):
        compiled = compiler.compile_extra(
            cpu_target.typing_context, context, function.py_func, arguments, types.void, flags, {}
        )
        compiled.library._ensure_finalized()
    return str(compiled.library._final_module)


def assembly(text: str, triple: str, features: str) -> str:
    """The text compiled for another CPU: only its triple and the sizes of its types are exchanged."""
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    machine = llvm.Target.from_triple(triple).create_target_machine(features=features, opt=3)
    kept = [line for line in text.splitlines() if not line.startswith(("target triple", "target datalayout"))]
    module = llvm.parse_assembly("\n".join(kept))
    module.triple, module.data_layout = triple, str(machine.target_data)
    module.verify()
    tuning = llvm.create_pipeline_tuning_options(speed_level=3)
    passes = llvm.create_pass_builder(machine, tuning)
    passes.getModulePassManager().run(module, passes)
    return str(machine.emit_assembly(module))


def main(triple: str, features: str) -> None:
    enabled = frozenset(word[1:] for word in features.split(",") if word.startswith("+"))
    chosen = target.target_from(enabled, triple.split("-")[0])
    for module in (vector, products, bfloat_products, tiles):
        module.current_target = lambda: chosen  # type: ignore[attr-defined]
    cpu_target.target_context.refresh()
    whole, activations = types.int64, numba.from_dtype(ACTIVATIONS)
    bytes_, halves, floats = (types.CPointer(kind) for kind in (types.uint8, types.uint16, types.float32))
    block = types.Tuple((bytes_, halves, halves))
    integers = (block, whole, activations, whole, floats, whole, whole)
    pairs = (block, block, whole, activations, whole, floats, whole, floats, whole)
    bfloats = (halves, whole, floats, whole, whole, floats, whole, whole)
    two_blocks = (halves, whole, activations, whole, floats, whole, whole)
    few_tiles = (halves, halves, whole, halves, whole, floats, whole, whole, floats, whole, whole)
    bytes_in_tiles = (bytes_, halves, halves, whole, whole, activations, whole, floats, whole, whole)
    in_tiles = (
        ("bf16_tiles", tile_blocks.wide_tiles, two_blocks),
        ("few_bf16_tiles", tile_blocks.few_tiles, few_tiles),
        ("byte_tiles", tile_blocks._plain_byte_tiles, (*bytes_in_tiles, types.CPointer(types.int32), bytes_, whole)),
    )
    for name, function, arguments in (
        ("int4", blocks._int4_tile(WIDE, False), integers),
        ("int4_minimum", blocks._int4_tile(WIDE, True), integers),
        ("int8", blocks._int8_tile(WIDE), integers),
        ("bf16", blocks.wide_bf16, bfloats),
        ("int4_pair", blocks.int4_pair, pairs),
        ("int8_pair", blocks.int8_pair, pairs),
        *(in_tiles if chosen.has_tiles else ()),
    ):
        print(f"== {name}")
        print(assembly(linked(function, arguments), triple, features))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
