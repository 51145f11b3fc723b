"""bfloat16 and float16, one number at a time, by their bits: Numba has no type for either.

Owns the four conversions. vector.py has the same for whole vectors, where an instruction does it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from kaishu.cpu.vector import KERNEL


@njit(**KERNEL)
def bfloat_bits(value: Any) -> Any:
    """A float32 to the bits of the nearest bfloat16, ties to even; a NaN stays one."""
    bits = np.float32(value).view(np.uint32)
    if value != value:
        return np.uint16((bits >> np.uint32(16)) | np.uint32(0x40))
    return np.uint16(np.uint32(bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16))


@njit(**KERNEL)
def bfloat_value(bits: Any) -> Any:
    """The bits of a bfloat16 to float32."""
    return np.uint32(np.uint32(bits) << np.uint32(16)).view(np.float32)


@njit(**KERNEL)
def half_value(bits: Any) -> Any:
    """The bits of a float16 to float32, infinities and what is no number included."""
    wide = np.uint32(bits)
    size = np.uint32((wide & np.uint32(0x7FFF)) << np.uint32(13))
    value = size.view(np.float32) * np.float32(2.0**112)
    if size >= np.uint32(0x0F800000):  # the largest exponent of float16 is float32's, too
        value = np.uint32(size | np.uint32(0x7F800000)).view(np.float32)
    return -value if wide & np.uint32(0x8000) else value


@njit(**KERNEL)
def half_bits(value: Any) -> Any:
    """A finite float32 to the bits of the nearest float16, ties to even; what is too large becomes the largest."""
    bits = np.float32(value).view(np.uint32)
    sign = (bits >> np.uint32(16)) & np.uint32(0x8000)
    size = np.uint32(bits & np.uint32(0x7FFFFFFF))
    if size >= np.uint32(0x477FF000):  # rounds above 65504
        return np.uint16(sign | np.uint32(0x7BFF))
    if size < np.uint32(0x38800000):  # below 2**-14: a float16 without a leading one, in steps of 2**-24
        steps = np.rint(np.float64(size.view(np.float32)) * 16777216.0)
        return np.uint16(sign | np.uint32(steps))
    rounded = size + np.uint32(0xFFF) + ((size >> np.uint32(13)) & np.uint32(1))
    return np.uint16(sign | ((rounded - np.uint32(0x38000000)) >> np.uint32(13)))
