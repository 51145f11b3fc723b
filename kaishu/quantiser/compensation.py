"""A matrix → whole numbers, each column making up for the errors of those before it (GPTQ; Frantar et al., 2022,
arXiv:2210.17323).

Owns the arithmetic. Knows nothing of models: what enters the matrix is given as its second moments, H = Σ x xᵀ over
some tokens. Used by quantise.py where a text to calibrate with is given. numpy alone.

What the matrix is to compute, W x, is off by (W - Ŵ) x, for all tokens together by tr((W - Ŵ) H (W - Ŵ)ᵀ). Columns are
rounded from the first to the last; when column j is off by e, the columns after it are changed so that they make up for
as much of e as they can. With U, the upper triangle of H⁻¹ = Uᵀ U, that is

    error        e = (w_j - ŵ_j) / U_jj
    the others   w_k ← w_k - e U_jk                    for every k > j

and Σ e² over all columns is the whole error (before float rounding). So a column's own error matters 1 / U_jj², which
is what the search for the scales of its group goes by when that group is reached, on weights as changed until then.
Rows don't know of each other. Inputs that are hardly ever other than zero would make H singular, so a small share of
its mean diagonal is added to all of it ("damping").
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kaishu.checkpoint.quantised import GROUP, Groups
from kaishu.quantiser.rounding import Floats, Form, best_scales, inverses, nearest_whole

DAMPING = 0.01  # of the mean of the diagonal, as in the paper's own experiments
_MOST_DAMPING = 1.0


def factor(moments: Floats) -> Floats:
    """U: the upper triangular factor of the inverse, H⁻¹ = Uᵀ U.

    moments: [K, K] float32, H = Σ x xᵀ, not all zero
    return:  [K, K] float32

    With J the reversal of rows and of columns, J H J = L Lᵀ gives H = R Rᵀ with R = J L J, an upper triangle; then
    H⁻¹ = R⁻ᵀ R⁻¹, and U = R⁻¹.
    """
    total = moments.astype(np.float64)
    mean = float(total.trace()) / len(total)
    assert mean > 0, "something has entered"
    damping = DAMPING
    while True:
        damped = total[::-1, ::-1].copy()
        damped.flat[:: len(total) + 1] += damping * mean
        try:
            lower = np.linalg.cholesky(damped)
            break
        except np.linalg.LinAlgError:  # sums in float32 of very unequal inputs
            assert damping < _MOST_DAMPING, "a second moment with so much added is positive definite"
            damping *= 10
    upper: Floats = np.triu(np.linalg.inv(lower[::-1, ::-1])).astype(np.float32)
    return upper


def compensated(weights: Floats, upper: Floats, form: Form) -> Groups:
    """Quantise rows, given the factor of what enters them.

    weights: [n, K] float32, finite, K a multiple of 32
    upper:   [K, K] float32, from `factor`
    """
    rows, columns = weights.shape
    left = np.array(weights.T, order="C")  # [K, n]: a column is one stretch of memory, and is used up
    whole, scales = np.empty((columns, rows), np.int8), np.empty((columns // GROUP, rows), np.float16)
    importance = (1 / np.square(upper.diagonal().astype(np.float64))).astype(np.float32)
    for start in range(0, columns, GROUP):
        end = start + GROUP
        scale = best_scales(np.ascontiguousarray(left[start:end].T), importance[None, start:end], form)  # [n]
        scales[start // GROUP], inverse = scale, inverses(scale)
        errors = np.empty((GROUP, rows), np.float32)
        for column in range(start, end):
            q = nearest_whole(left[column], inverse, form)
            whole[column] = q
            errors[column - start] = (left[column] - q * scale) / upper[column, column]
            left[column + 1 : end] -= upper[column, column + 1 : end, None] * errors[column - start]
        left[end:] -= upper[start:end, end:].T @ errors
    return Groups(np.ascontiguousarray(whole.T), np.ascontiguousarray(scales.T))


def output_error(difference: Floats, moments: Floats) -> float:
    """tr(D H Dᵀ): what a difference of weights changes in what is computed, squared and summed.

    difference: [n, K] float32, W - Ŵ
    moments:    [K, K] float32, H
    """
    product: NDArray[np.float64] = np.einsum("nk,nk->", difference @ moments, difference, dtype=np.float64)
    return max(float(product), 0.0)
