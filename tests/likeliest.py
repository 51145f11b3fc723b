"""What an executor says of a row of logits, found by sorting it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kaishu.batch import BLOCK_TOKENS, Likeliest


def likeliest_of(row: NDArray[np.float32]) -> Likeliest:
    """row: [V] float32, as far as it counts"""
    if not np.isfinite(row).all():
        return Likeliest.of_no_finite_row()
    order = np.lexsort((np.arange(len(row)), -row))[:64]
    blocks = [row[start : start + BLOCK_TOKENS] for start in range(0, len(row), BLOCK_TOKENS)]
    maxima = np.array([block.max() for block in blocks], np.float32)
    return Likeliest(True, order, row[order].astype(np.float64), maxima)
