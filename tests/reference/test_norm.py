"""rms_norm against the paper's equation, and its rounding rule."""

import numpy as np
import pytest
import torch

from kaishu.reference.norm import rms_norm


@pytest.mark.parametrize("shape", [(1, 64), (3, 128), (17, 1024), (5, 4, 24)])
def test_rms_norm_equals_the_definition_in_float64(shape, rng):
    x, weight = rng.normal(size=shape) * 3, rng.normal(size=shape[-1])
    expected = x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6) * weight
    found = rms_norm(torch.tensor(x).float(), torch.tensor(weight).float(), 1e-6)
    np.testing.assert_allclose(found.numpy(), expected, rtol=3e-6, atol=1e-7)


def test_epsilon_is_inside_the_root_and_keeps_a_zero_row_zero():
    row = torch.full((1, 8), 1e-3)
    np.testing.assert_allclose(rms_norm(row, torch.ones(8), 1e-6).numpy(), 1 / np.sqrt(2), rtol=1e-6)
    assert (rms_norm(torch.zeros(1, 8), torch.ones(8), 1e-6) == 0).all()


def test_squares_that_overflow_half_precision_are_taken_in_float32():
    row = torch.full((1, 8), 1e4, dtype=torch.float16)  # its square is past float16's 65,504
    assert torch.equal(rms_norm(row, torch.ones(8, dtype=torch.float16), 1e-6), torch.ones(1, 8, dtype=torch.float16))


def test_the_product_with_the_weight_is_rounded_in_the_inputs_dtype(rng):
    x = torch.tensor(rng.normal(size=(9, 64))).bfloat16()
    weight = torch.tensor(rng.normal(size=64)).bfloat16()
    x64 = x.double()
    normalised = (x64 / (x64**2).mean(-1, keepdim=True).add(1e-6).sqrt()).bfloat16()  # the first rounding
    assert torch.equal(rms_norm(x, weight, 1e-6), normalised * weight)  # the second
