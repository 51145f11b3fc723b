"""`kaishu pull`: bring a model here, and say where it is.

Owns `fetch`, by which every command that needs only files turns a name into a folder. The download itself is
checkpoint/hub.py.
"""

# No `from __future__ import annotations`: typer reads the annotations as objects.

from pathlib import Path
from typing import Annotated

import typer


def pull(
    name: Annotated[
        str,
        typer.Argument(help="A hub's name, such as Qwen/Qwen3-0.6B, modelscope:Qwen/Qwen3-0.6B or OWNER/REPO:Q4_K_M."),
    ],
) -> None:
    """Download a model, or bring it up to date, and print where it is. Goes on where an earlier try broke off."""
    print(fetch(name, refresh=True))


def fetch(name: str, *, refresh: bool = False) -> Path:
    """The folder or GGUF file of a model, downloaded if need be, with a bar on stderr.

    name:    a bundled name, a folder or a hub's name
    refresh: ask the hub for a newer version even if there is one here
    raises:  KaishuError
    """
    from kaishu.checkpoint.hub import resolve
    from kaishu.cli.download_bar import download_bar

    with download_bar(name) as progress:
        return resolve(name, progress=progress, refresh=refresh)
