"""`kaishu cache`: what Kaishu keeps so that the next start is quick, and how to be rid of it.

Owns the listing, the question before clearing, and the folder of compiled kernels, whose files are the compiler's own.
Packed weights are cpu/store.py. Everything here can be made again; downloaded models are not here and not touched.
"""

# No `from __future__ import annotations`: typer reads the annotations as objects.

import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kaishu.errors import InvalidRequestError

if TYPE_CHECKING:
    from kaishu.cpu.store import PackedEntry

_CLEAR_HINT = "`kaishu cache clear` removes them; the next start makes them again."


def build_cache_app() -> typer.Typer:
    """`kaishu cache` and `kaishu cache clear`, as typer sees them."""
    app = typer.Typer(invoke_without_command=True)
    app.callback()(cache)
    app.command("clear")(clear)
    return app


def cache(context: typer.Context) -> None:
    """Show or clear what is kept between runs: packed weights and compiled kernels.

    The place is `kaishu` in the folder that your system has for caches; KAISHU_CACHE names another.
    """
    if context.invoked_subcommand is None:
        from kaishu.cpu.store import KERNELS_FOLDER, PACKED_FOLDER, PackedStore, cache_folder

        folder = cache_folder()
        entries = PackedStore(folder / PACKED_FOLDER).entries()
        kernels = kernel_files(folder / KERNELS_FOLDER)
        for line in _lines(folder, entries, [size for _, size in kernels], time.time_ns()):
            print(line)


def clear(
    packed: Annotated[bool, typer.Option("--packed", help="Only packed weights.")] = False,
    kernels: Annotated[bool, typer.Option("--kernels", help="Only compiled kernels.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Don't ask.")] = False,
) -> None:
    """Remove packed weights and compiled kernels; what another process is packing now stays."""
    from kaishu.byte_sizes import size
    from kaishu.cli.printable import counted, printable
    from kaishu.cpu.store import KERNELS_FOLDER, PACKED_FOLDER, PackedStore, cache_folder

    both = packed == kernels
    what = "packed weights and compiled kernels" if both else "packed weights" if packed else "compiled kernels"
    folder = cache_folder()
    if not yes and not _agrees(f"Remove {what} from {printable(_short(folder))}? [y/N] "):
        print("Nothing was removed.")
        return
    num_files = num_bytes = 0
    if packed or both:
        num_files, num_bytes = PackedStore(folder / PACKED_FOLDER).clear()
    if kernels or both:
        for path, file_bytes in kernel_files(folder / KERNELS_FOLDER):
            with suppress(FileNotFoundError):
                path.unlink()
                num_files, num_bytes = num_files + 1, num_bytes + file_bytes
    print(f"Removed {counted(num_files, 'file')}, {size(num_bytes)}.")


def _agrees(question: str) -> bool:
    """Ask at the terminal.

    raises: InvalidRequestError where there is none
    """
    if not sys.stdin.isatty():
        raise InvalidRequestError(
            "`kaishu cache clear` asks before it removes files, but there is no terminal to ask at.",
            field="--yes",
            hint="Add --yes to remove them without being asked.",
        )
    try:
        return input(question).strip().lower() in ("y", "yes")
    except EOFError:  # Ctrl-D is a no
        print()
        return False


def kernel_files(folder: Path) -> list[tuple[Path, int]]:
    """Every file below the folder of compiled kernels, and its size; links count as themselves."""
    found = []
    for path in sorted(folder.rglob("*")):
        with suppress(FileNotFoundError):
            if path.is_symlink() or path.is_file():
                found.append((path, path.lstat().st_size))
    return found


def _lines(folder: Path, entries: "list[PackedEntry]", kernel_sizes: list[int], now_ns: int) -> Iterator[str]:
    """The listing: a line for each kind with its total and its place, and one for each file of packed weights."""
    from kaishu.byte_sizes import size
    from kaishu.cli.printable import counted, printable
    from kaishu.cpu.store import KERNELS_FOLDER, PACKED_FOLDER

    kinds = (
        ("packed weights", [entry.num_bytes for entry in entries], PACKED_FOLDER),
        ("compiled kernels", kernel_sizes, KERNELS_FOLDER),
    )
    for kind, sizes, name in kinds:
        place = printable(_short(folder / name))
        yield f"{kind:<16}  {counted(len(sizes), 'file'):>9}  {size(sum(sizes)):>9}  {place}"
        for entry in entries if name == PACKED_FOLDER else ():
            used = f"used {_ago(now_ns - entry.last_used_ns)}"
            yield f"  {size(entry.num_bytes):>9}  {used:<20}  {printable(_called(entry))}"
    if entries or kernel_sizes:
        yield _CLEAR_HINT


def _called(entry: "PackedEntry") -> str:
    """What to call a file of packed weights."""
    if entry.state == "whole":
        return entry.name or entry.path.name
    if entry.state == "damaged":
        return "damaged; it will be replaced when its model is run"
    return "being packed now, or left by a process that was killed"


def _short(path: Path) -> str:
    """A path, with `~` for the user's home folder."""
    with suppress(RuntimeError, ValueError):
        return f"~/{path.relative_to(Path.home()).as_posix()}"
    return str(path)


def _ago(nanoseconds: int) -> str:
    """A time that has passed, in its largest whole unit: `3 hours ago`."""
    from kaishu.cli.printable import counted

    minutes = nanoseconds // 60_000_000_000
    for unit, per_unit in (("day", 24 * 60), ("hour", 60), ("minute", 1)):
        if minutes >= per_unit:
            return f"{counted(minutes // per_unit, unit)} ago"
    return "just now"
