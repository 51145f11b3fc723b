"""The feed-forward network of a dense layer: SwiGLU (Shazeer, 2020, arXiv:2002.05202).

Owns the arithmetic and its three matrices. Knows nothing of attention, layers or files' whereabouts.
Called by block.py with a layer's normalised hidden state and, for each expert's share of tokens, by experts.py.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor

from kaishu.reference.linear import Linear, linear
from kaishu.reference.weights import WeightReader


@dataclass(frozen=True)
class FeedForward:
    """The weights of one feed-forward network, or of one expert, whose F is the experts' own.

    gate_proj: [F, D] Linear, decides how much of each inner channel passes
    up_proj:   [F, D] Linear, what would pass
    down_proj: [D, F] Linear, back to the hidden state
    """

    gate_proj: Linear
    up_proj: Linear
    down_proj: Linear

    @classmethod
    def read(cls, weights: WeightReader, name: str, *, bias: bool) -> FeedForward:
        """Read the three projections stored under `name`, for example `model.layers.0.mlp`."""
        return cls(
            gate_proj=weights.linear(f"{name}.gate_proj", bias=bias),
            up_proj=weights.linear(f"{name}.up_proj", bias=bias),
            down_proj=weights.linear(f"{name}.down_proj", bias=bias),
        )


def feed_forward(x: Tensor, weights: FeedForward) -> Tensor:
    """down(silu(gate(x)) · up(x)): a gate for each inner channel, times the channel, back to D.

    x:       [..., D] float, normalised hidden states of any rows
    weights: the three projections
    return:  [..., D] dtype of x

    Rounding: silu is computed in float32 or better inside and rounded to x's dtype; so is the product.
    """
    gate = F.silu(linear(x, weights.gate_proj))  # [..., F]
    return linear(gate * linear(x, weights.up_proj), weights.down_proj)  # [..., D]
