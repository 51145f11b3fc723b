"""The rotary tables of a step and the rotation of a head: the reference's, and the rotation in float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numba import njit

from kaishu.cpu.rope import rotary_row, rotate
from kaishu.cpu.rope_frequencies import rope_attention_factor, rope_frequencies
from kaishu.cpu.vector import pointer
from kaishu.reference import rope as reference
from tests.cpu.test_rope_frequencies import KINDS, every_kind


@njit
def tables_of(positions, frequencies, factor, cos, sin):
    pairs = frequencies.shape[0]
    for token in range(positions.shape[0]):
        rotary_row(positions[token], pointer(frequencies), pairs, factor, pointer(cos), pointer(sin), token * pairs)


@njit
def rotated(heads, start, cos, sin, table_start, pairs):
    rotate(pointer(heads), start, pointer(cos), pointer(sin), table_start, pairs)


def tables(positions, frequencies, factor=1.0):
    cos, sin = np.empty((2, len(positions), len(frequencies)), np.float32)
    tables_of(np.array(positions, np.int32), frequencies, np.float32(factor), cos, sin)
    return cos, sin


@every_kind
def test_tables_are_the_references_within_rounding_up_to_the_last_position(rope):
    positions = [0, 1, 2, 255, 256, 257, 32_767, 40_960, 131_071]
    frequencies, factor = rope_frequencies(rope, 128), rope_attention_factor(rope)
    cos, sin = tables(positions, frequencies, factor)
    theirs = reference.rotary_tables(torch.tensor(positions), torch.from_numpy(frequencies), factor, torch.float32)
    assert np.allclose(cos, theirs.cos[:, :64].numpy(), rtol=0, atol=2.5e-7)
    assert np.allclose(sin, theirs.sin[:, :64].numpy(), rtol=0, atol=2.5e-7)


def test_cosines_and_sines_are_of_the_float32_phase(rng):
    frequencies = rope_frequencies(KINDS["default"], 128)
    positions = np.concatenate([np.arange(300), rng.integers(0, 131_072, 300)])
    cos, sin = tables(positions, frequencies)
    phases = (positions.astype(np.float32)[:, None] * frequencies).astype(np.float64)
    assert np.abs(cos - np.cos(phases)).max() < 2.0**-23 and np.abs(sin - np.sin(phases)).max() < 2.0**-23


@pytest.mark.parametrize("head_dim", [2, 24, 128])
@pytest.mark.parametrize("position", [0, 1, 4095, 131_071])
def test_a_head_is_turned_as_the_reference_turns_it(head_dim, position, rng):
    frequencies = rope_frequencies(KINDS["default"], head_dim)
    pairs = head_dim // 2
    cos, sin = tables([7, position], frequencies)
    x = rng.normal(size=3 + head_dim + 4).astype(np.float32)
    found = x.copy()
    rotated(found, 3, cos, sin, pairs, pairs)
    assert np.array_equal(found[:3], x[:3]) and np.array_equal(found[3 + head_dim :], x[3 + head_dim :])
    twice = reference.RotaryTables(*(torch.from_numpy(np.tile(table[1:], 2)) for table in (cos, sin)))
    theirs = reference.rotate(torch.from_numpy(x[None, None, 3 : 3 + head_dim]), twice).numpy().ravel()
    assert np.array_equal(found[3 : 3 + head_dim], theirs), "the same products and sums, each rounded once"
    turned = (x[3 : 3 + pairs] + 1j * x[3 + pairs : 3 + head_dim]) * np.exp(1j * position * frequencies.astype(float))
    both = np.concatenate([turned.real, turned.imag])
    assert np.abs(found[3 : 3 + head_dim] - both).max() < 2e-6 + position * 2.0**-23  # the phase itself is float32
