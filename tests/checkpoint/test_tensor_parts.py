"""Parts of a quantised weight that are missing or don't fit are named."""

from __future__ import annotations

from pathlib import Path

import pytest

from kaishu.checkpoint.safetensors import StoredTensor
from kaishu.checkpoint.tensor_parts import TensorParts
from kaishu.errors import CheckpointError


def parts(**shapes: tuple[int, ...]) -> TensorParts:
    return TensorParts(
        "m.q_proj", {n: StoredTensor(f"m.q_proj.{n}", "I32", s, Path("x"), 0) for n, s in shapes.items()}
    )


def test_a_missing_part_is_named_with_what_there_is() -> None:
    with pytest.raises(CheckpointError, match=r"m\.q_proj\.scales is missing; .*only: qweight, qzeros"):
        parts(qweight=(1, 2), qzeros=(1, 1)).required("scales", ("F16",))


@pytest.mark.parametrize("dtypes, dimensions", [(("F16", "BF16"), 2), (("I32",), 1)])
def test_a_wrong_type_or_number_of_dimensions_is_named(dtypes: tuple[str, ...], dimensions: int) -> None:
    with pytest.raises(CheckpointError, match=rf"m\.q_proj\.scales is I32 of shape \[1, 2\]; allowed: {dtypes[0]}"):
        parts(scales=(1, 2)).optional("scales", dtypes, dimensions)


def test_a_wrong_shape_is_named_with_the_right_one_and_the_reason() -> None:
    found = parts(scales=(1, 2))
    found.check_shape("scales", (1, 2), "so")
    found.check_shape("g_idx", (5,), "what isn't there has no shape")
    with pytest.raises(CheckpointError, match=r"m\.q_proj\.scales has shape \[1, 2\]; allowed: \[3, 2\], because why"):
        found.check_shape("scales", (3, 2), "why")


def test_the_size_of_groups_follows_from_how_many_there_are() -> None:
    assert parts().group_size(100, 4, (128, 32)) == 32
    assert parts().group_size(100, 1, (-1,)) == 100
    assert parts().group_size(64, 1, (128,)) == 128
    assert parts().group_size(192, 2, (128, 96)) == parts().group_size(192, 2, (96, 128)) == 96, "none is shorter"
    with pytest.raises(
        CheckpointError, match=r"m\.q_proj has 3 scales for each row of 100 weights, .* a whole row or 32"
    ):
        parts().group_size(100, 3, (-1, 32))


def test_what_is_stored_is_added_up() -> None:
    assert parts(a=(2, 3), b=(5,)).nbytes == 44
    assert parts().name == "m.q_proj.weight"
