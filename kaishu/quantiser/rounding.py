"""32 weights that share a scale → the scale and the whole numbers, so that little is lost.

Owns the search for scales. Knows nothing of tensors, files or models. Used by quantise.py and, on weights that have
been changed to make up for the errors of others, by compensation.py. numpy alone.

Rounding to the nearest takes the scale from the largest weight alone: of int4 that one becomes -8, of int8 ±127. Most
groups lose less with another scale, under which the largest may be cut off a little. So for some tens of scales on both
sides of that one, q is rounded, and then the scale is fitted to q: of all s, Σ h (w - s q)² is least at
s = Σ h w q / Σ h q², where it is Σ h w² - (Σ h w q)² / Σ h q². The best of these is kept, or the nearest's own if that
is no worse: the search can't lose. h says how much an error of each weight matters.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from kaishu.checkpoint.quantised import GROUP, Groups

FormName = Literal["int8", "int4"]
Floats = NDArray[np.float32]
_ROWS_AT_ONCE = 1 << 11  # groups whose numbers stay in a core's cache while all scales are tried


@dataclass(frozen=True)
class Form:
    """Whole numbers of a size, and which scales are tried.

    lowest, highest: q's range
    extremes:        the values of q, not always whole, that the largest weight is mapped to; the first is the nearest's
    """

    name: FormName
    bits: int
    lowest: int
    highest: int
    extremes: tuple[float, ...]


def _around(center: float, steps: int, step: float) -> tuple[float, ...]:
    return tuple(round(center + step * i, 3) for i in range(-steps, steps + 1) if i)


FORMS = MappingProxyType(
    {
        "int8": Form("int8", 8, -127, 127, (127.0, *_around(127.0, 4, 0.25))),
        # The largest weight may go to either end: -8, or 7 with the other sign of the scale.
        "int4": Form("int4", 4, -8, 7, (-8.0, *_around(-8.0, 9, 0.15), 7.0, *_around(7.0, 9, 0.15))),
    }
)


def nearest_scales(weights: Floats, form: Form) -> Floats:
    """The scales of rounding to the nearest, as the kernels' packing takes them.

    weights: [n, 32] float32
    return:  [n] float32 that float16 can hold; of weights too large for that, infinite
    """
    return _half(_extreme(weights, form) / np.float32(form.extremes[0]))


def best_scales(weights: Floats, importance: Floats, form: Form) -> Floats:
    """The scales under which Σ h (w - s q)² is least, of those that are tried.

    weights:    [n, 32] float32, finite
    importance: [n, 32] or [1, 32] float32, h, at least 0
    return:     [n] float32 that float16 can hold
    """
    pieces = [
        _best_scales(weights[rows], importance if len(importance) == 1 else importance[rows], form)
        for rows in _slices(len(weights))
    ]
    return np.concatenate(pieces) if pieces else np.zeros(0, np.float32)


def _slices(count: int) -> Iterator[slice]:
    return (slice(start, start + _ROWS_AT_ONCE) for start in range(0, count, _ROWS_AT_ONCE))


def _best_scales(weights: Floats, importance: Floats, form: Form) -> Floats:
    extreme, weighted = _extreme(weights, form), weights * importance
    importance = np.broadcast_to(importance, weights.shape)
    gain, best = np.zeros(len(weights), np.float32), np.zeros(len(weights), np.float32)  # Σhw² minus the error
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        for target in form.extremes:
            whole = whole_numbers(weights, extreme / np.float32(target), form)  # [n, 32]
            along = np.einsum("ng,ng->n", weighted, whole)
            across = np.einsum("ng,ng,ng->n", importance, whole, whole)
            found = along * along / across
            better = found > gain  # false where nothing has a weight that matters
            gain, best = np.where(better, found, gain), np.where(better, along / across, best)
    nearest = nearest_scales(weights, form)
    best = _half(best)
    is_better = _errors(weights, importance, best, form) < _errors(weights, importance, nearest, form)
    return np.where(is_better, best, nearest)


def whole_numbers(weights: Floats, scales: Floats, form: Form) -> Floats:
    """The nearest whole numbers under given scales.

    weights: [n, 32] float32
    scales:  [n] float32; where one is zero, so are the numbers
    return:  [n, 32] float32, whole
    """
    return nearest_whole(weights, inverses(scales)[:, None], form)


def inverses(scales: Floats) -> Floats:
    """What weights are multiplied by to get whole numbers: 1 / s, and 0 where s is 0 or infinite. Same shape."""
    with np.errstate(divide="ignore", over="ignore"):
        inverse = np.float32(1) / scales
    return np.where(np.isfinite(inverse), inverse, np.float32(0))


def nearest_whole(weights: Floats, inverse: Floats, form: Form) -> Floats:
    """weights: [...] float32 · inverse: float32, of their scales · return: [...] float32, whole, in the form's range"""
    whole = weights * inverse
    np.rint(whole, out=whole)
    return np.clip(whole, form.lowest, form.highest, out=whole)


