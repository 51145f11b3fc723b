"""Where packed weights are kept between runs, so that the second start maps them instead of packing them.

Owns the cache's folder, the names in it, and what happens when two processes pack the same weights or the disk doesn't
play along: then the weights are packed into memory, and a note says so. A cache never stops a model from running. Knows
nothing of what is packed; packed_file.py owns how a file lies on disk. Used where weights are packed, and by the
command `kaishu cache`.

    KEY.packed    whole: it got its name after everything in it had reached the disk
    KEY.partial   being packed by the process that has locked it; nobody's, and removed by the next one, if none has
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Literal

import numpy as np
from numpy.typing import NDArray

from kaishu.cpu.packed_file import Label, complete, label_at, map_to_read, map_to_write, read_label, zeros_in_memory
from kaishu.errors import OutOfMemoryError
from kaishu.locked_file import is_at, open_locked

PACKED_FOLDER = "packed"
KERNELS_FOLDER = "kernels"
_PACKED, _PARTIAL = ".packed", ".partial"
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

Pack = Callable[[NDArray[np.uint8]], None]
"""Fills the array that it is given, which begins as zeros. May be called a second time if the disk fails."""


def cache_folder(environment: Mapping[str, str] = os.environ, platform: str = sys.platform) -> Path:
    """Where Kaishu keeps what it can make again: packed weights in `packed/`, compiled kernels in `kernels/`.

    return: KAISHU_CACHE, or `kaishu` in the platform's folder for caches; whether it is there or not
    """
    own = environment.get("KAISHU_CACHE")
    usual = "~/Library/Caches" if platform == "darwin" else "~/.cache"
    folder = own or f"{environment.get('XDG_CACHE_HOME') or usual}/kaishu"
    # Unlike Path's, this expanduser never fails; for who has no home, checkpoint/modelscope.py does the same.
    return Path(os.path.expanduser(folder))  # noqa: PTH111


@dataclass(frozen=True, eq=False)
class PackedFile:
    """Packed weights, ready to be read.

    data:            [num_bytes] uint8, read-only, aligned to 64 bytes at least (to a page where it is a file)
    path:            the file that it is mapped from; None when it is in memory only
    came_from_cache: it was there already; nothing was packed
    description:     what was said about it when it was packed
    note:            a sentence for the user when it couldn't be kept, with what to do; else None
    """

    data: NDArray[np.uint8]
    path: Path | None
    came_from_cache: bool
    description: bytes
    note: str | None = None


@dataclass(frozen=True)
class PackedEntry:
    """A file in the store.

    name:         the first line of its description; empty where that can't be read
    num_bytes:    how much room it takes
    last_used_ns: when a process last opened it, in nanoseconds since 1970
    state:        an unfinished file is being packed now, or left over from a process that was killed
    """

    name: str
    path: Path
    num_bytes: int
    last_used_ns: int
    state: Literal["whole", "damaged", "unfinished"]


class _NotKeptError(Exception):
    """The store can't do its part; its cause is the system's error."""

    def __init__(self, problem: OSError) -> None:
        super().__init__(str(problem))
        self.problem = problem


@contextmanager
def _storing() -> Iterator[None]:
    """Within this context the system's errors are about the store, not about packing."""
    try:
        yield
    except OSError as problem:
        raise _NotKeptError(problem) from problem


