"""The GGUF container: versions, splits, and headers that are damaged or hostile."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import gguf
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kaishu.checkpoint.gguf import READ_TYPES, TYPE_NAMES, open_gguf
from kaishu.checkpoint.gguf_names import split_set
from kaishu.errors import CheckpointError
from tests.checkpoint.gguf_files import ARRAY, STRING, U16, array, info, pair, raw_gguf, text, u32
from tests.memory import run_measured


def written(folder: Path, contents: bytes, name: str = "model.gguf") -> Path:
    path = folder / name
    path.write_bytes(contents)
    return path


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("alignment", [32, 64])
def test_a_file_by_hand_reads_as_the_package_gguf_reads_it(tmp_path: Path, version: int, alignment: int) -> None:
    first = np.arange(6, dtype="<f4")
    data = first.tobytes().ljust(alignment, b"\0") + np.arange(4, dtype="<f2").tobytes()
    path = written(
        tmp_path,
        raw_gguf(
            [u32("general.alignment", alignment), pair("general.architecture", STRING, text("qwen3"))],
            [info("first", [3, 2]), info("second", [4], 1, alignment)],
            data,
            version=version,
            alignment=alignment,
        ),
    )
    ours = open_gguf(path)
    assert [(t.name, t.kind, t.shape) for t in ours.tensors.values()] == [
        ("first", "F32", (2, 3)),
        ("second", "F16", (4,)),
    ]
    assert path.read_bytes()[ours.tensors["first"].offset :][:24] == first.tobytes()
    for theirs in gguf.GGUFReader(path).tensors:
        tensor = ours.tensors[theirs.name]
        assert (tensor.offset, tensor.nbytes) == (theirs.data_offset, theirs.n_bytes)
        assert list(tensor.shape) == [int(size) for size in reversed(theirs.shape)]


def test_the_numbers_of_types_are_those_of_the_package_gguf() -> None:
    assert {number: gguf.GGMLQuantizationType(number).name for number in TYPE_NAMES} == dict(TYPE_NAMES)


def test_what_identifies_the_contents_changes_with_header_and_time(tmp_path: Path) -> None:
    path = written(tmp_path, raw_gguf([u32("a", 1)]))
    (before,) = open_gguf(path).files
    assert before.header_digest == open_gguf(path).files[0].header_digest
    written(tmp_path, raw_gguf([u32("a", 2)]))
    (after,) = open_gguf(path).files
    assert before.header_digest != after.header_digest and before.num_bytes == after.num_bytes
    os.utime(path, ns=(0, 5_000_000_000))
    assert open_gguf(path).files[0].modified_ns == 5_000_000_000


GOOD = raw_gguf([u32("a", 1)], [info("w", [32, 2], 8)], bytes(68))


@pytest.mark.parametrize(
    "contents, words",
    [
        (b"", r"begins with b'', not b'GGUF'"),
        (b"GGUF\x03\x00\x00\x00", "is 8 bytes; even an empty GGUF file has 24"),
        (b"\x80\x02" * 20, "is not a GGUF file"),
        (b"version https://git-lfs.github.com/spec/v1\n", "git-lfs pointer"),
        (b"GGUF" + struct.pack(">IQQ", 3, 0, 0) + bytes(8), "is big-endian; only little-endian"),
        (raw_gguf(version=1), "version 1; allowed: 2 or 3"),
        (raw_gguf(version=4), "version 4; allowed: 2 or 3"),
        (raw_gguf(num_tensors=2**63), "would have 9,223,372,036,854,775,808 tensors"),
        (raw_gguf(num_pairs=2**63), "would have 9,223,372,036,854,775,808 metadata keys"),
        (raw_gguf(num_tensors=5, alignment=1), "inside the name of tensor 0"),
        (raw_gguf([], [text("w") + struct.pack("<I", 2**31)]), "has 2,147,483,648 dimensions; allowed: 1 to 4"),
        (raw_gguf([], [info("w", [])]), "has 0 dimensions"),
        (raw_gguf([], [info("w", [2**60, 2])]), "has sizes .*; allowed"),
        (raw_gguf([], [info("w", [0, 2])]), "has sizes .*; allowed"),
        (raw_gguf([], [info("w", [2**40, 2**40])]), "the download stopped early"),
        (raw_gguf([], [info("w", [33, 2], 8)], bytes(99)), "'w' has rows of 33 weights; Q8_0 has blocks of 32"),
        (raw_gguf([], [info("w", [32], 16)], bytes(99)), "'w' is of type IQ2_XXS, which isn't read; allowed: F32,"),
        (raw_gguf([], [info("w", [32], 4)], bytes(99)), "'w' is of type number 4, which isn't read"),
        (raw_gguf([], [info("w", [8]), info("w", [8], 0, 32)], bytes(64)), "lists 'w' twice"),
        (raw_gguf([], [info("v", [16]), info("w", [8], 0, 32)], bytes(96)), "'w' at 32 overlaps 'v'"),
        (raw_gguf([], [info("v", [8]), info("w", [8], 0, 64)], bytes(96)), "'w' at 64 leaves a gap after 'v'"),
        (raw_gguf([], [info("v", [8], 0, 1)], bytes(96)), "'v' at 1 leaves a gap after 'the header'"),
        (raw_gguf([], [info("v", [8], 0, 2**64 - 32)], bytes(96)), "leaves a gap"),
        (raw_gguf([], [info("w" * 600, [8])], bytes(32)), "the name of tensor 0 has 600 bytes; allowed: 512"),
        (GOOD[:-1], "bytes of an expected .* the download stopped early"),
        *[(raw_gguf([u32("general.alignment", n)]), "a power of two from 8") for n in (0, 1, 24, 2**31)],
        (raw_gguf([pair("general.alignment", STRING, text("32"))]), "a power of two from 8"),
    ],
)
def test_a_wrong_header_is_named(tmp_path: Path, contents: bytes, words: str) -> None:
    with pytest.raises(CheckpointError, match=words) as raised:
        open_gguf(written(tmp_path, contents))
    assert "model.gguf" in str(raised.value)


def test_what_is_no_file_is_missing(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.gguf")
    for path in (tmp_path, tmp_path / "absent.gguf", tmp_path / "pipe.gguf"):
        with pytest.raises(CheckpointError, match="is missing, or not a regular file"):
            open_gguf(path)


@pytest.mark.parametrize("number, name", [(16, "IQ2_XXS"), (21, "IQ3_S"), (34, "TQ1_0"), (99, "number 99")])
def test_an_unread_type_says_which_are_read(tmp_path: Path, number: int, name: str) -> None:
    said = f"'w' is of type {name}, which isn't read; allowed: {', '.join(READ_TYPES)}"
    with pytest.raises(CheckpointError, match=rf"{said}\.\n  Use another of the model's files: Q8_0"):
        open_gguf(written(tmp_path, raw_gguf([], [info("w", [256], number)], bytes(256))))


def test_bytes_after_the_last_tensor_are_padding(tmp_path: Path) -> None:
    assert open_gguf(written(tmp_path, GOOD + bytes(20))).tensors["w"].shape == (2, 32)


# Split files.


def split_model(folder: Path, *, tensors: int = 5, each: int = 2) -> list[Path]:
    writer = gguf.GGUFWriter(folder / "model.gguf", "qwen3", split_max_tensors=each)
    for number in range(tensors):
        writer.add_tensor(f"tensor {number}", np.full((2, 32), number, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return sorted(folder.glob("*.gguf"))


def test_a_split_model_opens_from_any_of_its_parts(tmp_path: Path) -> None:
    paths = split_model(tmp_path)
    assert [path.name for path in paths] == [f"model-0000{n}-of-00003.gguf" for n in (1, 2, 3)]
    for path in paths:
        model = open_gguf(path)
        assert model.path == paths[0] and [part.path for part in model.files] == paths
        assert model.metadata["general.architecture"] == "qwen3"
        assert sorted(model.tensors) == [f"tensor {number}" for number in range(5)]
        for number, tensor in enumerate(sorted(model.tensors.values(), key=lambda tensor: tensor.name)):
            stored = tensor.file.read_bytes()[tensor.offset : tensor.offset + tensor.nbytes]
            assert stored == np.full(64, number, np.float32).tobytes()
    assert len({split_set(path) for path in paths}) == 1


def test_a_missing_part_is_named(tmp_path: Path) -> None:
    paths = split_model(tmp_path)
    paths[1].unlink()
    with pytest.raises(CheckpointError, match=r"lacks 1 of the model's 3 parts: model-00002-of-00003\.gguf"):
        open_gguf(paths[2])


def test_parts_that_are_not_of_one_model_are_refused(tmp_path: Path) -> None:
    paths = split_model(tmp_path)
    second = paths[1].read_bytes()
    paths[1].write_bytes(paths[2].read_bytes())
    with pytest.raises(CheckpointError, match="says that it is number 2 of 3 parts, counted from 0; by its name"):
        open_gguf(paths[0])
    paths[1].write_bytes(second.replace(b"tensor 2", b"tensor 0"))
    with pytest.raises(CheckpointError, match="'tensor 0' is in two parts"):
        open_gguf(paths[0])
    count = pair("split.count", U16, struct.pack("<H", 3))
    number = pair("split.no", U16, struct.pack("<H", 1))
    paths[1].write_bytes(raw_gguf([count, number]))
    with pytest.raises(CheckpointError, match="have 5 tensors; they have 3"):
        open_gguf(paths[0])


def test_a_part_under_another_name_says_what_its_name_should_be(tmp_path: Path) -> None:
    renamed = split_model(tmp_path)[0].rename(tmp_path / "renamed.gguf")
    with pytest.raises(CheckpointError, match=r"one of 3 parts, but isn't named like one; .*-00001-of-00003\.gguf"):
        open_gguf(renamed)


@pytest.mark.parametrize("value", [text("3"), array(0, 1, b"\x03")])
def test_a_count_of_parts_that_is_no_number(tmp_path: Path, value: bytes) -> None:
    kind = STRING if value == text("3") else ARRAY
    with pytest.raises(CheckpointError, match=r"split\.count is .*; allowed: an integer"):
        open_gguf(written(tmp_path, raw_gguf([pair("split.count", kind, value)])))


# Whatever the bytes are.

SEEDS = [
    GOOD,
    raw_gguf(
        [u32("general.alignment", 64), pair("tokens", ARRAY, array(STRING, 3, text("a") + text("bc") + text("")))],
        [info("v", [8, 2, 3]), info("w", [256, 2], 12, 192)],
        bytes(192 + 288),
        version=2,
        alignment=64,
    ),
]


@settings(max_examples=300, deadline=None)
@given(
    seed=st.sampled_from(SEEDS),
    edits=st.lists(st.tuples(st.integers(0, 600), st.binary(min_size=1, max_size=9)), max_size=4),
    cut=st.integers(0, 900),
)
@example(seed=GOOD, edits=[(16, b"\xff" * 8)], cut=900)
def test_mutated_files_open_or_are_typed_errors(
    tmp_path_factory: pytest.TempPathFactory, seed: bytes, edits: list[tuple[int, bytes]], cut: int
) -> None:
    contents = bytearray(seed)
    for start, replacement in edits:
        contents[start : start + len(replacement)] = replacement
    path = tmp_path_factory.getbasetemp() / "mutated.gguf"
    path.write_bytes(bytes(contents[:cut]))
    try:
        model = open_gguf(path)
        for tensor in model.tensors.values():
            assert tensor.offset >= 24 and tensor.offset + tensor.nbytes <= len(contents[:cut])
        dict(model.metadata)
    except CheckpointError:
        pass


def test_hostile_headers_take_no_memory(tmp_path: Path) -> None:
    """In a process of its own: lengths up to 2^64 over a sparse file of 1 TB."""
    hostile = [
        raw_gguf([pair("a", ARRAY, array(kind, count))])
        for kind in range(13)
        for count in (2**63, 2**64 - 1, 2**40, 2**31, 2**22)
    ]
    hostile += [raw_gguf(num_tensors=count) for count in (2**64 - 1, 2**31, 65_536)]
    hostile += [raw_gguf([], [info("w", [size, 4])]) for size in (2**63, 2**48, 2**40)]
    for number, contents in enumerate(hostile):
        with written(tmp_path, contents, f"{number}.gguf").open("r+b") as file:
            file.truncate(1 << 40)
    program = f"""
from kaishu.checkpoint.gguf import open_gguf
from kaishu.errors import CheckpointError
before, refused, opened = peak_mb(), 0, 0
for path in Path({str(tmp_path)!r}).glob("*.gguf"):
    try:
        open_gguf(path); opened += 1
    except CheckpointError:
        refused += 1
print(refused, opened, peak_mb() - before)
"""
    refused, opened, megabytes = run_measured(program)
    assert int(refused) + int(opened) == len(hostile) and int(refused) > 60
    assert float(megabytes) < 100
