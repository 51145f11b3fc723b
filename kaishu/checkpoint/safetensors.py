"""One safetensors file: its header checked in full, its tensors mapped into memory one at a time.

Owns the file format (8 bytes of length, a JSON header, then the tensors' bytes without gaps; the format is described at
https://huggingface.co/docs/safetensors). Trusts nothing in the header: a damaged or hostile file is a CheckpointError
before any tensor is touched. Knows nothing of models. Used by shards.py; numpy alone, because bfloat16 is kept as raw
bits until someone who knows what to do with them (reference/, cpu/) asks.

    0        8                      8 + N
    | N: u64 | {"name": {...}, ...} | tensor bytes, in the order of their offsets |
"""

from __future__ import annotations

import hashlib
import math
import mmap
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kaishu.checkpoint.stored_numbers import as_float32
from kaishu.errors import CheckpointError
from kaishu.json_fields import MAX_BYTES, parse_json_object, shown

# What numpy reads each type as. Types that numpy lacks come as raw bits of the same width; StoredTensor.dtype tells.
STORAGE: Mapping[str, str] = {
    "BOOL": "?",
    "U8": "u1",
    "I8": "i1",
    "F8_E4M3": "u1",
    "F8_E5M2": "u1",
    "F8_E8M0": "u1",
    "U16": "<u2",
    "I16": "<i2",
    "F16": "<f2",
    "BF16": "<u2",
    "U32": "<u4",
    "I32": "<i4",
    "F32": "<f4",
    "U64": "<u8",
    "I64": "<i8",
    "F64": "<f8",
    "C64": "<c8",
}
_MAX_DIMENSIONS = 8
_MAX_NAME = 512
_MAX_SIZE = 1 << 48
RESUME_HINT = "Run `kaishu pull NAME` again, or download the file anew; a pull resumes where it broke off."

# Files that are often found under this name, by how they begin.
_MISTAKEN: tuple[tuple[bytes, str, str | None], ...] = (
    (
        b"version https://git-lfs",
        "is a git-lfs pointer, a note of where the file is, not the file itself",
        "Run `git lfs pull` in the folder, or `kaishu pull NAME`.",
    ),
    (b"PK\x03\x04", "is a zip archive, as PyTorch pickles are", "Pickles run code when they are opened; none is."),
    (b"\x80\x02", "is a pickle", "Pickles run code when they are opened; none is."),
    (b"GGUF", "is a GGUF file", "Its name should end in .gguf; then open the file itself, not its folder."),
    (b"<!DOCTYPE", "is a web page, probably an error page saved in place of the file", RESUME_HINT),
    (b"<html", "is a web page, probably an error page saved in place of the file", RESUME_HINT),
)


