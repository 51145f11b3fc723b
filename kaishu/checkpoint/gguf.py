"""One GGUF model: its header checked in full, its tensors where they lie, one file or several that were split.

Owns the container, versions 2 and 3 (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md). Trusts nothing in a
header: a damaged or hostile file is a CheckpointError before any tensor is touched, and before anything as large as the
header says is allocated. Knows nothing of models. Metadata is gguf_metadata.py's, the sizes of blocks are
gguf_blocks.py's; gguf_tensors.py and gguf_model.py make a model of it.

    | GGUF | version: u32 | tensors: u64 | pairs: u64 | key, type, value; ... | name, sizes, type, offset; ... |
    | padding | tensor bytes, each tensor from a multiple of the alignment, in the order of their offsets |
"""

from __future__ import annotations

import hashlib
import math
import mmap
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from kaishu.checkpoint.gguf_blocks import FORMATS, PLAIN
from kaishu.checkpoint.gguf_metadata import MAX_HEADER_BYTES, GgufMetadata, HeaderCursor, walk_metadata
from kaishu.checkpoint.gguf_names import SPLIT_NAME
from kaishu.checkpoint.safetensors import RESUME_HINT
from kaishu.errors import CheckpointError, and_more, shown

MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_MAX_TENSORS = 65_536
_MAX_DIMENSIONS = 4
_MAX_SIZE = 1 << 48
_MAX_NAME = 512
_MAX_ALIGNMENT = 1 << 16

