"""AWQ weights from a scalar packer come back exactly; damaged ones are refused by name."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kaishu.errors import CheckpointError
from tests.checkpoint.quantised_files import AWQ, MODULE, check, read_one
from tests.checkpoint.quantised_packers import Drawing, draw, pack_awq

VARIANTS = [
    (Drawing(24, 64, is_symmetric=True), "int4", "AWQ int4, groups of 32"),
    (Drawing(24, 64, has_round_scales=True), "int4_minimum", "AWQ int4, groups of 32"),
    (Drawing(24, 64), "int8", "AWQ int4, groups of 32"),
    (Drawing(24, 256, group_size=128), "int8", "AWQ int4, groups of 128"),
    (Drawing(24, 64, group_size=-1), "int8", "AWQ int4, one group a row"),
    (Drawing(24, 48, group_size=16), "bf16", "AWQ int4, groups of 16"),
]


@pytest.mark.parametrize("how, layout, words", VARIANTS)
def test_every_variant_comes_back_exactly(
    how: Drawing, layout: str, words: str, rng: np.random.Generator, tmp_path: Path
) -> None:
    weight = draw(rng, how)
    parts = pack_awq(weight)
    found = read_one(tmp_path, parts, {**AWQ, "group_size": how.group_size})
    check(found, weight.values(), layout)
    assert found.dtype == words
    assert found.nbytes == sum(part.nbytes for part in parts.values())


def test_each_output_has_its_own_place_in_a_word(tmp_path: Path) -> None:
    """The interleaving by itself: in one word, output n holds n."""
    qweight = np.full((32, 1), int("75316420", 16), np.int32)  # from the lowest nibble up: 0 2 4 6 1 3 5 7
    parts = {"qweight": qweight, "qzeros": np.zeros((1, 1), np.int32), "scales": np.ones((1, 8), np.float16)}
    found = read_one(tmp_path, parts, AWQ)
    assert found.values(0, 8)[:, 0].tolist() == [0, 1, 2, 3, 4, 5, 6, 7]
    assert found.values(3, 5)[:, 31].tolist() == [3, 4]


@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_any_shape_and_group_size_comes_back(data: st.DataObject) -> None:
    how = Drawing(
        rows=data.draw(st.integers(1, 4)) * 8,
        inputs=data.draw(st.integers(1, 100)),
        group_size=data.draw(st.sampled_from([-1, 8, 20, 32, 64, 128])),
        is_symmetric=data.draw(st.booleans()),
    )
    weight = draw(np.random.default_rng(data.draw(st.integers(0, 2**32))), how)
    with tempfile.TemporaryDirectory() as folder:
        found = read_one(Path(folder), pack_awq(weight), {**AWQ, "group_size": how.group_size})
        check(found, weight.values(), found.layout)


BROKEN = [
    (lambda p: p.pop("scales"), r"scales is missing"),
    (lambda p: p.pop("qzeros"), r"qzeros is missing"),
    (lambda p: p.pop("qweight"), r"qweight is missing"),
    (lambda p: p.update(qweight=p["qweight"][:, :1]), r"scales has shape \[2, 16\]; allowed: \[2, 8\]"),
    (lambda p: p.update(qzeros=p["qzeros"][:1]), r"qzeros has shape \[1, 2\]; allowed: \[2, 2\]"),
    (lambda p: p.update(qweight=p["qweight"][:32]), r"has 2 scales for each row of 32 weights"),
    (lambda p: p.update(qweight=p["qweight"].reshape(-1)), r"qweight is I32 of shape \[128\]"),
]


@pytest.mark.parametrize("damage, words", BROKEN)
def test_parts_that_do_not_fit_are_named(damage: Any, words: str, rng: np.random.Generator, tmp_path: Path) -> None:
    parts = pack_awq(draw(rng, Drawing(16, 64)))
    damage(parts)
    with pytest.raises(CheckpointError, match=MODULE.replace(".", r"\.") + ".*" + words):
        read_one(tmp_path, parts, AWQ)
