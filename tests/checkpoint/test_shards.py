"""One file or many, and nothing from outside the folder."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from kaishu.checkpoint.shards import INDEX_FILE, SINGLE_FILE, open_shards, path_inside
from kaishu.errors import CheckpointError

ROOT = Path(__file__).parents[2]

FIRST, SECOND = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
WEIGHTS = {FIRST: {"a": np.arange(4.0), "b": np.arange(3.0)}, SECOND: {"c": np.arange(2.0)}}


def write(folder: Path, files: Mapping[str, Mapping[str, Any]], index: Mapping[str, str] | None = None) -> Path:
    """Write shards, and an index that says where each tensor is unless told otherwise."""
    folder.mkdir(parents=True, exist_ok=True)
    for file, tensors in files.items():
        save_file(dict(tensors), folder / file)
    weight_map = {name: file for file, tensors in files.items() for name in tensors} if index is None else dict(index)
    (folder / INDEX_FILE).write_text(json.dumps({"metadata": {"total_size": 72}, "weight_map": weight_map}))
    return folder


_opened: list[str] = []
_watching = [False]


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    if _watching[0] and event == "open":
        _opened.append(str(arguments[0]))


@contextmanager
def opened_files() -> Iterator[list[str]]:
    """Every file that Python opens meanwhile."""
    if not getattr(_audit, "is_added", False):
        sys.addaudithook(_audit)  # there is no way to remove one; it does nothing while nobody watches
        _audit.is_added = True  # type: ignore[attr-defined]
    _opened.clear()
    _watching[0] = True
    try:
        yield _opened
    finally:
        _watching[0] = False


def test_shards_are_one_set_of_tensors(tmp_path: Path) -> None:
    shards = open_shards(write(tmp_path, WEIGHTS))
    assert {name: tensor.read().tolist() for name, tensor in shards.tensors.items()} == {
        "a": [0, 1, 2, 3],
        "b": [0, 1, 2],
        "c": [0, 1],
    }
    assert [file.path.name for file in shards.files] == [FIRST, SECOND]


def test_a_single_file_wins_over_an_index_and_that_is_said(tmp_path: Path) -> None:
    write(tmp_path, WEIGHTS)
    save_file({"only": np.arange(2.0)}, tmp_path / SINGLE_FILE)
    shards = open_shards(tmp_path)
    assert list(shards.tensors) == ["only"]
    assert "index.json is ignored" in shards.notes[0]


@pytest.mark.parametrize(
    "evil",
    [
        "../evil.safetensors",
        "/tmp/evil.safetensors",
        "deeper/evil.safetensors",
        "..",
        "",
        "..\\evil.safetensors",
        "a\0b.safetensors",
        "x" * 300 + ".safetensors",
        "楷" * 100 + ".safetensors",
    ],
)
def test_an_index_cannot_name_a_path(tmp_path: Path, evil: str) -> None:
    folder = tmp_path / "model"
    save_file({"c": np.arange(2.0)}, tmp_path / "evil.safetensors")
    write(folder, {FIRST: WEIGHTS[FIRST]}, {"a": FIRST, "b": FIRST, "c": evil})
    with opened_files() as opened, pytest.raises(CheckpointError):
        open_shards(folder)
    assert {Path(path).name for path in opened} <= {INDEX_FILE}


@pytest.mark.parametrize("value", [3, None, ["x"], {"x": 1}, "pytorch_model.bin", "evil.txt"])
def test_an_index_names_safetensors_only(tmp_path: Path, value: Any) -> None:
    write(tmp_path, {}, {"a": value})
    with pytest.raises(CheckpointError, match=r"allowed: a \*\.safetensors file beside it"):
        open_shards(tmp_path)


@pytest.mark.parametrize(
    "index", ["{}", '{"weight_map": {}}', '{"weight_map": []}', "[]", "", '{"weight_map": {"a": 1, "a": 2}}']
)
def test_a_broken_index_is_a_checkpoint_error(tmp_path: Path, index: str) -> None:
    (tmp_path / INDEX_FILE).write_text(index)
    with pytest.raises(CheckpointError, match=r"model\.safetensors\.index\.json"):
        open_shards(tmp_path)


@pytest.mark.parametrize("name", [SINGLE_FILE, FIRST, INDEX_FILE])
def test_a_link_that_leads_out_is_not_opened(tmp_path: Path, name: str) -> None:
    outside, folder = tmp_path / "outside", tmp_path / "model"
    write(outside, WEIGHTS)
    save_file({"a": np.arange(2.0)}, outside / SINGLE_FILE)
    write(folder, WEIGHTS)
    (folder / name).unlink(missing_ok=True)
    (folder / name).symlink_to(outside / name)
    with (
        opened_files() as opened,
        pytest.raises(CheckpointError, match=r"a link to .*outside the folder; it is not opened"),
    ):
        open_shards(folder)
    assert not any(str(outside) in path or Path(path).name == name for path in opened)


def test_a_link_to_itself_leads_nowhere(tmp_path: Path) -> None:
    (tmp_path / SINGLE_FILE).symlink_to(tmp_path / SINGLE_FILE)
    with pytest.raises(CheckpointError):
        open_shards(tmp_path)


def test_links_within_the_folder_and_to_a_linked_folder_are_fine(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    save_file({"a": np.arange(2.0)}, folder / "real.safetensors")
    (folder / SINGLE_FILE).symlink_to("real.safetensors")
    (tmp_path / "shortcut").symlink_to(folder)
    assert list(open_shards(folder).tensors) == list(open_shards(tmp_path / "shortcut").tensors) == ["a"]


def test_the_hub_caches_own_links_are_fine_and_no_others(tmp_path: Path) -> None:
    blobs = tmp_path / "models--org--name" / "blobs"
    snapshot = tmp_path / "models--org--name" / "snapshots" / "0123"
    other = tmp_path / "models--org--other" / "blobs"
    for folder in (blobs, snapshot, other):
        folder.mkdir(parents=True)
    save_file({"a": np.arange(2.0)}, blobs / "beef")
    save_file({"a": np.arange(2.0)}, other / "beef")
    (snapshot / SINGLE_FILE).symlink_to("../../blobs/beef")
    assert list(open_shards(snapshot).tensors) == ["a"]
    (snapshot / SINGLE_FILE).unlink()
    (snapshot / SINGLE_FILE).symlink_to("../../../models--org--other/blobs/beef")
    with pytest.raises(CheckpointError, match="outside the folder"):
        open_shards(snapshot)
    assert path_inside(snapshot, "config.json") == snapshot / "config.json"


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    (write(tmp_path, WEIGHTS) / SECOND).unlink()
    with pytest.raises(CheckpointError, match=f"lacks 1 of 2 weight files: {SECOND}.*lists 1 tensors.*\n.*kaishu pull"):
        open_shards(tmp_path)


def test_counting_what_is_in_missing_shards_takes_time_in_proportion(tmp_path: Path) -> None:
    """400,000 tensors in 20,000 missing files: comparing each with each takes minutes."""
    weight_map = {f"t{i}": f"m{i % 20_000}.safetensors" for i in range(400_000)}
    (tmp_path / INDEX_FILE).write_text(json.dumps({"weight_map": weight_map}))
    program = f"""
