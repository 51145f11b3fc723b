"""The vector instructions: the few operations that all kernels are written with, for whatever CPU compiles them.

Owns the vector types and every LLVM instruction Kaishu emits; kernels are ordinary Numba functions that call these.
A vector has as many float32 lanes as target.py says (8, or 16 with AVX-512). A lane is a row of weights, a key or a
channel, so no operation adds lanes up, except `sum_lanes`, in one fixed order.

Most operations are LLVM's own vector arithmetic, which every CPU gets in its best form (or, on the rarest, lane by
lane). Only products of int8 and of bfloat16 need instructions by name: products.py, bfloat_products.py, tiles.py.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, models, overload, register_model

from kaishu.cpu.target import current_target

I8, I16, I32, I64 = (ir.IntType(bits) for bits in (8, 16, 32, 64))
F16, F32 = ir.HalfType(), ir.FloatType()
ELEMENTS = {"float32": F32, "int32": I32, "int16": I16, "int8": I8}
# No reassociation, no contraction: a sum is computed as it is written, on every CPU and at every place it is inlined.
# No wrappers for C and for Python, which call kernels by address (kernels.py): a sixth less to compile.
KERNEL: dict[str, Any] = {"error_model": "numpy", "no_cfunc_wrapper": True, "no_cpython_wrapper": True}
INLINE: dict[str, Any] = {**KERNEL, "forceinline": True}


class Vector(types.Type):  # type: ignore[misc]
    """Numba's type of a vector: `count` elements of one kind, held in registers."""

    def __init__(self, element: str, count: int) -> None:
        self.element, self.count = element, count
        super().__init__(name=f"Vector({element} x {count})")

    @property
    def llvm(self) -> ir.VectorType:
        """The same type for LLVM."""
        return ir.VectorType(ELEMENTS[self.element], self.count)


@register_model(Vector)
class _VectorModel(models.PrimitiveModel):  # type: ignore[misc]
    def __init__(self, manager: Any, vector: Vector) -> None:
        super().__init__(manager, vector, vector.llvm)


def floats() -> Vector:
    """[lanes] float32."""
    return Vector("float32", current_target().lanes)


def packed_bytes() -> Vector:
    """[lanes, 4] int8: four neighbours along K for each row."""
    return Vector("int8", 4 * current_target().lanes)


def packed_pairs() -> Vector:
    """[lanes, 2] the bits of bfloat16: two neighbours along K for each row."""
    return Vector("int16", 2 * current_target().lanes)


def splatted(builder: Any, value: Any, count: int) -> Any:
    """One value in every lane."""
    vector_type = ir.VectorType(value.type, count)
    single = builder.insert_element(ir.Constant(vector_type, ir.Undefined), value, ir.Constant(I32, 0))
    return builder.shuffle_vector(
        single, ir.Constant(vector_type, ir.Undefined), ir.Constant(ir.VectorType(I32, count), [0] * count)
    )


def constant(vector_type: ir.VectorType, value: float) -> ir.Constant:
    """The same constant in every lane."""
    return ir.Constant(vector_type, [value] * vector_type.count)


def called(builder: Any, name: str, result: Any, arguments: list[Any]) -> Any:
    """Call one of LLVM's intrinsics by its full name."""
    function_type = ir.FunctionType(result, [argument.type for argument in arguments])
    return builder.call(cgutils.get_or_insert_function(builder.module, function_type, name), arguments)


def multiplied_added(builder: Any, a: Any, b: Any, c: Any) -> Any:
    """a·b + c, rounded once where the CPU can."""
    if current_target().dot == "portable":
        return builder.fadd(builder.fmul(a, b), c)
    return called(builder, f"llvm.fma.v{a.type.count}f32", a.type, [a, b, c])


def read(builder: Any, pointer: Any, index: Any, vector_type: ir.VectorType, alignment: int) -> Any:
    """Load a vector that starts at element `index` of what `pointer` points to."""
    place = builder.bitcast(builder.gep(pointer, [index]), vector_type.as_pointer())
    loaded = builder.load(place)
    loaded.align = alignment
    return loaded


@intrinsic
def pointer(typing: Any, array: Any) -> Any:
    """The address of an array's first element, typed by its dtype."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return context.make_array(signature.args[0])(context, builder, arguments[0]).data

    return types.CPointer(array.dtype)(array), generate


@intrinsic
def moved(typing: Any, pointer: Any, elements: Any) -> Any:
    """A pointer so many elements further on."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.gep(arguments[0], [arguments[1]])

    return pointer(pointer, types.int64), generate


