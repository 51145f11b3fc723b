"""Tiles, and the products that fill them: rows of weights times the activations of several tokens.

Owns the tiles, and the int8 dot products, whose instructions differ between CPU families. A *tile* is a
tuple of vectors, the same `lanes` rows for several tokens, each token with a sum of its own; the number of tokens is a
constant of the compiled code, so a tile lives in registers. Called by blocks.py and page_products.py.

Sums of int8 products are whole numbers and therefore the same for every instruction and order:
- VNNI (`vpdpbusd`) multiplies unsigned by signed bytes, four for each lane, and adds them to an int32.
- AVX2 without it multiplies unsigned by signed bytes in pairs, into an int16 that saturates (`vpmaddubsw`). Products of
  4-bit weights are so small that a whole group of 32 fits (8 · 2 · 15 · 127 < 2**15), so they are widened (`vpmaddwd`)
  once a group. For int8 weights the sign moves from the weight to the activation, because one side must be unsigned,
  and every product is widened.
- NEON (`sdot`) multiplies signed by signed.
- Elsewhere bytes are widened and multiplied as int32.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from kaishu.cpu.target import current_target
from kaishu.cpu.vector import (
    F32,
    I16,
    I32,
    I64,
    Vector,
    called,
    constant,
    constant_of_target,
    floats,
    multiplied_added,
    packed_bytes,
    splatted,
)

WIDE = 0  # in place of a number of tokens: as many as target.py says that the registers allow
wide_tokens = constant_of_target(lambda: current_target().tokens)
query_rows = constant_of_target(lambda: current_target().query_rows)


def _tile_of(vector: Vector, literal: Any) -> Any:
    return types.UniTuple(vector, literal.literal_value or current_target().tokens)


def _zeros(context: Any, builder: Any, tile: Any) -> Any:
    zero = constant(tile.dtype.llvm, 0)
    return context.make_tuple(builder, tile, [zero] * tile.count)


def _zero_tile(vector: Any) -> Any:
    def typed(typing: Any, tokens: Any) -> Any:
        tile = _tile_of(vector(), tokens)

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return _zeros(context, builder, signature.return_type)

        return tile(tokens), generate

    return intrinsic(prefer_literal=True)(typed)


def _nibble_sums() -> Vector:
    count = current_target().lanes
    return Vector("int16", 2 * count) if current_target().dot == "avx2" else Vector("int32", count)


zero_tile = _zero_tile(floats)
zero_nibble_sums = _zero_tile(_nibble_sums)
zero_byte_sums = _zero_tile(lambda: Vector("int32", current_target().lanes))


@intrinsic
def group_sums(typing: Any, columns: Any) -> Any:
    """Of a group of activations eight times its sum, and the 32 bits that a lane's sum of 4-bit products begins with,
    so that q counts as q - 8: -8·Σx, or two int16, of the elements 0, 1 and of the elements 2, 3 of every four, where
    that is how products are added.

    columns: vector of float32; lane l has the sum of the elements l, l + lanes, … (whole numbers)
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        sums = builder.fptosi(arguments[0], ir.VectorType(I32, columns.count))
        while sums.type.count > 4:
            sums = builder.add(*_halves(builder, sums, sums.type.count // 2))
        pair = ir.VectorType(I32, 2)
        neighbours = [builder.shuffle_vector(sums, sums, ir.Constant(pair, places)) for places in ([0, 2], [1, 3])]
        halves = builder.mul(builder.add(*neighbours), constant(pair, -8))
        shift = both = builder.add(*(builder.extract_element(halves, ir.Constant(I32, half)) for half in range(2)))
        if current_target().dot == "avx2":
            shift = builder.bitcast(builder.trunc(halves, ir.VectorType(I16, 2)), I32)
        return context.make_tuple(builder, signature.return_type, [builder.neg(both), shift])

    return types.UniTuple(types.int32, 2)(columns), generate


@intrinsic(prefer_literal=True)
def shifted_nibble_sums(typing: Any, tokens: Any, x_shifts: Any, index: Any, stride: Any) -> Any:
    """The sums of a group of 4-bit products before the first one; token t's shift is x_shifts[index + t·stride]."""
    tile = _tile_of(_nibble_sums(), tokens)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        _, pointer, place, step = arguments
        shifts = [
            loaded(builder, pointer, builder.add(place, builder.mul(step, ir.Constant(I64, token))))
            for token in range(tile.count)
        ]
        lanes = current_target().lanes
        return context.make_tuple(
            builder, tile, [builder.bitcast(splatted(builder, shift, lanes), tile.dtype.llvm) for shift in shifts]
        )

    return tile(tokens, x_shifts, types.int64, types.int64), generate


def _nibble(builder: Any, value: Any, is_high: bool) -> Any:
    """The lower or upper four bits of every byte; there is no shift of bytes, so words are shifted and masked."""
    if is_high:
        words = builder.bitcast(value, ir.VectorType(I16, value.type.count // 2))
        value = builder.bitcast(builder.lshr(words, constant(words.type, 4)), value.type)
    return builder.and_(value, constant(value.type, 15))


def _nibbles(is_high: bool) -> Any:
    def typed(typing: Any, packed: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return _nibble(builder, arguments[0], is_high)

        return packed(packed), generate

    return intrinsic(typed)


low_nibbles, high_nibbles = _nibbles(False), _nibbles(True)


def _four_activations(builder: Any, pointer: Any, index: Any) -> Any:
    """[lanes, 4] int8: the same four neighbours of one token in every lane."""
    place = builder.bitcast(builder.gep(pointer, [index]), I32.as_pointer())
    four = builder.load(place)
    four.align = 1
    vector = packed_bytes()
    return builder.bitcast(splatted(builder, four, vector.count // 4), vector.llvm)


def _halves(builder: Any, vector: Any, count: int) -> list[Any]:
    index = ir.VectorType(I32, count)
    return [
        builder.shuffle_vector(vector, vector, ir.Constant(index, list(range(start, start + count))))
        for start in range(0, vector.type.count, count)
    ]


def _joined(builder: Any, parts: list[Any]) -> Any:
    count = parts[0].type.count
    return builder.shuffle_vector(*parts, ir.Constant(ir.VectorType(I32, 2 * count), list(range(2 * count))))


def _neon_dot(builder: Any, total: Any, a: Any, b: Any) -> Any:
    """sdot works on 128 bits: two of them make our eight lanes."""
    parts = [
        called(builder, "llvm.aarch64.neon.sdot.v4i32.v16i8", sums.type, [sums, left, right])
        for sums, left, right in zip(
            _halves(builder, total, 4), _halves(builder, a, 16), _halves(builder, b, 16), strict=True
        )
    ]
    return _joined(builder, parts)


def _portable_dot(builder: Any, total: Any, a: Any, b: Any) -> Any:
    wide = ir.VectorType(I32, a.type.count)
    products = builder.mul(builder.sext(a, wide), builder.sext(b, wide))
    for part in range(4):
        places = ir.Constant(ir.VectorType(I32, total.type.count), list(range(part, wide.count, 4)))
        total = builder.add(total, builder.shuffle_vector(products, products, places))
    return total


def _vnni_dot(builder: Any, total: Any, unsigned: Any, signed: Any) -> Any:
    bits = total.type.count * 32
    arguments = [total, builder.bitcast(unsigned, total.type), builder.bitcast(signed, total.type)]
    return called(builder, f"llvm.x86.avx512.vpdpbusd.{bits}", total.type, arguments)


def _kept_in_order(builder: Any, total: Any) -> Any:
    """The same register, through an empty piece of assembly: LLVM would else turn the chain of additions into a tree,
    which needs more registers than there are."""
    same = ir.InlineAsm(ir.FunctionType(total.type, [total.type]), "", "=x,0", side_effect=False)
    return builder.call(same, [total])


def _dot_nibbles(builder: Any, total: Any, weights: Any, activations: Any) -> Any:
    """Unsigned 4-bit weights (0 to 15) times int8."""
    form = current_target().dot
    if form == "avx2":
        pairs = called(builder, "llvm.x86.avx2.pmadd.ub.sw", total.type, [weights, activations])
        return builder.add(_kept_in_order(builder, total), pairs)
    if form == "sdot":
        return _neon_dot(builder, total, weights, activations)
    if form == "portable":
        return _portable_dot(builder, total, weights, activations)
    return _vnni_dot(builder, total, weights, activations)


def _dot_bytes(builder: Any, total: Any, weights: Any, activations: Any) -> Any:
    """Signed int8 weights times int8. For VNNI the weights are shifted by 128, which `add_byte_group` takes back."""
    form = current_target().dot
    if form == "avx2":
        sizes = called(builder, "llvm.abs.v32i8", weights.type, [weights, ir.Constant(ir.IntType(1), 0)])
        signed = called(builder, "llvm.x86.avx2.psign.b", weights.type, [activations, weights])
        pairs = called(builder, "llvm.x86.avx2.pmadd.ub.sw", ir.VectorType(I16, 16), [sizes, signed])
        return builder.add(
            total, called(builder, "llvm.x86.avx2.pmadd.wd", total.type, [pairs, constant(pairs.type, 1)])
        )
    if form == "sdot":
        return _neon_dot(builder, total, weights, activations)
    if form == "portable":
        return _portable_dot(builder, total, weights, activations)
    return _vnni_dot(builder, total, builder.xor(weights, constant(weights.type, -128)), activations)


def _multiplying(emit: Any) -> Any:
    def typed(typing: Any, sums: Any, weights: Any, pointer: Any, index: Any, stride: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            totals, packed, activations, place, step = arguments
            results = []
            for token, total in enumerate(cgutils.unpack_tuple(builder, totals, sums.count)):
                own = builder.add(place, builder.mul(step, ir.Constant(I64, token)))
                results.append(emit(builder, total, packed, _four_activations(builder, activations, own)))
            return context.make_tuple(builder, sums, results)

        return sums(sums, weights, pointer, types.int64, types.int64), generate

    return intrinsic(typed)


# sums[t] += weights · x[t]: four neighbours along K; token t's are at x[index + t·stride]
dot_nibbles, dot_bytes = _multiplying(_dot_nibbles), _multiplying(_dot_bytes)


def _nibble_total(builder: Any, sums: Any) -> Any:
    """A group's sums as int32."""
    if current_target().dot != "avx2":
        return sums
    lanes = ir.VectorType(I32, sums.type.count // 2)
    return called(builder, "llvm.x86.avx2.pmadd.wd", lanes, [sums, constant(sums.type, 1)])


def loaded(builder: Any, pointer: Any, index: Any) -> Any:
    """The number at an index of what `pointer` points to."""
    return builder.load(builder.gep(pointer, [index]))


def _adding(is_nibble: bool) -> Any:
    """tile[t] += sums[t] · (scale · scale of x[t]): one group of 32 along K; x_sums hold 8·Σx.

    Where VNNI needs them shifted by 128, int8 weights are shifted back here.
    """

    def typed(
        typing: Any, tile: Any, sums: Any, scale: Any, x_scales: Any, x_sums: Any, index: Any, stride: Any
    ) -> Any:
        is_shifted = not is_nibble and current_target().dot in {"vnni512", "vnni256"}

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            totals, group, scales, token_scales, token_sums, place, step = arguments
            results = []
            pairs = zip(
                cgutils.unpack_tuple(builder, totals, tile.count),
                cgutils.unpack_tuple(builder, group, tile.count),
                strict=True,
            )
            for token, (total, own_sums) in enumerate(pairs):
                own = builder.add(place, builder.mul(step, ir.Constant(I64, token)))
                whole = _nibble_total(builder, own_sums) if is_nibble else own_sums
                if is_shifted:
                    shift = builder.mul(loaded(builder, token_sums, own), ir.Constant(I32, 16))
                    whole = builder.sub(whole, splatted(builder, shift, whole.type.count))
                factor = builder.fmul(scales, splatted(builder, loaded(builder, token_scales, own), total.type.count))
                results.append(multiplied_added(builder, builder.sitofp(whole, total.type), factor, total))
            return context.make_tuple(builder, tile, results)

        return tile(tile, sums, scale, x_scales, x_sums, types.int64, types.int64), generate

    return intrinsic(typed)


add_nibble_group, add_byte_group = _adding(True), _adding(False)


@intrinsic
def add_minimum(typing: Any, tile: Any, minimum: Any, x_scales: Any, x_sums: Any, index: Any, stride: Any) -> Any:
    """tile[t] += minimum · (scale of x[t] · Σx[t]): what a group's smallest weight adds to all of its 32 products."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        totals, smallest, token_scales, token_sums, place, step = arguments
        results = []
        for token, total in enumerate(cgutils.unpack_tuple(builder, totals, tile.count)):
            own = builder.add(place, builder.mul(step, ir.Constant(I64, token)))
            eighth = ir.Constant(F32, 0.125)  # a power of two: exact
            whole = builder.fmul(builder.sitofp(loaded(builder, token_sums, own), F32), eighth)
            factor = builder.fmul(loaded(builder, token_scales, own), whole)
            results.append(multiplied_added(builder, smallest, splatted(builder, factor, total.type.count), total))
        return context.make_tuple(builder, tile, results)

    return tile(tile, minimum, x_scales, x_sums, types.int64, types.int64), generate


@intrinsic
def store_tile(typing: Any, target: Any, index: Any, stride: Any, tile: Any) -> Any:
    """Write token t's vector of float32 from target[index + t·stride] on."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer, place, step, totals = arguments
        for token, total in enumerate(cgutils.unpack_tuple(builder, totals, tile.count)):
            own = builder.add(place, builder.mul(step, ir.Constant(I64, token)))
            where = builder.bitcast(builder.gep(pointer, [own]), total.type.as_pointer())
            builder.store(total, where).align = 4
        return context.get_dummy_value()

    return types.void(target, types.int64, types.int64, tile), generate
