"""Linear layers of every kind against float64 on the same weights and activations, and the same bits in any company."""

from __future__ import annotations

import numpy as np
import pytest

from kaishu.cpu import linear as kernels
from kaishu.cpu.layout import BIAS, BLOCKS, INPUTS, KIND
from kaishu.cpu.linear import CACHED_BYTES
from kaishu.cpu.records import address
from kaishu.cpu.target import current_target
from tests.cpu.drawn_weights import KINDS, draw_activations, draw_linear, draw_model, matrix_record
from tests.cpu.from_python import from_python

LANES = current_target().lanes
linear_blocks, linear_runs, linear_field, layer_field = map(
    from_python, (kernels.linear_blocks, kernels.linear_runs, kernels.linear_field, kernels.layer_field)
)
UNTOUCHED = np.float32(-777.25)
every_kind = pytest.mark.parametrize("kind", KINDS)


def multiplied(model, which, x, *, first=0, last=None, rows=None, column=0, width=None):
    """Run linear_blocks. return: the whole of `out`, with what wasn't written to UNTOUCHED"""
    blocks = model.linears[which, BLOCKS]
    first_row, last_row = rows or (0, len(x.words))
    out = np.full((len(x.words), width or column + blocks * LANES), UNTOUCHED)
    target = matrix_record(out)
    linear_blocks(
        model.record, which, first, blocks if last is None else last, x.record, first_row, last_row, target, column
    )
    return out


def truth(linear, x):
    """return: [T, N] float64, and the sum of the sizes of all its terms, which bounds the error of any order"""
    rows = x.exact if linear.kind == "bf16" else x.quantised
    bias = np.zeros(len(linear.values)) if linear.bias is None else linear.bias.astype(np.float64)
    return rows @ linear.values.T + bias, np.abs(rows) @ np.abs(linear.values).T + np.abs(bias)


