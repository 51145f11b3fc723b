"""One file of packed weights: how it lies on disk, and how it comes into memory.

Owns the format and what makes a file whole. Knows nothing of what is packed, nor where files are kept: store.py, the
only user, decides that.

    0       8            16           24          32                  40
    | magic | data start | data bytes | key bytes | description bytes | key | description | zeros |
    data start, a multiple of 4,096
    | data | SHA-256 of everything before the data |

Numbers are little-endian, of 8 bytes. The digest at the end is written after the data has reached the disk, so a file
that has it is whole. The data itself has no digest: to check it, all of it would have to be read at every start.
"""

from __future__ import annotations

import errno
import hashlib
import mmap
import os
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray

_MAGIC = b"kaishu1\n"
_FIELDS = struct.Struct("<8s4Q")
_DIGEST_BYTES = 32
_PAGE_BYTES = 4096
_ALIGNMENT = 64
_BLOCK_BYTES = 1 << 20


@dataclass(frozen=True)
class Label:
    """What a file says about its data.

    key:         what the data was made from; two files with the same key hold the same data
    description: what a person, or the code that packed, wants to find again beside it
    num_bytes:   how long the data is
    """

    key: bytes
    description: bytes
    num_bytes: int

    @property
    def data_start(self) -> int:
        """Where the data begins in the file."""
        return _data_start(len(self.key), len(self.description))

    @property
    def file_bytes(self) -> int:
        """How long the whole file is."""
        return self.data_start + self.num_bytes + _DIGEST_BYTES

    def header(self) -> bytes:
        """Everything before the data."""
        fields = _FIELDS.pack(_MAGIC, self.data_start, self.num_bytes, len(self.key), len(self.description))
        return (fields + self.key + self.description).ljust(self.data_start, b"\0")


def _data_start(key_bytes: int, description_bytes: int) -> int:
    used = _FIELDS.size + key_bytes + description_bytes
    return -(-used // _PAGE_BYTES) * _PAGE_BYTES


def read_label(file: IO[bytes]) -> Label | None:
    """What an open file says about its data; None if it isn't a whole file of ours.

    raises: OSError when it can't be read
    """
    file_bytes = os.fstat(file.fileno()).st_size
    file.seek(0)
    fields = file.read(_FIELDS.size)
    if len(fields) < _FIELDS.size:
        return None
    magic, data_start, num_bytes, key_bytes, description_bytes = _FIELDS.unpack(fields)
    if magic != _MAGIC or data_start != _data_start(key_bytes, description_bytes):
        return None
    if file_bytes != data_start + num_bytes + _DIGEST_BYTES:
        return None
    header = fields + file.read(data_start - len(fields))
    file.seek(-_DIGEST_BYTES, os.SEEK_END)
    if file.read(_DIGEST_BYTES) != hashlib.sha256(header).digest():
        return None
    key, description = header[_FIELDS.size :][:key_bytes], header[_FIELDS.size + key_bytes :][:description_bytes]
    return Label(key, description, num_bytes)


def map_to_read(file: IO[bytes], label: Label) -> NDArray[np.uint8]:
    """The data of a whole file, as the disk has it: read page by page as it is touched, shared with other processes.

    return: [num_bytes] uint8, read-only, aligned to a page
    raises: OSError when it can't be mapped
    """
    mapped = mmap.mmap(file.fileno(), label.file_bytes, access=mmap.ACCESS_READ)
    return _data_in(mapped, label)


def map_to_write(file: IO[bytes], label: Label) -> tuple[mmap.mmap, NDArray[np.uint8]]:
    """Make an open file as long as it will be, for certain, and map it.

    return: the mapping, for `complete`; and its data, [num_bytes] uint8 of zeros, aligned to a page, to be filled
    raises: OSError when the disk has no room for it, before anything is written: writing into a mapping that has no
            room behind it would kill the process (SIGBUS)
    """
    file.seek(0)
    file.truncate()
    reserve(file, label.file_bytes)
    mapped = mmap.mmap(file.fileno(), label.file_bytes)
    mapped[: label.data_start] = label.header()
    return mapped, _data_in(mapped, label)


def complete(mapped: mmap.mmap, label: Label) -> None:
    """Bring the data to the disk, and then the digest that says so.

    raises: OSError when the disk fails
    """
    mapped.flush()
    mapped[-_DIGEST_BYTES:] = hashlib.sha256(label.header()).digest()
    mapped.flush()


def reserve(file: IO[bytes], num_bytes: int) -> None:
    """Give an empty file that many zeros, each with its place on the disk.

    raises: OSError when there is no room
    """
    if hasattr(os, "posix_fallocate"):
        try:
            os.posix_fallocate(file.fileno(), 0, num_bytes)
            return
        except OSError as problem:
            if problem.errno not in (errno.EOPNOTSUPP, errno.EINVAL):
                raise
    # macOS, and file systems that can't reserve: what has been written has its place.
    zeros, written = bytes(_BLOCK_BYTES), 0
    while written < num_bytes:
        written += os.write(file.fileno(), zeros[: num_bytes - written])
    os.fsync(file.fileno())  # some find out only now that there is no room


def zeros_in_memory(num_bytes: int) -> NDArray[np.uint8]:
    """Room for data that no file keeps.

    return: [num_bytes] uint8 of zeros, aligned to 64 bytes
    raises: MemoryError
    """
    room = np.zeros(num_bytes + _ALIGNMENT - 1, np.uint8)
    start = -room.ctypes.data % _ALIGNMENT
    return room[start : start + num_bytes]


def label_at(path: Path) -> Label | None:
    """What the file at a path says about its data; None if it isn't a whole file of ours, or can't be read."""
    try:
        with path.open("rb") as file:
            return read_label(file)
    except OSError:
        return None


def _data_in(mapped: mmap.mmap, label: Label) -> NDArray[np.uint8]:
    return np.frombuffer(mapped, np.uint8)[label.data_start : label.data_start + label.num_bytes]
