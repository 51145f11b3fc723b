"""Packed weights, read back by the layout's drawing, against the tensors they came from and GGUF's definitions."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from kaishu.checkpoint import open_checkpoint
from kaishu.checkpoint.safetensors import open_safetensors
from kaishu.cpu.layout import PackedLinear, plan_layout, view
from kaishu.cpu.packing import as_float32, pack_linear, pack_model, unpack
from kaishu.cpu.threads import Ranks
from kaishu.errors import CheckpointError
from tests.cpu.drawn_weights import KINDS, WHOLE_KINDS, bfloat16_values, places, scale_places

LANES = 8
DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
every_kind = pytest.mark.parametrize("kind", KINDS)
every_whole_kind = pytest.mark.parametrize("kind", WHOLE_KINDS)
every_dtype = pytest.mark.parametrize("dtype", DTYPES)


@pytest.fixture
def pack(tmp_path):
    """`pack(weights, kind, dtype="F32", ranks=1, lanes=8)`: through a safetensors file, into memory full of garbage."""
    numbers = itertools.count()

    def packed(weights, kind, dtype="F32", ranks=1, lanes=LANES):
        path = tmp_path / f"{next(numbers)}.safetensors"
        save_file({"w": torch.tensor(weights).to(DTYPES[dtype])}, path)
        tensor = open_safetensors(path).tensors["w"]
        sized = PackedLinear("w", kind, *tensor.shape, lanes, 0, -1, -1, -1)
        scales = sized.weight_bytes + 64
        minimums = scales + sized.scale_bytes + 64
        linear = replace(sized, scales=-1 if kind == "bf16" else scales)
        linear = replace(linear, minimums=minimums if kind == "int4_minimum" else -1)
        memory = np.full(minimums + sized.scale_bytes, 0xA5, np.uint8)
        threads = Ranks(ranks)
        pack_linear(tensor, linear, memory, threads)
        threads.close()
        return linear, memory, as_float32(tensor).astype(np.float64)

    return packed


def read_back(linear, memory):
    """What is in the memory, all padding included, by the drawing in layout.py.

    return: whole numbers (of bf16: bits) [N, K], scales and minimums [N, K] float64
    """
    rows, inputs = linear.padded_rows, linear.padded_inputs
    byte, shift = places(linear.kind, rows, inputs, linear.lanes)
    weights = memory[linear.weights : linear.weights + linear.weight_bytes]
    if linear.kind == "bf16":
        return weights.view(np.uint16)[byte // 2], None, None
    whole = (
        weights.view(np.int8)[byte].astype(int) if linear.kind == "int8" else (weights[byte] >> shift & 15).astype(int)
    )
    place = scale_places(rows, inputs, linear.lanes)

    def widened(start):
        part = memory[start : start + linear.scale_bytes].view(np.float16)[place]
        return np.repeat(part.astype(np.float64), 32, axis=1)

    scale = widened(linear.scales)
    return whole, scale, widened(linear.minimums) if linear.minimums >= 0 else np.zeros_like(scale)


def values_of(linear, memory):
    """GGUF's equations: d·q for Q8_0, d·(q - 8) for Q4_0, d·q + m for Q4_1."""
    whole, scale, minimum = read_back(linear, memory)
    return scale * (whole - (8 if linear.kind == "int4" else 0)) + minimum


def ends_of(linear, memory):
    """The smallest and largest weight that each group can hold."""
    _, scale, minimum = read_back(linear, memory)
    low, high = {"int8": (-127, 127), "int4": (-8, 7), "int4_minimum": (0, 15)}[linear.kind]
    ends = np.stack([minimum + scale * low, minimum + scale * high])
    return ends.min(0)[: linear.rows, : linear.inputs], ends.max(0)[: linear.rows, : linear.inputs]


def assert_nearest(linear, memory, weights):
    """Every weight became the nearest of the values that its group's scale offers."""
    low, high = ends_of(linear, memory)
    _, scale, _ = read_back(linear, memory)
    found = values_of(linear, memory)[: linear.rows, : linear.inputs]
    half_step = np.abs(scale[: linear.rows, : linear.inputs]) / 2
    assert (np.abs(found - np.clip(weights, low, high)) <= half_step * (1 + 1e-4)).all()


def random_weights(rng, rows, inputs):
    """Rows of sizes from 1e-3 to 10, some shifted away from zero."""
    size = 10.0 ** rng.uniform(-3, 1, (rows, 1))
    return (rng.normal(size=(rows, inputs)) + rng.choice([0, 0, 3, -3], (rows, 1))) * size


@every_whole_kind
@every_dtype
@pytest.mark.parametrize("rows, inputs", [(16, 32), (48, 96), (1, 32), (37, 70), (17, 31), (16, 1)])
def test_each_weight_becomes_the_nearest_that_its_group_offers(kind, dtype, rows, inputs, pack, rng):
    linear, memory, weights = pack(random_weights(rng, rows, inputs), kind, dtype)
    assert_nearest(linear, memory, weights)


