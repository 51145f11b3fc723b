"""GGUF's block formats, one weight at a time: for weight k of a block, which bits are its own, and what they mean.

Slow on purpose: each function answers for a single k with shifts and masks, in the words of the format's description.
Nothing is shared with kaishu/checkpoint/gguf_blocks.py, which takes whole arrays apart.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import numpy as np

SIZES = {
    "Q8_0": (32, 34),
    "Q4_0": (32, 18),
    "Q4_1": (32, 20),
    "Q5_0": (32, 22),
    "Q5_1": (32, 24),
    "Q2_K": (256, 84),
    "Q3_K": (256, 110),
    "Q4_K": (256, 144),
    "Q5_K": (256, 176),
    "Q6_K": (256, 210),
    "IQ4_NL": (32, 18),
    "IQ4_XS": (256, 136),
}
IQ4_NL_TABLE = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113]
F32 = np.float32


def half(block: bytes, offset: int) -> Any:
    return F32(struct.unpack_from("<e", block, offset)[0])


def signed_byte(value: int) -> int:
    return value - 256 if value > 127 else value


def nibble(block: bytes, offset: int, k: int) -> int:
    """Weights 0 to 15 are the low halves of 16 bytes, weights 16 to 31 the high ones."""
    return block[offset + k] & 15 if k < 16 else block[offset + k - 16] >> 4


def bit(block: bytes, offset: int, number: int) -> int:
    """Bit `number` of a field, counted from the lowest bit of its first byte."""
    return block[offset + number // 8] >> (number % 8) & 1


def q8_0(block: bytes, k: int) -> Any:
    return half(block, 0) * F32(signed_byte(block[2 + k]))


def q4_0(block: bytes, k: int) -> Any:
    return half(block, 0) * F32(nibble(block, 2, k) - 8)


def q4_1(block: bytes, k: int) -> Any:
    return half(block, 0) * F32(nibble(block, 4, k)) + half(block, 2)


def q5_0(block: bytes, k: int) -> Any:
    return half(block, 0) * F32(nibble(block, 6, k) + 16 * bit(block, 2, k) - 16)


def q5_1(block: bytes, k: int) -> Any:
    return half(block, 0) * F32(nibble(block, 8, k) + 16 * bit(block, 4, k)) + half(block, 2)


def iq4_nl(block: bytes, k: int) -> Any:
    return half(block, 0) * F32(IQ4_NL_TABLE[nibble(block, 2, k)])


def iq4_xs(block: bytes, k: int) -> Any:
    """A group of 32 has a scale of 6 bits: the low 4 in half a byte from 4, the high 2 in the word at 2."""
    group, inside = divmod(k, 32)
    low = block[4 + group // 2] >> 4 * (group % 2) & 15
    high = (block[2] | block[3] << 8) >> 2 * group & 3
    return half(block, 0) * F32((low | high << 4) - 32) * F32(IQ4_NL_TABLE[nibble(block, 8 + 16 * group, inside)])


def two_bits(block: bytes, offset: int, k: int) -> int:
    """128 weights share 32 bytes: weights 0-31 in the lowest two bits, 32-63 in the next two, and so on."""
    half_of_block, inside = divmod(k, 128)
    return block[offset + 32 * half_of_block + inside % 32] >> 2 * (inside // 32) & 3


def q2_k(block: bytes, k: int) -> Any:
    both = block[k // 16]
    scale, minimum = half(block, 80) * F32(both & 15), half(block, 82) * F32(both >> 4)
    return scale * F32(two_bits(block, 16, k)) - minimum


def q3_k(block: bytes, k: int) -> Any:
    group = k // 16
    low = block[96 + group] & 15 if group < 8 else block[96 + group - 8] >> 4
    high = block[104 + group % 4] >> 2 * (group // 4) & 3
    scale = half(block, 108) * F32((low | high << 4) - 32)
    third = block[k % 32] >> (k // 32) & 1
    return scale * F32(two_bits(block, 32, k) - (0 if third else 4))


def six_bits(block: bytes, group: int) -> tuple[int, int]:
    """The scale and the minimum of a group of 32, in the 12 bytes from 4."""
    s = block[4:16]
    if group < 4:
        return s[group] & 63, s[group + 4] & 63
    return s[group + 4] & 15 | s[group - 4] >> 6 << 4, s[group + 4] >> 4 | s[group] >> 6 << 4


def four_bits(block: bytes, offset: int, k: int) -> int:
    """64 weights share 32 bytes: the first 32 in the low halves, the others in the high ones."""
    byte = block[offset + 32 * (k // 64) + k % 32]
    return byte >> 4 if k % 64 >= 32 else byte & 15


def q4_k(block: bytes, k: int) -> Any:
    scale, minimum = six_bits(block, k // 32)
    return half(block, 0) * F32(scale) * F32(four_bits(block, 16, k)) - half(block, 2) * F32(minimum)


def q5_k(block: bytes, k: int) -> Any:
    scale, minimum = six_bits(block, k // 32)
    fifth = block[16 + k % 32] >> (k // 32) & 1
    whole = four_bits(block, 48, k) + 16 * fifth
    return half(block, 0) * F32(scale) * F32(whole) - half(block, 2) * F32(minimum)


def q6_k(block: bytes, k: int) -> Any:
    half_of_block, inside = divmod(k, 128)
    low = block[64 * half_of_block + inside % 64] >> (4 if inside >= 64 else 0) & 15
    high = block[128 + 32 * half_of_block + inside % 32] >> 2 * (inside // 32) & 3
    scale = half(block, 208) * F32(signed_byte(block[192 + k // 16]))
    return scale * F32((low | high << 4) - 32)


WEIGHT: dict[str, Callable[[bytes, int], Any]] = {
    "Q8_0": q8_0,
    "Q4_0": q4_0,
    "Q4_1": q4_1,
    "Q5_0": q5_0,
    "Q5_1": q5_1,
    "Q2_K": q2_k,
    "Q3_K": q3_k,
    "Q4_K": q4_k,
    "Q5_K": q5_k,
    "Q6_K": q6_k,
    "IQ4_NL": iq4_nl,
    "IQ4_XS": iq4_xs,
}


def scalar_values(kind: str, raw: np.ndarray) -> np.ndarray:
    """raw: [n, row bytes] uint8 · return: [n, K] float32"""
    weights, nbytes = SIZES[kind]
    rows = []
    for row in raw:
        blocks = [row[start : start + nbytes].tobytes() for start in range(0, len(row), nbytes)]
        rows.append([WEIGHT[kind](block, k) for block in blocks for k in range(weights)])
    return np.array(rows, np.float32)


def random_blocks(rng: np.random.Generator, kind: str, rows: int, columns: int, spread: float = 0.02) -> np.ndarray:
    """Rows of random bits whose float16 fields are finite and about as large as a model's.

    return: [rows, row bytes] uint8
    """
    weights, nbytes = SIZES[kind]
    blocks = rng.integers(0, 256, (rows * columns // weights, nbytes), dtype=np.uint8)
    offsets = {"Q2_K": (80, 82), "Q3_K": (108,), "Q6_K": (208,)}.get(kind)
    if offsets is None:
        offsets = (0, 2) if kind in ("Q4_1", "Q5_1", "Q4_K", "Q5_K") else (0,)
    for offset in offsets:
        fields = rng.normal(scale=spread, size=len(blocks)).astype(np.float16)
        blocks[:, offset : offset + 2] = fields.view(np.uint8).reshape(-1, 2)
    return blocks.reshape(rows, -1)
