"""A packed model has every tensor where its layout says, whoever packed it, and what can't be packed is named."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from kaishu.checkpoint import open_checkpoint
from kaishu.cpu import packing
from kaishu.cpu.layout import plan_layout, view
from kaishu.cpu.packing import as_float32, pack_model, plan_stored, unpack
from kaishu.cpu.quantise import BYTES, PAIRS
from kaishu.cpu.threads import Ranks
from kaishu.errors import CheckpointError
from tests.cpu.drawn_weights import WHOLE_KINDS, bfloat16_values
from tests.cpu.packed_tensors import (
    LANES,
    every_dtype,
    every_kind,
    every_whole_kind,
    random_weights,
    read_back,
    values_of,
)
from tests.cpu.stored_groups import draw_groups, stored_model


@every_whole_kind
@every_dtype
@pytest.mark.parametrize("broken", [np.nan, np.inf, -np.inf], ids=str)
@pytest.mark.parametrize("ranks", [1, 3])
def test_a_weight_that_is_no_number_is_refused_and_named(kind, dtype, broken, ranks, pack, rng):
    weights = random_weights(rng, 160, 70)
    weights[101, 69] = weights[130, 0] = broken
    with pytest.raises(CheckpointError, match=rf"^w has a value in row 101 .* as {kind}; allowed: finite"):
        pack(weights, kind, dtype, ranks)


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
def test_a_packed_model_has_every_tensor_where_the_layout_says(model, dtype, tiny_checkpoint, kernels):
    checkpoint = open_checkpoint(tiny_checkpoint(model, dtype=dtype))
    config = checkpoint.config
    layout = plan_layout(config, "int8", "bf16", LANES)
    memory = np.full(layout.num_bytes, 0xA5, np.uint8)
    ranks = Ranks(2)
    pack_model(checkpoint, layout, memory, ranks, kernels)
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


@pytest.mark.parametrize("kind, has_pairs", [*((kind, False) for kind in WHOLE_KINDS), ("int4", True)])
@pytest.mark.parametrize("rows, inputs", [(16, 32), (37, 96), (1, 64), (160, 32)])
@pytest.mark.parametrize("lanes", [8, 16])
@pytest.mark.parametrize("at_once", [1, 1 << 22], ids=["in parts", "at once"])
def test_what_is_quantised_already_is_kept_bit_for_bit(
    kind, has_pairs, rows, inputs, lanes, at_once, pack_stored, monkeypatch, rng
):
    monkeypatch.setattr(packing, "_DECODED_VALUES", at_once)
    tensor = draw_groups(rng, kind, rows, inputs, has_pairs=has_pairs)
    linear, memory = pack_stored(tensor, kind, lanes=lanes, ranks=2)
    whole, scale, minimum = read_back(linear, memory)
    assert np.array_equal(whole[:rows] - (8 if kind == "int4" else 0), tensor.whole)
    assert np.array_equal(scale[:rows, ::32], tensor.scales.astype(np.float64))
    if tensor.minimums is not None:
        assert np.array_equal(minimum[:rows, ::32], tensor.minimums.astype(np.float64))
    assert (values_of(linear, memory)[rows:] == 0).all(), "rows beyond the last are zeros"
    assert np.array_equal(unpack(linear, memory), tensor.values(0, rows))


@pytest.mark.parametrize("stored, kind", [("int4", "int8"), ("int8", "bf16"), ("int4_minimum", "int4")])
def test_another_layout_than_the_files_is_packed_from_its_values(stored, kind, pack_stored, pack, monkeypatch, rng):
    monkeypatch.setattr(packing, "_DECODED_VALUES", 1)
    tensor = draw_groups(rng, stored, 37, 64)
    linear, memory = pack_stored(tensor, kind)
    expected = unpack(*pack(tensor.values(0, 37), kind)[:2])
    assert np.array_equal(unpack(linear, memory), expected)


def test_a_format_without_whole_numbers_for_its_layout_is_rounded_to_it(pack_stored, pack, rng):
    tensor = draw_groups(rng, "int8", 20, 64, has_groups=False)
    linear, memory = pack_stored(tensor, "int8")
    assert np.array_equal(unpack(linear, memory), unpack(*pack(tensor.values(0, 20), "int8")[:2]))


@pytest.mark.parametrize("field", ["scales", "minimums"])
def test_a_scale_that_is_no_number_is_refused_and_its_row_named(field, pack_stored, monkeypatch, rng):
    monkeypatch.setattr(packing, "_DECODED_VALUES", 1)
    tensor = draw_groups(rng, "int4_minimum", 50, 64)
    getattr(tensor, field)[41, 1] = np.nan
    with pytest.raises(CheckpointError, match=r"^w has a value in row 41 "):
        pack_stored(tensor, "int4_minimum")


@pytest.mark.parametrize("kind, has_pairs", [("int8", False), ("int4", False), ("int4", True)])
@pytest.mark.parametrize("broken", [np.nan, np.inf, -np.inf], ids=str)
@pytest.mark.parametrize("row", [0, 17, 49])
def test_the_kernels_refuse_a_broken_scale_wherever_it_is(kind, has_pairs, broken, row, pack_stored, rng):
    tensor = draw_groups(rng, kind, 50, 64, has_pairs=has_pairs)
    tensor.scales[row, 1] = broken
    with pytest.raises(CheckpointError, match=rf"^w has a value in row {row} "):
        pack_stored(tensor, kind, ranks=2)


def test_how_the_kernels_are_told_of_groups_is_what_they_know():
    assert packing.KEPT == {"int8": BYTES, "uint8": PAIRS}


@pytest.mark.parametrize("tie", [True, False])
def test_a_model_of_mixed_formats_is_kept_as_it_is_stored(tie, tiny_checkpoint, kernels, monkeypatch, rng):
    """Layers of three formats, a plain matrix, a quantised embedding."""
    monkeypatch.setattr(packing, "_DECODED_VALUES", 1 << 10)
    checkpoint = stored_model(open_checkpoint(tiny_checkpoint("dense_tied" if tie else "dense_untied")), rng)
    layout = plan_stored(checkpoint, "stored", "stored", LANES)
    kinds = {linear.name: linear.kind for linear in layout.packed}
    expected = {
        name.removesuffix(".weight"): getattr(tensor, "layout", "bf16")
        for name, tensor in checkpoint.tensors.items()
        if len(tensor.shape) == 2 and (tie or "embed" not in name)
    }
    assert kinds == expected and len(set(kinds.values())) == 4
    memory, ranks = np.full(layout.num_bytes, 0xA5, np.uint8), Ranks(2)
    pack_model(checkpoint, layout, memory, ranks, kernels)
    ranks.close()
    for linear in layout.packed:
        tensor = checkpoint.tensors[f"{linear.name}.weight"]
        if linear.kind != "bf16":
            assert np.array_equal(unpack(linear, memory), tensor.values(0, linear.rows))
    if not tie:
        config, table = checkpoint.config, checkpoint.tensors["model.embed_tokens.weight"]
        bits = view(memory, layout.embedding, np.uint16, (config.vocab_size, config.hidden_size))
        rounded = torch.from_numpy(table.values(0, config.vocab_size)).to(torch.bfloat16).float().numpy()
        assert np.array_equal(bfloat16_values(bits), rounded)
