"""A file that one process at a time writes: a download on its way, weights while they are packed.

Owns the lock and the check that what was locked is still what the path names, because its last holder may have renamed
or removed it. The kernel lets go of the lock when its holder ends, however it ends, so a file that can be locked is
nobody's. Knows nothing of what is in the files. Used by checkpoint/download.py and cpu/store.py.
"""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path
from typing import IO

_LOOK_AGAIN_SECONDS = 0.02


def open_locked(path: Path, *, patience_seconds: float = 0.0) -> IO[bytes]:
    """Open a file to read and append, made if it isn't there, and have it alone until it is closed.

    path:             in a folder that exists
    patience_seconds: how long to wait for another process
    return:           the open file, which is at that path now; what is in it, its last holder left
    raises:           BlockingIOError when another has it for longer than that, OSError when the file can't be opened or
                      its file system has no locks
    """
    give_up = time.monotonic() + patience_seconds
    while True:
        file = path.open("a+b")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if is_at(path, file):
                return file
            file.close()  # another process took it from its place between our opening and locking
        except BlockingIOError:
            file.close()
            if time.monotonic() >= give_up:
                raise
            time.sleep(_LOOK_AGAIN_SECONDS)
        except BaseException:
            file.close()
            raise


def is_at(path: Path, file: IO[bytes]) -> bool:
    """Whether the path names this open file now."""
    try:
        return os.path.samestat(path.stat(), os.fstat(file.fileno()))
    except FileNotFoundError:
        return False