def rounded(weights: Floats, form: Form, *, search: bool = True) -> Groups:
    """Quantise rows of which it isn't known what enters them.

    weights: [n, K] float32, finite, K a multiple of 32
    search:  for the best scales; else round to the nearest
    """
    rows, columns = weights.shape
    split = np.ascontiguousarray(weights).reshape(-1, GROUP)  # [n·K/32, 32]
    scales = best_scales(split, unknown_importance(split, form), form) if search else nearest_scales(split, form)
    whole = whole_numbers(split, scales, form)
    return Groups(
        whole.astype(np.int8).reshape(rows, columns), scales.astype(np.float16).reshape(rows, columns // GROUP)
    )


def unknown_importance(weights: Floats, form: Form) -> Floats:
    """How much errors matter while nothing is known of what enters: for int4, w² and the group's mean of it.

    weights: [n, 32] float32
    return:  [n, 32] or [1, 32] float32

    If all errors mattered alike, the largest weight of a group would often be cut off by several percent, and on real
    models the divergence grows although the squared error shrinks: much depends on the inputs of large weights. In
    int8 nothing is cut off by more than the errors are, so there they are all alike.
    """
    if form.name == "int8":
        return np.ones((1, weights.shape[1]), np.float32)
    with np.errstate(over="ignore"):  # infinite ones have no scale in float16 either, which is then said
        squares = np.square(weights)
    return np.asarray(squares + squares.mean(axis=1, keepdims=True), np.float32)


def values_of(groups: Groups) -> Floats:
    """What the kernels compute with. return: [n, K] float32"""
    whole = groups.numbers()
    rows, columns = whole.shape
    split = whole.reshape(rows, -1, GROUP).astype(np.float32)
    values: Floats = (split * groups.scales.astype(np.float32)[:, :, None]).reshape(rows, columns)
    return values


def _errors(weights: Floats, importance: Floats, scales: Floats, form: Form) -> Floats:
    """return: [n] float32, Σ h (w - s q)²"""
    with np.errstate(invalid="ignore", over="ignore"):  # a scale that float16 can't hold is infinite
        lost = weights - whole_numbers(weights, scales, form) * scales[:, None]
        error: Floats = np.einsum("ng,ng,ng->n", importance, lost, lost)
    return np.where(np.isfinite(error), error, np.float32(np.inf))


def _extreme(weights: Floats, form: Form) -> Floats:
    """The largest size of a weight; where q's ends differ, with its sign, of two such the positive.

    return: [n] float32
    """
    low, high = weights.min(axis=-1), weights.max(axis=-1)
    if form.lowest == -form.highest:
        return np.asarray(np.maximum(-low, high), np.float32)
    return np.asarray(np.where(-low > high, low, high), np.float32)


def _half(scales: Floats) -> Floats:
    """Rounded to float16, kept as float32."""
    with np.errstate(over="ignore"):
        return scales.astype(np.float16).astype(np.float32)
