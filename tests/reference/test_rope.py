"""Rotary embedding against the equation in float64, and every kind's frequencies against transformers'."""

import dataclasses
import math

import numpy as np
import pytest
import torch
import transformers
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.qwen3.modeling_qwen3 import Qwen3RotaryEmbedding

from kaishu.config import ModelConfig, RopeConfig
from kaishu.reference.rope import rope_attention_factor, rope_frequencies, rotary_tables, rotate

LAST_POSITION = 131_071

KINDS = {
    "default": {"rope_type": "default"},
    "linear": {"rope_type": "linear", "factor": 4.0},
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32_768},
    "yarn_untruncated": {
        "rope_type": "yarn",
        "factor": 8.0,
        "original_max_position_embeddings": 4_096,
        "truncate": False,
        "beta_fast": 24.0,
        "beta_slow": 2.0,
    },
    "yarn_own_factor": {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 32_768,
        "attention_factor": 0.9,
    },
    "yarn_mscale": {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 32_768,
        "mscale": 0.7,
        "mscale_all_dim": 1.3,
    },
    "llama3": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8_192,
    },
}


@pytest.mark.parametrize("head_dim", [24, 64, 128])
@pytest.mark.parametrize("kind", KINDS)
def test_frequencies_and_factor_equal_transformers(kind, head_dim, tmp_path):
    parameters = {**KINDS[kind], "rope_theta": 1_000_000.0}
    theirs = transformers.Qwen3Config(head_dim=head_dim, rope_parameters=parameters, max_position_embeddings=131_072)
    theirs.save_pretrained(tmp_path)
    rope = ModelConfig.from_folder(tmp_path).rope
    compute = ROPE_INIT_FUNCTIONS.get(rope.kind, Qwen3RotaryEmbedding.compute_default_rope_parameters)
    frequencies, factor = compute(theirs, device="cpu") if rope.kind == "default" else compute(theirs, "cpu")
    torch.testing.assert_close(rope_frequencies(rope, head_dim), frequencies, rtol=3e-7, atol=0)
    assert rope_attention_factor(rope) == pytest.approx(factor, rel=1e-12)


def test_the_default_frequencies_are_the_papers():
    expected = [1_000_000.0 ** (-2 * i / 128) for i in range(64)]
    np.testing.assert_allclose(rope_frequencies(RopeConfig(theta=1e6), 128).numpy(), expected, rtol=5e-7)


def test_yarn_keeps_fast_pairs_and_slows_slow_ones():
    plain = RopeConfig(theta=1e6)
    stretched = dataclasses.replace(plain, kind="yarn", factor=4.0, original_positions=32_768)
    ratio = rope_frequencies(stretched, 128) / rope_frequencies(plain, 128)
    assert ratio[0] == 1 and ratio[-1] == pytest.approx(0.25) and (ratio.diff() <= 0).all()
    assert rope_attention_factor(stretched) == pytest.approx(0.1 * math.log(4) + 1)
    assert rope_attention_factor(plain) == 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_tables_are_right_up_to_the_last_position_in_any_dtype(dtype):
    positions = torch.tensor([0, 1, 255, 256, 257, 4_095, 65_537, LAST_POSITION - 1, LAST_POSITION], dtype=torch.int32)
    frequencies = rope_frequencies(RopeConfig(theta=1e6), 128)
    tables = rotary_tables(positions, frequencies, 1.0, dtype)
    phases = positions.double()[:, None] * frequencies.double()  # the exact product of what float32 holds
    phases = torch.cat([phases, phases], dim=-1)
    # A float32 phase of up to 131,071 is right to 1/256 of a radian; bfloat16 rounds the finished table to 1/512.
    tolerance = 1 / 256 + (torch.finfo(dtype).eps / 2 if dtype == torch.bfloat16 else 0)
    assert tables.cos.dtype == tables.sin.dtype == dtype
    assert (tables.cos.double() - phases.cos()).abs().max() <= tolerance
    assert (tables.sin.double() - phases.sin()).abs().max() <= tolerance


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_far_tables_equal_transformers(dtype):
    config = transformers.Qwen3Config(head_dim=128, rope_parameters={"rope_type": "default", "rope_theta": 1e6})
    positions = torch.arange(LAST_POSITION - 999, LAST_POSITION + 1, dtype=torch.int32)
    # Their module stays float32: its `.to(bfloat16)` would cast the frequencies, which is the mistake to avoid.
    cos, sin = Qwen3RotaryEmbedding(config)(torch.zeros(1, dtype=dtype), positions[None])
    tables = rotary_tables(positions, rope_frequencies(RopeConfig(theta=1e6), 128), 1.0, dtype)
    for ours, theirs in ((tables.cos, cos[0]), (tables.sin, sin[0])):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1 / 256)
        assert (ours - theirs).abs().mean() < 1e-4


def test_neighbouring_far_positions_differ_in_bfloat16():
    """If phases were bfloat16, positions 131,070 and 131,071 would be one."""
    positions = torch.tensor([LAST_POSITION - 1, LAST_POSITION], dtype=torch.int32)
    tables = rotary_tables(positions, rope_frequencies(RopeConfig(theta=1e6), 128), 1.0, torch.bfloat16)
    assert (tables.cos[0] - tables.cos[1]).abs().max() > 0.5


def test_rotation_turns_channel_i_with_channel_i_plus_half(rng):
    head_dim, positions = 24, [0, 3, 500]
    frequencies = rope_frequencies(RopeConfig(theta=1e4), head_dim)
    x = rng.normal(size=(3, 2, head_dim))
    tables = rotary_tables(torch.tensor(positions, dtype=torch.int32), frequencies, 1.0, torch.float32)
    found = rotate(torch.tensor(x).float(), tables).numpy()
    for t, position in enumerate(positions):
        for head in range(2):
            for i in range(head_dim // 2):
                pair = complex(x[t, head, i], x[t, head, i + head_dim // 2])
                turned = pair * np.exp(1j * position * 1e4 ** (-2 * i / head_dim))
                assert found[t, head, i] == pytest.approx(turned.real, abs=1e-4)
                assert found[t, head, i + head_dim // 2] == pytest.approx(turned.imag, abs=1e-4)


def test_scores_depend_on_the_distance_alone(rng):
    frequencies = rope_frequencies(RopeConfig(theta=1e4), 64)
    query, key = torch.tensor(rng.normal(size=(2, 1, 1, 64))).float()

    def score(query_position, key_position):
        def turned(x, position):
            positions = torch.tensor([position], dtype=torch.int32)
            return rotate(x, rotary_tables(positions, frequencies, 1.0, torch.float32))

        return (turned(query, query_position) * turned(key, key_position)).sum().item()

    assert score(9, 4) == pytest.approx(score(1009, 1004), abs=1e-3)
    assert score(9, 4) != pytest.approx(score(9, 5), abs=1e-2)
