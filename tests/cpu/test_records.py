"""Records hold addresses and sizes where kernels look for them, and nothing is forgotten."""

from __future__ import annotations

import numpy as np
import pytest
from numba import njit

from kaishu.cpu.records import ACTIVATIONS, BUFFERS, MATRIX, MODEL, PAGES, STEP, address, matrix, record
from kaishu.cpu.vector import floats_at, int32_at

RECORDS = {"MATRIX": MATRIX, "ACTIVATIONS": ACTIVATIONS, "MODEL": MODEL, "STEP": STEP, "PAGES": PAGES}
every_record = pytest.mark.parametrize("dtype", RECORDS.values(), ids=RECORDS)


@njit
def read_matrix(matrix, row, column):
    return floats_at(matrix.at)[row * matrix.width + column]


@njit
def read_nested(buffers):
    """A field of a record within a record, before and after others."""
    return (
        floats_at(buffers.hidden.at)[1],
        buffers.hidden.width,
        floats_at(buffers.expert_inner.words)[2],
        int32_at(buffers.expert_inner.sums)[3],
        buffers.expert_inner.width,
    )


@njit
def read_model(model):
    return model.address, model.num_experts, model.is_renormalised, model.eps, model.rotary_factor


def test_a_kernel_finds_a_matrix_by_its_record(rng):
    array = rng.normal(size=(3, 5)).astype(np.float32)
    made = record(MATRIX, dict(zip(("at", "width"), matrix(array), strict=True)))
    assert [[read_matrix(made[()], row, column) for column in range(5)] for row in range(3)] == array.tolist()


def test_a_kernel_finds_the_records_within_a_record(rng):
    hidden, words = rng.normal(size=(2, 8)).astype(np.float32)
    sums = np.arange(8, dtype=np.int32)
    assert BUFFERS.names is not None
    fields = {name: (0, 0) if BUFFERS[name] == MATRIX else (0,) * 7 for name in BUFFERS.names}
    fields |= {"hidden": matrix(hidden), "expert_inner": (address(words), 0, 0, address(sums), 0, 0, 64)}
    assert read_nested(record(BUFFERS, fields)[()]) == (hidden[1], 8, words[2], 3, 64)


def test_a_kernel_reads_whole_numbers_and_fractions():
    assert MODEL.names is not None
    fields = dict.fromkeys(MODEL.names, 0)
    fields |= {"address": 1 << 46, "num_experts": 128, "is_renormalised": True, "eps": 1e-6, "rotary_factor": 1.25}
    assert read_model(record(MODEL, fields)[()]) == (1 << 46, 128, 1, np.float32(1e-6), 1.25)


@every_record
def test_fields_are_as_written(dtype):
    fields = {name: index + 1 for index, name in enumerate(dtype.names)}
    fields |= {name: (index, 7) for index, name in enumerate(dtype.names) if dtype[name] == MATRIX}
    made = record(dtype, fields)
    assert {name: made[name].tolist() for name in dtype.names} == fields


@every_record
def test_a_forgotten_or_unknown_field_is_noticed(dtype):
    fields = dict.fromkeys(dtype.names, 1)
    with pytest.raises(AssertionError, match=dtype.names[0]):
        record(dtype, dict.fromkeys(dtype.names[1:], 1))
    with pytest.raises(AssertionError, match="unknown"):
        record(dtype, fields | {"unknown": 1})


def test_a_record_has_memory_of_its_own():
    first, second = record(MATRIX, {"at": 1, "width": 2}), record(MATRIX, {"at": 3, "width": 4})
    assert (first["at"], second["at"]) == (1, 3)


def test_an_address_is_that_of_the_first_element(rng):
    array = rng.normal(size=(4, 6)).astype(np.float32)
    assert address(array) == array.__array_interface__["data"][0]
    assert address(array[1:]) - address(array) == 6 * 4
    assert matrix(array) == (address(array), 6) and matrix(array[2]) == (address(array[2:]), 6)


@pytest.mark.parametrize("view", [np.s_[:, :3], np.s_[::2], np.s_[:, ::-1]], ids=str)
def test_rows_with_gaps_between_them_have_no_address(view):
    with pytest.raises(AssertionError, match="one after another"):
        address(np.zeros((4, 6))[view])
