"""SwiGLU's gate: the sigmoid over its whole range, and the fused product against torch in float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numba import njit

from kaishu.cpu import feed_forward
from kaishu.cpu.feed_forward import silu
from kaishu.cpu.target import current_target
from kaishu.cpu.vector import lanes, load, pointer, store
from tests.cpu.drawn_weights import KINDS, draw_activations, draw_linear, draw_model, matrix_record
from tests.cpu.from_python import from_python
from tests.cpu.rounding import ulps

LANES = current_target().lanes

gated_blocks = from_python(feed_forward.gated_blocks)


@njit
def silus(x, out):
    for i in range(0, x.shape[0], lanes()):
        store(pointer(out), i, silu(load(pointer(x), i)))


def silu_of(values):
    x = np.resize(np.asarray(values, np.float32), -(-len(values) // LANES) * LANES)
    out = np.empty_like(x)
    silus(x, out)
    return out[: len(values)]


def test_silu_is_torchs_in_float64():
    x = np.concatenate([np.linspace(-80, 80, 200_001), np.linspace(-1e-3, 1e-3, 2001)]).astype(np.float32)
    truth = torch.nn.functional.silu(torch.from_numpy(x).double()).numpy()
    assert ulps(silu_of(x), truth).max() < 3.5


def test_silu_beyond_the_exponentials_range():
    x = [-1e30, -1000, -89, 89, 1000, 1e30, np.nan, 0.0]
    found = silu_of(x)
    assert (np.abs(found[1:3]) < 1e-34).all() and (found[1:3] <= 0).all()
    assert abs(found[0]) <= 1e-38 * 1e30
    assert np.array_equal(found[3:6], np.float32(x[3:6])) and np.isnan(found[6]) and found[7] == 0


class Gated:
    """gate and up of one kind, and what gated_blocks makes of some rows and blocks; 7 is what wasn't written."""

    def __init__(self, rng, kind, blocks=4, inputs=64, tokens=9, bias=False):
        self.gate, self.up = (draw_linear(rng, kind, blocks * LANES, inputs, bias=bias) for _ in range(2))
        self.model, self.x, self.width = (
            draw_model(self.gate, self.up),
            draw_activations(rng.normal(size=(tokens, inputs))),
            blocks * LANES,
        )

    def computed(self, first, last, first_row, last_row):
        tokens = len(self.x.words)
        gates, values = np.zeros((2, tokens, self.width + 5), np.float32)
        inner = draw_activations(np.full((tokens, self.width + 32), 7.0))
        inner.words[:] = 7
        blocks, rows = (first, last), (first_row, last_row)
        scratch = (matrix_record(gates), matrix_record(values))
        gated_blocks(self.model.record, 0, 1, *blocks, self.x.record, *rows, *scratch, inner.record)
        return inner.words


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bias", [False, True], ids=["plain", "bias"])
def test_inner_is_silu_of_the_gate_times_up(kind, bias, rng):
    gated = Gated(rng, kind, bias=bias)
    found = gated.computed(0, 4, 0, 9)
    x = gated.x.exact if kind == "bf16" else gated.x.quantised
    products = []
    for linear in (gated.gate, gated.up):
        added = 0 if linear.bias is None else linear.bias
        products.append(torch.from_numpy(x @ linear.values.T + added))
    expected = (torch.nn.functional.silu(products[0]) * products[1]).numpy()
    assert np.allclose(found[:, : gated.width], expected, rtol=1e-5, atol=1e-5 * np.abs(expected).max())
    assert (found[:, gated.width :] == 7).all()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("first, last, first_row, last_row", [(0, 2, 0, 9), (2, 4, 3, 8), (2, 4, 8, 9)])
def test_parts_have_the_same_bits_and_nothing_else_is_written(kind, first, last, first_row, last_row, rng):
    gated = Gated(rng, kind)
    whole, part = gated.computed(0, 4, 0, 9), gated.computed(first, last, first_row, last_row)
    written = np.zeros(whole.shape, bool)
    written[first_row:last_row, first * LANES : last * LANES] = True
    assert np.array_equal(part[written], whole[written]) and (part[~written] == 7).all()