@every_whole_kind
def test_hardly_anything_is_cut_off(kind, pack, rng):
    """int8 and int4_minimum lose what float16 rounds off the ends; int4 up to one step on the side opposite to -8.

    For weights whose scales float16 holds with all of its bits; for smaller ones see the tiny groups below.
    """
    linear, memory, weights = pack(100 * random_weights(rng, 64, 96), kind)
    low, high = ends_of(linear, memory)
    _, scale, minimum = read_back(linear, memory)
    scale, minimum = np.abs(scale), np.abs(minimum)
    step = {"int8": 127 * scale * 2.0**-11, "int4": scale * (1 + 8 * 2.0**-11)}.get(kind)
    if step is None:
        step = (15 * scale + minimum) * 2.0**-11
    assert (np.maximum(low - weights, weights - high) <= step * 1.001).all()


@every_whole_kind
@pytest.mark.parametrize("lanes", [8, 16])
def test_scales_are_ggufs_in_float16(kind, lanes, pack, rng):
    linear, memory, weights = pack(random_weights(rng, 37, 64), kind, lanes=lanes)
    groups = weights.astype(np.float32).reshape(37, 2, 32)
    low, high = groups.min(-1), groups.max(-1)
    largest = np.take_along_axis(groups, np.abs(groups).argmax(-1)[..., None], -1)[..., 0]
    expected = {
        "int8": np.abs(groups).max(-1) / np.float32(127),
        "int4": largest / np.float32(-8),
        "int4_minimum": (high - low) / np.float32(15),
    }[kind]
    _, scale, minimum = read_back(linear, memory)
    assert np.array_equal(scale[:37, ::32], expected.astype(np.float16).astype(np.float64))
    if kind == "int4_minimum":
        assert np.array_equal(minimum[:37, ::32], low.astype(np.float16).astype(np.float64))


@every_whole_kind
def test_the_ends_of_the_range_are_used(kind, pack, rng):
    """The largest weight of a group takes the last whole number: ±127 in Q8_0, 0 in Q4_0, 0 and 15 in Q4_1."""
    linear, memory, weights = pack(rng.normal(size=(32, 64)), kind)
    whole = read_back(linear, memory)[0].reshape(32, 2, 32)
    if kind == "int8":
        assert (np.abs(whole).max(-1) == 127).all() and whole.min() < 0
    elif kind == "int4":
        assert (np.take_along_axis(whole, np.abs(weights.reshape(32, 2, 32)).argmax(-1)[..., None], -1) == 0).all()
    else:
        assert (whole.min(-1) == 0).all() and (whole.max(-1) == 15).all()


@every_kind
def test_zeros_stay_zeros(kind, pack):
    linear, memory, _ = pack(np.zeros((20, 64)), kind)
    found = unpack(linear, memory)
    assert found.shape == (20, 64) and (found == 0).all()


@every_kind
@pytest.mark.parametrize("rows, inputs", [(37, 70), (1, 1), (16, 33)])
def test_the_padding_adds_nothing(kind, rows, inputs, pack, rng):
    """Rows beyond the last are zeros; columns beyond meet activations of zero, and are as small as a step anyway."""
    linear, memory, _ = pack(random_weights(rng, rows, inputs), kind)
    whole, scale, _ = read_back(linear, memory)
    values = bfloat16_values(whole) if kind == "bf16" else values_of(linear, memory)
    assert (values[rows:] == 0).all()
    assert (np.abs(values[:rows, inputs:]) <= (0 if scale is None else np.abs(scale[:rows, inputs:]) * 0.5001)).all()


@every_whole_kind
@pytest.mark.parametrize("size", [1e5, 1e7, 1e30], ids=str)
def test_huge_groups_are_held_to_the_largest_that_float16_scales_allow(kind, size, pack, rng):
    weights = rng.normal(size=(16, 64))
    weights[:, :32] *= size
    linear, memory, stored = pack(weights, kind)
    _, scale, minimum = read_back(linear, memory)
    assert (np.abs(scale) <= 65504).all() and (np.abs(minimum) <= 65504).all()
    assert np.isfinite(unpack(linear, memory)).all()
    assert_nearest(linear, memory, stored)


@every_whole_kind
@pytest.mark.parametrize("size", [1e-4, 1e-6, 1e-8, 1e-30], ids=str)
def test_tiny_groups_have_the_scales_that_float16_has_down_there(kind, size, pack, rng):
    """Below 2**-14 float16 has fewer bits, below 2**-25 none: then a group's weights are its minimum, or zero."""
    weights = rng.normal(size=(16, 64))
    weights[:, :32] *= size
    linear, memory, stored = pack(weights, kind)
    assert_nearest(linear, memory, stored)
    if size == 1e-30:
        assert (unpack(linear, memory)[:, :32] == 0).all()


