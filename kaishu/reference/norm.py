"""Root-mean-square normalisation (Zhang & Sennrich, 2019, arXiv:1910.07467).

Owns the arithmetic and its rounding rule. Knows nothing of layers, files or devices.
Called by block.py and model.py on hidden states and, where a model has QK-norm, by attention.py on single heads.
"""

from __future__ import annotations

import torch
from torch import Tensor


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Scale each row to unit root mean square, then by a learned weight.

    x:      [..., n] float, any leading dimensions; n is D for hidden states, d for heads
    weight: [n] float, the learned scale of each channel
    eps:    added to the mean square, so that a row of zeros stays zeros
    return: [..., n] dtype of x

    Rounding: the mean of squares and the division are float32; the product with the weight is in x's dtype.
    """
    x32 = x.float()
    scale = torch.rsqrt(x32.pow(2).mean(-1, keepdim=True) + eps)  # [..., 1]
    return weight * (x32 * scale).to(x.dtype)
