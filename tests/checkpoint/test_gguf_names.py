"""Which files are one model, what it is called, and the words for who has to choose."""

from __future__ import annotations

from pathlib import Path

import pytest

from kaishu.checkpoint.gguf_names import chosen_gguf, gguf_models, split_set
from kaishu.errors import CheckpointError, ModelNotFoundError


@pytest.mark.parametrize(
    "path, kind",
    [
        ("Qwen3-8B-Q4_K_M.gguf", "Q4_K_M"),
        ("qwen2.5-0.5b-instruct-q8_0.gguf", "q8_0"),
        ("Model.i1-IQ4_XS.gguf", "IQ4_XS"),
        ("Qwen3-8B-UD-Q4_K_XL.gguf", "UD-Q4_K_XL"),
        ("BF16/Qwen3-32B-BF16-00001-of-00002.gguf", "BF16"),
        ("model-f16.gguf", "f16"),
        ("model.fp16.gguf", "fp16"),
        ("Q6_K.gguf", "Q6_K"),
        ("Qwen3.gguf", None),
        ("Q8_0-model.gguf", None),
    ],
)
def test_a_kind_is_what_the_name_ends_in(path: str, kind: str | None) -> None:
    (model,) = gguf_models([path])
    assert model.kind == kind
    assert chosen_gguf([model], None, "org/x") is model
    if kind:
        assert model.is_called(kind.lower()) and model.is_called(kind.upper())


def test_parts_are_one_model_and_folders_keep_models_apart() -> None:
    parts = [f"Q8_0/m-Q8_0-0000{number}-of-00003.gguf" for number in (1, 2, 3)]
    single, split = gguf_models([*reversed(parts), "m-Q4_0.gguf", "README.md", "config.json", "a/m-Q8_0.bin"])[::-1]
    assert split.parts == tuple(parts) and split.is_whole and single.parts == ("m-Q4_0.gguf",)
    assert not gguf_models(parts[1:])[0].is_whole
    assert split_set(Path(parts[0])) == split_set(Path(parts[1])) == "m-Q8_0 of 00003"
    assert split_set(Path("a/b.gguf")) == "b.gguf"
    assert len(gguf_models(["a/m-Q8_0.gguf", "b/m-Q8_0.gguf"])) == 2


def test_projectors_and_calibration_matrices_are_no_models() -> None:
    assert [model.stem for model in gguf_models(["mmproj-F16.gguf", "imatrix_x.gguf", "m-F16.gguf"])] == ["m-F16"]


@pytest.mark.parametrize(
    "path",
    ["../m.gguf", "/m.gguf", "a/../m.gguf", "a//m.gguf", "./m.gguf", "a\\m.gguf", "C:m.gguf", "x" * 2000 + ".gguf"],
)
def test_a_path_that_would_lead_elsewhere_is_no_model(path: str) -> None:
    assert gguf_models([path]) == []


FILES = ["m-Q4_K_M.gguf", "m-UD-Q4_K_M.gguf", "m-Q8_0-00001-of-00002.gguf", "m-Q8_0-00002-of-00002.gguf", "plain.gguf"]


@pytest.mark.parametrize(
    "choice, first",
    [
        ("Q4_K_M", "m-Q4_K_M.gguf"),
        ("ud-q4_k_m", "m-UD-Q4_K_M.gguf"),
        ("q8_0", "m-Q8_0-00001-of-00002.gguf"),
        ("m-Q8_0-00002-of-00002.gguf", "m-Q8_0-00001-of-00002.gguf"),
        ("plain", "plain.gguf"),
        ("plain.gguf", "plain.gguf"),
    ],
)
def test_a_kind_or_a_name_chooses(choice: str, first: str) -> None:
    assert chosen_gguf(gguf_models(FILES), choice, "org/x").parts[0] == first


def test_who_has_to_choose_is_told_what_to_add_to_the_name() -> None:
    with pytest.raises(CheckpointError) as raised:
        chosen_gguf(gguf_models(FILES), None, "org/x")
    first, hint = str(raised.value).split("\n  ")
    assert first.startswith("org/x has 4 GGUF models: m-Q4_K_M.gguf, m-Q8_0-00001-of-00002.gguf, ")
    assert hint == "Add the one that you want to the name: :Q4_K_M, :Q8_0, :UD-Q4_K_M, :plain."


def test_what_is_offered_chooses_what_it_was_offered_for() -> None:
    models = gguf_models(["a/m-Q8_0.gguf", "b/m-Q8_0.gguf", "a/n-Q8_0.gguf", "o-Q4_0.gguf", "Q4_0.gguf"])
    with pytest.raises(CheckpointError) as raised:
        chosen_gguf(models, None, "org/x")
    offered = str(raised.value).split("name: ")[1].removesuffix(".").split(", ")
    assert [chosen_gguf(models, call[1:], "org/x") for call in offered] == models
    with pytest.raises(
        CheckpointError, match=r"org/x has 3 GGUF models called q8_0: a/m-Q8_0\.gguf, a/n-Q8_0\.gguf, b/"
    ):
        chosen_gguf(models, "q8_0", "org/x")


def test_a_choice_that_there_is_not_lists_what_there_is() -> None:
    with pytest.raises(
        ModelNotFoundError, match=r"org/x has no GGUF model 'Q5_0'. It has: m-Q4.*\n  Add .*: :Q4_K_M, "
    ):
        chosen_gguf(gguf_models(FILES), "Q5_0", "org/x")
    with pytest.raises(ModelNotFoundError, match="org/x has no GGUF model, of which 'Q5_0' could be one"):
        chosen_gguf([], "Q5_0", "org/x")
