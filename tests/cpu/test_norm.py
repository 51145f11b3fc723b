"""RMS normalisation against the equation in float64; quantised activations against their definition, exactly."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numba import njit

from kaishu.cpu import norm
from kaishu.cpu.layout import ROUNDED, WHOLE
from kaishu.cpu.norm import rms_norm
from kaishu.cpu.records import ACTIVATIONS, address, record
from kaishu.cpu.target import current_target
from kaishu.cpu.vector import pointer
from kaishu.reference.norm import rms_norm as reference_rms_norm
from tests.cpu.drawn_weights import as_rows, bfloat16_bits, in_order, nibble_shifts
from tests.cpu.from_python import from_python

EPS = np.float32(1e-6)

prepare, round_words = from_python(norm.prepare), from_python(norm.round_words)


@njit
def normalised(x, start, weight, size, padded_size, eps, out, out_start):
    rms_norm(pointer(x), start, pointer(weight), size, padded_size, eps, pointer(out), out_start)


def padded_to(row, length):
    return np.concatenate([row, np.zeros(length - len(row))]).astype(np.float32)


def normalise(x, weight, eps=EPS):
    """One row, surrounded by numbers that must neither be read nor changed. return: [padded size]"""
    length = -(-len(x) // 32) * 32
    rows = np.concatenate([np.full(5, 1e20), padded_to(x, length), np.full(40, 1e20)]).astype(np.float32)
    out = np.full(length + 60, -5, np.float32)
    normalised(rows, 5, padded_to(weight, length), len(x), length, eps, out, 9)
    assert (out[:9] == -5).all() and (out[9 + length :] == -5).all()
    return out[9 : 9 + length]


@pytest.mark.parametrize("size", [1, 24, 32, 40, 64, 128, 1024, 2560])
@pytest.mark.parametrize("scale", [1e-4, 1.0, 1e4])
def test_a_row_is_scaled_as_the_equation_says(size, scale, rng):
    x, weight = (rng.normal(size=size) * scale).astype(np.float32), rng.normal(size=size).astype(np.float32)
    found = normalise(x, weight)
    wide = x.astype(np.float64)
    expected = wide / np.sqrt((wide**2).mean() + 1e-6) * weight
    assert np.allclose(found[:size], expected, rtol=2e-6 + 1e-8 * size, atol=0)
    assert (found[size:] == 0).all(), "the zeros behind the row are kept"
    reference = reference_rms_norm(torch.from_numpy(x), torch.from_numpy(weight), 1e-6).numpy()
    assert np.allclose(found[:size], reference, rtol=3e-6, atol=0)


def test_a_row_of_zeros_stays_zeros():
    assert (normalise(np.zeros(40), np.ones(40)) == 0).all()


def test_a_nan_is_in_all_of_its_row(rng):
    x = rng.normal(size=64)
    x[63] = np.nan
    assert np.isnan(normalise(x, np.ones(64))).all()


def test_a_row_can_be_normalised_where_it_lies(rng):
    x, weight = rng.normal(size=(2, 96)).astype(np.float32)
    own = x.copy()
    normalised(own, 0, weight, 96, 96, EPS, own, 0)
    assert np.array_equal(own, normalise(x, weight))


class Rows:
    """Activations of three rows, of which the middle one is prepared; the record's arrays say what else was touched."""

    def __init__(self, row, width=None, forms=WHOLE | ROUNDED):
        width = width or len(row)
        before = {
            "words": np.full((3, width), 5, np.float32),
            "whole": np.full((3, width // 32, 32), 99, np.int8),
            "scales": np.full((3, width // 32), 5, np.float32),
            "sums": np.full((3, width // 32), 12345, np.int32),
            "shifts": np.full((3, width // 32), 12345, np.int32),
            "tiles": np.full((3, width // 32, 32), 777, np.uint16),
        }
        before["words"][1, : len(row)] = row
        arrays = {name: array if name == "words" else in_order(array) for name, array in before.items()}
        arrays["words"] = arrays["words"].copy()
        fields = {name: address(array) for name, array in arrays.items()}
        prepare(record(ACTIVATIONS, fields | {"width": width}), 1, len(row), forms)
        found = {name: array if name == "words" else as_rows(array)[:3] for name, array in arrays.items()}
        for name, array in found.items():
            written = len(row) // (1 if name == "words" else 32)
            assert np.array_equal(array[[0, 2]], before[name][[0, 2]])
            assert np.array_equal(array[1, written:], before[name][1, written:])
        self.words, self.scales, self.sums, self.shifts = (
            found[name] for name in ("words", "scales", "sums", "shifts")
        )
        self.whole, self.tiles = (found[name].reshape(3, -1) for name in ("whole", "tiles"))


def quantised(row):
    """The definition: scale = max|x| / 127, q = x · (127 / max|x|) to the nearest even, in float32."""
    groups = row.astype(np.float32).reshape(-1, 32)
    top = np.abs(groups).max(-1)
    with np.errstate(divide="ignore", invalid="ignore"):
        inverse = np.where(top > 1e-30, np.float32(127) / top, np.float32(0)).astype(np.float32)
    whole = np.rint(groups * inverse[:, None])
    return whole.astype(np.int8).ravel(), top / np.float32(127), 8 * whole.sum(-1).astype(np.int32)


@pytest.mark.parametrize("width", [None, 256])
@pytest.mark.parametrize("size", [32, 96, 224])
@pytest.mark.parametrize("scale", [1e-25, 1e-3, 1.0, 1e20])
def test_activations_are_quantised_as_defined(width, size, scale, rng):
    row = (rng.normal(size=size) * scale).astype(np.float32)
    rows = Rows(row, width)
    whole, scales, sums = quantised(row)
    assert np.array_equal(rows.whole[1, :size], whole)
    assert np.array_equal(rows.scales[1, : size // 32], scales)
    assert np.array_equal(rows.sums[1, : size // 32], sums)
    assert np.array_equal(rows.shifts[1, : size // 32], nibble_shifts(whole.reshape(-1, 32)))
    assert np.abs(whole).max() == 127, "the largest takes the last whole number"
    step = np.repeat(scales.astype(np.float64), 32)
    assert (np.abs(whole * step - row) <= step * (0.5 + 1e-4)).all()


@pytest.mark.parametrize(("form", "others"), [(WHOLE, ["tiles"]), (ROUNDED, ["whole", "scales", "sums", "shifts"])])
def test_only_the_form_that_is_read_is_made(form, others, rng):
    row = rng.normal(size=64).astype(np.float32)
    rows, both = Rows(row, forms=form), Rows(row)
    for name in ("words", "whole", "scales", "sums", "shifts", "tiles"):
        found, neighbour = getattr(rows, name), getattr(rows, name)[0]
        expected = getattr(both, name)
        if name in others:
            expected = np.broadcast_to(neighbour.flat[0], found.shape)  # as before
        elif name == "words" and form == WHOLE:
            expected = np.stack([found[0], row, found[2]])
        assert np.array_equal(found, expected), name


def test_halves_are_rounded_to_even():
    row = np.zeros(32, np.float32)
    row[:8] = [127, 0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 126.5]
    assert Rows(row).whole[1, :8].tolist() == [127, 0, 2, 2, 0, -2, -2, 126]


@pytest.mark.parametrize("value", [0.0, -0.0, 1e-31, 1e-45])
def test_a_group_of_zeros_or_nearly_so_is_zero(value):
    rows = Rows(np.full(64, value, np.float32))
    assert (
        (rows.whole[1] == 0).all()
        and (rows.sums[1] == 0).all()
        and (rows.shifts[1] == 0).all()
        and (rows.scales[1] < 1e-30).all()
    )


@pytest.mark.parametrize("place", [0, 7, 31])
def test_a_group_with_a_nan_has_a_scale_of_nan_and_its_neighbours_do_not(place, rng):
    row = rng.normal(size=96).astype(np.float32)
    row[32 + place] = np.nan
    assert np.array_equal(np.isnan(Rows(row).scales[1]), [False, True, False])


@pytest.mark.parametrize("value", [np.inf, -np.inf])
def test_an_infinite_activation_leaves_an_infinite_scale(value, rng):
    """Whole numbers of zero times that are NaN: the row is visibly broken."""
    row = rng.normal(size=32).astype(np.float32)
    row[3] = value
    rows = Rows(row)
    assert rows.scales[1, 0] == np.inf and (rows.whole[1] == 0).all()


def test_words_stay_as_they_are_without_bf16_instructions_and_with_tile_registers(rng):
    row = rng.normal(size=64).astype(np.float32)
    rows, target, expected = Rows(row), current_target(), row
    words = rows.words[1]
    if target.has_tiles:
        assert np.array_equal(rows.tiles[1], bfloat16_bits(row))
    elif target.has_bf16:
        pairs = torch.from_numpy(row).to(torch.bfloat16).view(torch.int32).view(torch.float32).numpy()
        expected = np.concatenate([pairs, words[32:]])
    assert np.array_equal(words.view(np.int32), expected.view(np.int32))


def test_words_become_pairs_of_bfloat16_in_place(rng):
    """The low half of a word is the even neighbour, as vdpbf16ps wants it; rounded as torch rounds."""
    row = (rng.normal(size=70) * 10.0 ** rng.integers(-20, 20, 70)).astype(np.float32)
    row[9] = np.nan
    words = row.copy()
    round_words(address(words), 3, 64)
    expected = torch.from_numpy(row[3:67].copy()).to(torch.bfloat16)
    found = torch.from_numpy(words[3:35].copy()).view(torch.bfloat16)
    assert torch.equal(found.nan_to_num(nan=-1), expected.nan_to_num(nan=-1)) and found[6].isnan()
    assert np.array_equal(words[:3], row[:3]) and np.array_equal(words[67:], row[67:])
