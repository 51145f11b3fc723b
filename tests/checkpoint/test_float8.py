"""FP8 weights: every form of scales, against the definition of E4M3 and against transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from kaishu.checkpoint import float8
from kaishu.checkpoint.stored_numbers import as_float32
from kaishu.errors import CheckpointError
from tests.checkpoint.quantised_files import FP8, MODULE, check, compressed, read_one
from tests.checkpoint.quantised_packers import e4m3_value

FLOAT = {"num_bits": 8, "type": "float", "group_size": None}
PER_TENSOR = {**FP8, "weight_block_size": None}


def patterns(rng: np.random.Generator, rows: int, inputs: int) -> NDArray[np.uint8]:
    drawn = rng.integers(0, 256, (rows, inputs)).astype(np.uint8)
    drawn[drawn % 128 == 127] = 0
    return drawn


def as_e4m3(drawn: NDArray[np.uint8]) -> Any:
    import torch

    return torch.from_numpy(drawn).view(torch.float8_e4m3fn)


def expected(drawn: NDArray[np.uint8], scale: NDArray[Any], rows: int, inputs: int) -> NDArray[np.float32]:
    """value · scale of the block of rows × inputs that it is in."""
    out = np.empty(drawn.shape, np.float32)
    for n in range(drawn.shape[0]):
        for k in range(drawn.shape[1]):
            out[n, k] = np.float32(e4m3_value(int(drawn[n, k]))) * np.float32(scale[n // rows, k // inputs])
    return out


BLOCKS = [(128, 128, 128, 128), (200, 150, 128, 128), (64, 64, 128, 128), (20, 12, 8, 5)]


@pytest.mark.parametrize("rows, inputs, block_rows, block_inputs", BLOCKS)
def test_blocks_multiply_by_their_own_scale(
    rows: int, inputs: int, block_rows: int, block_inputs: int, rng: np.random.Generator, tmp_path: Path
) -> None:
    drawn = patterns(rng, rows, inputs)
    scale = rng.uniform(1e-4, 1e-2, (-(-rows // block_rows), -(-inputs // block_inputs))).astype(np.float32)
    parts = {"weight": as_e4m3(drawn), "weight_scale_inv": scale}
    found = read_one(tmp_path, parts, {**FP8, "weight_block_size": [block_rows, block_inputs]})
    check(found, expected(drawn, scale, block_rows, block_inputs), "bf16")
    assert found.dtype == f"FP8 E4M3, blocks of {block_rows}×{block_inputs}"
    assert found.nbytes == drawn.nbytes + scale.nbytes


SCALES = [((), 1000), ((1,), 1000), ((1, 1), 1000), ((24,), 1), ((24, 1), 1)]


@pytest.mark.parametrize("shape, rows", SCALES)
@pytest.mark.parametrize("name", ["weight_scale", "weight_scale_inv"])
def test_one_scale_and_a_scale_for_each_row(
    shape: tuple[int, ...], rows: int, name: str, rng: np.random.Generator, tmp_path: Path
) -> None:
    drawn, scale = patterns(rng, 24, 40), np.asarray(rng.uniform(1e-4, 1e-2, shape), np.float32)
    found = read_one(tmp_path, {"weight": as_e4m3(drawn), name: scale}, PER_TENSOR)
    check(found, expected(drawn, scale.reshape(-1, 1), rows, 1000), "bf16")


def test_scales_in_bfloat16_and_in_powers_of_two(rng: np.random.Generator, tmp_path: Path) -> None:
    import torch

    drawn = patterns(rng, 128, 256)
    scale = torch.tensor([[2.0**-9, 2.0**-5]])
    for dtype in (torch.bfloat16, torch.float8_e8m0fnu):
        found = read_one(tmp_path, {"weight": as_e4m3(drawn), "weight_scale_inv": scale.to(dtype)}, FP8)
        check(found, expected(drawn, scale.numpy(), 128, 128), "bf16")


@pytest.mark.parametrize(
    "weights, shape, rows, inputs",
    [
        ({"strategy": "tensor"}, (1,), 100, 100),
        ({"strategy": "channel"}, (24, 1), 1, 100),
        ({"strategy": "group", "group_size": 16}, (24, 3), 1, 16),
        ({"strategy": "block", "block_structure": [8, 16]}, (3, 3), 8, 16),
    ],
)
def test_what_compressed_tensors_writes(
    weights: dict[str, Any], shape: tuple[int, ...], rows: int, inputs: int, rng: np.random.Generator, tmp_path: Path
) -> None:
    drawn, scale = patterns(rng, 24, 48), rng.uniform(1e-4, 1e-2, shape).astype(np.float32)
    said = compressed("float-quantized", **FLOAT | weights)
    found = read_one(tmp_path, {"weight": as_e4m3(drawn), "weight_scale": scale}, said)
    check(found, expected(drawn, scale.reshape(shape[0], -1), rows, inputs), "bf16")


def test_transformers_dequantises_to_the_same_values(rng: np.random.Generator, tmp_path: Path) -> None:
    import torch
    from transformers.integrations.finegrained_fp8 import Fp8Dequantize

    drawn = patterns(rng, 256, 384)
    scale = rng.uniform(1e-4, 1e-2, (2, 3)).astype(np.float32)
    found = read_one(tmp_path, {"weight": as_e4m3(drawn), "weight_scale_inv": scale}, FP8)
    official = Fp8Dequantize(None)._dequantize_one(as_e4m3(drawn), torch.from_numpy(scale), torch.float32)
    np.testing.assert_array_equal(found.values(0, 256), official.numpy())


BROKEN = [
    ({"weight": 1}, "E4M3 with no scale"),
    ({"weight": 1, "weight_scale": (1, 1), "weight_scale_inv": (1, 1)}, "with weight_scale_inv and weight_scale"),
    ({"weight_scale_inv": (1, 1)}, "weight is missing"),
    ({"weight": 1, "weight_scale_inv": (2, 1)}, r"weight_scale_inv is F32 of shape \[2, 1\]; .* and \[1, 1\], for a"),
    ({"weight": 1, "weight_scale_inv": (1, 1, 1)}, r"of shape \[1, 1, 1\]"),
]


@pytest.mark.parametrize("shapes, words", BROKEN)
def test_scales_that_do_not_fit_are_named(
    shapes: dict[str, Any], words: str, rng: np.random.Generator, tmp_path: Path
) -> None:
    parts = {
        name: as_e4m3(patterns(rng, 8, 16)) if name == "weight" else np.ones(shape, np.float32)
        for name, shape in shapes.items()
    }
    with pytest.raises(CheckpointError, match=MODULE.replace(".", r"\.") + ".*" + words):
        read_one(tmp_path, parts, FP8)


def test_of_many_scales_only_those_of_the_rows_are_widened(
    rng: np.random.Generator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Groups along K have a scale for each few weights: to widen all of them for each few rows takes minutes."""
    drawn, scale = patterns(rng, 512, 64), rng.uniform(1e-3, 1e-2, (512, 2)).astype(np.float32)
    said = compressed("float-quantized", num_bits=8, type="float", group_size=32)
    found = read_one(tmp_path, {"weight": as_e4m3(drawn), "weight_scale": scale}, said)
    whole, sizes = found.values(0, 512), []
    monkeypatch.setattr(
        float8, "as_float32", lambda stored, dtype: sizes.append(stored.shape) or as_float32(stored, dtype)
    )
    np.testing.assert_array_equal(found.values(100, 107), whole[100:107])
    assert sizes == [(7, 2), (7, 64)]


def test_a_scale_that_is_no_number_is_named_with_its_row(rng: np.random.Generator, tmp_path: Path) -> None:
    scale = np.ones((2, 2), np.float32)
    scale[1, 0] = np.nan
    found = read_one(tmp_path, {"weight": as_e4m3(patterns(rng, 256, 256)), "weight_scale_inv": scale}, FP8)
    found.values(0, 128)
    with pytest.raises(CheckpointError, match=rf"{MODULE}\.weight_scale_inv has a scale for row 128"):
        found.values(0, 256)
