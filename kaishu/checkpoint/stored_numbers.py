"""What stored bits are as numbers: small integers packed into 32-bit words, and the types that numpy lacks.

Owns the arithmetic of bits that the quantised formats share. Knows no format: which axis is packed, what is a scale and
what a zero is said by gptq.py, awq.py, compressed.py and float8.py, which call it with a few rows at a time.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

FLOAT_TYPES = ("F32", "F16", "BF16")


def unpacked(words: NDArray[np.int32], bits: int) -> NDArray[np.int8]:
    """Small unsigned integers out of words, the first in the lowest bits, shifted so that they are signed.

    words:  [n, m] int32
    bits:   4 or 8
    return: [n, m·32/bits] int8: each integer minus 2^(bits - 1)
    """
    rows = np.ascontiguousarray(words, dtype="<i4")
    pieces = rows.view(np.uint8).reshape(len(rows), 4 * rows.shape[1])
    if bits == 8:
        return (pieces ^ np.uint8(0x80)).view(np.int8)
    assert bits == 4, "only words of whole nibbles or bytes"
    integers = np.empty((*pieces.shape, 2), np.int8)  # [n, 4m, 2]
    np.bitwise_and(pieces, 15, out=integers[..., 0], casting="unsafe")
    np.right_shift(pieces, 4, out=integers[..., 1], casting="unsafe")
    integers -= 8
    return integers.reshape(len(rows), 8 * rows.shape[1])


def as_float32(stored: NDArray[Any], dtype: str) -> NDArray[np.float32]:
    """Numbers as StoredTensor.read gives them, widened to float32; nothing is lost.

    stored: any shape, of the storage type of `dtype`
    dtype:  F32, F16, BF16, F8_E4M3 or F8_E8M0
    """
    if dtype == "BF16":
        widened: NDArray[np.float32] = (stored.astype(np.uint32) << 16).view(np.float32)
        return widened
    if dtype == "F8_E4M3":
        values: NDArray[np.float32] = e4m3_values()[stored]
        return values
    if dtype == "F8_E8M0":  # a power of two alone: 2^(e - 127), and 255 for no number
        powers = np.ldexp(1.0, np.arange(256) - 127)
        powers[255] = np.nan
        exact: NDArray[np.float32] = powers.astype(np.float32)[stored]
        return exact
    assert dtype in FLOAT_TYPES, "a type of numbers"
    return stored.astype(np.float32)


def bfloat16_bits(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Finite numbers rounded to bfloat16, to the nearest and ties to even, as its bits. Same shape."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def e4m3_values() -> NDArray[np.float32]:
    """The values of the 256 patterns of E4M3 (Micikevicius et al., 2022, arXiv:2209.05433).

    return: [256] float32. A sign, 4 bits of exponent with a bias of 7, 3 of mantissa; 0x7F and 0xFF are NaN, and there
            is no infinity
    """
    patterns = np.arange(256)
    sign = np.where(patterns & 0x80, -1.0, 1.0)
    exponent, mantissa = patterns >> 3 & 15, patterns & 7
    values = np.where(exponent == 0, np.ldexp(mantissa, -9), np.ldexp(8.0 + mantissa, exponent - 10))
    values[patterns & 0x7F == 0x7F] = np.nan
    signed: NDArray[np.float32] = (sign * values).astype(np.float32)
    return signed
