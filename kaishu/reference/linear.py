"""A linear layer: y = x Wᵀ + b.

Owns the pair of weight and bias. Knows nothing of what the rows mean, nor where they were read.
Filled by weights.py; used by every projection of attention.py, feed_forward.py, experts.py and by the head.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True)
class Linear:
    """The weights of one linear layer: one row for each output, as PyTorch and the checkpoints store it.

    weight: [m, n] float, m outputs of n inputs
    bias:   [m] float, or None where the model has none
    """

    weight: Tensor
    bias: Tensor | None = None


def linear(x: Tensor, weights: Linear) -> Tensor:
    """Multiply each row by the weight matrix and add the bias.

    x:       [..., n] float, any leading dimensions
    weights: the layer's [m, n] weight and, perhaps, [m] bias
    return:  [..., m] dtype of x

    Rounding: once for each output, from whatever torch accumulates in (float32 or better for both our dtypes).
    """
    return F.linear(x, weights.weight, weights.bias)