class PackedStore:
    """A folder of packed weights, shared by all processes of a user."""

    def __init__(self, folder: Path, *, patience_seconds: float = 300.0) -> None:
        """folder: made when it is first needed · patience_seconds: how long to wait while another process packs."""
        self.folder = folder
        self._patience_seconds = patience_seconds

    def open_or_pack(
        self, key: Mapping[str, str | int], num_bytes: int, pack: Pack, *, describe: bytes = b""
    ) -> PackedFile:
        """Map the weights that were packed under this key, or pack them now, for the next time too.

        key:       everything that the packed bytes depend on: the checkpoint's identity, the layout and its version, …
        num_bytes: how long they are
        pack:      fills them; only called if they aren't there
        describe:  kept beside them; its first line is the name by which a person knows them
        return:    the weights; in memory, with a note, when they couldn't be kept
        raises:    OutOfMemoryError; whatever `pack` raises, with nothing left behind
        """
        encoded = json.dumps(dict(key), sort_keys=True, separators=(",", ":")).encode()
        label = Label(encoded, describe, num_bytes)
        path = self.folder / (hashlib.sha256(encoded).hexdigest() + _PACKED)
        try:
            return _opened(path, label) or self._packed(path, label, pack)
        except _NotKeptError as failure:
            note = self._note(num_bytes, failure.problem)
        return _packed_in_memory(label, pack, note)

    def entries(self) -> list[PackedEntry]:
        """What is in the store, the last used first."""
        entries = []
        for path in self._files(_PACKED, _PARTIAL):
            with suppress(FileNotFoundError):  # gone since it was listed
                status = path.stat()
                label = label_at(path) if path.suffix == _PACKED else None
                name = label.description.partition(b"\n")[0].decode("utf-8", "replace") if label else ""
                state: Literal["whole", "damaged", "unfinished"] = "whole" if label else "damaged"
                if path.suffix == _PARTIAL:
                    state = "unfinished"
                entries.append(PackedEntry(name, path, status.st_size, status.st_mtime_ns, state))
        return sorted(entries, key=lambda entry: (-entry.last_used_ns, entry.path))

    def clear(self) -> tuple[int, int]:
        """Remove everything but what another process is packing now; who has mapped a removed file keeps it.

        return: how many files are gone, and how many bytes they took
        raises: OSError when a file can't be removed
        """
        removed = self._remove_left_over()
        for path in self._files(_PACKED):
            with suppress(FileNotFoundError):
                size = path.stat().st_size
                path.unlink()
                removed.append(size)
        return len(removed), sum(removed)

    def _packed(self, path: Path, label: Label, pack: Pack) -> PackedFile:
        """Pack into a file beside `path`, and give it that name once it is whole."""
        with _storing():
            self.folder.mkdir(parents=True, exist_ok=True)
        self._remove_left_over()
        with _claimed(path.with_suffix(_PARTIAL), self._patience_seconds) as partial:
            found = _opened(path, label)  # by the process that we waited for
            if found:
                return found
            with _storing():
                mapped, data = map_to_write(partial, label)
            pack(data)
            with _storing():
                complete(mapped, label)
                path.with_suffix(_PARTIAL).replace(path)
                return PackedFile(map_to_read(partial, label), path, False, label.description)

    def _remove_left_over(self) -> list[int]:
        """Remove what killed processes left unfinished. return: the sizes"""
        removed = []
        for path in self._files(_PARTIAL):
            # To claim it is to own it, and to let go of it unfinished is to remove it.
            with suppress(_NotKeptError), _claimed(path, patience_seconds=0) as partial:
                removed.append(os.fstat(partial.fileno()).st_size)
        return removed

    def _files(self, *suffixes: str) -> list[Path]:
        try:
            return sorted(path for path in self.folder.iterdir() if path.suffix in suffixes)
        except OSError:  # no such folder, or none that we may look into
            return []

    def _note(self, num_bytes: int, problem: OSError) -> str:
        if isinstance(problem, BlockingIOError):
            return (
                f"Another process has been packing the same weights for over {self._patience_seconds:,.0f} s, so this "
                "one packed its own into memory; if it hangs, end it."
            )
        why = problem.strerror or str(problem)
        if problem.errno in _NO_ROOM:
            return (
                f"The packed weights are in memory only, because {self.folder} has no room for {num_bytes:,} bytes "
                f"({why}); make room there, run `kaishu cache clear`, or set KAISHU_CACHE to a folder that has it, "
                "and the next start is quick."
            )
        return (
            f"The packed weights are in memory only, because {self.folder} can't keep them ({why}); set KAISHU_CACHE "
            "to a folder on a local disk that you may write to, and the next start is quick."
        )


@contextmanager
def _claimed(partial: Path, patience_seconds: float) -> Iterator[IO[bytes]]:
    """Have an unfinished file alone. At the end it is gone, unless it was given another name.

    raises: _NotKeptError when another process has it, or it can't be made
    """
    with _storing():
        file = open_locked(partial, patience_seconds=patience_seconds)
    with file:
        try:
            yield file
        finally:
            with suppress(OSError):
                if is_at(partial, file):
                    partial.unlink()


def _opened(path: Path, label: Label) -> PackedFile | None:
    """The file of that name, if it is there, whole, and holds what the label says.

    raises: _NotKeptError when it is there and can't be read
    """
    with _storing():
        try:
            file = path.open("rb")
        except FileNotFoundError:
            return None
        with file:
            found = read_label(file)
            if found is None or (found.key, found.num_bytes) != (label.key, label.num_bytes):
                return None
            data = map_to_read(file, found)
    with suppress(OSError):  # a cache that we may only read
        os.utime(path)
    return PackedFile(data, path, True, found.description)


def _packed_in_memory(label: Label, pack: Pack, note: str) -> PackedFile:
    try:
        data = zeros_in_memory(label.num_bytes)
    except MemoryError:
        raise OutOfMemoryError(
            f"The packed weights take {label.num_bytes:,} bytes of memory, which this machine doesn't give.",
            hint="Choose narrower weights (int4), or a smaller model.",
        ) from None
    pack(data)
    data.flags.writeable = False
    return PackedFile(data, None, False, label.description, note)
