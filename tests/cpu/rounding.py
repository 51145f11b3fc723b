"""What float32 arithmetic should give, from float64: sums rounded once, and distances in units in the last place."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kaishu.cpu.target import current_target


def fused(a: NDArray[Any], b: NDArray[Any], c: NDArray[Any]) -> NDArray[np.float32]:
    """a·b + c of float32, rounded to float32 once.

    The product is exact in float64. The sum is rounded to odd (Boldo and Melquiond, 2008), after which rounding to
    float32 is the only rounding that shows.
    """
    product, c = a.astype(np.float64) * b.astype(np.float64), c.astype(np.float64)
    total = product + c
    part = total - product
    lost = (product - (total - part)) + (c - part)  # what the sum's rounding took away, exactly (Knuth's two-sum)
    is_even = total.view(np.int64) % 2 == 0
    odd = np.where(is_even & (lost != 0), np.nextafter(total, np.where(lost > 0, np.inf, -np.inf)), total)
    return odd.astype(np.float32)


def multiplied_added(a: NDArray[Any], b: NDArray[Any], c: NDArray[Any]) -> NDArray[np.float32]:
    """a·b + c as the kernels do it on this CPU: rounded once, or in the portable form twice."""
    if current_target().dot == "portable":
        return a.astype(np.float32) * b.astype(np.float32) + c.astype(np.float32)
    return fused(a, b, c)


def ulps(found: NDArray[np.float32], truth: NDArray[np.float64]) -> NDArray[np.float64]:
    """How far each float32 is from the truth, in units in the last place of the nearest float32."""
    assert found.dtype == np.float32
    return np.abs(found.astype(np.float64) - truth) / np.spacing(np.abs(truth).astype(np.float32)).astype(np.float64)