from pathlib import Path
from kaishu.checkpoint.shards import open_shards
open_shards(Path({str(tmp_path)!r}))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, cwd=ROOT)
    assert "lacks 20000 of 20000 weight files" in done.stderr and "lists 400,000 tensors" in done.stderr


def test_a_truncated_shard_is_named_with_both_sizes(tmp_path: Path) -> None:
    path = write(tmp_path, WEIGHTS) / SECOND
    size = path.stat().st_size
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(
        CheckpointError, match=f"{SECOND} is {size - 5} bytes of an expected {size}: the download stopped early"
    ):
        open_shards(tmp_path)


def test_a_tensor_that_the_index_names_and_the_file_lacks_is_named(tmp_path: Path) -> None:
    write(tmp_path, WEIGHTS, {"a": FIRST, "b": FIRST, "c": SECOND, "lost": SECOND})
    with pytest.raises(CheckpointError, match=f"lists 1 tensors in files that don't have them: lost in {SECOND}"):
        open_shards(tmp_path)


def test_a_tensor_in_another_file_than_the_index_says_is_named(tmp_path: Path) -> None:
    write(tmp_path, WEIGHTS, {"a": SECOND, "b": FIRST, "c": SECOND})
    with pytest.raises(CheckpointError, match=f"a in {SECOND}"):
        open_shards(tmp_path)


def test_a_tensor_in_two_shards_is_named_with_both(tmp_path: Path) -> None:
    write(
        tmp_path, {FIRST: WEIGHTS[FIRST], SECOND: {"c": np.arange(2.0), "a": np.arange(4.0)}}, {"a": FIRST, "c": SECOND}
    )
    with pytest.raises(CheckpointError, match=f'"a" is in two files, {FIRST} and {SECOND}'):
        open_shards(tmp_path)


@pytest.mark.parametrize(
    "names, words",
    [
        (["pytorch_model.bin"], "only pickles, which are not opened: pytorch_model.bin(.|\n)*Pickles run code"),
        (["model.pth", "consolidated.00.pt"], "only pickles"),
        (["model-q4_0.gguf"], "only GGUF(.|\n)*Open one GGUF file, not its folder"),
        ([FIRST], "Shards need their index"),
        (["adapter_model.safetensors", "adapter_config.json"], "An adapter is not a model"),
        (["README.md"], "It holds: README.md"),
        ([], "It holds: nothing"),
    ],
)
def test_a_folder_without_weights_that_we_read_says_what_it_has(tmp_path: Path, names: list[str], words: str) -> None:
    for name in names:
        (tmp_path / name).touch()
    with opened_files() as opened, pytest.raises(CheckpointError, match=words):
        open_shards(tmp_path)
    assert not opened
