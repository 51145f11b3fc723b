"""The file's format, read by hand as the docstring draws it; and what isn't a whole file."""

from __future__ import annotations

import errno
import hashlib
import os
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kaishu.cpu.packed_file import Label, complete, label_at, map_to_read, map_to_write, zeros_in_memory


def write(path: Path, label: Label, data: bytes) -> None:
    with path.open("w+b") as file:
        mapped, view = map_to_write(file, label)
        view[:] = np.frombuffer(data, np.uint8)
        complete(mapped, label)


@pytest.mark.parametrize("description", [b"", b"tiny, int8", bytes(range(256)) * 40])
@pytest.mark.parametrize("data", [b"", b"x", bytes(range(256)) * 100])
def test_a_file_is_laid_out_as_the_drawing_says(tmp_path: Path, description: bytes, data: bytes) -> None:
    path = tmp_path / "file"
    write(path, Label(b'{"k":1}', description, len(data)), data)
    raw = path.read_bytes()
    magic, start, num_bytes, key_bytes, description_bytes = struct.unpack_from("<8s4Q", raw)
    assert (magic, num_bytes, key_bytes, description_bytes) == (b"kaishu1\n", len(data), 7, len(description))
    assert start % 4096 == 0 and 47 + len(description) <= start < 47 + len(description) + 4096
    assert raw[40:start] == (b'{"k":1}' + description).ljust(start - 40, b"\0")
    assert raw[start:-32] == data
    assert raw[-32:] == hashlib.sha256(raw[:start]).digest()


def test_what_was_written_is_read_and_cannot_be_changed(tmp_path: Path) -> None:
    path, label, data = tmp_path / "file", Label(b"key", b"description", 10_000), bytes(range(250)) * 40
    write(path, label, data)
    assert label_at(path) == label
    with path.open("rb") as file:
        mapped = map_to_read(file, label)
    assert mapped.tobytes() == data and mapped.ctypes.data % 4096 == 0
    with pytest.raises(ValueError, match="read-only"):
        mapped[0] = 1


@given(st.binary(max_size=60), st.binary(max_size=60), st.data())
def test_no_single_changed_byte_outside_the_data_and_no_other_length_passes(
    tmp_path_factory: pytest.TempPathFactory, key: bytes, description: bytes, data: st.DataObject
) -> None:
    path, label = tmp_path_factory.getbasetemp() / "damaged", Label(key, description, 100)
    write(path, label, bytes(100))
    whole = path.read_bytes()
    assert label_at(path) == label
    if data.draw(st.booleans()):
        places = st.one_of(st.integers(0, 200), st.integers(0, label.data_start - 1), st.integers(-32, -1))
        damaged = bytearray(whole)
        damaged[data.draw(places)] ^= data.draw(st.integers(1, 255))
    else:
        damaged = bytearray((whole + bytes(50))[: data.draw(st.integers(0, len(whole) + 50))])
    path.write_bytes(damaged)
    assert label_at(path) == (label if damaged == whole else None)


def test_a_file_that_is_not_completed_is_not_whole(tmp_path: Path) -> None:
    label = Label(b"key", b"", 100)
    with (tmp_path / "file").open("w+b") as file:
        map_to_write(file, label)
    assert (tmp_path / "file").stat().st_size == label.file_bytes
    assert label_at(tmp_path / "file") is None


def test_what_cannot_be_read_is_no_label(tmp_path: Path) -> None:
    assert label_at(tmp_path) is None
    assert label_at(tmp_path / "nothing") is None


@pytest.mark.parametrize("can_reserve", [True, False], ids=["reserves", "only writes"])
def test_every_byte_has_its_place_on_the_disk_before_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, can_reserve: bool
) -> None:
    if not can_reserve:

        def refuse(*_: int) -> None:
            raise OSError(errno.EOPNOTSUPP, "Operation not supported")

        monkeypatch.setattr(os, "posix_fallocate", refuse, raising=False)
    label = Label(b"key", b"", 3_000_000)
    (tmp_path / "file").write_bytes(b"left over " * 1_000_000)
    with (tmp_path / "file").open("a+b") as file:  # as open_locked opens
        _, data = map_to_write(file, label)
        status = os.fstat(file.fileno())
        assert status.st_size == label.file_bytes <= status.st_blocks * 512
        assert not data.any()


def test_memory_is_aligned_to_a_cache_line() -> None:
    for num_bytes in (1, 63, 1000, 5_000_000):
        data = zeros_in_memory(num_bytes)
        assert (data.shape, data.dtype, data.ctypes.data % 64) == ((num_bytes,), np.uint8, 0)
        assert not data.any()
