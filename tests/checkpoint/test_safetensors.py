"""The safetensors reader against the format's own library, on honest, damaged and hostile files."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import SafetensorError, safe_open
from safetensors import deserialize as official_reading
from safetensors.numpy import save_file

from kaishu.checkpoint.safetensors import STORAGE, StoredTensor, open_safetensors
from kaishu.errors import CheckpointError
from kaishu.json_fields import MAX_BYTES
from tests.memory import run_measured


def raw_file(header: bytes | Mapping[str, Any], data: bytes = b"", *, length: int | None = None) -> bytes:
    """A file as the format says: length, header, data; with any of them wrong if wanted."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return (len(text) if length is None else length).to_bytes(8, "little") + text + data


def entry(dtype: str = "F32", shape: Any = (2,), offsets: Any = (0, 8)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


@pytest.fixture
def small(tmp_path: Path, rng: np.random.Generator) -> Path:
    path = tmp_path / "model.safetensors"
    tensors = {
        "first": rng.normal(size=(3, 5)).astype(np.float32),
        "second": rng.integers(0, 255, size=(7,), dtype=np.uint8),
        "third": rng.normal(size=(2, 2, 2)).astype(np.float16),
    }
    save_file(tensors, path, metadata={"format": "pt"})
    return path


def test_every_type_reads_as_the_formats_own_library_reads_it(tmp_path: Path, rng: np.random.Generator) -> None:
    header: dict[str, Any] = {}
    data = b""
    for name, storage in STORAGE.items():
        size = 6 * np.dtype(storage).itemsize
        header[f"tensor {name}"] = entry(name, (2, 3), (len(data), len(data) + size))
        data += rng.bytes(size) if name != "BOOL" else bytes([0, 1, 1, 0, 1, 0])
    path = tmp_path / "all.safetensors"
    path.write_bytes(raw_file(header, data))
    official = dict(official_reading(path.read_bytes()))
    ours = open_safetensors(path).tensors
    assert set(ours) == set(official)
    for name, tensor in ours.items():
        assert (tensor.dtype, list(tensor.shape)) == (official[name]["dtype"], official[name]["shape"])
        assert tensor.read().tobytes() == bytes(official[name]["data"])
        assert tensor.nbytes == len(official[name]["data"])


def test_bfloat16_comes_as_raw_bits_that_mean_the_same_numbers(tmp_path: Path) -> None:
    import torch
    from safetensors.torch import save_file as save_torch

    values = torch.tensor([[1.0, -2.5], [3.0e38, float("inf")]], dtype=torch.bfloat16)
    save_torch({"x": values}, tmp_path / "x.safetensors")
    tensor = open_safetensors(tmp_path / "x.safetensors").tensors["x"]
    bits = tensor.read()
    assert tensor.dtype == "BF16" and bits.dtype == np.uint16
    assert np.array_equal((bits.astype(np.uint32) << 16).view(np.float32), values.float().numpy())


def test_a_tensor_is_a_view_of_the_file_not_a_copy(small: Path) -> None:
    view = open_safetensors(small).tensors["first"].read()
    assert type(view) is np.ndarray and not view.flags.owndata and not view.flags.writeable
    with pytest.raises(ValueError):
        view[0, 0] = 1.0


def test_a_file_without_alignment_is_read_all_the_same(tmp_path: Path) -> None:
    header = json.dumps({"a": entry("U8", (1,), (0, 1)), "b": entry("F32", (2,), (1, 9))}).encode()
    header += b" " * (-len(header) % 8)
    path = tmp_path / "odd.safetensors"
    path.write_bytes(raw_file(header, b"\x07" + np.array([1.5, -2.0], np.float32).tobytes()))
    values = open_safetensors(path).tensors["b"].read()
    assert values.flags.aligned and values.tolist() == [1.5, -2.0]


def test_empty_tensors_scalars_and_empty_files_are_fine(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    save_file({"none": np.zeros((0, 4), np.float32), "scalar": np.array(3.0, np.float32)}, path)
    tensors = open_safetensors(path).tensors
    assert tensors["none"].read().shape == (0, 4)
    assert tensors["scalar"].read().shape == () and tensors["scalar"].read() == 3.0
    path.write_bytes(raw_file(b"{}"))
    assert open_safetensors(path).tensors == {}


def test_a_part_is_what_slicing_the_whole_gives(tmp_path: Path, rng: np.random.Generator) -> None:
    stack = rng.normal(size=(3, 4, 5)).astype(np.float32)
    save_file({"stack": stack}, tmp_path / "x.safetensors")
    tensor = open_safetensors(tmp_path / "x.safetensors").tensors["stack"]
    assert np.array_equal(tensor.part("part", 1).read(), stack[1])
    assert np.array_equal(tensor.part("part", 2, 1, 3).read(), stack[2, 1:3])
    assert tensor.part("part", 2, 1, 3).name == "part"


# Damage.


def test_a_file_cut_short_anywhere_says_that_the_download_stopped(small: Path) -> None:
    whole = small.read_bytes()
    for size in range(len(whole)):
        small.write_bytes(whole[:size])
        with pytest.raises(CheckpointError, match=r"model\.safetensors") as caught:
            open_safetensors(small)
        if size >= 8:
            assert "the download stopped early" in str(caught.value) and f"{size:,} bytes" in str(caught.value)
    small.write_bytes(whole)
    assert len(open_safetensors(small).tensors) == 3


def test_the_expected_size_is_said(small: Path) -> None:
    whole = small.read_bytes()
    small.write_bytes(whole[:-1])
    with pytest.raises(
        CheckpointError, match=f"is {len(whole) - 1} bytes of an expected {len(whole)}: .*\n.*kaishu pull"
    ):
        open_safetensors(small)


def test_a_file_that_shrinks_after_it_was_opened_is_an_error_not_a_crash(small: Path) -> None:
    tensors = open_safetensors(small).tensors
    small.write_bytes(small.read_bytes()[:100])
    with pytest.raises(CheckpointError, match="has shrunk"):
        for tensor in tensors.values():
            tensor.read()


@pytest.mark.parametrize(
    "contents, words",
    [
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1503300328\n", "a git-lfs pointer"),
        (b"PK\x03\x04" + bytes(100), "a zip archive, as PyTorch pickles are"),
        (b"\x80\x02}q\x00." + bytes(100), "a pickle"),
        (b"GGUF\x03\x00\x00\x00" + bytes(100), "a GGUF file"),
        (b"<!DOCTYPE html><html>404</html>", "a web page"),
        (b"", "is 0 bytes"),
        (b"\x05\x00\x00", "is 3 bytes"),
    ],
)
def test_another_kind_of_file_is_recognised(tmp_path: Path, contents: bytes, words: str) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(contents)
    with pytest.raises(CheckpointError, match=words):
        open_safetensors(path)


@pytest.mark.parametrize("make", [Path.mkdir, lambda path: __import__("os").mkfifo(path)], ids=["folder", "pipe"])
def test_what_is_no_regular_file_is_not_opened(tmp_path: Path, make: Callable[[Path], object]) -> None:
    make(tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match="not a regular file"):
        open_safetensors(tmp_path / "model.safetensors")


HOSTILE: Mapping[str, tuple[bytes, str]] = {
    "header length 2^60": (raw_file(b"{}", length=1 << 60), "its header would be 1,152,921,504,606,846,976 bytes"),
    "header length 2^64 - 1": (raw_file(b"{}", length=(1 << 64) - 1), "its header would be"),
    "header length 0": (raw_file(b"", bytes(8)), "its header would be 0 bytes"),
    "header longer than the file": (raw_file(b"{}", length=1000), "its header alone takes 1,008"),
    "header a list": (raw_file(b"[]"), "doesn't begin with"),
    "header not JSON": (raw_file(b"{]"), "not valid JSON"),
    "header not UTF-8": (raw_file(b'{"\xff": 1}'), "not valid JSON"),
    "header nested": (raw_file(b'{"a":' * 50_000 + b"1" + b"}" * 50_000), "nested too deeply"),
    "header repeats a tensor": (
        raw_file(
            b'{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}',
            bytes(8),
        ),
        "the key 'a' occurs twice",
    ),
    "many empty objects": (
        raw_file(b"{" + b",".join(b'"%d":{}' % i for i in range(600_000)) + b"}"),
        "values; at most",
    ),
    "as many objects as are read": (
        raw_file(b"{" + b",".join(b'"%d":{}' % i for i in range(249_000)) + b"}"),
        "doesn't have",
    ),
    "as much text as is read": (raw_file({"n" * (MAX_BYTES - 70): entry()}, bytes(8)), "is a name of"),
    "many numbers": (raw_file(b'{"a":[' + b"0," * 4_000_000 + b"0]}"), "values; at most"),
    "a long name": (raw_file({"n" * 8_000_000: entry()}, bytes(8)), "is a name of 8,000,000 characters"),
    "long metadata": (raw_file({"__metadata__": {"x": "y" * (MAX_BYTES + 1)}}), "its header would be"),
    "metadata not text": (raw_file({"__metadata__": {"x": 1}}), "__metadata__"),
    "size 2^63": (raw_file({"a": entry("F32", (1 << 63,), (0, 8))}, bytes(8)), "has shape"),
    "sizes whose product overflows": (raw_file({"a": entry("F32", (1 << 32, 1 << 32), (0, 0))}), "takes 73,786,976"),
    "a negative size": (raw_file({"a": entry("F32", (-2,), (0, 8))}, bytes(8)), "has shape"),
    "a thousand sizes": (raw_file({"a": entry("F32", (1,) * 1000, (0, 4))}, bytes(4)), "at most 8 sizes"),
    "a size that is true": (raw_file({"a": entry("F32", (True,), (0, 4))}, bytes(4)), "has shape"),
    "a size that is 2.0": (raw_file({"a": entry("F32", (2.0,), (0, 8))}, bytes(8)), "has shape"),
    "offsets past the end": (raw_file({"a": entry("F32", (1 << 40,), (0, 1 << 42))}, bytes(8)), "stopped early"),
    "offsets backwards": (raw_file({"a": entry("F32", (2,), (8, 0))}, bytes(8)), "has -8 bytes"),
    "offsets negative": (raw_file({"a": entry("F32", (2,), (-8, 0))}, bytes(8)), "data_offsets"),
    "offsets three": (raw_file({"a": entry("F32", (2,), (0, 8, 8))}, bytes(8)), "data_offsets"),
    "offsets of another size": (raw_file({"a": entry("F32", (2,), (0, 4))}, bytes(8)), "takes 8"),
    "overlapping tensors": (raw_file({"a": entry(), "b": entry("F32", (2,), (4, 12))}, bytes(12)), "overlaps"),
    "the same bytes twice": (raw_file({"a": entry(), "b": entry()}, bytes(8)), "overlaps"),
    "a gap": (raw_file({"a": entry(), "b": entry("F32", (2,), (12, 20))}, bytes(20)), "leaves a gap"),
    "a gap at the start": (raw_file({"a": entry("F32", (2,), (4, 12))}, bytes(12)), "leaves a gap"),
    "bytes after the end": (raw_file({"a": entry()}, bytes(9)), "its header describes"),
    "an unknown type": (raw_file({"a": entry("F31")}, bytes(8)), 'has dtype "F31"'),
    "a type that is no text": (raw_file({"a": {**entry(), "dtype": 3}}, bytes(8)), "has dtype 3"),
    "a field too many": (raw_file({"a": {**entry(), "x": 1}}, bytes(8)), "doesn't have exactly"),
    "a field missing": (raw_file({"a": {"dtype": "F32", "shape": [2]}}, bytes(8)), "doesn't have exactly"),
    "an entry that is no object": (raw_file({"a": 3}), "doesn't have exactly"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_header_is_a_checkpoint_error(tmp_path: Path, name: str) -> None:
    contents, words = HOSTILE[name]
    path = tmp_path / "model.safetensors"
    path.write_bytes(contents)
    with pytest.raises(CheckpointError, match=words) as caught:
        open_safetensors(path)
    assert len(str(caught.value)) < 1_000


def test_hostile_headers_cost_little_memory(tmp_path: Path) -> None:
    """All of them in one process: its peak stays within 100 MB of where it began."""
    for index, (contents, _) in enumerate(HOSTILE.values()):
        (tmp_path / f"{index}.safetensors").write_bytes(contents)
    program = f"""
from kaishu.checkpoint.safetensors import open_safetensors
from kaishu.errors import CheckpointError
before = peak_mb()
for path in sorted(Path({str(tmp_path)!r}).iterdir()):
    try:
        open_safetensors(path)
    except CheckpointError:
        continue
    raise SystemExit(f"{{path}} was accepted")
print(peak_mb() - before)
"""
    (growth,) = run_measured(program)
    assert float(growth) < 100


def official_accepts(path: Path) -> bool:
    try:
        with safe_open(path, framework="numpy") as file:
            list(file.keys())
    except (SafetensorError, OSError, ValueError):
        return False
    return True


def tensors_equal(path: Path, tensors: Mapping[str, StoredTensor]) -> bool:
    official = dict(official_reading(path.read_bytes()))
    return set(official) == set(tensors) and all(
        tensors[name].read().tobytes() == bytes(value["data"]) for name, value in official.items()
    )


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_whatever_the_formats_own_library_refuses_we_refuse(
    tmp_path_factory: pytest.TempPathFactory, data: Any
) -> None:
    """Flip, insert and delete bytes of a good file; most verdicts agree, and what we accept reads the same."""
    good = raw_file(
        {"a": entry("F32", (1, 2), (0, 8)), "b": entry("BF16", (3,), (8, 14)), "__metadata__": {"k": "v"}},
        bytes(range(14)),
    )
    contents = bytearray(good)
    for _ in range(data.draw(st.integers(1, 3))):
        position = data.draw(st.integers(0, len(contents) - 1))
        change = data.draw(st.sampled_from(["flip", "digit", "delete", "insert"]))
        if change == "flip":
            contents[position] ^= 1 << data.draw(st.integers(0, 7))
        elif change == "digit":
            contents[position] = data.draw(st.sampled_from(b'0123456789[]{},":-'))
        elif change == "delete":
            del contents[position]
        else:
            contents.insert(position, data.draw(st.integers(0, 255)))
    path = tmp_path_factory.getbasetemp() / "mutated.safetensors"
    path.write_bytes(contents)
    try:
        tensors = open_safetensors(path).tensors
    except CheckpointError:
        return
    assert official_accepts(path)
    assert tensors_equal(path, tensors)
