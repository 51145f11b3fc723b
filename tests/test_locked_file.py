"""One writer at a time, between real processes; and what was locked is what the path names."""

from __future__ import annotations

import errno
import fcntl
import subprocess
import sys
import threading
from pathlib import Path
from typing import IO, Any

import pytest

from kaishu.locked_file import is_at, open_locked

HOLDER = """
import sys, time
from pathlib import Path
from kaishu.locked_file import open_locked
file = open_locked(Path(sys.argv[1]))
file.write(b"held")
file.flush()
print("locked", flush=True)
sys.stdin.read()
"""


def start_holder(path: Path) -> subprocess.Popen[str]:
    """A process that has the file until it is killed."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[1],
    )
    assert process.stdout is not None and process.stdout.readline() == "locked\n"
    return process


def test_only_one_process_has_it_and_a_killed_one_has_it_no_longer(tmp_path: Path) -> None:
    path = tmp_path / "file"
    holder = start_holder(path)
    with pytest.raises(BlockingIOError):
        open_locked(path)
    with pytest.raises(BlockingIOError):
        open_locked(path, patience_seconds=0.05)
    holder.kill()
    holder.communicate()
    with open_locked(path) as file:
        file.seek(0)
        assert file.read() == b"held"


def test_who_waits_gets_it_when_it_is_closed(tmp_path: Path) -> None:
    first = open_locked(tmp_path / "file")
    timer = threading.Timer(0.1, first.close)
    timer.start()
    with open_locked(tmp_path / "file", patience_seconds=60) as second:
        assert first.closed and is_at(tmp_path / "file", second)
    timer.join()


@pytest.mark.parametrize("taken", ["renamed", "removed", "replaced"])
def test_a_file_taken_from_its_place_just_before_the_lock_is_not_the_one(
    taken: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    lock = fcntl.flock

    def lock_later(file: IO[Any], operation: int) -> None:
        monkeypatch.setattr(fcntl, "flock", lock)
        path.rename(tmp_path / "elsewhere") if taken == "renamed" else path.unlink()
        if taken == "replaced":
            path.write_bytes(b"new")
        lock(file, operation)

    monkeypatch.setattr(fcntl, "flock", lock_later)
    with open_locked(path) as file:
        assert is_at(path, file)
        file.seek(0)
        assert file.read() == (b"new" if taken == "replaced" else b"")


def test_a_file_system_without_locks_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_locks(_file: IO[Any], _operation: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    with pytest.raises(OSError, match="No locks available"):
        open_locked(tmp_path / "file", patience_seconds=60)


def test_nothing_is_at_a_path_that_is_not_there(tmp_path: Path) -> None:
    with (tmp_path / "file").open("wb") as file:
        assert is_at(tmp_path / "file", file)
        assert not is_at(tmp_path / "other", file)
