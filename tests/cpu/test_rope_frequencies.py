"""Rotary frequencies without torch: the reference's, the paper's powers, and transformers' factor."""

from __future__ import annotations

import numpy as np
import pytest

from kaishu.config import RopeConfig
from kaishu.cpu.rope_frequencies import rope_attention_factor, rope_frequencies
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