def test_a_group_of_equal_weights_is_its_minimum(pack):
    linear, memory, _ = pack(np.full((16, 32), -0.7), "int4_minimum")
    assert (unpack(linear, memory) == np.float32(np.float16(-0.7))).all()


@every_whole_kind
@every_dtype
@pytest.mark.parametrize("broken", [np.nan, np.inf, -np.inf], ids=str)
@pytest.mark.parametrize("ranks", [1, 3])
def test_a_weight_that_is_no_number_is_refused_and_named(kind, dtype, broken, ranks, pack, rng):
    weights = random_weights(rng, 160, 70)
    weights[101, 69] = weights[130, 0] = broken
    with pytest.raises(CheckpointError, match=rf"^w has a value in row 101 .* as {kind}; allowed: finite"):
        pack(weights, kind, dtype, ranks)


@every_dtype
@pytest.mark.parametrize("broken", [np.nan, np.inf, -np.inf], ids=str)
def test_bfloat16_keeps_what_is_no_number(dtype, broken, pack, rng):
    weights = random_weights(rng, 16, 32)
    weights[3, 5] = broken
    found = unpack(*pack(weights, "bf16", dtype)[:2])
    assert np.array_equal(found[3, 5], broken, equal_nan=True) and np.isfinite(found).sum() == found.size - 1


@every_dtype
@pytest.mark.parametrize("rows, inputs", [(16, 32), (37, 70)])
@pytest.mark.parametrize("lanes", [8, 16])
def test_bfloat16_is_torchs_rounding_of_the_source(dtype, rows, inputs, lanes, pack, rng):
    linear, memory, weights = pack(random_weights(rng, rows, inputs), "bf16", dtype, lanes=lanes)
    expected = torch.tensor(weights, dtype=torch.float32).to(torch.bfloat16).float().numpy()
    assert np.array_equal(bfloat16_values(read_back(linear, memory)[0])[:rows, :inputs], expected)
    assert np.array_equal(unpack(linear, memory), expected)


@every_whole_kind
@pytest.mark.parametrize("rows, inputs", [(16, 32), (37, 70)])
@pytest.mark.parametrize("lanes", [8, 16])
def test_unpacking_is_the_layouts_equation_in_float32(kind, rows, inputs, lanes, pack, rng):
    linear, memory, _ = pack(random_weights(rng, rows, inputs), kind, lanes=lanes)
    whole, scale, minimum = read_back(linear, memory)
    expected = (whole - (8 if kind == "int4" else 0)).astype(np.float32) * scale.astype(np.float32)
    expected = (expected + minimum.astype(np.float32))[:rows, :inputs]
    found = unpack(linear, memory)
    assert found.dtype == np.float32 and np.array_equal(found, expected)


@every_kind
@pytest.mark.parametrize("rows", [1, 37, 160])
def test_any_number_of_ranks_packs_the_same_bytes(kind, rows, pack, rng):
    weights = random_weights(rng, rows, 70)
    linear, alone, _ = pack(weights, kind)
    for ranks in (2, 3):
        assert pack(weights, kind, ranks=ranks)[0] == linear
        assert np.array_equal(pack(weights, kind, ranks=ranks)[1], alone)


@pytest.mark.parametrize("model", ["dense_biased", "moe_mixed", "moe_tied", "llama_biased", "odd_head_dim"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_a_packed_model_has_every_tensor_where_the_layout_says(model, dtype, tiny_checkpoint):
    checkpoint = open_checkpoint(tiny_checkpoint(model, dtype=dtype))
    config = checkpoint.config
    layout = plan_layout(config, "int8", "bf16", LANES)
    memory = np.full(layout.num_bytes, 0xA5, np.uint8)
    ranks = Ranks(2)
    pack_model(checkpoint, layout, memory, ranks)
    ranks.close()
    for linear in layout.packed:
        weights = as_float32(checkpoint.tensors[f"{linear.name}.weight"])
        found = unpack(linear, memory)
        step = np.abs(weights).max() / 254 if linear.kind == "int8" else np.abs(weights) * 2.0**-8
        assert found.shape == weights.shape and (np.abs(found - weights) <= step * 1.01).all()
    for name, (offset, length) in layout.vectors.items():
        values, found = as_float32(checkpoint.tensors[name]), view(memory, offset, np.float32, (length,))
        assert np.array_equal(found[: len(values)], values) and (found[len(values) :] == 0).all()
    if layout.embedding >= 0:
        bits = view(memory, layout.embedding, np.uint16, (config.vocab_size, config.hidden_size))
        table = torch.from_numpy(as_float32(checkpoint.tensors["model.embed_tokens.weight"]).copy())
        assert np.array_equal(bfloat16_values(bits), table.to(torch.bfloat16).float().numpy())
