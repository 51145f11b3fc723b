"""e**x in every lane, from the vector instructions: what softmax and SiLU are made of.

Owns the series and its constants. Called by attention.py, feed_forward.py and experts.py.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from kaishu.cpu.vector import INLINE, at_least, at_most, fma, power_of_two, round_even, splat

LOG2_E = np.float32(1.4426950408889634)
LN2_HIGH, LN2_LOW = np.float32(0.693359375), np.float32(-2.12194440e-4)


@njit(**INLINE)
def exponential(x: Any) -> Any:
    """e**x in every lane, to about one unit in the last place; x is kept between -87 and 88, where float32 has room.

    x is split into n·ln 2 + r with |r| ≤ ln 2 / 2 (ln 2 in two parts, so that r is exact), e**r is the Taylor series
    to degree 7, whose remainder is below 6e-9, and 2**n is made from its bits.
    """
    x = at_most(at_least(x, splat(np.float32(-87.0))), splat(np.float32(88.0)))
    whole = round_even(x * splat(LOG2_E))
    r = fma(whole, splat(-LN2_HIGH), x)
    r = fma(whole, splat(-LN2_LOW), r)
    series = fma(splat(np.float32(1 / 5040)), r, splat(np.float32(1 / 720)))
    series = fma(series, r, splat(np.float32(1 / 120)))
    series = fma(series, r, splat(np.float32(1 / 24)))
    series = fma(series, r, splat(np.float32(1 / 6)))
    series = fma(series, r, splat(np.float32(0.5)))
    one = splat(np.float32(1.0))
    series = fma(series, r, one)
    return fma(series, r, one) * power_of_two(whole)