# ggml's numbers of types, also of those that aren't read, so that a message can name them.
TYPE_NAMES: Mapping[int, str] = MappingProxyType(
    {
        **{0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 6: "Q5_0", 7: "Q5_1", 8: "Q8_0", 9: "Q8_1"},
        **{10: "Q2_K", 11: "Q3_K", 12: "Q4_K", 13: "Q5_K", 14: "Q6_K", 15: "Q8_K"},
        **{16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S", 20: "IQ4_NL", 21: "IQ3_S", 22: "IQ2_S"},
        **{23: "IQ4_XS", 24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64", 29: "IQ1_M", 30: "BF16"},
        **{34: "TQ1_0", 35: "TQ2_0", 39: "MXFP4"},
    }
)
READ_TYPES = (*PLAIN, *FORMATS)


@dataclass(frozen=True)
class GgufTensor:
    """A tensor as the file describes it.

    name:   as llama.cpp calls it: "blk.0.attn_q.weight"
    kind:   "F32", "Q4_1", ...: one of READ_TYPES
    shape:  slowest axis first, the other way round than in the file: [outputs, inputs]
    offset: where its first byte is, counted from the start of its file
    """

    name: str
    kind: str
    shape: tuple[int, ...]
    file: Path
    offset: int

    @property
    def nbytes(self) -> int:
        """How many bytes it takes in the file."""
        return math.prod(self.shape[:-1]) * row_bytes(self.kind, self.shape[-1])


@dataclass(frozen=True)
class GgufPart:
    """One file: all of a model, or one of the files that it was split into."""

    path: Path
    num_bytes: int
    modified_ns: int
    header_digest: str
    metadata: GgufMetadata
    tensors: Mapping[str, GgufTensor]


@dataclass(frozen=True)
class GgufFile:
    """A whole model.

    path:     the file, or the first of its parts
    files:    the parts, in their order; each has what identifies its contents without reading them
    metadata: of the first part
    tensors:  of all parts, by their names in the file
    """

    path: Path
    files: tuple[GgufPart, ...]
    metadata: GgufMetadata
    tensors: Mapping[str, GgufTensor]


def row_bytes(kind: str, length: int) -> int:
    """How many bytes a row of so many weights takes."""
    if kind in PLAIN:
        return length * PLAIN[kind]
    return length // FORMATS[kind].weights * FORMATS[kind].nbytes


def open_gguf(path: Path) -> GgufFile:
    """Read and check the headers of a model.

    path:   a regular file or a link to one; of a split model (`NAME-00001-of-00003.gguf`) any of the parts
    return: the model; its tensors in the order of their bytes
    raises: CheckpointError that names the file and what is wrong with it, or which part is missing
    """
    part = _open_part(path)
    count = _split_number(part, "split.count", 1)
    if count <= 1:
        return GgufFile(path, (part,), part.metadata, part.tensors)
    match = SPLIT_NAME.fullmatch(path.name)
    if match is None or int(match["count"]) != count:
        raise CheckpointError(
            f"{path.name} says that it is one of {count:,} parts, but isn't named like one; "
            f"allowed: a name that ends in -00001-of-{count:05}.gguf.",
            hint="Give the parts the names back that they were made with.",
        )
    names = [f"{match['prefix']}-{number:05}-of-{count:05}.gguf" for number in range(1, count + 1)]
    missing = [name for name in names if not (path.parent / name).exists()]
    if missing:
        raise CheckpointError(
            f"{path.parent} lacks {len(missing):,} of the model's {count:,} parts: {and_more(missing, shown=3)}.",
            hint=RESUME_HINT,
        )
    return _joined(tuple(part if name == path.name else _open_part(path.parent / name) for name in names))


def _joined(parts: tuple[GgufPart, ...]) -> GgufFile:
    tensors: dict[str, GgufTensor] = {}
    for index, part in enumerate(parts):
        number, count = _split_number(part, "split.no", -1), _split_number(part, "split.count", 1)
        if (number, count) != (index, len(parts)):
            raise CheckpointError(
                f"{part.path.name} says that it is number {number:,} of {count:,} parts, counted from 0; "
                f"by its name it is number {index:,} of {len(parts):,}."
            )
        for name, tensor in part.tensors.items():
            if name in tensors:
                where = f"{tensors[name].file.name} and {part.path.name}"
                raise CheckpointError(f"{shown(name)} is in two parts, {where}; allowed: one.")
            tensors[name] = tensor
    expected = _split_number(parts[0], "split.tensors.count", len(tensors))
    if expected != len(tensors):
        raise CheckpointError(
            f"{parts[0].path.name} says that all parts together have {expected:,} tensors; they have {len(tensors):,}."
        )
    return GgufFile(parts[0].path, parts, parts[0].metadata, tensors)


def _split_number(part: GgufPart, key: str, absent: int) -> int:
    value = part.metadata.get(key, absent)
    if isinstance(value, bool) or not isinstance(value, int):
        raise CheckpointError(f"{part.path.name}: {key} is {shown(value)}; allowed: an integer.")
    return value


def _open_part(path: Path) -> GgufPart:
    try:
        if not path.is_file():  # asked before opening, because opening a pipe waits for a writer
            raise CheckpointError(f"{path} is missing, or not a regular file.")
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            size = status.st_size
            _check_start(path.name, file.read(8), size)
            with mmap.mmap(file.fileno(), min(size, MAX_HEADER_BYTES), access=mmap.ACCESS_READ) as start:
                cursor = HeaderCursor(path.name, start, size)
                places, infos = _walk(cursor)
                header = start[: cursor.position]
    except OSError as problem:
        raise CheckpointError(f"{path} can't be read: {problem.strerror or problem}.") from None
    metadata = GgufMetadata(path.name, header, places)
    tensors = _placed(path, infos, len(header), size, _alignment(path.name, metadata))
    return GgufPart(path, size, status.st_mtime_ns, hashlib.sha256(header).hexdigest(), metadata, tensors)


def _check_start(name: str, start: bytes, size: int) -> None:
    if start[:4] != MAGIC:
        if start[:4] == b"vers":
            hint = "Run `git lfs pull` in the folder, or `kaishu pull NAME`."
            raise CheckpointError(f"{name} is a git-lfs pointer, a note of where the file is.", hint=hint)
        raise CheckpointError(f"{name} is not a GGUF file: it begins with {start[:4]!r}, not {MAGIC!r}.")
    if size < 24:
        raise CheckpointError(f"{name} is {size} bytes; even an empty GGUF file has 24.", hint=RESUME_HINT)
    version = int.from_bytes(start[4:8], "little")
    if int.from_bytes(start[4:8], "big") in _VERSIONS:
        raise CheckpointError(
            f"{name} is big-endian; only little-endian files are read.",
            hint="llama.cpp's gguf-py has a script that converts them: gguf_convert_endian.py FILE little.",
        )
    if version not in _VERSIONS:
        raise CheckpointError(
            f"{name} is GGUF of version {version:,}; allowed: 2 or 3.", hint="Convert the model anew with llama.cpp."
        )


@dataclass(frozen=True)
class _Info:
    """A tensor as listed. offset: counted from where the tensors' bytes begin"""

    name: str
    kind: str
    shape: tuple[int, ...]
    offset: int


def _walk(cursor: HeaderCursor) -> tuple[Any, list[_Info]]:
    """Step over the header. return: where the metadata lie, and the tensors as listed"""
    cursor.skip(8, "the version")
    num_tensors, num_keys = cursor.u64("the number of tensors"), cursor.u64("the number of metadata keys")
    if num_tensors > _MAX_TENSORS:
        raise CheckpointError(f"{cursor.name} would have {num_tensors:,} tensors; allowed: {_MAX_TENSORS:,}.")
    places = walk_metadata(cursor, num_keys)
    return places, [_info(cursor, number) for number in range(num_tensors)]


def _info(cursor: HeaderCursor, number: int) -> _Info:
    name = cursor.text(f"the name of tensor {number}", _MAX_NAME)
    what = f"the description of {shown(name)}"
    num_dimensions = cursor.u32(what)
    if not 1 <= num_dimensions <= _MAX_DIMENSIONS:
        raise CheckpointError(
            f"{cursor.name}: {what} has {num_dimensions:,} dimensions; allowed: 1 to {_MAX_DIMENSIONS}."
        )
    fastest_first = [cursor.u64(what) for _ in range(num_dimensions)]
    if not all(1 <= size <= _MAX_SIZE for size in fastest_first):
        raise CheckpointError(f"{cursor.name}: {what} has sizes {fastest_first}; allowed: 1 to {_MAX_SIZE:,} each.")
    type_id, offset = cursor.u32(what), cursor.u64(what)
    kind = TYPE_NAMES.get(type_id, f"number {type_id}")
    if kind not in READ_TYPES:
        raise CheckpointError(
            f"{cursor.name}: {shown(name)} is of type {kind}, which isn't read; allowed: {', '.join(READ_TYPES)}.",
            hint="Use another of the model's files: Q8_0, Q4_K_M and Q4_0 are usual ones.",
        )
    if kind in FORMATS and fastest_first[0] % FORMATS[kind].weights:
        raise CheckpointError(
            f"{cursor.name}: {shown(name)} has rows of {fastest_first[0]:,} weights; {kind} has blocks of "
            f"{FORMATS[kind].weights}."
        )
    return _Info(name, kind, tuple(reversed(fastest_first)), offset)


def _alignment(name: str, metadata: GgufMetadata) -> int:
    alignment = metadata.get("general.alignment", 32)
    is_power = isinstance(alignment, int) and 8 <= alignment <= _MAX_ALIGNMENT and not alignment & (alignment - 1)
    if not is_power:
        raise CheckpointError(
            f"{name}: general.alignment is {shown(alignment)}; allowed: a power of two from 8 to {_MAX_ALIGNMENT:,}."
        )
    return int(alignment)


def _placed(path: Path, infos: list[_Info], header_bytes: int, size: int, alignment: int) -> dict[str, GgufTensor]:
    """Check that the tensors tile what follows the header, with no more than padding between them."""
    data_start = _aligned(header_bytes, alignment)
    tensors: dict[str, GgufTensor] = {}
    end, previous = 0, "the header"
    for info in sorted(infos, key=lambda info: info.offset):
        expected = _aligned(end, alignment)
        if info.name in tensors:
            raise CheckpointError(f"{path.name} lists {shown(info.name)} twice; allowed: once.")
        if info.offset != expected:
            what = "overlaps" if info.offset < expected else "leaves a gap after"
            raise CheckpointError(
                f"{path.name}: {shown(info.name)} at {info.offset:,} {what} {shown(previous)}; expected: {expected:,}."
            )
        tensor = GgufTensor(info.name, info.kind, info.shape, path, data_start + info.offset)
        tensors[info.name] = tensor
        end, previous = info.offset + tensor.nbytes, info.name
    if tensors and data_start + end > size:
        raise CheckpointError(
            f"{path.name} is {size:,} bytes of an expected {data_start + end:,}: the download stopped early.",
            hint=RESUME_HINT,
        )
    return tensors


def _aligned(position: int, alignment: int) -> int:
    return -(-position // alignment) * alignment
