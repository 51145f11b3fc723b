"""A token's row comes out of every form of the table as the numbers that are stored there, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest
from numba import njit

from kaishu.cpu.embedding import embed_token
from kaishu.cpu.records import address
from kaishu.cpu.target import current_target
from kaishu.cpu.vector import pointer
from tests.cpu.drawn_weights import KINDS, bfloat16_bits, bfloat16_values, draw_linear, draw_model

LANES = current_target().lanes


@njit
def embedded(model, token_ids, out):
    """out: [T, D + 3]: a row starts two numbers after the last one's end, and one is left behind it."""
    for row in range(token_ids.shape[0]):
        embed_token(model, token_ids[row], pointer(out), row * out.shape[1] + 2)


def rows_of(model, token_ids, hidden_size):
    out = np.full((len(token_ids), hidden_size + 3), -5, np.float32)
    embedded(model.record[()], np.array(token_ids, np.int32), out)
    assert (out[:, :2] == -5).all() and (out[:, -1] == -5).all()
    return out[:, 2:-1]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("hidden_size, inputs", [(96, 96), (40, 64), (33, 64)])
def test_a_tied_head_gives_the_rows_that_it_multiplies_with(kind, hidden_size, inputs, rng):
    other, head = draw_linear(rng, "int8", 2 * LANES, 32), draw_linear(rng, kind, 6 * LANES, inputs)
    model = draw_model(other, head, hidden_size=hidden_size, head=1, embedding=-1)
    token_ids = [0, 1, LANES - 1, LANES, 6 * LANES - 1, 3 * LANES + 2, 0]
    expected = head.values[token_ids, :hidden_size]
    found = rows_of(model, token_ids, hidden_size)
    if kind == "int4_minimum":  # a product and a sum, each rounded
        assert np.allclose(found, expected, rtol=1e-6, atol=1e-7)
    else:
        assert np.array_equal(found, expected.astype(np.float32))


@pytest.mark.parametrize("hidden_size", [40, 64])
def test_a_table_of_its_own_is_read_row_by_row(hidden_size, rng):
    memory = bfloat16_bits(rng.normal(size=(21, hidden_size)))
    table = memory[1:]  # with something else before it
    model = draw_model(hidden_size=hidden_size, address=address(memory), embedding=2 * hidden_size)
    token_ids = [0, 19, 7, 7]
    assert np.array_equal(rows_of(model, token_ids, hidden_size), bfloat16_values(table[token_ids]))
