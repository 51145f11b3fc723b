"""Rotary embedding without torch: the reference's frequencies, transformers' factor, and the rotation in float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numba import njit

from kaishu.config import RopeConfig
from kaishu.cpu.rope import rope_attention_factor, rope_frequencies, rotary_row, rotate
from kaishu.cpu.vector import pointer
from kaishu.reference import rope as reference
from tests.cpu.rounding import ulps

KINDS = {
    "default": RopeConfig(1_000_000.0),
    "default_10000": RopeConfig(10_000.0),
    "linear": RopeConfig(10_000.0, "linear", 4.0),
    "yarn": RopeConfig(1_000_000.0, "yarn", 4.0, 32_768),
    "yarn_untruncated": RopeConfig(1_000_000.0, "yarn", 8.0, 4_096, truncate=False, beta_fast=24.0, beta_slow=2.0),
    "yarn_own_factor": RopeConfig(10_000.0, "yarn", 4.0, 128, attention_factor=0.9),
    "yarn_mscale": RopeConfig(1_000_000.0, "yarn", 4.0, 32_768, mscale=0.7, mscale_all_dim=1.3),
    "yarn_step": RopeConfig(1_000_000.0, "yarn", 4.0, 32_768, beta_fast=2.0, beta_slow=2.0, truncate=False),
    "yarn_unstretched": RopeConfig(1_000_000.0, "yarn", 1.0, 32_768),
    "llama3": RopeConfig(500_000.0, "llama3", 8.0, 8_192, low_freq_factor=1.0, high_freq_factor=4.0),
    "llama3_32": RopeConfig(500_000.0, "llama3", 32.0, 8_192, low_freq_factor=1.0, high_freq_factor=4.0),
}
every_kind = pytest.mark.parametrize("rope", KINDS.values(), ids=KINDS)


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
@pytest.mark.parametrize("head_dim", [2, 24, 64, 80, 128, 256])
def test_frequencies_are_the_references_within_one_unit_in_the_last_place(rope, head_dim):
    found, theirs = rope_frequencies(rope, head_dim), reference.rope_frequencies(rope, head_dim).numpy()
    assert found.dtype == np.float32 and found.shape == (head_dim // 2,)
    assert (np.abs(found - theirs) <= np.spacing(theirs)).all()


@pytest.mark.parametrize("theta", [10_000.0, 1_000_000.0, 5_000_000.0])
def test_plain_frequencies_are_the_papers_powers(theta):
    truth = theta ** -(np.arange(0, 128, 2) / 128)
    assert ulps(rope_frequencies(RopeConfig(theta), 128), truth).max() <= 4  # an exponent, a power and a division


@every_kind
def test_the_attention_factor_is_the_references(rope):
    assert rope_attention_factor(rope) == reference.rope_attention_factor(rope)


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
