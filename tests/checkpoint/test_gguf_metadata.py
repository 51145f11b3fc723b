"""Metadata: every type as the package `gguf` writes it, and lengths that lie."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from kaishu.checkpoint.gguf import open_gguf
from kaishu.checkpoint.gguf_metadata import MAX_HEADER_BYTES, GgufMetadata
from kaishu.errors import CheckpointError
from tests.checkpoint.gguf_files import ARRAY, BOOL, F32, STRING, U8, U32, array, pair, raw_gguf, text, u32


def opened(path: Path, *pairs: bytes) -> GgufMetadata:
    path /= "model.gguf"
    path.write_bytes(raw_gguf(list(pairs)))
    return open_gguf(path).metadata


def test_every_type_reads_as_the_package_gguf_wrote_it(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    writer = gguf.GGUFWriter(path, "qwen3")
    numbers = {"uint8": 255, "int8": -128, "uint16": 65_535, "int16": -32_768, "uint32": 2**32 - 1, "int32": -(2**31)}
    numbers |= {"uint64": 2**64 - 1, "int64": -(2**63), "float32": 1e-6, "float64": 0.1, "bool": True}
    for kind, value in numbers.items():
        getattr(writer, f"add_{kind}")(kind, value)
    writer.add_string("string", "楷书 \n\0")
    writer.add_array("strings", ["", "é", "北京"])
    writer.add_array("integers", [1, -2, 3])
    writer.add_array("floats", [0.5, -1.5])
    writer.add_array("booleans", [True, False])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    metadata = open_gguf(path).metadata
    found = dict(metadata)
    assert {key: found[key] for key in numbers} == numbers
    assert [type(found[key]) for key in ("uint8", "float32", "bool")] == [int, float, bool]
    assert found["string"] == "楷书 \n\0" and found["strings"] == ["", "é", "北京"]
    assert found["integers"].tolist() == [1, -2, 3] and found["floats"].tolist() == [0.5, -1.5]
    assert found["booleans"].tolist() == [True, False] and found["general.architecture"] == "qwen3"
    official = gguf.GGUFReader(path)
    assert set(metadata) == {key for key in official.fields if not key.startswith("GGUF.")}
    assert len(metadata) == len(list(metadata)) and "absent" not in metadata and metadata.get("absent") is None


def test_arrays_are_counted_without_decoding(tmp_path: Path) -> None:
    metadata = opened(tmp_path, pair("tokens", ARRAY, array(STRING, 2, text(b"\xff") + text("b"))), u32("number", 7))
    assert metadata.count("tokens") == 2 and metadata.count("number") is None and metadata.count("absent") is None
    with pytest.raises(CheckpointError, match=r"model\.gguf: item 0 of tokens is not UTF-8"):
        metadata["tokens"]


def test_arrays_of_arrays_are_read(tmp_path: Path) -> None:
    inner = array(U8, 2, b"\x01\x02") + array(STRING, 1, text("a"))
    metadata = opened(tmp_path, pair("nested", ARRAY, array(ARRAY, 2, inner)), u32("after", 3))
    assert [list(item) for item in metadata["nested"]] == [[1, 2], ["a"]] and metadata["after"] == 3


def test_numbers_can_t_be_changed(tmp_path: Path) -> None:
    numbers = opened(tmp_path, pair("numbers", ARRAY, array(U8, 2, b"ab")))["numbers"]
    with pytest.raises(ValueError, match="read-only"):
        numbers[0] = 1


def deep(depth: int) -> bytes:
    return array(ARRAY, 1, deep(depth - 1)) if depth else array(U8, 0)


@pytest.mark.parametrize(
    "pairs, words",
    [
        ([pair("a", ARRAY, array(U8, 2**63))], "ends at [0-9]+ bytes, inside the metadata 'a'"),
        ([pair("a", ARRAY, array(STRING, 2**63))], "would have 9,223,372,036,854,775,808 items"),
        ([pair("a", ARRAY, array(ARRAY, 2**63))], "would have 9,223,372,036,854,775,808 items"),
        ([pair("a", ARRAY, array(STRING, 1, struct.pack("<Q", 2**64 - 1)))], "inside the metadata"),
        ([pair("a", STRING, struct.pack("<Q", 2**63))], "inside the metadata"),
        ([pair("a", ARRAY, array(13, 1))], "is of type 13; allowed: 0 to 12"),
        ([pair("a", 77, b"")], "is of type 77; allowed: 0 to 12"),
        ([pair("a", ARRAY, deep(5))], "arrays in arrays, more than 4 deep"),
        ([u32("a", 1), u32("a", 2)], "twice; allowed: once"),
        ([pair(b"\xff", U32, bytes(4))], "metadata key 0 is not UTF-8"),
        ([struct.pack("<Q", 2**60)], "metadata key 0 has 1,152,921,504,606,846,976 bytes; allowed: 65,535"),
        ([pair("a", F32, b"")], "ends at"),
    ],
)
def test_lengths_and_types_that_lie_are_named(tmp_path: Path, pairs: list[bytes], words: str) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(raw_gguf(pairs, alignment=1))
    with pytest.raises(CheckpointError, match=words):
        open_gguf(path)


def test_a_boolean_is_0_or_1(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="a has a boolean 2; allowed: 0 or 1"):
        opened(tmp_path, pair("a", BOOL, b"\x02"))["a"]
    with pytest.raises(CheckpointError, match="a has a boolean 3; allowed: 0 or 1"):
        opened(tmp_path, pair("a", ARRAY, array(BOOL, 2, b"\x00\x03")))["a"]


def test_a_string_that_is_no_text_is_an_error_once_it_is_asked_for(tmp_path: Path) -> None:
    metadata = opened(tmp_path, pair("a", STRING, text(b"\xff\xfe")), u32("b", 1))
    assert metadata["b"] == 1
    with pytest.raises(CheckpointError, match=r"model\.gguf: a is not UTF-8"):
        metadata["a"]


def test_a_header_may_not_fill_memory(tmp_path: Path) -> None:
    """A sparse file of 100 GB whose header says that it has as many bytes of metadata."""
    path = tmp_path / "model.gguf"
    path.write_bytes(raw_gguf([pair("a", ARRAY, array(U8, 99 << 30))]))
    with path.open("r+b") as file:
        file.truncate(100 << 30)
    with pytest.raises(CheckpointError, match=f"beyond the first {MAX_HEADER_BYTES:,} bytes"):
        open_gguf(path)
    path.write_bytes(raw_gguf([pair("a", ARRAY, array(STRING, 2_000_000))]))
    with path.open("r+b") as file:
        file.truncate(100 << 30)
    with pytest.raises(CheckpointError, match="more than 1,048,576 strings"):
        open_gguf(path)


def test_a_whole_vocabulary_reads_the_same_as_it_was_written(tmp_path: Path) -> None:
    tokens: list[Any] = [f"Ġtoken{number}" for number in range(151_936)]
    kinds = np.ones(len(tokens), "<i4")
    metadata = opened(
        tmp_path,
        pair("tokens", ARRAY, array(STRING, len(tokens), b"".join(map(text, tokens)))),
        pair("kinds", ARRAY, array(5, len(tokens), kinds.tobytes())),
    )
    assert metadata["tokens"] == tokens and np.array_equal(metadata["kinds"], kinds)