def _at(dtype: Any) -> Any:
    """A pointer to numbers of one type, from an address."""

    def typed(typing: Any, address: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return builder.inttoptr(arguments[0], context.get_value_type(signature.return_type))

        return types.CPointer(dtype)(types.int64), generate

    return intrinsic(typed)


bytes_at, halves_at, words_at, floats_at = map(_at, (types.uint8, types.uint16, types.uint32, types.float32))
int8_at, int32_at, int64_at, doubles_at = map(_at, (types.int8, types.int32, types.int64, types.float64))


def constant_of_target(value: Callable[[], int]) -> Any:
    """A whole number that depends on the CPU, as a constant of the compiled code."""

    def typed(typing: Any) -> Any:
        number = value()

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return ir.Constant(I64, number)

        return types.int64(), generate

    return intrinsic(typed)


lanes = constant_of_target(lambda: current_target().lanes)  # how many lanes a vector has


def _loading(vector: Callable[[], Vector], alignment: int) -> Any:
    def typed(typing: Any, pointer: Any, index: Any) -> Any:
        result = vector()

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return read(builder, arguments[0], arguments[1], result.llvm, alignment)

        return result(pointer, types.int64), generate

    return intrinsic(typed)


load = _loading(floats, 4)
load_bytes = _loading(packed_bytes, 1)
load_pairs = _loading(packed_pairs, 2)


@intrinsic
def load_bfloat16(typing: Any, pointer: Any, index: Any) -> Any:
    """[lanes] neighbouring bfloat16, widened."""
    result = floats()

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        bits = read(builder, arguments[0], arguments[1], ir.VectorType(I16, result.count), 2)
        wide = builder.zext(bits, ir.VectorType(I32, result.count))
        return builder.bitcast(builder.shl(wide, constant(wide.type, 16)), result.llvm)

    return result(pointer, types.int64), generate


@intrinsic
def load_half(typing: Any, pointer: Any, index: Any) -> Any:
    """[lanes] neighbouring float16, widened: by an instruction, or by shifting bits and scaling. Finite values only."""
    result = floats()

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        if current_target().has_half:
            halves = read(builder, arguments[0], arguments[1], ir.VectorType(F16, result.count), 2)
            return builder.fpext(halves, result.llvm)
        bits = read(builder, arguments[0], arguments[1], ir.VectorType(I16, result.count), 2)
        wide = builder.zext(bits, ir.VectorType(I32, result.count))
        magnitude = builder.shl(builder.and_(wide, constant(wide.type, 0x7FFF)), constant(wide.type, 13))
        sign = builder.shl(builder.and_(wide, constant(wide.type, 0x8000)), constant(wide.type, 16))
        value = builder.fmul(builder.bitcast(magnitude, result.llvm), constant(result.llvm, 2.0**112))
        return builder.bitcast(builder.or_(builder.bitcast(value, wide.type), sign), result.llvm)

    return result(pointer, types.int64), generate


@intrinsic
def store(typing: Any, pointer: Any, index: Any, value: Any) -> Any:
    """Write a vector of float32 from element `index` on."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        place = builder.bitcast(builder.gep(arguments[0], [arguments[1]]), arguments[2].type.as_pointer())
        builder.store(arguments[2], place).align = 4
        return context.get_dummy_value()

    return types.void(pointer, types.int64, value), generate


@intrinsic
def store_int8(typing: Any, pointer: Any, index: Any, value: Any) -> Any:
    """Write [lanes] whole numbers from -128 to 127 as int8."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        count = value.count
        whole = builder.fptosi(arguments[2], ir.VectorType(I32, count))
        narrow = builder.trunc(whole, ir.VectorType(I8, count))
        place = builder.bitcast(builder.gep(arguments[0], [arguments[1]]), narrow.type.as_pointer())
        builder.store(narrow, place).align = 1
        return context.get_dummy_value()

    return types.void(pointer, types.int64, value), generate


@intrinsic
def store_bfloat16(typing: Any, pointer: Any, index: Any, value: Any) -> Any:
    """Write a vector's lanes as neighbouring bfloat16: nearest, ties to even; what is no number stays so."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        wide = ir.VectorType(I32, value.count)
        bits = builder.bitcast(arguments[2], wide)
        upper = builder.lshr(bits, constant(wide, 16))
        odd = builder.and_(upper, constant(wide, 1))
        rounded = builder.lshr(builder.add(builder.add(bits, constant(wide, 0x7FFF)), odd), constant(wide, 16))
        is_nan = builder.fcmp_unordered("uno", arguments[2], arguments[2])
        kept = builder.select(is_nan, builder.or_(upper, constant(wide, 0x40)), rounded)
        narrow = builder.trunc(kept, ir.VectorType(I16, value.count))
        place = builder.bitcast(builder.gep(arguments[0], [arguments[1]]), narrow.type.as_pointer())
        builder.store(narrow, place).align = 2
        return context.get_dummy_value()

    return types.void(pointer, types.int64, value), generate


@intrinsic
def prefetch(typing: Any, pointer: Any, index: Any) -> Any:
    """Have the cache line of pointer[index] fetched; any address will do, also beyond the end."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        place = builder.bitcast(builder.gep(arguments[0], [arguments[1]]), I8.as_pointer())
        function_type = ir.FunctionType(ir.VoidType(), [place.type, I32, I32, I32])
        function = cgutils.get_or_insert_function(builder.module, function_type, "llvm.prefetch.p0")
        builder.call(function, [place, ir.Constant(I32, 0), ir.Constant(I32, 3), ir.Constant(I32, 1)])
        return context.get_dummy_value()

    return types.void(pointer, types.int64), generate


@intrinsic
def splat(typing: Any, value: Any) -> Any:
    """A float32 in every lane."""
    result = floats()

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return splatted(builder, arguments[0], result.count)

    return result(types.float32), generate


@intrinsic
def fma(typing: Any, a: Any, b: Any, c: Any) -> Any:
    """a·b + c in every lane."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return multiplied_added(builder, *arguments)

    return a(a, b, c), generate


def _between(emit: Callable[..., Any]) -> Any:
    """An operation of two vectors, lane by lane."""

    def typed(typing: Any, a: Any, b: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return emit(builder, *arguments)

        return a(a, b), generate

    return intrinsic(typed)


def _larger_magnitude(builder: Any, a: Any, b: Any) -> Any:
    """Of two that have no sign, whose bits as whole numbers have the same order, and above all what is no number."""
    x, y = (builder.bitcast(value, ir.VectorType(I32, value.type.count)) for value in (a, b))
    return builder.bitcast(builder.select(builder.icmp_unsigned(">", x, y), x, y), a.type)


def _bounded(comparison: str) -> Callable[..., Any]:
    """The bound where the value is beyond it, else the value, also one that is no number: a single instruction."""

    def emit(builder: Any, value: Any, bound: Any) -> Any:
        return builder.select(builder.fcmp_ordered(comparison, bound, value), bound, value)

    return emit


larger_magnitude = _between(_larger_magnitude)
at_least, at_most = _between(_bounded(">")), _between(_bounded("<"))
_OPERATIONS = {
    operator.add: _between(lambda builder, a, b: builder.fadd(a, b)),
    operator.sub: _between(lambda builder, a, b: builder.fsub(a, b)),
    operator.mul: _between(lambda builder, a, b: builder.fmul(a, b)),
    operator.truediv: _between(lambda builder, a, b: builder.fdiv(a, b)),
}


def _overloaded(symbol: Any, operation: Any) -> None:
    """Give an operator to vectors. Inlining it, Numba removes what it takes for dead: `pointer[i] = x`, too, if the
    pointer isn't used afterwards; outside loops such a write belongs into a function without vectors."""

    @overload(symbol, inline="always")
    def of_vectors(a, b):  # Numba compares this signature with the lambda's
        if isinstance(a, Vector) and isinstance(b, Vector):
            return lambda a, b: operation(a, b)  # noqa: PLW0108  # Numba wants a function of its own
        return None


for _symbol, _operation in _OPERATIONS.items():
    _overloaded(_symbol, _operation)


def _of_one(emit: Callable[..., Any]) -> Any:
    """An operation of one vector, lane by lane."""

    def typed(typing: Any, a: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return emit(builder, arguments[0])

        return a(a), generate

    return intrinsic(typed)


def _power(builder: Any, x: Any) -> Any:
    whole = builder.fptosi(x, ir.VectorType(I32, x.type.count))
    biased = builder.add(whole, constant(whole.type, 127))
    return builder.bitcast(builder.shl(biased, constant(whole.type, 23)), x.type)


magnitude = _of_one(lambda builder, x: called(builder, f"llvm.fabs.v{x.type.count}f32", x.type, [x]))
round_even = _of_one(lambda builder, x: called(builder, f"llvm.rint.v{x.type.count}f32", x.type, [x]))
power_of_two = _of_one(_power)  # 2**x of whole numbers from -126 to 127


def _folded(emit: Callable[..., Any]) -> Any:
    """All lanes to one value: the upper half with the lower, again and again, the same tree on every CPU."""

    def typed(typing: Any, vector: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            value = arguments[0]
            while value.type.count > 1:
                half = value.type.count // 2
                index = ir.VectorType(I32, half)
                lower = builder.shuffle_vector(value, value, ir.Constant(index, list(range(half))))
                upper = builder.shuffle_vector(value, value, ir.Constant(index, list(range(half, 2 * half))))
                value = emit(builder, lower, upper)
            return builder.extract_element(value, ir.Constant(I32, 0))

        return types.float32(vector), generate

    return intrinsic(typed)


sum_lanes, largest_magnitude = _folded(lambda builder, a, b: builder.fadd(a, b)), _folded(_larger_magnitude)
# The largest; no number if one is none, so that a broken row stays visibly broken. largest_magnitude: without a sign
max_lanes = _folded(lambda builder, a, b: called(builder, f"llvm.maximum.v{a.type.count}f32", a.type, [a, b]))


@intrinsic
def keep_between(typing: Any, value: Any, first: Any, low: Any, high: Any, otherwise: Any) -> Any:
    """Lane i stands for the place first + i: where low ≤ place < high its value, elsewhere `otherwise`."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        vector, start, low_place, high_place, other = arguments
        count = vector.type.count
        place_type = ir.VectorType(I64, count)
        places = builder.add(splatted(builder, start, count), ir.Constant(place_type, list(range(count))))
        inside = builder.and_(
            builder.icmp_signed(">=", places, splatted(builder, low_place, count)),
            builder.icmp_signed("<", places, splatted(builder, high_place, count)),
        )
        return builder.select(inside, vector, splatted(builder, other, count))

    return value(value, types.int64, types.int64, types.int64, types.float32), generate
