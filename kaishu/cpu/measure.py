"""What this machine can do at most: how fast its ranks together read memory, and how fast they multiply.

Owns the kernels that find that out. They are made of the instructions that a model runs on (vector.py, products.py) and
do nothing else, so a step that reads so many bytes and does so many operations can't take less time. Knows nothing of
models and keeps no time: kaishu/benchmark.py does.

Reading: every vector of a memory larger than the caches, once, added up; ranks claim four megabytes at a time and read
them at four places at once, which is faster than at one. Multiplying: two tiles of sums and a row of activations, all
in registers, and two vectors of weights from the first-level cache; nothing is unpacked, scaled or stored until the
end. In tile registers: all four sums, two tiles of activations, and two of weights from the cache.
"""

from __future__ import annotations

from typing import Any, Literal, get_args

import numpy as np
from numba import njit
from numpy.typing import NDArray

from kaishu.cpu.barriers import barrier, claim
from kaishu.cpu.bfloat_products import multiply_pairs, pair_words
from kaishu.cpu.kernels import Entry, Kernels
from kaishu.cpu.products import (
    WIDE,
    dot_bytes,
    dot_nibbles,
    store_tile,
    wide_tokens,
    zero_byte_sums,
    zero_nibble_sums,
    zero_tile,
)
from kaishu.cpu.records import address
from kaishu.cpu.target import TILE, current_target
from kaishu.cpu.threads import Ranks, shared_state
from kaishu.cpu.tiles import (
    TILE_PAIRS,
    has_tiles,
    load_tile,
    multiply_byte_tiles,
    multiply_tiles,
    only_with_tiles,
    release_tiles,
    shape_byte_tiles,
    shape_tiles,
    store_sums,
)
from kaishu.cpu.vector import (
    KERNEL,
    bytes_at,
    floats_at,
    fma,
    halves_at,
    int8_at,
    int32_at,
    lanes,
    load,
    load_bytes,
    load_pairs,
    prefetch,
    splat,
    store,
)

Arithmetic = Literal["int4", "int8", "bf16", "float32"]
"""Which weights are multiplied: the instructions differ. float32 is the plain fused multiply-add."""
_INT4, _INT8, _BF16, _FLOAT32 = range(4)  # the same for the kernels: places in get_args(Arithmetic)

READ = Entry("read", "kaishu.cpu.measure", "read", (None,) * 6)
MULTIPLY = Entry("multiply", "kaishu.cpu.measure", "multiply_on_rank", (None,) * 9)
STREAMS = 4  # places that a rank reads at the same time
PIECE_FLOATS = STREAMS << 18  # a megabyte each, claimed at once
LINE_FLOATS = 16  # a cache line
AHEAD_FLOATS = 512  # how far before their use lines are fetched
_BFLOAT_ONE = 0x3F80
TURNS_APART = 64  # so many turns have weights of their own; of fewer, LLVM would compute the products before the loop


@njit(**KERNEL)
def read(rank, ranks, shared, memory_address, pieces, totals):
    """Add up all numbers in the pieces that this rank claims.

    totals: the address of [ranks, lanes] float32, which get each rank's sums
    """
    memory, stream = floats_at(memory_address), PIECE_FLOATS // STREAMS
    a = b = c = d = splat(np.float32(0.0))
    barrier(shared, ranks)
    piece = claim(shared, 0, 1)
    while piece < pieces:
        start = piece * PIECE_FLOATS
        for index in range(start, start + stream, LINE_FLOATS):
            for line in range(index, index + PIECE_FLOATS, stream):
                prefetch(memory, line + AHEAD_FLOATS)
            for vector in range(index, index + LINE_FLOATS, lanes()):
                a = a + load(memory, vector)
                b = b + load(memory, vector + stream)
                c = c + load(memory, vector + 2 * stream)
                d = d + load(memory, vector + 3 * stream)
        piece = claim(shared, 0, 1)
    store(floats_at(totals), rank * lanes(), (a + b) + (c + d))


