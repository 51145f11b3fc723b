"""compressed-tensors: packed and plain whole numbers come back exactly; damaged ones are refused by name."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kaishu.errors import CheckpointError
from tests.checkpoint.quantised_files import MODULE, check, compressed, read_one
from tests.checkpoint.quantised_packers import Drawing, Weight, draw, pack_compressed, pack_int8

SYMMETRIC = {"is_symmetric": True}
PACKED = [
    (Drawing(16, 64, **SYMMETRIC), "int4", "compressed-tensors int4, groups of 32"),
    (Drawing(13, 64, **SYMMETRIC), "int4", "compressed-tensors int4, groups of 32"),
    (Drawing(13, 64, group_size=-1, **SYMMETRIC), "int4", "compressed-tensors int4, a scale for each row"),
    (Drawing(13, 64, has_round_scales=True), "int4_minimum", "compressed-tensors int4, groups of 32"),
    (Drawing(13, 64), "int8", "compressed-tensors int4, groups of 32"),
    (Drawing(13, 64, 8, **SYMMETRIC), "int8", "compressed-tensors int8, groups of 32"),
    (Drawing(13, 64, 8, -1, **SYMMETRIC), "int8", "compressed-tensors int8, a scale for each row"),
    (Drawing(13, 64, 8), "bf16", "compressed-tensors int8, groups of 32"),
    (Drawing(13, 50, 4, 10), "bf16", "compressed-tensors int4, groups of 10"),  # the last word is not full
    (Drawing(16, 64, is_act_ordered=True, **SYMMETRIC), "bf16", "compressed-tensors int4, groups of 32"),
]


def said(how: Drawing, form: str = "pack-quantized") -> dict[str, Any]:
    strategy = {"strategy": "channel"} if how.group_size < 0 else {"strategy": "group", "group_size": how.group_size}
    actorder = {"actorder": "group"} if how.is_act_ordered else {}
    return compressed(form, num_bits=how.bits, symmetric=how.is_symmetric, **strategy, **actorder)


@pytest.mark.parametrize("how, layout, words", PACKED)
@pytest.mark.parametrize("has_packed_zeros", [True, False])
def test_every_packed_variant_comes_back_exactly(
    how: Drawing, layout: str, words: str, has_packed_zeros: bool, rng: np.random.Generator, tmp_path: Path
) -> None:
    weight = draw(rng, how)
    parts = pack_compressed(
        weight, is_symmetric=how.is_symmetric, has_index=how.is_act_ordered, has_packed_zeros=has_packed_zeros
    )
    found = read_one(tmp_path, parts, said(how))
    check(found, weight.values(), layout)
    assert found.dtype == words
    assert found.nbytes == sum(part.nbytes for part in parts.values())


WHOLE = [
    (Drawing(13, 64, 8, -1, **SYMMETRIC), "int8"),
    (Drawing(13, 64, 8, 32, **SYMMETRIC), "int8"),
    (Drawing(13, 64, 8, 32), "bf16"),
]


@pytest.mark.parametrize("how, layout", WHOLE)
@pytest.mark.parametrize("form", ["int-quantized", "naive-quantized"])
def test_a_byte_for_each_number_comes_back_exactly(
    how: Drawing, layout: str, form: str, rng: np.random.Generator, tmp_path: Path
) -> None:
    weight = draw(rng, how)
    check(
        read_one(tmp_path, pack_int8(weight, is_symmetric=how.is_symmetric), said(how, form)), weight.values(), layout
    )


@pytest.mark.parametrize("group_size", [32, 64, -1])
def test_words_of_symmetric_int4_are_handed_on_as_the_file_has_them(
    group_size: int, rng: np.random.Generator, tmp_path: Path
) -> None:
    how = Drawing(13, 128, group_size=group_size, **SYMMETRIC)
    parts = pack_compressed(draw(rng, how), is_symmetric=True)
    groups = read_one(tmp_path, parts, said(how)).groups(3, 9)
    assert groups is not None
    np.testing.assert_array_equal(groups.whole, parts["weight_packed"][3:9].view(np.uint8))
    assert not groups.whole.flags.owndata and not groups.whole.flags.writeable, "mapped, not read"


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_float16_scale_that_is_no_number_is_no_value(
    bits: int, value: float, rng: np.random.Generator, tmp_path: Path
) -> None:
    how = Drawing(13, 64, bits, **SYMMETRIC)
    weight = draw(rng, how)
    weight.scales[7, 1] = value
    found = read_one(tmp_path, pack_compressed(weight, is_symmetric=True), said(how))
    with pytest.raises(CheckpointError, match="has a scale in row 7 that is infinite or no number"):
        found.values(2, 13)
    groups = found.groups(0, 13)  # the kernels look at what they pack
    assert groups is not None and not np.isfinite(groups.scales[7, 1])


@pytest.mark.parametrize("shape", [(), (1,), (1, 1)])
def test_one_scale_for_all(shape: tuple[int, ...], rng: np.random.Generator, tmp_path: Path) -> None:
    drawn = draw(rng, Drawing(5, 64, 8, -1, **SYMMETRIC))
    drawn.scales[:] = drawn.scales[0, 0]
    parts = {**pack_int8(drawn, is_symmetric=True), "weight_scale": drawn.scales[:1].reshape(shape)}
    found = read_one(tmp_path, parts, compressed("int-quantized", num_bits=8, strategy="tensor", group_size=None))
    check(found, drawn.values(), "int8")
    assert found.dtype == "compressed-tensors int8, one scale"


def test_an_index_of_minus_one_stands_for_none(rng: np.random.Generator, tmp_path: Path) -> None:
    how = Drawing(8, 64, **SYMMETRIC)
    weight = draw(rng, how)
    parts = pack_compressed(weight, is_symmetric=True) | {"weight_g_idx": np.full(64, -1, np.int32)}
    check(read_one(tmp_path, parts, said(how)), weight.values(), "int4")


def test_zeros_that_are_missing_are_not_taken_for_zeros(rng: np.random.Generator, tmp_path: Path) -> None:
    how = Drawing(8, 64)
    parts = pack_compressed(draw(rng, how))
    del parts["weight_zero_point"]
    with pytest.raises(CheckpointError, match=rf"{MODULE}\.weight_zero_point is missing; of this quantised weight"):
        read_one(tmp_path, parts, said(how))


def test_groups_of_different_schemes_are_told_apart_by_their_shapes(rng: np.random.Generator, tmp_path: Path) -> None:
    config = compressed()
    eight = compressed(num_bits=8, group_size=64)["config_groups"]["group_0"]
    config["config_groups"]["group_1"] = {**eight, "targets": ["re:.*down_proj"]}
    for how, layout in ((Drawing(8, 64, **SYMMETRIC), "int4"), (Drawing(8, 128, 8, 64, **SYMMETRIC), "int8")):
        weight = draw(rng, how)
        check(read_one(tmp_path, pack_compressed(weight, is_symmetric=True), config), weight.values(), layout)


@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_any_shape_and_group_size_comes_back(data: st.DataObject) -> None:
    how = Drawing(
        rows=data.draw(st.integers(1, 20)),
        inputs=data.draw(st.integers(1, 100)),
        bits=data.draw(st.sampled_from([4, 8])),
        group_size=data.draw(st.sampled_from([-1, 8, 20, 32, 64, 128])),
        is_symmetric=data.draw(st.booleans()),
        is_act_ordered=data.draw(st.booleans()),
    )
    weight = draw(np.random.default_rng(data.draw(st.integers(0, 2**32))), how)
    is_packed = data.draw(st.booleans()) if how.bits == 8 and not how.is_act_ordered else True
    with tempfile.TemporaryDirectory() as folder:
        if is_packed:
            parts = pack_compressed(weight, is_symmetric=how.is_symmetric, has_index=how.is_act_ordered)
        else:
            parts = pack_int8(weight, is_symmetric=how.is_symmetric)
        found = read_one(Path(folder), parts, said(how, "pack-quantized" if is_packed else "int-quantized"))
        check(found, weight.values(), found.layout)


BROKEN = [
    (lambda p: p.pop("weight_scale"), r"weight_scale is missing"),
    (lambda p: p.pop("weight_shape"), r"weight_shape is missing"),
    (lambda p: p.pop("weight_packed"), r"weight is missing"),
    (lambda p: p.update(weight_shape=np.array([16, 50])), r"weight_packed is \[16, 8\], which isn't 16 rows of 50"),
    (lambda p: p.update(weight_shape=np.array([16, 72])), r"weight_shape says \[16, 72\]"),
    (lambda p: p.update(weight_shape=np.array([15, 64])), r"weight_packed is \[16, 8\], which isn't 15 rows"),
    (lambda p: p.update(weight_shape=np.array([16, 2**60])), r"weight_shape says \[16, 1152921504606846976\]"),
    (lambda p: p.update(weight_shape=np.array([16, -64])), r"weight_shape says \[16, -64\]"),
    (lambda p: p.update(weight_shape=np.array([16, 64, 1])), r"weight_shape has shape \[3\]; allowed: \[2\]"),
    (lambda p: p.update(weight_scale=p["weight_scale"][:3]), r"weight_scale has shape \[3, 2\]; allowed: \[16, 2\]"),
    (lambda p: p.update(weight_scale=p["weight_scale"].reshape(-1)), r"weight_scale has shape \[32\]"),
    (lambda p: p.update(weight_zero_point=p["weight_zero_point"][:1]), r"weight_zero_point has shape \[1, 2\]"),
    (lambda p: p.update(weight_zero_point=np.zeros((16, 1), np.int8)), r"weight_zero_point has shape \[16, 1\]"),
    (lambda p: p.update(weight_zero_point=np.zeros((16, 2), np.float16)), r"weight_zero_point is F16"),
    (lambda p: p.update(weight_g_idx=np.zeros(3, np.int32)), r"weight_g_idx has shape \[3\]; allowed: \[64\]"),
    (lambda p: p.update(weight_scale=np.ones((16, 3), np.float16)), r"weight_zero_point has shape|has 3 scales"),
]


@pytest.mark.parametrize("damage, words", BROKEN)
def test_parts_that_do_not_fit_are_named(damage: Any, words: str, rng: np.random.Generator, tmp_path: Path) -> None:
    parts = pack_compressed(draw(rng, Drawing(16, 64)))
    damage(parts)
    with pytest.raises(CheckpointError, match=MODULE.replace(".", r"\.") + ".*(" + words + ")"):
        read_one(tmp_path, parts, compressed(symmetric=False))


OFFICIAL = [
    ("pack-quantized", {"num_bits": 4, "strategy": "group", "group_size": 32}, "int4"),
    ("pack-quantized", {"num_bits": 4, "strategy": "group", "group_size": 32, "symmetric": False}, "int8"),
    ("pack-quantized", {"num_bits": 8, "strategy": "channel"}, "int8"),
    ("int-quantized", {"num_bits": 8, "strategy": "channel"}, "int8"),
    ("int-quantized", {"num_bits": 8, "strategy": "channel", "symmetric": False}, "bf16"),
    ("float-quantized", {"num_bits": 8, "type": "float", "strategy": "tensor"}, "bf16"),
    ("float-quantized", {"num_bits": 8, "type": "float", "strategy": "channel"}, "bf16"),
]


@pytest.mark.parametrize("form, scheme, layout", OFFICIAL)
def test_what_the_official_package_compressed_is_what_it_decompresses(
    form: str, scheme: dict[str, Any], layout: str, rng: np.random.Generator, tmp_path: Path
) -> None:
    import torch
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme

    rows, inputs = 13, 96
    shape = {"group": (rows, 3), "channel": (rows, 1), "tensor": (1,)}[scheme["strategy"]]
    state = {
        "weight": torch.from_numpy(rng.normal(size=(rows, inputs)).astype(np.float32)),
        # as float32, so that it multiplies exactly as we do; rounded to float16 first, so that it fits there
        "weight_scale": torch.from_numpy(rng.uniform(0.1, 0.3, shape).astype(np.float16).astype(np.float32)),
    }
    if not scheme.get("symmetric", True):
        half = 1 << (scheme["num_bits"] - 1)
        state["weight_zero_point"] = torch.from_numpy(rng.integers(-half, half, shape).astype(np.int8))
    compressor: Any = BaseCompressor.get_value_from_registry(form)
    official = QuantizationScheme(targets=["Linear"], weights=QuantizationArgs(**scheme))
    stored = compressor.compress(dict(state), official)
    expected = compressor.decompress(dict(stored), official)["weight"].float().numpy()
    assert len(np.unique(expected)) > 8
    found = read_one(tmp_path, stored, compressed(form, **{"group_size": None, **scheme}))
    np.testing.assert_array_equal(found.values(0, rows), expected)
    assert found.layout == layout


def test_a_group_out_of_range_is_named(rng: np.random.Generator, tmp_path: Path) -> None:
    weight: Weight = draw(rng, Drawing(16, 64))
    parts = pack_compressed(weight, has_index=True)
    parts["weight_g_idx"][5] = 2
    found = read_one(tmp_path, parts, compressed(symmetric=False, actorder="group"))
    with pytest.raises(CheckpointError, match=rf"{MODULE}\.weight_g_idx puts weight 5 of each row into group 2"):
        found.values(0, 1)