@dataclass(frozen=True)
class StoredTensor:
    """A tensor where it lies in a file; nothing of it is in memory until `read`.

    dtype:  the format's own name: "BF16", "F32", ...
    offset: where its first byte is, counted from the start of the file
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    file: Path
    offset: int

    @property
    def num_values(self) -> int:
        """How many numbers it has."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """How many bytes it takes in the file."""
        return self.num_values * np.dtype(STORAGE[self.dtype]).itemsize

    def read(self) -> NDArray[Any]:
        """Map the tensor: a read-only view of the file, released when the last reference to it goes.

        return: [*shape] of STORAGE[dtype]; BF16 as uint16, F8 as uint8, raw. Copied only where not aligned.
        raises: CheckpointError when the file can't be read or has shrunk since it was opened
        """
        storage = np.dtype(STORAGE[self.dtype])
        if self.num_values == 0:
            return np.empty(self.shape, storage)
        before = self.offset % mmap.ALLOCATIONGRANULARITY  # mappings begin on whole pages
        try:
            with self.file.open("rb") as file:
                size = os.fstat(file.fileno()).st_size
                if size < self.offset + self.nbytes:
                    raise CheckpointError(f"{self.file.name} has shrunk to {size:,} bytes while it was being read.")
                # Not numpy's memmap, which asks the system for the whole path each time: four times slower.
                mapped = mmap.mmap(
                    file.fileno(), before + self.nbytes, access=mmap.ACCESS_READ, offset=self.offset - before
                )
        except OSError as problem:
            raise CheckpointError(f"{self.file} can't be read: {problem.strerror or problem}.") from None
        view = np.frombuffer(mapped, storage, self.num_values, before).reshape(self.shape)
        return view if view.flags.aligned else view.copy()

    def values(self, first: int, last: int) -> NDArray[np.float32]:
        """Rows `first` to `last` of a matrix of floats, widened; as a QuantisedTensor's `values`.

        return: [last - first, K] float32
        raises: CheckpointError as `read` does
        """
        return as_float32(self.read()[first:last], self.dtype)

    def part(self, name: str, index: int, start: int = 0, stop: int | None = None) -> StoredTensor:
        """A tensor inside this one, under its own name: entry `index` of the first axis, its rows [start, stop)."""
        _, rows, *rest = self.shape
        stop = rows if stop is None else stop
        assert 0 <= index < self.shape[0] and 0 <= start <= stop <= rows, "a part lies inside"
        row_bytes = self.nbytes // (self.shape[0] * rows) if self.num_values else 0
        offset = self.offset + (index * rows + start) * row_bytes
        return replace(self, name=name, shape=(stop - start, *rest), offset=offset)


@dataclass(frozen=True)
class SafetensorsFile:
    """A file whose header holds: which tensors it has, and what identifies its contents without reading them."""

    path: Path
    num_bytes: int
    modified_ns: int
    header_digest: str
    tensors: Mapping[str, StoredTensor]


def open_safetensors(path: Path) -> SafetensorsFile:
    """Read and check the header of one file.

    path:   a regular file or a link to one
    return: the file; its tensors in the order of their bytes
    raises: CheckpointError that names the file and what is wrong with it, or how much of it is missing
    """
    try:
        if not path.is_file():  # asked before opening, because opening a pipe waits for a writer
            raise CheckpointError(f"{path} is missing, or not a regular file.")
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            size = status.st_size
            header_bytes = _header_length(path.name, file.read(64), size)
            file.seek(8)
            header = file.read(header_bytes)
    except OSError as problem:
        raise CheckpointError(f"{path} can't be read: {problem.strerror or problem}.") from None
    if not header.startswith(b"{"):
        raise CheckpointError(f"{path.name} is not a safetensors file: its header doesn't begin with '{{'.")
    entries = parse_json_object(header, f"the header of {path.name}", CheckpointError)
    _check_metadata(path.name, entries.pop("__metadata__", None))
    spans = sorted(_span(path.name, name, entry) for name, entry in entries.items())
    _check_spans(path.name, spans, 8 + header_bytes, size)
    tensors = {
        name: StoredTensor(name, entries[name]["dtype"], tuple(entries[name]["shape"]), path, 8 + header_bytes + start)
        for start, _, name in spans
    }
    return SafetensorsFile(path, size, status.st_mtime_ns, hashlib.sha256(header).hexdigest(), tensors)


def _header_length(name: str, start: bytes, size: int) -> int:
    for magic, what, hint in _MISTAKEN:
        if start.startswith(magic):
            raise CheckpointError(f"{name} {what} ({size:,} bytes).", hint=hint)
    if len(start) < 8:
        raise CheckpointError(f"{name} is {size} bytes; even an empty safetensors file has 10.", hint=RESUME_HINT)
    length = int.from_bytes(start[:8], "little")
    if not 2 <= length <= MAX_BYTES:
        raise CheckpointError(
            f"{name} is not a safetensors file: its header would be {length:,} bytes; allowed: 2 to {MAX_BYTES:,}."
        )
    if 8 + length > size:
        raise CheckpointError(
            f"{name} is {size:,} bytes, but its header alone takes {8 + length:,}: the download stopped early.",
            hint=RESUME_HINT,
        )
    return length


def _check_metadata(file: str, metadata: object) -> None:
    if metadata is None:
        return
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise CheckpointError(f"the header of {file}: __metadata__ isn't a map from text to text.")


def _span(file: str, name: str, entry: object) -> tuple[int, int, str]:
    """Check one tensor's entry. return: where its bytes start and end, counted after the header, and its name."""
    where = f"the header of {file}: {shown(name)}"
    if len(name) > _MAX_NAME:
        raise CheckpointError(f"{where} is a name of {len(name):,} characters; allowed: {_MAX_NAME}.")
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise CheckpointError(f"{where} doesn't have exactly dtype, shape and data_offsets.")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in STORAGE:
        raise CheckpointError(f"{where} has dtype {shown(dtype)}; allowed: {', '.join(STORAGE)}.")
    if not isinstance(shape, list) or len(shape) > _MAX_DIMENSIONS or not all(_is_size(value) for value in shape):
        raise CheckpointError(f"{where} has shape {shown(shape)}; allowed: at most {_MAX_DIMENSIONS} sizes.")
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(_is_size(value) for value in offsets):
        raise CheckpointError(f"{where} has data_offsets {shown(offsets)}; allowed: [start, end].")
    start, end = offsets
    needed = math.prod(shape) * np.dtype(STORAGE[dtype]).itemsize
    if end - start != needed:
        raise CheckpointError(
            f"{where} has {end - start:,} bytes {shown(offsets)}, but {dtype} of shape {shown(shape)} takes {needed:,}."
        )
    return start, end, name


def _is_size(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MAX_SIZE


def _check_spans(file: str, spans: list[tuple[int, int, str]], data_start: int, size: int) -> None:
    """The tensors must tile the bytes after the header: no gap, no overlap, nothing after the last."""
    previous_end, previous_name = 0, "the header"
    for start, end, name in spans:
        if start != previous_end:
            what = "overlaps" if start < previous_end else "leaves a gap after"
            raise CheckpointError(f"the header of {file}: {shown(name)} {what} {shown(previous_name)}.")
        previous_end, previous_name = end, name
    expected = data_start + previous_end
    if size < expected:
        raise CheckpointError(
            f"{file} is {size:,} bytes of an expected {expected:,}: the download stopped early.", hint=RESUME_HINT
        )
    if size > expected:
        raise CheckpointError(f"{file} is {size:,} bytes, but its header describes {expected:,}: it is damaged.")