def assert_close(found, linear, x):
    """Within one float32 rounding for each addition and the two before it, of terms of this size."""
    expected, size = truth(linear, x)
    inputs = linear.values.shape[1]
    roundings = (inputs if linear.kind == "bf16" else 2 * inputs // 32) + 4
    if linear.kind.startswith("int4"):  # a group's terms are q - 8, or q and a minimum: what cancels there counts, too
        roundings *= 4
    assert (np.abs(found - expected) <= roundings * 2.0**-24 * size).all()


@every_kind
@pytest.mark.parametrize("bias", [False, True], ids=["plain", "bias"])
@pytest.mark.parametrize("tokens, blocks, inputs", [(1, 2, 32), (2, 6, 96), (13, 4, 160), (5, 2, 1056), (53, 4, 64)])
def test_a_linear_layer_is_the_product_in_float64(kind, bias, tokens, blocks, inputs, rng):
    linear = draw_linear(rng, kind, blocks * LANES, inputs, bias=bias)
    x = draw_activations(rng.normal(size=(tokens, inputs)) * 10.0 ** rng.integers(-2, 3, (tokens, 1)))
    found = multiplied(draw_model(linear), 0, x)
    assert_close(found, linear, x)
    expected, _ = truth(linear, x)
    assert np.linalg.norm(found - expected) < 1e-5 * np.linalg.norm(expected)


@every_kind
@pytest.mark.parametrize("value", [1e-30, 1e-4, 1e4, 1e30])
def test_rows_of_any_size_are_multiplied(kind, value, rng):
    linear = draw_linear(rng, kind, 2 * LANES, 64)
    x = draw_activations(rng.normal(size=(3, 64)) * value)
    assert_close(multiplied(draw_model(linear), 0, x), linear, x)


@every_kind
def test_a_token_has_the_same_bits_alone_and_among_others(kind, rng):
    """For 1 to 13 tokens, and some more: whole tiles and every tail that can be left."""
    linear = draw_linear(rng, kind, 4 * LANES, 96, bias=True)
    model, rows = draw_model(linear), rng.normal(size=(51, 96))
    alone = np.concatenate([multiplied(model, 0, draw_activations(rows[t : t + 1])) for t in range(51)])
    for tokens in (*range(2, 14), 15, 16, 17, 31, 32, 35, 48, 51):
        assert np.array_equal(multiplied(model, 0, draw_activations(rows[:tokens])), alone[:tokens])
        assert np.array_equal(multiplied(model, 0, draw_activations(rows[-tokens:])), alone[-tokens:])


@every_kind
def test_rows_that_no_longer_fit_the_cache_are_done_in_parts_with_the_same_bits(kind, rng):
    inputs = 16_416
    linear = draw_linear(rng, kind, 2 * LANES, inputs)
    model, rows = draw_model(linear), rng.normal(size=(13, inputs))
    assert 13 * inputs > CACHED_BYTES
    together = multiplied(model, 0, draw_activations(rows))
    for token in (0, 5, 12):
        assert np.array_equal(multiplied(model, 0, draw_activations(rows[token : token + 1]))[0], together[token])


@every_kind
@pytest.mark.parametrize(
    "first_row, last_row", [(0, 3), (1, 13), (7, 9), (12, 13), (4, 4), (15, 17), (14, 19), (3, 35), (16, 40), (30, 41)]
)
def test_only_the_rows_asked_for_are_written(kind, first_row, last_row, rng):
    linear = draw_linear(rng, kind, 2 * LANES, 64, bias=True)
    model, x = draw_model(linear), draw_activations(rng.normal(size=(41, 64)))
    found, whole = multiplied(model, 0, x, rows=(first_row, last_row)), multiplied(model, 0, x)
    assert np.array_equal(found[first_row:last_row], whole[first_row:last_row])
    assert (np.delete(found, np.s_[first_row:last_row], axis=0) == UNTOUCHED).all()


@every_kind
@pytest.mark.parametrize("bias", [False, True], ids=["plain", "bias"])
@pytest.mark.parametrize("first, last", [(0, 2), (2, 6), (4, 6), (2, 2)])
def test_blocks_are_written_where_they_belong_and_nowhere_else(kind, bias, first, last, rng):
    """Some blocks of rows, at a column of a wider matrix: what a rank does with what it has claimed."""
    linear = draw_linear(rng, kind, 6 * LANES, 64, bias=bias)
    model, x, column = draw_model(linear), draw_activations(rng.normal(size=(7, 64))), 40
    whole = multiplied(model, 0, x)
    found = multiplied(model, 0, x, first=first, last=last, column=column, width=column + 6 * LANES + 3)
    written = np.s_[column + first * LANES : column + last * LANES]
    assert np.array_equal(found[:, written], whole[:, first * LANES : last * LANES])
    assert (np.delete(found, written, axis=1) == UNTOUCHED).all()


@every_kind
def test_a_nan_in_one_token_reaches_no_other(kind, rng):
    linear = draw_linear(rng, kind, 2 * LANES, 64)
    rows = rng.normal(size=(9, 64))
    healthy, model = draw_activations(rows), draw_model(linear)
    broken = draw_activations(rows)
    broken.make_nan(4)
    found, expected = multiplied(model, 0, broken), multiplied(model, 0, healthy)
    assert np.isnan(found[4]).all()
    assert np.array_equal(np.delete(found, 4, axis=0), np.delete(expected, 4, axis=0))


@pytest.mark.parametrize("first_row, tokens", [(1, 1), (1, 2), (1, 6), (15, 2), (14, 2), (14, 3)])
@pytest.mark.parametrize(
    "kinds", [*((kind, kind) for kind in KINDS), ("int4", "int8"), ("bf16", "int4_minimum")], ids="-".join
)
@pytest.mark.parametrize("counts", [(4, 4), (6, 4), (2, 0)], ids=str)
def test_two_runs_at_once_have_the_bits_of_each_alone(kinds, counts, first_row, tokens, rng):
    """Of two linears, at columns of two matrices: what one rank has claimed in two places."""
    linears = [draw_linear(rng, kind, 8 * LANES, 96, bias=kind != "int8") for kind in kinds]
    rows = first_row, first_row + tokens
    model, x = draw_model(*linears), draw_activations(rng.normal(size=(rows[1], 96)))
    outs = [np.full((rows[1], 10 * LANES + 3 * place), UNTOUCHED) for place in range(2)]
    runs = [(which, 2, 2 + count, column) for which, (count, column) in enumerate(zip(counts, (5, 0), strict=True))]
    linear_runs(model.record, *runs, x.record, *rows, *map(matrix_record, outs))
    for (which, first, last, column), out in zip(runs, outs, strict=True):
        alone = multiplied(model, which, x, first=first, last=last, rows=rows, column=column, width=out.shape[1])
        assert np.array_equal(out, alone)


def test_linears_of_different_kinds_lie_side_by_side(rng):
    linears = [draw_linear(rng, kind, 2 * LANES, 96, bias=kind == "int4") for kind in KINDS]
    model, x = draw_model(*linears), draw_activations(rng.normal(size=(6, 96)))
    for which, linear in enumerate(linears):
        assert_close(multiplied(model, which, x), linear, x)


def test_fields_of_the_tables_are_read_by_row_and_column(rng):
    layers = np.arange(24, dtype=np.int64).reshape(3, 8)
    model = draw_model(*(draw_linear(rng, kind, 2 * LANES, 32) for kind in KINDS), layers=address(layers))
    for which in range(len(KINDS)):
        for column in (KIND, BIAS, INPUTS, BLOCKS):
            assert linear_field(model.record, which, column) == model.linears[which, column]
    assert [layer_field(model.record, layer, column) for layer in range(3) for column in range(8)] == list(range(24))
