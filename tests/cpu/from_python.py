"""Kernels as Python functions: what Kaishu itself never needs, because it calls the outermost ones by address."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numba import njit


def from_python(kernel: Any) -> Callable[..., Any]:
    """A kernel that can be called with numbers, pointers' arrays and records; it lets other threads run."""
    compiled = njit(nogil=True, error_model="numpy")(kernel.py_func)

    def call(*arguments: Any) -> Any:
        return compiled(*map(_argument, arguments))

    return call


def _argument(value: Any) -> Any:
    """A record as Numba knows it: an element, not an array of no dimensions."""
    return value[()] if isinstance(value, np.ndarray) and value.ndim == 0 else value
