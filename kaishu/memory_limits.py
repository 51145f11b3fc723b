"""How much memory this process may take: of the machine's, what is available, and what its control group leaves.

Owns where Linux says so: /proc/meminfo, and the files of control groups, version 1 and 2. Knows nothing of models.
Elsewhere only the machine's whole memory is known. Read by planning.py and `kaishu plan`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

_GROUPS = Path("sys/fs/cgroup")


@dataclass(frozen=True)
class MachineMemory:
    """What there is.

    total_bytes:     of the machine, or of the control group if that allows less
    available_bytes: what can still be taken without swapping; what only caches files counts as available
    is_group:        whether it is the control group that sets the bound
    """

    total_bytes: int
    available_bytes: int
    is_group: bool


def machine_memory(root: Path = Path("/")) -> MachineMemory | None:
    """Ask the system.

    root:   where /sys and /proc are
    return: None where nothing is known
    """
    total, available = _machine(root)
    if total is None or available is None:
        return None
    is_group = False
    for limit, used in _groups(root):
        if limit < total:
            total, is_group = limit, True
        if limit - used < available:
            available, is_group = max(0, limit - used), True
    return MachineMemory(total, available, is_group)


def _machine(root: Path) -> tuple[int | None, int | None]:
    """return: bytes in all, and bytes available"""
    found = _numbers(root / "proc/meminfo")
    if "MemTotal" in found:
        total = 1024 * found["MemTotal"]
        return total, 1024 * found.get("MemAvailable", found["MemTotal"])
    try:
        total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return None, None
    return total, total


def _groups(root: Path) -> Iterator[tuple[int, int]]:
    """Of each control group that this process is in, the limit, and how much is used beside caches of files."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if not controllers:
            for folder in (root / _GROUPS, root / _GROUPS / "unified"):
                yield from _limits(folder, path, ("memory.max", "memory.current"), "")
        elif "memory" in controllers.split(","):
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes")
            yield from _limits(root / _GROUPS / "memory", path, names, "total_")


def _limits(folder: Path, path: str, names: tuple[str, str], prefix: str) -> Iterator[tuple[int, int]]:
    """Of the groups from the first to the innermost; one that isn't there is invisible from inside a container."""
    for part in ("", *(part for part in PurePosixPath(path).parts if part not in ("/", ".."))):
        folder = folder / part
        limit, used = (_number(folder / name) for name in names)
        if limit is None or used is None:
            continue
        statistics = _numbers(folder / "memory.stat")
        cached = sum(statistics.get(f"{prefix}{kind}_file", 0) for kind in ("inactive", "active"))
        yield limit, max(0, used - cached)


def _number(path: Path) -> int | None:
    """A file's whole number; None where there is no file, or it says `max`."""
    try:
        text = path.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isascii() and text.isdigit() else None


def _numbers(path: Path) -> dict[str, int]:
    """A file's lines of a name and a number."""
    try:
        text = path.read_text()
    except OSError:
        return {}
    return {name: int(number) for name, number in re.findall(r"^(\w+):?\s+(\d+)", text, re.MULTILINE)}
