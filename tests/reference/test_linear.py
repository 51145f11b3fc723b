"""linear against the sum it stands for."""

import numpy as np
import torch

from kaishu.reference.linear import Linear, linear


def test_linear_is_a_row_of_weights_times_the_input_plus_its_bias(rng):
    x, weight, bias = rng.normal(size=(3, 5)), rng.normal(size=(7, 5)), rng.normal(size=7)
    expected = [[sum(weight[m, n] * x[t, n] for n in range(5)) + bias[m] for m in range(7)] for t in range(3)]
    found = linear(torch.tensor(x), Linear(torch.tensor(weight), torch.tensor(bias)))
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-12)
