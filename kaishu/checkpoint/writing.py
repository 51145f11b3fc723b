"""Writing a model's folder: whole or not at all, its tensors in any order and by several threads.

Owns the way a folder comes to be, and the form of a safetensors file that is written (safetensors.py describes it).
Knows nothing of what is written. Used for random weights and by the quantiser.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kaishu.checkpoint.safetensors import STORAGE
from kaishu.config import folder_contents
from kaishu.errors import CheckpointError


@contextmanager
def new_folder(folder: Path, what: str, num_bytes: int) -> Iterator[Path]:
    """A folder that appears, under its name, only when the context ends well; until then it is elsewhere beside it.

    folder:    nothing, or an empty folder
    what:      what it is to hold, for messages: "random weights"
    num_bytes: how much room it will take
    yields:    the folder to write into
    raises:    CheckpointError if there is something already, too little room, or an OSError on the way
    """
    try:
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            found = folder_contents(folder) if folder.is_dir() else "a file"
            raise CheckpointError(f"{folder} already holds {found}; allowed: a new or an empty folder.")
        folder.parent.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(folder.parent).free
        if free < num_bytes:
            raise CheckpointError(f"{folder} needs {num_bytes:,} bytes, but {folder.parent} has {free:,} free.")
        with tempfile.TemporaryDirectory(prefix=".kaishu-unfinished-", dir=folder.parent) as unfinished:
            written = Path(unfinished, "model")
            written.mkdir()
            yield written
            written.rename(folder)
    except OSError as problem:
        raise CheckpointError(
            f"{folder}, {num_bytes:,} bytes of {what}, can't be written: {problem.strerror or problem}."
        ) from None


@dataclass(frozen=True)
class NewTensor:
    """A tensor that will be written.

    dtype: the format's name: "BF16", "I32", …
    """

    dtype: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """How many bytes it takes in the file."""
        return math.prod(self.shape) * np.dtype(STORAGE[self.dtype]).itemsize


class TensorFile:
    """A safetensors file of known tensors, open to be written. A context: at its end the file is closed.

    Each tensor lies at a place that is a multiple of its numbers' size, so that it can be mapped.
    """

    def __init__(self, path: Path, tensors: Mapping[str, NewTensor]) -> None:
        """Write the header, and make the file as long as it will be.

        raises: OSError
        """
        ordered = sorted(tensors, key=lambda name: -np.dtype(STORAGE[tensors[name].dtype]).itemsize)  # stable
        header: dict[str, Any] = {"__metadata__": {"format": "pt"}}  # without it transformers refuses the file
        end = 0
        for name in ordered:
            start, end = end, end + tensors[name].nbytes
            header[name] = {
                "dtype": tensors[name].dtype,
                "shape": list(tensors[name].shape),
                "data_offsets": [start, end],
            }
        encoded = json.dumps(header, separators=(",", ":")).encode()
        encoded += b" " * (-len(encoded) % 8)
        self._tensors = tensors
        self._places = {name: 8 + len(encoded) + header[name]["data_offsets"][0] for name in ordered}
        self._file = path.open("wb")
        try:
            self._file.write(len(encoded).to_bytes(8, "little") + encoded)
            self._file.flush()
            os.truncate(self._file.fileno(), 8 + len(encoded) + end)
        except OSError:
            self._file.close()
            raise

    def write(self, name: str, values: NDArray[Any], start: int = 0) -> None:
        """Write a tensor, or some of it. Several threads may.

        values: of the tensor's own storage type, those from `start` on in the order of the file
        raises: OSError
        """
        tensor = self._tensors[name]
        storage = np.dtype(STORAGE[tensor.dtype])
        assert values.dtype.itemsize == storage.itemsize and values.dtype.kind in "iuf?", f"{name} is {tensor.dtype}"
        assert start + values.size <= math.prod(tensor.shape), "it lies inside"
        left = np.ascontiguousarray(values).reshape(-1).view(np.uint8).data
        place = self._places[name] + start * storage.itemsize
        while left:
            written = os.pwrite(self._file.fileno(), left, place)
            left, place = left[written:], place + written

    def __enter__(self) -> TensorFile:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self._file.close()
