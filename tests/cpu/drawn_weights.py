"""Packed weights made in numpy, straight from the drawing in cpu/layout.py, and the records that kernels take.

Owns the tests' own reading of the layout: where the weight of row n and input k lies. Knows nothing of how the package
packs or computes, so that both can be held against it. Used by the tests of linear, embedding, feed_forward, packing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kaishu.cpu.layout import BF16, INT4, INT4_MINIMUM, INT8
from kaishu.cpu.records import ACTIVATIONS, MATRIX, MODEL, address, record
from kaishu.cpu.target import TILE, current_target

KINDS = {"bf16": BF16, "int8": INT8, "int4": INT4, "int4_minimum": INT4_MINIMUM}
WHOLE_KINDS = ("int8", "int4", "int4_minimum")
ALIGNMENT = 64


def places(kind: str, rows: int, inputs: int, lanes: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Where each weight lies. return: [N, K] the (first) byte, and by how many bits it is shifted there"""
    n, k = np.indices((rows, inputs))
    block, lane, group, inside = n // lanes, n % lanes, k // 32, k % 32
    if kind == "bf16":  # for each pair (k, k + 1): [lanes, 2] bfloat16
        return ((block * (inputs // 2) + k // 2) * lanes + lane) * 4 + k % 2 * 2, np.zeros_like(n)
    parts = 8 if kind == "int8" else 4  # for each group of 32: 8 or 4 × [lanes, 4] bytes
    within = inside if kind == "int8" else inside % 16
    byte = (((block * (inputs // 32) + group) * parts + within // 4) * lanes + lane) * 4 + within % 4
    return byte, np.where((kind != "int8") & (inside >= 16), 4, 0)


def scale_places(rows: int, inputs: int, lanes: int) -> NDArray[Any]:
    """[N, K/32] which of a linear's float16 scales belongs to a row's group: [blocks, groups, lanes]."""
    n, group = np.indices((rows, inputs // 32))
    return (n // lanes * (inputs // 32) + group) * lanes + n % lanes


def bfloat16_bits(values: NDArray[Any]) -> NDArray[np.uint16]:
    """Finite float32 to the nearest bfloat16, ties to even: what the sum of both neighbours' distances decides."""
    bits = values.astype(np.float32).view(np.uint32)
    low, high = bits >> 16, (bits >> 16) + 1
    distance = (bits & 0xFFFF).astype(np.int64)
    up = (distance > 0x8000) | ((distance == 0x8000) & (low % 2 == 1))
    return np.where(up, high, low).astype(np.uint16)


def bfloat16_values(bits: NDArray[Any]) -> NDArray[np.float32]:
    return (bits.astype(np.uint32) << 16).view(np.float32)


def as_bfloat16(values: NDArray[Any]) -> NDArray[np.float32]:
    return bfloat16_values(bfloat16_bits(values))


@dataclass(frozen=True)
class DrawnLinear:
    """A linear layer's bytes, and the numbers that they stand for.

    values: [N, K] float64
    bias:   [N] float32 or None
    """

    kind: str
    values: NDArray[np.float64]
    weights: bytes
    scales: bytes
    minimums: bytes
    bias: NDArray[np.float32] | None


def draw_linear(rng: np.random.Generator, kind: str, rows: int, inputs: int, *, bias: bool = False) -> DrawnLinear:
    """Random weights of every size that the kind has, the extremes among them; scales of both signs."""
    lanes = current_target().lanes
    assert rows % (2 * lanes) == 0 and inputs % 32 == 0, "already padded"
    added = rng.normal(size=rows).astype(np.float32) if bias else None
    byte, shift = places(kind, rows, inputs, lanes)
    if kind == "bf16":
        bits = bfloat16_bits(rng.normal(size=(rows, inputs)))
        data = np.zeros(rows * inputs, np.uint16)
        data[byte // 2] = bits
        return DrawnLinear(kind, bfloat16_values(bits).astype(np.float64), data.tobytes(), b"", b"", added)
    low, high, zero = {"int8": (-128, 127, 0), "int4": (0, 15, 8), "int4_minimum": (0, 15, 0)}[kind]
    whole = rng.integers(low, high + 1, (rows, inputs))
    whole[rng.random(whole.shape) < 0.2] = low
    whole[rng.random(whole.shape) < 0.2] = high
    data = np.zeros(rows * inputs // (1 if kind == "int8" else 2), np.uint8)
    np.bitwise_or.at(data, byte, ((whole & (255 if kind == "int8" else 15)) << shift).astype(np.uint8))
    shape = (rows, inputs // 32)
    scales, minimums = (rng.normal(scale=0.05, size=shape).astype(np.float16) for _ in range(2))
    place = scale_places(rows, inputs, lanes)
    packed_scales, packed_minimums = np.zeros((2, scales.size), np.float16)
    packed_scales[place], packed_minimums[place] = scales, minimums
    values = (whole - zero) * np.repeat(scales.astype(np.float64), 32, axis=1)
    has_minimum = kind == "int4_minimum"
    if has_minimum:
        values += np.repeat(minimums.astype(np.float64), 32, axis=1)
    end = packed_minimums.tobytes() if has_minimum else b""
    return DrawnLinear(kind, values, data.tobytes(), packed_scales.tobytes(), end, added)


@dataclass(frozen=True)
class DrawnModel:
    """A MODEL record, and the memory that it points to."""

    record: Any
    memory: NDArray[np.uint8]
    linears: NDArray[np.int64]


def draw_model(*linears: DrawnLinear, **fields: Any) -> DrawnModel:
    """Linears one after another in one memory, as records.py wants them; fields replace those of MODEL."""
    chunks, table, end = [], [], 0
    for linear in linears:
        offsets = []
        bias = b"" if linear.bias is None else linear.bias.tobytes()
        for part in (linear.weights, linear.scales, linear.minimums, bias):
            offsets.append(end if part else -1)
            chunks.append(part + bytes(-len(part) % ALIGNMENT))
            end += len(chunks[-1])
        rows, inputs = linear.values.shape
        table.append([KINDS[linear.kind], *offsets, rows, inputs, rows // current_target().lanes])
    memory = np.frombuffer(b"".join(chunks), np.uint8).copy()
    places_of = np.array(table, np.int64).reshape(-1, 8)
    assert MODEL.names is not None
    nothing = dict.fromkeys(MODEL.names, 0)
    made = record(MODEL, nothing | {"address": address(memory), "linears": address(places_of)} | fields)
    return DrawnModel(made, memory, places_of)


@dataclass(frozen=True)
class DrawnActivations:
    """An ACTIVATIONS record, its arrays, and the numbers that they stand for.

    exact:     [T, K] float64, what `words` and `tiles` say
    quantised: [T, K] float64, what `whole` and `scales` say
    """

    record: Any
    words: NDArray[np.float32]
    whole: NDArray[np.int8]
    scales: NDArray[np.float32]
    sums: NDArray[np.int32]
    shifts: NDArray[np.int32]
    tiles: NDArray[np.uint16]
    exact: NDArray[np.float64]
    quantised: NDArray[np.float64]

    def make_nan(self, row: int) -> None:
        """What norm.py makes of a row whose first 32 numbers are NaN."""
        self.words[row, :32] = np.nan
        if current_target().has_tiles:
            self.scales[row // TILE, 0, row % TILE] = np.nan
            self.tiles[row // TILE, 0, row % TILE] = 0x7FC0
        else:
            self.scales[row, 0] = np.nan


def draw_activations(x: NDArray[Any]) -> DrawnActivations:
    """Rows as linear layers want them, by records.py's description.

    x: [T, K] float; K a multiple of 32
    """
    x = x.astype(np.float32)
    groups = x.reshape(len(x), -1, 32)
    scales = np.abs(groups).max(-1) / np.float32(127)
    divided = groups / np.where(scales == 0, 1, scales)[..., None]
    whole = np.rint(divided).astype(np.int8)  # [T, K/32, 32]
    sums = 8 * whole.sum(-1, dtype=np.int32)
    shifts = nibble_shifts(whole)
    words = x.copy()
    exact = x.astype(np.float64)
    if current_target().has_bf16:
        words[:, : x.shape[1] // 2] = bfloat16_bits(x).view(np.float32)
        exact = as_bfloat16(x).astype(np.float64)
    quantised = (whole * scales.astype(np.float64)[..., None]).reshape(x.shape)
    tiles = bfloat16_bits(x).reshape(groups.shape)
    arrays = (words, *map(in_order, (whole, scales, sums, shifts, tiles)))
    made = record(
        ACTIVATIONS,
        dict(zip(ACTIVATIONS.names, (*map(address, arrays), x.shape[1]), strict=True)),
    )
    return DrawnActivations(made, *arrays, exact, quantised)


def in_order(rows: NDArray[Any]) -> NDArray[Any]:
    """Rows of groups, [T, K/32, …], as kernels read them: with tile registers [T/16, K/32, 16, …], else as they are."""
    if not current_target().has_tiles:
        return np.ascontiguousarray(rows)
    padded = np.concatenate([rows, np.zeros((-len(rows) % TILE, *rows.shape[1:]), rows.dtype)])
    return np.ascontiguousarray(padded.reshape(-1, TILE, *rows.shape[1:]).swapaxes(1, 2))


def as_rows(memory: NDArray[Any]) -> NDArray[Any]:
    """The rows of `in_order`, whole tiles of them, from what kernels have written. return: [≥ T, K/32, …]"""
    if not current_target().has_tiles:
        return memory
    rows = memory.swapaxes(1, 2)  # [T/16, 16, K/32, …]
    return rows.reshape(-1, *rows.shape[2:])


def nibble_shifts(whole: NDArray[Any]) -> NDArray[np.int32]:
    """What lanes' sums of 4-bit products begin with: -8·Σx, or as two int16 the elements 0, 1 and 2, 3 of every four.

    whole: [..., 32] int8
    return: [...]
    """
    halves = -8 * whole.reshape(*whole.shape[:-1], 8, 2, 2).sum((-3, -1), dtype=np.int32)  # [..., 2]
    if current_target().dot == "avx2":
        return (halves[..., 0] & 0xFFFF) | (halves[..., 1] << 16)
    return halves.sum(-1, dtype=np.int32)


def matrix_record(array: NDArray[np.float32]) -> Any:
    """A MATRIX record; whoever uses it keeps the array."""
    return record(MATRIX, {"at": address(array), "width": array.shape[1]})
