"""GGUF's quantised blocks as arrays: what each byte of a block means, for all rows of a matrix at once.

Owns the layouts of the block formats and in which executor layout each is kept. Knows nothing of files or names. Called
by gguf_tensors.py with the raw rows of a matrix. The formats are those of ggml; each block has one or two float16, and
whole numbers of 2 to 8 bits along K that they scale:

    Q8_0, Q4_0, Q5_0, IQ4_NL   32 weights:  w = d · q
    Q4_1, Q5_1                 32 weights:  w = d · q + m
    Q3_K, Q6_K                256 weights:  w = d · s · q            with a small whole s for each 16
    Q2_K                      256 weights:  w = d · s · q - dmin · m  with s, m for each 16
    Q4_K, Q5_K                256 weights:  w = d · s · q - dmin · m  with s, m for each 32
    IQ4_XS                    256 weights:  w = d · s · q            with s for each 32, q as IQ4_NL's

All arithmetic is in float32 and in this order, so that values are the same to the bit as those of the package `gguf`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from kaishu.checkpoint.quantised import GROUP, Groups, LayoutKind

Bytes = NDArray[np.uint8]


@dataclass(frozen=True)
class Parts:
    """n blocks taken apart: weight = scales · whole + minimums, for each group of 16 or 32 along K.

    whole:    [n, groups, 16 or 32] int8
    scales:   [n, groups] float32
    minimums: [n, groups] float32, or None
    """

    whole: NDArray[np.int8]
    scales: NDArray[np.float32]
    minimums: NDArray[np.float32] | None = None


@dataclass(frozen=True)
class BlockFormat:
    """One block format.

    weights:     in a block
    nbytes:      of a block
    layout:      the executors' layout that such a matrix is kept in
    has_groups:  whether its whole numbers go into that layout as they are
    parts:       takes [n, nbytes] blocks apart
    """

    weights: int
    nbytes: int
    layout: LayoutKind
    has_groups: bool
    parts: Callable[[Bytes], Parts]


def values(kind: str, raw: Bytes) -> NDArray[np.float32]:
    """The weights of whole rows as the format defines them.

    kind:   a key of FORMATS
    raw:    [n, row bytes] uint8
    return: [n, K] float32
    """
    parts = _parts(kind, raw)
    weights = parts.whole.astype(np.float32)
    with np.errstate(invalid="ignore", over="ignore"):  # damaged blocks may hold infinity; their NaN is found later
        weights *= parts.scales[:, :, None]
        if parts.minimums is not None:
            weights += parts.minimums[:, :, None]
    return weights.reshape(len(raw), -1)


def groups(kind: str, raw: Bytes) -> Groups | None:
    """The same rows as whole numbers for the executors' layout; None where they fit none of them.

    Nothing is lost but for Q4_K and IQ4_XS: there d·s and dmin·m, products of a float16 and 6 bits, are rounded to
    float16. That changes each by at most 2^-11 of itself (below float16's normal range, 6e-5, by at most 2^-25), where
    a step of the formats themselves is a 15th of a group's range.

    kind:   a key of FORMATS
    raw:    [n, row bytes] uint8
    """
    if not FORMATS[kind].has_groups:
        return None
    parts = _parts(kind, raw)
    rows = len(raw)
    with np.errstate(over="ignore"):
        scales = parts.scales.astype(np.float16).reshape(rows, -1)
        minimums = None if parts.minimums is None else parts.minimums.astype(np.float16).reshape(rows, -1)
    return Groups(parts.whole.reshape(rows, -1), scales, minimums)


def _parts(kind: str, raw: Bytes) -> Parts:
    form = FORMATS[kind]
    with np.errstate(invalid="ignore", over="ignore"):
        return form.parts(np.ascontiguousarray(raw).reshape(-1, form.nbytes))


def _field(blocks: Bytes, first: int, last: int) -> Bytes:
    """Some bytes of each block, copied as one piece a block: ten times as fast as byte by byte.

    return: [n, last - first] uint8
    """
    piece = {"names": ["bytes"], "formats": [f"V{last - first}"], "offsets": [first], "itemsize": blocks.shape[1]}
    copied = blocks.view(np.dtype(piece))["bytes"].copy()  # type: ignore[call-overload]
    return copied.view(np.uint8).reshape(len(blocks), last - first)


def _float16(blocks: Bytes, offset: int) -> NDArray[np.float32]:
    """return: [n, 1] float32, the float16 at an offset of each block"""
    return _field(blocks, offset, offset + 2).view("<f2").astype(np.float32)


def _bits(packed: Bytes, shifts: Iterable[int], mask: int) -> Bytes:
    """The same bytes at several shifts.

    Eight bytes are shifted as one word; what comes over from the next byte, the mask takes away.

    packed: [..., b] uint8, b 4 or a multiple of 8
    return: [..., len(shifts), b] uint8, what the mask leaves of each byte
    """
    shifts = tuple(shifts)
    width = packed.shape[-1]
    word = np.dtype(f"u{min(width, 8)}")
    words = np.ascontiguousarray(packed).view(word).reshape(-1, width // word.itemsize)
    found = np.empty((len(words), len(shifts), words.shape[1]), word)
    masks = np.full(1, mask, np.uint8).repeat(word.itemsize).view(word)
    for index, shift in enumerate(shifts):
        for column in range(words.shape[1]):
            np.bitwise_and(words[:, column] >> word.type(shift), masks, out=found[:, index, column])
    return found.view(np.uint8).reshape(*packed.shape[:-1], len(shifts), width)


def _nibbles(blocks: Bytes, first: int) -> Bytes:
    """return: [n, 1, 32], of the 16 bytes at an offset the low halves, then the high ones"""
    return _bits(_field(blocks, first, first + 16), (0, 4), 15).reshape(len(blocks), 1, GROUP)


def _signed(whole: Bytes, zero: int) -> NDArray[np.int8]:
    """Whole numbers that were stored with `zero` added."""
    signed = whole.view(np.int8)
    signed -= np.int8(zero)
    return signed


def _fifth_bits(blocks: Bytes, offset: int) -> Bytes:
    """return: [n, 1, 32], 16 where bit k of the 32 at an offset is set, for weight k"""
    bits = np.unpackbits(_field(blocks, offset, offset + 4), axis=1, bitorder="little")
    return (bits << np.uint8(4))[:, None, :]


def _q8_0(blocks: Bytes) -> Parts:
    return Parts(_field(blocks, 2, 34).view(np.int8)[:, None, :], _float16(blocks, 0))


def _q4_0(blocks: Bytes) -> Parts:
    return Parts(_signed(_nibbles(blocks, 2), 8), _float16(blocks, 0))


def _q4_1(blocks: Bytes) -> Parts:
    return Parts(_nibbles(blocks, 4).view(np.int8), _float16(blocks, 0), _float16(blocks, 2))


def _q5_0(blocks: Bytes) -> Parts:
    return Parts(_signed(_nibbles(blocks, 6) | _fifth_bits(blocks, 2), 16), _float16(blocks, 0))


def _q5_1(blocks: Bytes) -> Parts:
    whole = _nibbles(blocks, 8) | _fifth_bits(blocks, 4)
    return Parts(whole.view(np.int8), _float16(blocks, 0), _float16(blocks, 2))


# What the 16 codes of IQ4_NL stand for: finer near zero, where most weights are.
_NONLINEAR = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)


def _iq4_nl(blocks: Bytes) -> Parts:
    return Parts(np.array(_NONLINEAR, np.int8)[_nibbles(blocks, 2)], _float16(blocks, 0))


def _iq4_xs(blocks: Bytes) -> Parts:
    """Bytes: d · 2 of s' two high bits · 4 of their low halves · 128 of q, 16 a group, as IQ4_NL's."""
    codes = _bits(_field(blocks, 8, 136).reshape(-1, 8, 16), (0, 4), 15).reshape(-1, 8, GROUP)
    shifts = np.arange(8, dtype=np.uint16) * np.uint16(2)
    high_scales = (_field(blocks, 2, 4).view("<u2") >> shifts & 3).astype(np.uint8) << np.uint8(4)
    low_scales = np.stack([_field(blocks, 4, 8) & 15, _field(blocks, 4, 8) >> 4], axis=2).reshape(-1, 8)
    scales = _float16(blocks, 0) * _signed(low_scales | high_scales, 32)
    return Parts(np.array(_NONLINEAR, np.int8)[codes], scales)


def _q2_k(blocks: Bytes) -> Parts:
    """Bytes: 16 with a 4-bit s and m each · 64 of 2-bit q · d · dmin. 32 bytes of q hold 128 weights, by shift."""
    whole = _bits(_field(blocks, 16, 80).reshape(-1, 2, 32), (0, 2, 4, 6), 3).reshape(-1, 16, 16)
    both = _field(blocks, 0, 16)
    scales, minimums = both & 15, both >> 4
    return Parts(whole.view(np.int8), _float16(blocks, 80) * scales, -(_float16(blocks, 82) * minimums))


def _q3_k(blocks: Bytes) -> Parts:
    """Bytes: 32 of q's third bits · 64 of q's low bits, as Q2_K's · 12 of 6-bit s · d. A clear third bit is -4."""
    low = _bits(_field(blocks, 32, 96).reshape(-1, 2, 32), (0, 2, 4, 6), 3).reshape(-1, 8, 32)
    third = _bits(_field(blocks, 0, 32), range(8), 1) << np.uint8(2)
    packed = _field(blocks, 96, 108)
    low_scales = _bits(packed[:, :8], (0, 4), 15).reshape(-1, 16)
    high_scales = _bits(packed[:, 8:], (0, 2, 4, 6), 3).reshape(-1, 16) << np.uint8(4)
    scales = _float16(blocks, 108) * _signed(low_scales | high_scales, 32)
    return Parts(_signed((low | third).reshape(-1, 16, 16), 4), scales)


def _six_bit_pairs(packed: Bytes) -> tuple[Bytes, Bytes]:
    """Eight s and eight m of 6 bits each, out of 12 bytes: the first four of each lie in the low bits of bytes 0-3 and
    4-7; of the others, the low halves share bytes 8-11 and the two high bits are what bytes 0-7 have left.

    packed: [n, 12] · return: [n, 8] and [n, 8]
    """
    first, second, shared = packed[:, :4], packed[:, 4:8], packed[:, 8:]
    scales = np.concatenate([first & 63, (shared & 15) | (first >> 6 << np.uint8(4))], axis=1)
    minimums = np.concatenate([second & 63, (shared >> 4) | (second >> 6 << np.uint8(4))], axis=1)
    return scales, minimums


def _q4_k(blocks: Bytes) -> Parts:
    """Bytes: d · dmin · 12 of 6-bit s and m · 128 of q: 32 bytes hold one group in their low halves, the next in the
    high ones."""
    whole = _bits(_field(blocks, 16, 144).reshape(-1, 4, 32), (0, 4), 15).reshape(-1, 8, 32)
    scales, minimums = _six_bit_pairs(_field(blocks, 4, 16))
    return Parts(whole.view(np.int8), _float16(blocks, 0) * scales, -(_float16(blocks, 2) * minimums))


def _q5_k(blocks: Bytes) -> Parts:
    """As Q4_K, with 32 bytes of fifth bits before q: bit g of byte k belongs to weight k of group g."""
    low = _bits(_field(blocks, 48, 176).reshape(-1, 4, 32), (0, 4), 15).reshape(-1, 8, 32)
    whole = low | _bits(_field(blocks, 16, 48), range(8), 1) << np.uint8(4)
    scales, minimums = _six_bit_pairs(_field(blocks, 4, 16))
    return Parts(whole.view(np.int8), _float16(blocks, 0) * scales, -(_float16(blocks, 2) * minimums))


def _q6_k(blocks: Bytes) -> Parts:
    """Bytes: 128 of q's low halves · 64 of q's two high bits · 16 of s · d. A half of the block is 64 bytes and 32."""
    low = _bits(_field(blocks, 0, 128).reshape(-1, 2, 64), (0, 4), 15).reshape(-1, 16, 16)
    high = _bits(_field(blocks, 128, 192).reshape(-1, 2, 32), (0, 2, 4, 6), 3).reshape(-1, 16, 16) << np.uint8(4)
    return Parts(_signed(low | high, 32), _float16(blocks, 208) * _field(blocks, 192, 208).view(np.int8))


FORMATS: Mapping[str, BlockFormat] = MappingProxyType(
    {
        "Q8_0": BlockFormat(32, 34, "int8", True, _q8_0),
        "Q4_0": BlockFormat(32, 18, "int4", True, _q4_0),
        "Q4_1": BlockFormat(32, 20, "int4_minimum", True, _q4_1),
        "Q5_0": BlockFormat(32, 22, "int8", True, _q5_0),
        "Q5_1": BlockFormat(32, 24, "int8", False, _q5_1),
        "Q2_K": BlockFormat(256, 84, "int8", False, _q2_k),
        "Q3_K": BlockFormat(256, 110, "int8", False, _q3_k),
        "Q4_K": BlockFormat(256, 144, "int4_minimum", True, _q4_k),
        "Q5_K": BlockFormat(256, 176, "int8", False, _q5_k),
        "Q6_K": BlockFormat(256, 210, "int8", False, _q6_k),
        "IQ4_NL": BlockFormat(32, 18, "int8", True, _iq4_nl),
        "IQ4_XS": BlockFormat(256, 136, "int8", True, _iq4_xs),
    }
)
LAYOUT_OF: Mapping[str, LayoutKind] = MappingProxyType({name: form.layout for name, form in FORMATS.items()})
PLAIN: Mapping[str, int] = MappingProxyType({"F32": 4, "F16": 2, "BF16": 2})
