"""Rotary position embedding: reference/rope.py as kernels.

Owns the tables of one step and the rotation of one head; the frequencies are rope_frequencies.py's. Phases, cosines and
sines are float32 and computed for the positions of the step alone: a table of all positions would be as long as the
context. Called by forward.py.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit

from kaishu.cpu.vector import KERNEL, lanes, load, store


@njit(**KERNEL)
def rotary_row(position, frequencies, pairs, factor, cos, sin, start):
    """One token's cosines and sines.

    frequencies: pointer to [d/2] float32
    cos, sin:    pointers to float32; this token's d/2 start at `start`
    """
    for pair in range(pairs):
        phase = np.float32(position) * frequencies[pair]
        cos[start + pair] = np.float32(math.cos(phase)) * factor
        sin[start + pair] = np.float32(math.sin(phase)) * factor


@njit(**KERNEL)
def rotate(head, head_index, cos, sin, start, pairs):
    """Turn each channel pair (i, i + d/2) of one head, in place.

    head: pointer to float32; the head starts at head_index
    """
    width = lanes()
    whole = pairs // width * width
    for pair in range(0, whole, width):
        first, second = load(head, head_index + pair), load(head, head_index + pair + pairs)
        cosine, sine = load(cos, start + pair), load(sin, start + pair)
        store(head, head_index + pair, first * cosine - second * sine)
        store(head, head_index + pair + pairs, second * cosine + first * sine)
    for pair in range(whole, pairs):
        first, second = head[head_index + pair], head[head_index + pair + pairs]
        head[head_index + pair] = first * cos[start + pair] - second * sin[start + pair]
        head[head_index + pair + pairs] = second * cos[start + pair] + first * sin[start + pair]
