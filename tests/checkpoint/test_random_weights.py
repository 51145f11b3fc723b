"""Random checkpoints against transformers (names, shapes, sizes) and the safetensors package (the file itself)."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open

from kaishu.checkpoint import open_checkpoint
from kaishu.checkpoint.names import HEAD
from kaishu.checkpoint.random_weights import (
    SHAPES,
    random_checkpoint_bytes,
    shape_config,
    shape_name,
    write_random_checkpoint,
)
from kaishu.errors import CheckpointError, InvalidParameterError
from tests.checkpoint.test_names import in_our_spelling
from tests.memory import run_measured
from tests.test_config import their_model

TINY = ["tiny-test", "tiny-moe-test"]
# The number of parameters, as the models' pages state it in full.
PUBLISHED = {
    "qwen3-0.6b": 596_049_920,
    "qwen3-1.7b": 1_720_574_976,
    "qwen3-4b": 4_022_468_096,
    "qwen3-8b": 8_190_735_360,
    "qwen3-14b": 14_768_307_200,
    "qwen3-32b": 32_762_123_264,
    "qwen3-30b-a3b": 30_532_122_624,
    "qwen3-235b-a22b": 235_093_634_560,
    "qwen2.5-0.5b": 494_032_768,
}


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    folders: dict[str, Path] = {}

    def folder_of(shape: str) -> Path:
        if shape not in folders:
            folders[shape] = write_random_checkpoint(tmp_path_factory.mktemp("random") / shape, shape)
        return folders[shape]

    return folder_of


def read_all(folder: Path) -> dict[str, np.ndarray]:
    """Every tensor in float32, by the safetensors package and torch."""
    with safe_open(folder / "model.safetensors", "pt") as file:
        return {name: file.get_tensor(name).float().numpy() for name in file.keys()}  # noqa: SIM118 - it is no dict


@pytest.mark.parametrize("shape", PUBLISHED)
def test_a_named_shape_has_as_many_parameters_as_the_published_model(shape: str) -> None:
    theirs = sum(parameter.numel() for parameter in their_model(shape_config(shape)).parameters())
    assert theirs == PUBLISHED[shape]
    assert random_checkpoint_bytes(shape) == 2 * PUBLISHED[shape]


@pytest.mark.parametrize("shape", TINY)
def test_what_is_written_has_the_names_and_shapes_of_transformers(shape: str, written: Callable[[str], Path]) -> None:
    theirs = dict(
        pair
        for name, p in their_model(shape_config(shape)).named_parameters()
        for pair in in_our_spelling(name, tuple(p.shape))
    )
    assert {name: array.shape for name, array in read_all(written(shape)).items()} == theirs


@pytest.mark.parametrize("shape", TINY)
def test_transformers_loads_it_with_nothing_missing_or_left_over(shape: str, written: Callable[[str], Path]) -> None:
    from transformers import AutoModelForCausalLM

    model, loaded = AutoModelForCausalLM.from_pretrained(written(shape), output_loading_info=True)
    assert not loaded["missing_keys"] and not loaded["unexpected_keys"] and not loaded["mismatched_keys"]
    assert str(model.dtype) == "torch.bfloat16"


@pytest.mark.parametrize("shape", TINY)
def test_our_own_reader_accepts_it(shape: str, written: Callable[[str], Path]) -> None:
    checkpoint = open_checkpoint(written(shape))
    assert checkpoint.nbytes == random_checkpoint_bytes(shape)
    assert checkpoint.config.num_hidden_layers == 2 and checkpoint.notes == ()
    assert {tensor.dtype for tensor in checkpoint.tensors.values()} == {"BF16"}


@pytest.mark.parametrize("shape", TINY)
def test_linears_are_normal_and_norms_are_one(shape: str, written: Callable[[str], Path]) -> None:
    drawn = []
    for name, array in read_all(written(shape)).items():
        if name.endswith("norm.weight"):
            assert (array == 1).all(), name
        else:
            assert abs(array.std() / 0.02 - 1) < 5 / array.size**0.5, name  # σ of a sample's σ is 1/√(2n)
            drawn.append(array.reshape(-1))
    values = np.concatenate(drawn).astype(np.float64) / 0.02
    moments = [(values**power).mean() for power in (1, 2, 3, 4)]
    np.testing.assert_allclose(moments, [0, 1, 0, 3], atol=0.02)
    assert abs((np.abs(values) > 2).mean() - 0.0455) < 0.002  # 4.55 % of a normal distribution lies beyond 2 σ


def test_tensors_of_one_shape_differ(written: Callable[[str], Path]) -> None:
    tensors = read_all(written("tiny-moe-test"))
    experts = [array for name, array in tensors.items() if ".experts." in name and "gate_proj" in name]
    assert len(experts) == 32 and len({array.tobytes() for array in experts}) == 32


def test_a_seed_fixes_every_byte_and_another_seed_changes_them(tmp_path: Path) -> None:
    first, same, other = (
        write_random_checkpoint(tmp_path / name, "tiny-test", layers=1, seed=seed) / "model.safetensors"
        for name, seed in (("first", 3), ("same", 3), ("other", 4))
    )
    assert first.read_bytes() == same.read_bytes() != other.read_bytes()


def test_fewer_layers_are_the_first_layers(tmp_path: Path, written: Callable[[str], Path]) -> None:
    one, two = (
        read_all(write_random_checkpoint(tmp_path / "one", "tiny-test", layers=1)),
        read_all(written("tiny-test")),
    )
    assert json.loads((tmp_path / "one" / "config.json").read_text())["num_hidden_layers"] == 1
    assert len(two) > len(one)
    assert all(np.array_equal(two[name], array) for name, array in one.items())


def test_an_untied_head_is_a_tensor_of_its_own() -> None:
    from kaishu.checkpoint.names import needed_tensors
    from kaishu.config import config_from_json

    tied = {name: HEAD not in needed_tensors(config_from_json(shape_config(name, 1))) for name in PUBLISHED}
    assert tied == {
        "qwen3-0.6b": True,
        "qwen3-1.7b": True,
        "qwen3-4b": True,
        "qwen3-8b": False,
        "qwen3-14b": False,
        "qwen3-32b": False,
        "qwen3-30b-a3b": False,
        "qwen3-235b-a22b": False,
        "qwen2.5-0.5b": True,
    }


@pytest.mark.parametrize("spelling", ["0.6b", "qwen3-0.6b", "Qwen3-0.6B"])
def test_a_shape_is_found_under_each_spelling(spelling: str) -> None:
    assert shape_name(spelling) == "qwen3-0.6b"
    assert shape_config(spelling) == dict(SHAPES["qwen3-0.6b"])


def test_an_unknown_shape_names_those_that_there_are() -> None:
    with pytest.raises(InvalidParameterError, match=r"shape is '7b'; allowed: 0\.6b, 1\.7b, 4b, 8b, 14b, 32b, "):
        shape_config("7b")


@pytest.mark.parametrize("layers", [0, -1, 10_001])
def test_a_number_of_layers_out_of_range_is_refused(layers: int, tmp_path: Path) -> None:
    with pytest.raises(InvalidParameterError, match="layers"):
        write_random_checkpoint(tmp_path / "model", "tiny-test", layers=layers)
    assert not list(tmp_path.iterdir())


def test_a_folder_that_holds_something_is_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_text("precious")
    with pytest.raises(CheckpointError, match=r"already holds model\.safetensors"):
        write_random_checkpoint(tmp_path, "tiny-test")
    assert (tmp_path / "model.safetensors").read_text() == "precious"
    with pytest.raises(CheckpointError, match="already holds a file"):
        write_random_checkpoint(tmp_path / "model.safetensors", "tiny-test")
    with pytest.raises(CheckpointError, match="can't be written"):
        write_random_checkpoint(tmp_path / "model.safetensors" / "below", "tiny-test")


def test_an_empty_folder_is_filled(tmp_path: Path) -> None:
    open_checkpoint(write_random_checkpoint(tmp_path, "tiny-test", layers=1))


def test_a_full_disk_is_an_error_and_leaves_nothing_behind(tmp_path: Path) -> None:
    program = f"""
import resource
from kaishu.checkpoint.random_weights import write_random_checkpoint
from kaishu.errors import CheckpointError
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))  # a file of more than 1 MiB fails as on a full disk
try:
    write_random_checkpoint(Path({str(tmp_path)!r}) / "model", "tiny-test")
except CheckpointError as problem:
    print(problem)
"""
    assert " ".join(run_measured(program)).endswith("can't be written: File too large.")
    assert not list(tmp_path.iterdir())


def test_writing_takes_little_memory(tmp_path: Path) -> None:
    program = f"""
from kaishu.checkpoint.random_weights import write_random_checkpoint
before = peak_mb()
write_random_checkpoint(Path({str(tmp_path)!r}) / "model", "tiny-test")
print(before, peak_mb())
"""
    before, after = map(float, run_measured(program))
    assert (tmp_path / "model" / "model.safetensors").stat().st_size > 39e6
    assert after - before < 25