def read_through(kernels: Kernels, ranks: Ranks, memory: NDArray[np.float32]) -> float:
    """Read every number of a memory once, by all ranks together.

    memory: [n] float32, n a multiple of PIECE_FLOATS
    return: their sum
    """
    assert len(memory) % PIECE_FLOATS == 0, "ranks claim whole pieces"
    shared, totals = shared_state(1, ranks.count), np.zeros((ranks.count, current_target().lanes), np.float32)
    kernel, fixed = kernels.load(READ), (address(shared), address(memory), len(memory) // PIECE_FLOATS, address(totals))
    ranks.run(lambda rank: kernel(rank, ranks.count, *fixed))
    return float(totals.sum(dtype=np.float64))


@njit(**KERNEL)
def _multiply_nibbles(turns, weights, x, out):
    packed, activations, vector = bytes_at(weights), int8_at(x), 4 * lanes()
    first, second = zero_nibble_sums(WIDE), zero_nibble_sums(WIDE)
    for turn in range(turns):
        place = turn % TURNS_APART * 2 * vector
        first = dot_nibbles(first, load_bytes(packed, place), activations, 0, 4)
        second = dot_nibbles(second, load_bytes(packed, place + vector), activations, 0, 4)
    store_tile(floats_at(out), 0, lanes(), first)
    store_tile(floats_at(out), wide_tokens() * lanes(), lanes(), second)


@njit(**KERNEL)
def _multiply_bytes(turns, weights, x, out):
    packed, activations, vector = bytes_at(weights), int8_at(x), 4 * lanes()
    first, second = zero_byte_sums(WIDE), zero_byte_sums(WIDE)
    for turn in range(turns):
        place = turn % TURNS_APART * 2 * vector
        first = dot_bytes(first, load_bytes(packed, place), activations, 0, 4)
        second = dot_bytes(second, load_bytes(packed, place + vector), activations, 0, 4)
    store_tile(floats_at(out), 0, lanes(), first)
    store_tile(floats_at(out), wide_tokens() * lanes(), lanes(), second)


@njit(**KERNEL)
def _multiply_bfloats(turns, weights, x, out):
    pairs, words, vector = halves_at(weights), floats_at(x), 2 * lanes()
    first, second = zero_tile(WIDE), zero_tile(WIDE)
    for turn in range(turns):
        place = turn % TURNS_APART * 2 * vector
        first = multiply_pairs(first, load_pairs(pairs, place), words, 0, pair_words())
        second = multiply_pairs(second, load_pairs(pairs, place + vector), words, 0, pair_words())
    store_tile(floats_at(out), 0, lanes(), first)
    store_tile(floats_at(out), wide_tokens() * lanes(), lanes(), second)


@njit(**KERNEL)
def _multiply_floats(turns, weights, x, out):
    """Eight sums, because a fused multiply-add takes four cycles and two begin in each."""
    numbers, target, width = floats_at(weights), floats_at(out), lanes()
    factor = splat(floats_at(x)[0])
    a = b = c = d = e = f = g = h = splat(np.float32(0.0))
    for turn in range(turns):
        number = load(numbers, turn % TURNS_APART * width)
        a, b, c, d = fma(number, factor, a), fma(number, factor, b), fma(number, factor, c), fma(number, factor, d)
        e, f, g, h = fma(number, factor, e), fma(number, factor, f), fma(number, factor, g), fma(number, factor, h)
    for index, total in enumerate((a, b, c, d, e, f, g, h)):
        store(target, index * width, total)


@only_with_tiles
@njit(**KERNEL)
def _multiply_bfloat_tiles(turns, weights, x, out):
    shape_tiles(np.int64(TILE))  # all sums are zero then
    packed, activations = halves_at(weights), halves_at(x)
    load_tile(4, activations, 0, 2 * TILE)
    load_tile(5, activations, 2 * TILE * TILE, 2 * TILE)
    for _ in range(turns):
        load_tile(6, packed, 0, 2 * TILE)
        load_tile(7, packed, 2 * TILE * TILE_PAIRS, 2 * TILE)
        multiply_tiles(0, 4, 6)
        multiply_tiles(1, 4, 7)
        multiply_tiles(2, 5, 6)
        multiply_tiles(3, 5, 7)
    _store_all_sums(floats_at(out))


@only_with_tiles
@njit(**KERNEL)
def _multiply_byte_tiles(turns, weights, x, out):
    shape_byte_tiles(np.int64(TILE))
    packed, activations = int8_at(weights), int8_at(x)
    load_tile(4, activations, 0, 32)
    load_tile(5, activations, 32 * TILE, 32)
    for _ in range(turns):
        load_tile(6, packed, 0, 4 * TILE)
        load_tile(7, packed, 4 * TILE * 8, 4 * TILE)
        multiply_byte_tiles(0, 4, 6)
        multiply_byte_tiles(1, 4, 7)
        multiply_byte_tiles(2, 5, 6)
        multiply_byte_tiles(3, 5, 7)
    _store_all_sums(int32_at(out))


@njit(**KERNEL)
def _store_all_sums(out):
    store_sums(0, out, 0, TILE)
    store_sums(1, out, TILE * TILE, TILE)
    store_sums(2, out, 2 * TILE * TILE, TILE)
    store_sums(3, out, 3 * TILE * TILE, TILE)
    release_tiles()


@njit(**KERNEL)
def multiply_on_rank(rank, ranks, shared, kind, turns, weights, x, out, out_bytes):
    """One rank's `turns`; its sums go to out + rank · out_bytes"""
    barrier(shared, ranks)
    own = out + rank * out_bytes
    if has_tiles() and kind == _BF16:
        _multiply_bfloat_tiles(turns, weights, x, own)
    elif has_tiles() and kind != _FLOAT32:
        _multiply_byte_tiles(turns, weights, x, own)
    elif kind == _INT4:
        _multiply_nibbles(turns, weights, x, own)
    elif kind == _INT8:
        _multiply_bytes(turns, weights, x, own)
    elif kind == _BF16:
        _multiply_bfloats(turns, weights, x, own)
    else:
        _multiply_floats(turns, weights, x, own)


def multiply(kernels: Kernels, ranks: Ranks, kind: Arithmetic, turns: int) -> NDArray[Any]:
    """Multiply ones by ones, on every rank.

    turns:  how often; one turn is `turn_operations(kind)` operations of every rank
    return: [ranks, …] what each rank has summed up; of int8 with VNNI, weights count as 129 (see products.py)
    """
    target = current_target()
    weights, x = _ones(kind)
    sums = 8 if kind == "float32" else 4 * TILE if target.has_tiles else 2 * target.tokens
    dtype: type[np.generic] = np.float32
    if kind in {"int4", "int8"}:
        dtype = np.int16 if kind == "int4" and target.dot == "avx2" else np.int32
    out = np.zeros((ranks.count, sums * target.lanes * 4 // np.dtype(dtype).itemsize), dtype)
    shared, own_bytes = shared_state(0, ranks.count), out.strides[0]
    fixed = (get_args(Arithmetic).index(kind), turns, address(weights), address(x), address(out), own_bytes)
    kernel, counters = kernels.load(MULTIPLY), address(shared)
    ranks.run(lambda rank: kernel(rank, ranks.count, counters, *fixed))
    return out


def turn_operations(kind: Arithmetic) -> int:
    """Multiplications and additions of one turn of one rank; a product that is added counts as two."""
    target = current_target()
    if kind == "float32":
        return 2 * 8 * target.lanes
    if target.has_tiles:
        return 2 * 4 * TILE * TILE * 32
    products = 2 if kind == "bf16" else 4  # for each lane and token
    return 2 * 2 * target.tokens * target.lanes * products


def _ones(kind: Arithmetic) -> tuple[NDArray[Any], NDArray[Any]]:
    """Weights for TURNS_APART turns, and activations for a tile, as the kernels read them; two registers' of each where
    there are tile registers."""
    target = current_target()
    if target.has_tiles and kind != "float32":
        each = 2 * TILE * 32  # two tiles
        return (np.ones(each, np.int8),) * 2 if kind != "bf16" else (np.full(each, _BFLOAT_ONE, np.uint16),) * 2
    vectors = TURNS_APART * (1 if kind == "float32" else 2)
    if kind in {"int4", "int8"}:
        return np.ones(vectors * 4 * target.lanes, np.int8), np.ones(4 * target.tokens, np.int8)
    if kind == "float32":
        return np.ones(vectors * target.lanes, np.float32), np.ones(1, np.float32)
    pairs = np.full(vectors * 2 * target.lanes, _BFLOAT_ONE, np.uint16)
    if target.has_bf16:
        return pairs, np.full(2 * target.tokens, _BFLOAT_ONE, np.uint16)
    return pairs, np.ones(2 * target.tokens, np.float32)
