"""GPTQ weights from a scalar packer come back exactly; damaged ones are refused by name."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kaishu.errors import CheckpointError
from tests.checkpoint.quantised_files import GPTQ, MODULE, check, read_one
from tests.checkpoint.quantised_packers import Drawing, draw, pack_gptq

SYMMETRIC = {"is_symmetric": True}
VARIANTS = [
    (Drawing(16, 64, 4, 32, **SYMMETRIC), "int4", "GPTQ int4, groups of 32"),
    (Drawing(16, 64, 4, -1, **SYMMETRIC), "int4", "GPTQ int4, one group a row"),
    (Drawing(16, 256, 4, 128, **SYMMETRIC), "int4", "GPTQ int4, groups of 128"),
    (Drawing(16, 64, 4, 32, has_round_scales=True, lowest_zero=1), "int4_minimum", "GPTQ int4, groups of 32"),
    (Drawing(16, 64, 4, 32, lowest_zero=1), "int8", "GPTQ int4, groups of 32"),
    (Drawing(16, 64, 8, 32, **SYMMETRIC), "int8", "GPTQ int8, groups of 32"),
    (Drawing(16, 64, 8, 64, lowest_zero=1), "bf16", "GPTQ int8, one group a row"),
    (Drawing(16, 64, 4, 32, is_act_ordered=True, **SYMMETRIC), "bf16", "GPTQ int4, groups of 32, act-order"),
    (Drawing(16, 64, 8, 16, is_act_ordered=True, lowest_zero=1), "bf16", "GPTQ int8, groups of 16, act-order"),
    (Drawing(8, 72, 4, 24, lowest_zero=1), "bf16", "GPTQ int4, groups of 24"),
]


def said(how: Drawing, **more: Any) -> dict[str, Any]:
    return {
        **GPTQ,
        "bits": how.bits,
        "group_size": how.group_size,
        "sym": how.is_symmetric,
        "desc_act": how.is_act_ordered,
        **more,
    }


@pytest.mark.parametrize("how, layout, words", VARIANTS)
@pytest.mark.parametrize("form", [None, "gptq", "gptq_v2"])
def test_every_variant_comes_back_exactly(
    how: Drawing, layout: str, words: str, form: str | None, rng: np.random.Generator, tmp_path: Path
) -> None:
    weight = draw(rng, how)
    parts = pack_gptq(weight, is_second_form=form == "gptq_v2")
    found = read_one(tmp_path, parts, said(how, **({} if form is None else {"checkpoint_format": form})))
    check(found, weight.values(), layout)
    assert found.dtype == words
    assert found.nbytes == sum(part.nbytes for part in parts.values())


def test_without_g_idx_groups_are_in_order(rng: np.random.Generator, tmp_path: Path) -> None:
    weight = draw(rng, Drawing(16, 96, lowest_zero=1))
    parts = pack_gptq(weight)
    del parts["g_idx"]
    check(read_one(tmp_path, parts, GPTQ), weight.values(), "int8")


def test_the_second_form_has_all_sixteen_zeros(rng: np.random.Generator, tmp_path: Path) -> None:
    weight = draw(rng, Drawing(16, 64))
    weight.zeros[:, 0] = np.arange(16)
    found = read_one(tmp_path, pack_gptq(weight, is_second_form=True), {**GPTQ, "checkpoint_format": "gptq_v2"})
    check(found, weight.values(), "int8")


def test_bfloat16_scales_are_read(rng: np.random.Generator, tmp_path: Path) -> None:
    import torch

    weight = draw(rng, Drawing(16, 64, has_round_scales=True, is_symmetric=True, scale_type=np.float32))
    parts: dict[str, Any] = pack_gptq(weight)
    parts["scales"] = torch.from_numpy(parts["scales"]).to(torch.bfloat16)
    check(read_one(tmp_path, parts, GPTQ), weight.values(), "int4")


def test_a_module_with_other_bits_is_read_where_config_json_says_so(rng: np.random.Generator, tmp_path: Path) -> None:
    weight = draw(rng, Drawing(16, 128, 8, 64, **SYMMETRIC))
    parts = pack_gptq(weight)
    dynamic = {"+:.*q_proj": {"bits": 8, "group_size": 64}, "-:.*mlp.gate": {}}
    check(read_one(tmp_path, parts, {**GPTQ, "dynamic": dynamic}), weight.values(), "int8")
    with pytest.raises(CheckpointError, match=rf"{MODULE}\.qzeros has 4 words for 16 outputs; allowed: 2"):
        read_one(tmp_path, parts, GPTQ)


@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_any_shape_and_group_size_comes_back(data: st.DataObject) -> None:
    bits = data.draw(st.sampled_from([4, 8]))
    how = Drawing(
        rows=data.draw(st.integers(1, 3)) * 8,
        inputs=data.draw(st.integers(1, 12)) * 8,
        bits=bits,
        group_size=data.draw(st.sampled_from([-1, 8, 16, 20, 32, 64, 128])),
        is_symmetric=data.draw(st.booleans()),
        is_act_ordered=data.draw(st.booleans()),
        lowest_zero=1,
    )
    weight = draw(np.random.default_rng(data.draw(st.integers(0, 2**32))), how)
    is_second = data.draw(st.booleans())
    with tempfile.TemporaryDirectory() as folder:
        form = "gptq_v2" if is_second else "gptq"
        parts = pack_gptq(weight, is_second_form=is_second)
        found = read_one(Path(folder), parts, said(how, checkpoint_format=form))
        check(found, weight.values(), found.layout)


@pytest.mark.parametrize("bits, ones", [(4, 0x11111111), (8, 0x01010101)])
def test_zeros_that_were_made_less_as_whole_words_come_back(
    bits: int, ones: int, rng: np.random.Generator, tmp_path: Path
) -> None:
    """GPTQModel subtracts from words, so that a zero of 0 borrows from its neighbour."""
    weight = draw(rng, Drawing(16, 64, bits, lowest_zero=2))
    weight.zeros[[0, 3, 7, 15], 0] = 0
    parts = pack_gptq(weight, is_second_form=True)
    parts["qzeros"] = (parts["qzeros"].view(np.uint32) - np.uint32(ones)).view(np.int32)
    found = read_one(tmp_path, parts, {**GPTQ, "bits": bits})
    check(found, weight.values(), "int8" if bits == 4 else "bf16")


@pytest.mark.parametrize("stored", [-1, -(1 << 24), -(1 << 12)])
def test_a_zero_that_overran_its_neighbours_is_refused(stored: int, rng: np.random.Generator, tmp_path: Path) -> None:
    weight = draw(rng, Drawing(16, 64, lowest_zero=1))
    parts = pack_gptq(weight)
    parts["qzeros"][1, 1] = stored  # what AutoGPTQ makes of zeros that are 0, less one
    found = read_one(tmp_path, parts, GPTQ)
    np.testing.assert_array_equal(found.values(0, 8), weight.values()[:8])
    for read in (lambda: found.layout, lambda: found.values(0, 16), lambda: found.groups(8, 9)):
        with pytest.raises(CheckpointError, match=rf"{MODULE}\.qzeros has zeros of -1 among outputs 8 to 15"):
            read()


BROKEN = [
    (lambda p: p.pop("scales"), r"scales is missing"),
    (lambda p: p.pop("qzeros"), r"qzeros is missing"),
    (lambda p: p.pop("qweight"), r"qweight is missing"),
    (lambda p: p.update(qweight=p["qweight"][:, :8]), r"qweight has shape \[8, 8\]; allowed: \[8, 16\]"),
    (lambda p: p.update(qzeros=p["qzeros"][:1]), r"qzeros has shape \[1, 2\]; allowed: \[2, 2\]"),
    (lambda p: p.update(qzeros=p["qzeros"][:, :1]), r"qzeros has 1 words for 16 outputs; allowed: 2"),
    (lambda p: p.update(g_idx=p["g_idx"][:32]), r"g_idx has shape \[32\]; allowed: \[64\]"),
    (lambda p: p.update(scales=p["scales"].astype(np.int32)), r"scales is I32"),
    (lambda p: p.update(qweight=p["qweight"].astype(np.int64)), r"qweight is I64"),
    (lambda p: p.update(qweight=p["qweight"][:4], g_idx=p["g_idx"][:32]), r"has 2 scales for each row of 32 weights"),
]


@pytest.mark.parametrize("damage, words", BROKEN)
def test_parts_that_do_not_fit_are_named(damage: Any, words: str, rng: np.random.Generator, tmp_path: Path) -> None:
    parts = pack_gptq(draw(rng, Drawing(16, 64, lowest_zero=1)))
    damage(parts)
    with pytest.raises(CheckpointError, match=MODULE.replace(".", r"\.") + ".*" + words):
        read_one(tmp_path, parts, GPTQ)


def test_act_order_without_its_order_is_refused(rng: np.random.Generator, tmp_path: Path) -> None:
    parts = pack_gptq(draw(rng, Drawing(16, 64, is_symmetric=True)))
    del parts["g_idx"]
    with pytest.raises(CheckpointError, match="g_idx is missing"):
        read_one(tmp_path, parts, {**GPTQ, "desc_act": True})
