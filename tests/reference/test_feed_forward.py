"""SwiGLU against the paper's equation in float64."""

import numpy as np
import torch

from kaishu.reference.feed_forward import FeedForward, feed_forward
from kaishu.reference.linear import Linear


def test_feed_forward_is_a_silu_gate_on_the_up_projection(rng):
    x, gate, up, down = (rng.normal(size=shape) for shape in [(5, 8), (12, 8), (12, 8), (8, 12)])
    biases = [rng.normal(size=n) for n in (12, 12, 8)]
    gated = x @ gate.T + biases[0]
    expected = (gated / (1 + np.exp(-gated)) * (x @ up.T + biases[1])) @ down.T + biases[2]
    layers = [Linear(torch.tensor(w), torch.tensor(b)) for w, b in zip((gate, up, down), biases, strict=True)]
    np.testing.assert_allclose(feed_forward(torch.tensor(x), FeedForward(*layers)).numpy(), expected, rtol=1e-10)
