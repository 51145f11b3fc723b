"""Products of bfloat16 weights: pairs of neighbours along K times the activations of a tile's tokens.

Owns the one instruction for it that some CPUs have, and what the others do instead: a bfloat16 is the upper half of a
float32, so a pair is widened with a shift and a mask and multiplied in two steps, the even neighbour first. Called by
blocks.py and page_products.py; the tiles are those of products.py.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from kaishu.cpu.products import loaded
from kaishu.cpu.target import current_target
from kaishu.cpu.vector import (
    I8,
    I16,
    I32,
    I64,
    called,
    constant,
    constant_of_target,
    floats,
    multiplied_added,
    read,
    splatted,
)

# How many 32-bit words two neighbouring activations take: one with BF16 instructions, else two float32.
pair_words = constant_of_target(lambda: 1 if current_target().has_bf16 else 2)


def _even(builder: Any, pairs: Any) -> Any:
    bits = builder.bitcast(pairs, ir.VectorType(I32, floats().count))
    return builder.bitcast(builder.shl(bits, constant(bits.type, 16)), floats().llvm)


def _odd(builder: Any, pairs: Any) -> Any:
    bits = builder.bitcast(pairs, ir.VectorType(I32, floats().count))
    return builder.bitcast(builder.and_(bits, constant(bits.type, -65536)), floats().llvm)


def _multiplied_pair(builder: Any, totals: list[Any], pairs: Any, x_pointer: Any, places: list[Any]) -> list[Any]:
    lanes = floats()
    if current_target().has_bf16:
        return [
            called(
                builder,
                f"llvm.x86.avx512bf16.dpbf16ps.{32 * lanes.count}",
                lanes.llvm,
                [total, _as_bfloat(builder, pairs), _as_bfloat(builder, _splat_at(builder, x_pointer, place))],
            )
            for total, place in zip(totals, places, strict=True)
        ]
    for weights, offset in ((_even(builder, pairs), 0), (_odd(builder, pairs), 1)):
        totals = [
            multiplied_added(
                builder, weights, _splat_at(builder, x_pointer, builder.add(place, ir.Constant(I64, offset))), total
            )
            for total, place in zip(totals, places, strict=True)
        ]
    return totals


def _splat_at(builder: Any, pointer: Any, place: Any) -> Any:
    return splatted(builder, loaded(builder, pointer, place), floats().count)


class _BFloat(ir.types.Type):  # type: ignore[misc]
    """LLVM's bfloat, which llvmlite has no name for."""

    intrinsic_name = "bf16"

    def _to_string(self) -> str:
        return "bfloat"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _BFloat)

    def __hash__(self) -> int:
        return hash("bfloat")


def _as_bfloat(builder: Any, vector: Any) -> Any:
    return builder.bitcast(vector, ir.VectorType(_BFloat(), 2 * floats().count))


@intrinsic
def multiply_pairs(typing: Any, tile: Any, pairs: Any, x: Any, index: Any, stride: Any) -> Any:
    """tile[t] += weights · x[t]: two neighbours along K; token t's start at word x[index + t·stride].

    With float32 activations the even neighbour is added first, then the odd one, each product rounded once (fma).
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        totals, weights, x_pointer, place, step = arguments
        unpacked = cgutils.unpack_tuple(builder, totals, tile.count)
        places = [builder.add(place, builder.mul(step, ir.Constant(I64, token))) for token in range(tile.count)]
        return context.make_tuple(builder, tile, _multiplied_pair(builder, unpacked, weights, x_pointer, places))

    return tile(tile, pairs, x, types.int64, types.int64), generate


def _halves_of_word(builder: Any, pointer: Any, place: Any) -> list[Any]:
    """Two neighbouring activations in every lane, from a word of two bfloat16 or from two float32."""
    if not current_target().has_bf16:
        following = builder.add(place, ir.Constant(I64, 1))
        return [_splat_at(builder, pointer, index) for index in (place, following)]
    pairs = builder.bitcast(_splat_at(builder, pointer, place), ir.VectorType(I32, floats().count))
    return [_even(builder, pairs), _odd(builder, pairs)]


@intrinsic
def multiply_kept(typing: Any, tile: Any, memory: Any, start: Any, x: Any, index: Any, stride: Any) -> Any:
    """tile[t] += kept · x[t]: two neighbours along K of what a page keeps, from memory[start] on.

    memory: pointer to bfloat16, [lanes, 2] from `start` on, or to int8, [2, lanes]
    """
    is_int8 = memory.dtype == types.int8

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        totals, pointer, first, x_pointer, place, step = arguments
        unpacked, count = cgutils.unpack_tuple(builder, totals, tile.count), floats().count
        places = [builder.add(place, builder.mul(step, ir.Constant(I64, token))) for token in range(tile.count)]
        if not is_int8:
            pairs = read(builder, pointer, first, ir.VectorType(I16, 2 * count), 2)
            return context.make_tuple(builder, tile, _multiplied_pair(builder, unpacked, pairs, x_pointer, places))
        values = [_halves_of_word(builder, x_pointer, own) for own in places]
        for half in range(2):
            offset = builder.add(first, ir.Constant(I64, half * count))
            whole = builder.sext(read(builder, pointer, offset, ir.VectorType(I8, count), 1), ir.VectorType(I32, count))
            weights = builder.sitofp(whole, floats().llvm)
            unpacked = [
                multiplied_added(builder, weights, both[half], total)
                for both, total in zip(values, unpacked, strict=True)
            ]
        return context.make_tuple(builder, tile, unpacked)

    return tile(tile, memory, types.int64, x, types.int64, types.int64), generate
