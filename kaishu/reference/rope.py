"""Rotary position embedding (Su et al., 2021, arXiv:2104.09864) in its half-split form.

Owns the frequencies of every supported kind, the tables of one step, and the rotation. Knows nothing of layers.
model.py computes the frequencies once and the tables once a step; attention.py rotates queries and keys by them.

Channel i of a head is paired with channel i + d/2, and the pair turns by position · θ^(-2i/d). (The paper pairs
neighbours; a checkpoint's rows are laid out for one form or the other, and Qwen's and Llama's are for this one.)
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from kaishu.config import RopeConfig


@dataclass(frozen=True)
class RotaryTables:
    """Cosines and sines of one step's positions, shared by all layers and heads.

    cos: [T, d] float, the two halves of a row are equal
    sin: [T, d] float, likewise
    """

    cos: Tensor
    sin: Tensor


def rope_frequencies(rope: RopeConfig, head_dim: int) -> Tensor:
    """How far each channel pair turns from one position to the next, in radians.

    rope:     the base and, where the context was stretched, how
    head_dim: d, even
    return:   [d/2] float32, on the CPU, fastest first
    """
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim  # [d/2]
    frequencies = 1.0 / rope.theta**exponents
    match rope.kind:
        case "default":
            return frequencies
        case "linear":
            return frequencies / rope.factor
        case "yarn":
            return _yarn(frequencies, rope, head_dim)
        case "llama3":
            return _llama3(frequencies, rope)


def rope_attention_factor(rope: RopeConfig) -> float:
    """What YaRN multiplies cosines and sines by, which tempers the softmax over a longer context; else 1.

    Source: YaRN, equation 22: sqrt(1/t) = 0.1 ln(factor) + 1, on queries and on keys.
    """
    if rope.kind != "yarn":
        return 1.0
    if rope.attention_factor is not None:
        return rope.attention_factor
    if rope.mscale and rope.mscale_all_dim:
        return _temper(rope.factor, rope.mscale) / _temper(rope.factor, rope.mscale_all_dim)
    return _temper(rope.factor, 1.0)


def rotary_tables(positions: Tensor, frequencies: Tensor, attention_factor: float, dtype: torch.dtype) -> RotaryTables:
    """Cosines and sines for the positions of one step.

    positions:        [T] int32, each token's position in its own sequence
    frequencies:      [d/2] float32, from rope_frequencies; never cast, whatever the model's dtype
    attention_factor: from rope_attention_factor
    dtype:            the model's, which the tables are rounded to
    return:           the tables

    Rounding: phases, cosines and sines are float32; only the finished tables are rounded. bfloat16 has 8 bits, so it
    can't tell position 131,071 from 131,072, nor 257 from 256; as phases they would be many whole turns wrong.
    """
    phases = positions.float()[:, None] * frequencies  # [T, d/2]
    phases = torch.cat([phases, phases], dim=-1)  # [T, d]
    return RotaryTables((phases.cos() * attention_factor).to(dtype), (phases.sin() * attention_factor).to(dtype))


def rotate(x: Tensor, tables: RotaryTables) -> Tensor:
    """Turn each channel pair (i, i + d/2) of each head by its token's angle.

    x:      [T, n, d] float, n heads of queries or keys
    tables: the step's cosines and sines
    return: [T, n, d] dtype of x

    Rounding: both products and their sum are in x's dtype.
    """
    first, second = x.chunk(2, dim=-1)  # [T, n, d/2] each
    quarter_turn = torch.cat([-second, first], dim=-1)  # [T, n, d]
    return x * tables.cos[:, None] + quarter_turn * tables.sin[:, None]


def _yarn(frequencies: Tensor, rope: RopeConfig, head_dim: int) -> Tensor:
    """YaRN (Peng et al., 2023, arXiv:2309.00071), section 3.2: pairs that turn often within the trained context keep
    their frequency, pairs that turn less than `beta_slow` times are slowed down by `factor`, a ramp lies between."""
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
    width = (high - low) or 0.001  # a ramp of no width is a step
    slowed = ((torch.arange(head_dim // 2, dtype=torch.float32) - low) / width).clamp(0, 1)  # [d/2], 0 keeps, 1 slows
    kept = 1 - slowed
    return frequencies / rope.factor * (1 - kept) + frequencies * kept


def _temper(factor: float, weight: float) -> float:
    return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0


def _llama3(frequencies: Tensor, rope: RopeConfig) -> Tensor:
    """Llama 3.1's stretching: by wavelength, short ones stay, long ones grow by `factor`, a smooth step between."""
    assert rope.original_positions is not None, "config.py requires the original context for llama3"
    turns = rope.original_positions * frequencies / (2 * math.pi)  # [d/2], whole turns within the trained context
    kept = (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
    kept = kept.clamp(0, 1)  # 1 keeps, 0 slows
    return (1 - kept) * frequencies / rope.factor + kept * frequencies
