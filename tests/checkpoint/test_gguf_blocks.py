"""Every block format: all rows at once against one weight at a time, and against the format's own library."""

from __future__ import annotations

import gguf
import numpy as np
import pytest

from kaishu.checkpoint.gguf_blocks import FORMATS, LAYOUT_OF, groups, values
from kaishu.checkpoint.quantised import GROUP
from tests.checkpoint.gguf_scalars import SIZES, random_blocks, scalar_values

every_format = pytest.mark.parametrize("kind", FORMATS)
SPREAD_IN_LAYOUT = {"int8": (-128, 127), "int4": (-8, 7), "int4_minimum": (0, 15)}


def from_groups(kind: str, raw: np.ndarray) -> np.ndarray:
    found = groups(kind, raw)
    assert found is not None
    scales = np.repeat(found.scales.astype(np.float32), GROUP, axis=1)
    weights = found.whole.astype(np.float32) * scales
    if found.minimums is not None:
        weights += np.repeat(found.minimums.astype(np.float32), GROUP, axis=1)
    return weights


@every_format
def test_the_sizes_are_the_formats(kind: str) -> None:
    assert (FORMATS[kind].weights, FORMATS[kind].nbytes) == SIZES[kind]
    assert gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]] == SIZES[kind]


@every_format
@pytest.mark.parametrize("rows, columns", [(1, 256), (5, 768)])
def test_values_are_those_of_one_weight_at_a_time(kind: str, rows: int, columns: int, rng: np.random.Generator) -> None:
    raw = random_blocks(rng, kind, rows, columns)
    assert np.array_equal(values(kind, raw), scalar_values(kind, raw))


@every_format
def test_values_are_those_of_any_bytes_too(kind: str, rng: np.random.Generator) -> None:
    """Infinite and undefined scales among them."""
    raw = rng.integers(0, 256, (8, 256 // SIZES[kind][0] * SIZES[kind][1]), dtype=np.uint8)
    with np.errstate(all="ignore"):
        assert np.array_equal(values(kind, raw), scalar_values(kind, raw), equal_nan=True)


@every_format
def test_values_are_to_the_bit_those_of_the_package_gguf(kind: str, rng: np.random.Generator) -> None:
    raw = random_blocks(rng, kind, 64, 1024)
    official = gguf.quants.dequantize(raw, gguf.GGMLQuantizationType[kind])
    ours = values(kind, raw)
    assert ours.dtype == np.float32 and ours.flags.c_contiguous
    assert np.array_equal(ours.view(np.uint32), official.view(np.uint32))


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0", "Q4_1", "Q5_0", "IQ4_NL"])
def test_groups_lose_nothing(kind: str, rng: np.random.Generator) -> None:
    raw = random_blocks(rng, kind, 7, 512)
    assert np.array_equal(from_groups(kind, raw), values(kind, raw))


def test_groups_of_iq4_xs_lose_what_float16_rounds_off(rng: np.random.Generator) -> None:
    raw = random_blocks(rng, "IQ4_XS", 7, 512)
    found, exact = groups("IQ4_XS", raw), values("IQ4_XS", raw)
    assert found is not None and found.minimums is None
    lost = np.abs(from_groups("IQ4_XS", raw) - exact)
    assert np.all(lost <= np.abs(exact) * 2.0**-11 * 1.001 + 127 * 2.0**-25) and lost.any()


def test_groups_of_q4_k_lose_what_float16_rounds_off(rng: np.random.Generator) -> None:
    raw = random_blocks(rng, "Q4_K", 7, 512)
    found, exact = groups("Q4_K", raw), values("Q4_K", raw)
    assert found is not None and found.minimums is not None
    scales, minimums = (
        np.repeat(np.abs(part.astype(np.float32)), GROUP, axis=1) for part in (found.scales, found.minimums)
    )
    allowed = (scales * found.whole + minimums) * 2.0**-11 * 1.001 + 16 * 2.0**-25
    assert np.all(np.abs(from_groups("Q4_K", raw) - exact) <= allowed)
    assert not np.array_equal(from_groups("Q4_K", raw), exact)


@every_format
def test_whole_numbers_fit_the_layout_or_there_are_none(kind: str, rng: np.random.Generator) -> None:
    found = groups(kind, random_blocks(rng, kind, 16, 512))
    if found is None:
        assert kind in {"Q5_1", "Q2_K", "Q3_K", "Q5_K", "Q6_K"} and LAYOUT_OF[kind] == "int8"
        return
    low, high = SPREAD_IN_LAYOUT[LAYOUT_OF[kind]]
    assert found.whole.dtype == np.int8 and found.scales.dtype == np.float16
    assert low <= found.whole.min() and found.whole.max() <= high
    assert found.whole.shape == (16, 512) and found.scales.shape == (16, 512 // GROUP)
    assert (found.minimums is not None) == (LAYOUT_OF[kind] == "int4_minimum")


def test_what_isnt_exact_goes_to_8_bits_never_to_4(rng: np.random.Generator) -> None:
    assert {LAYOUT_OF[kind] for kind in FORMATS if not FORMATS[kind].has_groups} == {"int8"}


def test_rows_need_not_lie_together(rng: np.random.Generator) -> None:
    raw = random_blocks(rng, "Q4_0", 8, 64)
    assert np.array_equal(values("Q4_0", raw[::2]), values("Q4_0", raw)[::2])


def test_the_caller_s_bytes_stay_as_they_are(rng: np.random.Generator) -> None:
    for kind in FORMATS:
        raw = random_blocks(rng, kind, 2, 256)
        raw.flags.writeable = False
        before = raw.copy()
        values(kind, raw)
        groups(kind, raw)
        assert np.array_equal(raw, before)
