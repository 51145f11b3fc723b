"""Tile registers (Intel's AMX): a matrix of activations times a matrix of weights, in one instruction.

Owns the registers and their instructions. Four have sums, [16 tokens, 16 rows of weights]; two have activations, two
have weights, in the order in which packed weights lie in memory (layout.py): a block of rows is one tile after another.
Called by tile_blocks.py and page_products.py; which CPUs have it is target.py's.

    bfloat16   [16 tokens, 32 along K] times [32 along K, 16 rows], added to float32
    int8       [16 tokens, 32 along K] times [32 along K, 16 rows], added to int32: one group, so that its sum is exact

An instruction for bfloat16 adds 32 products to each sum: those of the even places along K one after another, those of
the odd ones, then both (Intel's Software Developer's Manual, TDPBF16PS). Numbers below 2**-126 count as zero. How many
tokens there are makes no difference to any of them.

The registers' shape has to be set before they are used. An instruction takes as long for few tokens as for 16, or less.
"""

from __future__ import annotations

from typing import Any

from llvmlite import binding as llvm
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, overload

from kaishu.cpu.products import loaded
from kaishu.cpu.target import TILE, current_target
from kaishu.cpu.vector import (
    I8,
    I16,
    I32,
    I64,
    Vector,
    called,
    constant_of_target,
    read,
    splatted,
)

TILE_PAIRS = 16  # pairs of neighbours along K
_REGISTERS, _LINE_BYTES = 8, 64
_ACTIVATIONS, _WEIGHTS = (4, 5), (6, 7)  # the other registers have sums

has_tiles = constant_of_target(lambda: int(current_target().has_tiles))


def only_with_tiles(kernel: Any) -> Any:
    """A kernel without a result that is compiled for CPUs with tile registers alone. Elsewhere the calls, which are in
    branches that are never taken, are compiled to nothing."""

    def of_some_cpus(*arguments: Any) -> None:
        raise NotImplementedError("only compiled code calls it")

    @overload(of_some_cpus)
    def chosen(*arguments):  # noqa: ANN002  # Numba compares this signature with the lambda's
        if current_target().has_tiles:
            return lambda *arguments: kernel(*arguments)  # noqa: PLW0108  # Numba wants a function of its own
        return lambda *arguments: None

    return of_some_cpus


def _void(builder: Any, name: str, *arguments: Any) -> None:
    called(builder, f"llvm.x86.{name}", ir.VoidType(), list(arguments))


