"""How fast each pair of channels rotates: the frequencies of reference/rope.py in numpy.

Owns the equations, computed once for a model. The rotation itself is rope.py's, in kernels. Used by executor.py.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from kaishu.config import RopeConfig


def rope_frequencies(rope: RopeConfig, head_dim: int) -> NDArray[np.float32]:
    """How far each channel pair turns from one position to the next, in radians.

    return: [d/2] float32, fastest first; reference/rope.py has the equations and their sources
    """
    exponents = np.arange(0, head_dim, 2, dtype=np.float32) / np.float32(head_dim)
    # Rounded once: numpy's power of float32 differs from CPU to CPU, with AVX-512 by two units in the last place.
    powers = np.power(rope.theta, exponents.astype(np.float64)).astype(np.float32)  # [d/2]
    frequencies: NDArray[np.float32] = np.float32(1.0) / powers
    if rope.kind == "linear":
        return np.asarray(frequencies / np.float32(rope.factor), np.float32)
    if rope.kind == "yarn":
        return _yarn(frequencies, rope, head_dim)
    if rope.kind == "llama3":
        return _llama3(frequencies, rope)
    return frequencies


def rope_attention_factor(rope: RopeConfig) -> float:
    """What YaRN multiplies cosines and sines by; else 1."""
    if rope.kind != "yarn":
        return 1.0
    if rope.attention_factor is not None:
        return rope.attention_factor
    if rope.mscale and rope.mscale_all_dim:
        return _temper(rope.factor, rope.mscale) / _temper(rope.factor, rope.mscale_all_dim)
    return _temper(rope.factor, 1.0)


def _temper(factor: float, weight: float) -> float:
    return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0


def _yarn(frequencies: NDArray[np.float32], rope: RopeConfig, head_dim: int) -> NDArray[np.float32]:
    assert rope.original_positions is not None, "config.py requires the original context for yarn"
    context = rope.original_positions

    def channel_that_turns(times: float) -> float:
        return head_dim * math.log(context / (times * 2 * math.pi)) / (2 * math.log(rope.theta))

    low: float
    high: float
    low, high = channel_that_turns(rope.beta_fast), channel_that_turns(rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    width = (high - low) or 0.001
    slowed = np.clip((np.arange(head_dim // 2, dtype=np.float32) - low) / width, 0, 1)
    kept = 1 - slowed
    return np.asarray(frequencies / rope.factor * (1 - kept) + frequencies * kept, np.float32)


def _llama3(frequencies: NDArray[np.float32], rope: RopeConfig) -> NDArray[np.float32]:
    assert rope.original_positions is not None, "config.py requires the original context for llama3"
    turns = rope.original_positions * frequencies / (2 * math.pi)
    kept = np.clip((turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor), 0, 1)
    return np.asarray((1 - kept) * frequencies / rope.factor + kept * frequencies, np.float32)
