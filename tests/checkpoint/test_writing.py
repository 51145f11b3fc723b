"""Written files against the safetensors package; folders that appear whole or not at all."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file

from kaishu.checkpoint.safetensors import open_safetensors
from kaishu.checkpoint.writing import NewTensor, TensorFile, new_folder
from kaishu.errors import CheckpointError

TENSORS = {
    "a": NewTensor("F16", (3, 5)),
    "b": NewTensor("I64", (2,)),
    "c": NewTensor("I32", (40, 7)),
    "empty": NewTensor("F32", (0, 4)),
    "d": NewTensor("F32", ()),
    "e": NewTensor("U8", (3,)),
}


def test_the_safetensors_package_reads_what_was_written_in_any_order_and_by_threads(tmp_path, rng):
    values = {
        "a": rng.normal(size=(3, 5)).astype(np.float16),
        "b": np.array([1, -(1 << 60)], np.int64),
        "c": rng.integers(-(1 << 31), 1 << 31, (40, 7), dtype=np.int32),
        "empty": np.zeros((0, 4), np.float32),
        "d": np.float32(0.25).reshape(()),
        "e": np.array([1, 2, 255], np.uint8),
    }
    path = tmp_path / "x.safetensors"
    with TensorFile(path, TENSORS) as file, ThreadPoolExecutor(4) as pool:
        for name in ("e", "d", "empty", "b", "a"):
            file.write(name, values[name])
        parts = [pool.submit(file.write, "c", values["c"][row : row + 4], row * 7) for row in range(36, -4, -4)]
        assert not [part.result() for part in parts if part.result()]
    found = load_file(path)
    assert found.keys() == values.keys()
    for name, array in values.items():
        np.testing.assert_array_equal(found[name], array)
    with safe_open(path, "np") as opened:
        assert opened.metadata() == {"format": "pt"}


def test_tensors_lie_where_they_can_be_mapped(tmp_path):
    with TensorFile(tmp_path / "x.safetensors", TENSORS):
        pass
    for tensor in open_safetensors(tmp_path / "x.safetensors").tensors.values():
        assert tensor.offset % {"F16": 2, "I64": 8, "I32": 4, "F32": 4, "U8": 1}[tensor.dtype] == 0


def test_a_folder_appears_only_when_it_is_complete(tmp_path):
    with new_folder(tmp_path / "over" / "there", "things", 10) as folder:
        (folder / "file").write_text("x")
        assert not (tmp_path / "over" / "there").exists()
    assert [path.name for path in (tmp_path / "over").iterdir()] == ["there"]
    assert (tmp_path / "over" / "there" / "file").read_text() == "x"
    assert (tmp_path / "over" / "there").stat().st_mode & 0o077 == tmp_path.joinpath("over").stat().st_mode & 0o077


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_what_goes_wrong_leaves_nothing(tmp_path, error):
    with pytest.raises(error), new_folder(tmp_path / "out", "things", 10) as folder:
        (folder / "file").write_text("x")
        raise error
    assert not list(tmp_path.iterdir())


def test_an_empty_folder_is_filled_and_one_that_fills_meanwhile_is_left(tmp_path):
    (tmp_path / "out").mkdir()
    with new_folder(tmp_path / "out", "things", 10) as folder:
        (folder / "file").write_text("x")
    assert (tmp_path / "out" / "file").exists()
    (tmp_path / "late").mkdir()
    with (
        pytest.raises(CheckpointError, match="late, 10 bytes of things, can't be written"),
        new_folder(tmp_path / "late", "things", 10),
    ):
        (tmp_path / "late" / "precious").write_text("x")
    assert (tmp_path / "late" / "precious").exists()