def _shaping(weight_rows: int, activation_bytes: int) -> Any:
    def typed(typing: Any, tokens: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            # 64 bytes: which palette; from 16 on the bytes of a row of each register; from 48 on how many rows it has
            shape = cgutils.alloca_once(builder, ir.ArrayType(I8, _LINE_BYTES))
            builder.store(ir.Constant(shape.type.pointee, [1] + [0] * (_LINE_BYTES - 1)), shape)
            start, tokens = builder.bitcast(shape, I8.as_pointer()), builder.trunc(arguments[0], I8)
            for register in range(_REGISTERS):
                width = activation_bytes if register in _ACTIVATIONS else _LINE_BYTES
                place = builder.gep(start, [ir.Constant(I64, 16 + 2 * register)])
                builder.store(ir.Constant(I16, width), builder.bitcast(place, I16.as_pointer()))
                rows = ir.Constant(I8, weight_rows) if register in _WEIGHTS else tokens
                builder.store(rows, builder.gep(start, [ir.Constant(I64, 48 + register)]))
            _void(builder, "ldtilecfg", start)
            return context.get_dummy_value()

        return types.void(types.int64), generate

    return intrinsic(typed)


# (tokens): begin to use the registers, with 1 to 16 tokens, for bfloat16 or for int8
shape_tiles, shape_byte_tiles = _shaping(TILE_PAIRS, _LINE_BYTES), _shaping(8, 32)


@intrinsic
def release_tiles(typing: Any) -> Any:
    """End it: the operating system needn't keep the registers any more when it changes threads."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        _void(builder, "tilerelease")
        return context.get_dummy_value()

    return types.void(), generate


@intrinsic(prefer_literal=True)
def zero_sums(typing: Any, register: Any) -> Any:
    """Make a register zero."""
    number = ir.Constant(I8, register.literal_value)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        _void(builder, "tilezero", number)
        return context.get_dummy_value()

    return types.void(register), generate


def _moving(name: str) -> Any:
    """Between a register and memory, whose elements have four bytes, two or one."""

    def typed(typing: Any, register: Any, pointer: Any, index: Any, stride: Any) -> Any:
        number, element_bytes = ir.Constant(I8, register.literal_value), pointer.dtype.bitwidth // 8

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            _, start, first, step = arguments
            place = builder.bitcast(builder.gep(start, [first]), I8.as_pointer())
            _void(builder, name, number, place, builder.mul(step, ir.Constant(I64, element_bytes)))
            return context.get_dummy_value()

        return types.void(register, pointer, types.int64, types.int64), generate

    return intrinsic(prefer_literal=True)(typed)


# (register, pointer, index, stride): a row of the register at `index`, the next one `stride` elements further on, …
load_tile, store_sums = _moving("tileloadd64"), _moving("tilestored64")


def _multiplying(name: str) -> Any:
    def typed(typing: Any, sums: Any, activations: Any, weights: Any) -> Any:
        numbers = [ir.Constant(I8, register.literal_value) for register in (sums, activations, weights)]

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            _void(builder, name, *numbers)
            return context.get_dummy_value()

        return types.void(sums, activations, weights), generate

    return intrinsic(prefer_literal=True)(typed)


# (sums, activations, weights): sums[t, n] += Σ activations[t, k] · weights[k, n], all three in registers
multiply_tiles, multiply_byte_tiles = _multiplying("tdpbf16ps"), _multiplying("tdpbssd")


def _scratch(dtype: Any) -> Any:
    """So many elements of the stack, a constant, for what registers leave or take. return: a pointer"""

    def typed(typing: Any, count: Any) -> Any:
        number = count.literal_value

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            with builder.goto_entry_block():
                memory = builder.alloca(ir.ArrayType(context.get_value_type(dtype), number))
            memory.align = _LINE_BYTES
            return builder.gep(memory, [ir.Constant(I64, 0), ir.Constant(I64, 0)])

        return types.CPointer(dtype)(count), generate

    return intrinsic(prefer_literal=True)(typed)


scratch_bytes, scratch_sums, scratch_floats = _scratch(types.uint8), _scratch(types.int32), _scratch(types.float32)


@intrinsic(prefer_literal=True)
def load_rows(typing: Any, tokens: Any, pointer: Any, index: Any, stride: Any) -> Any:
    """[tokens, 16] numbers of four bytes as a tile of products.py, from pointer[index] on; tokens is a constant."""
    vector = Vector(str(pointer.dtype), TILE)
    tile = types.UniTuple(vector, tokens.literal_value)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        _, start, first, step = arguments
        places = [builder.add(first, builder.mul(step, ir.Constant(I64, token))) for token in range(tile.count)]
        return context.make_tuple(builder, tile, [read(builder, start, place, vector.llvm, 4) for place in places])

    return tile(tokens, pointer, types.int64, types.int64), generate


@intrinsic
def add_group(typing: Any, tile: Any, sums: Any, place: Any, scale: Any, x_scales: Any, index: Any, stride: Any) -> Any:
    """tile[t] += sums[t] · (scale · scale of x[t]): as products.py's, for sums that `store_sums` left, [tokens, 16].

    The instruction that adds is written by name. So the order is kept, token by token, where LLVM would compute all
    factors first, for which there aren't the registers; and sums stay in theirs, where LLVM would move each once more.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        totals, start, first, scales, token_scales, own, step = arguments
        results, whole = [], ir.VectorType(I32, TILE)
        llvm.initialize_native_asmparser()  # LLVM will read the instruction when it makes machine code of it
        of_three = ir.FunctionType(tile.dtype.llvm, [tile.dtype.llvm] * 3)
        added = ir.InlineAsm(of_three, "vfmadd231ps $3, $2, $0", "=v,0,v,v,~{memory}", side_effect=True)
        for token, total in enumerate(cgutils.unpack_tuple(builder, totals, tile.count)):
            found = read(builder, start, builder.add(first, ir.Constant(I64, TILE * token)), whole, 4)
            at = builder.add(own, builder.mul(step, ir.Constant(I64, token)))
            factor = builder.fmul(scales, splatted(builder, loaded(builder, token_scales, at), TILE))
            results.append(builder.call(added, [total, builder.sitofp(found, total.type), factor]))
        return context.make_tuple(builder, tile, results)

    return tile(tile, sums, types.int64, scale, x_scales, types.int64, types.int64), generate


@intrinsic
def store_bytes(typing: Any, pointer: Any, index: Any, value: Any, less: Any) -> Any:
    """Write a vector of int8, every number less so many."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        start, first, vector, amount = arguments
        smaller = builder.sub(vector, splatted(builder, builder.trunc(amount, I8), vector.type.count))
        place = builder.bitcast(builder.gep(start, [first]), smaller.type.as_pointer())
        builder.store(smaller, place).align = 1
        return context.get_dummy_value()

    return types.void(pointer, types.int64, value, types.int64), generate
