"""A model from ModelScope (魔搭), by its public HTTP API.

Owns the two addresses of that API and a cache of our own, `~/.cache/kaishu/modelscope/ORG/NAME/REVISION/` (under
XDG_CACHE_HOME where that is set). Knows nothing of what is in the files. Honours MODELSCOPE_ENDPOINT, and
HF_HUB_OFFLINE, because offline means offline. Used by hub.py.

    GET /api/v1/models/ORG/NAME/repo/files?Revision=master&Recursive=true   → the files, their sizes and SHA-256
    GET /api/v1/models/ORG/NAME/repo?Revision=master&FilePath=config.json   → one file; Range is honoured
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from kaishu.checkpoint.download import (
    OFFLINE_HINT,
    Progress,
    ProgressLines,
    RemoteFile,
    StatusError,
    TransferMeter,
    download,
    get_json,
    model_here,
    needed_files,
    refuse_gguf,
    refused,
    unavailable,
)
from kaishu.errors import HubUnavailableError, ModelNotFoundError

DEFAULT_ENDPOINT = "https://www.modelscope.cn"
_HEADERS = {"User-Agent": "kaishu"}
_MAX_FILE_BYTES = 1 << 44
_PERMISSION = "Models that need a login can't be fetched from ModelScope; download it there and give the folder."


def cache_folder(name: str, revision: str) -> Path:
    """Where a model is kept, whether it is there or not."""
    home = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    # Unlike Path's, this expanduser never fails; who has no home gets a folder `~`, as from Hugging Face's client.
    return Path(os.path.expanduser(home)) / "kaishu" / "modelscope" / name / revision.replace("/", "--")  # noqa: PTH111


def cached_model(name: str, revision: str, choice: str | None = None) -> Path | None:
    """The model in the local cache, if it is whole. Asks no network.

    choice: which of its GGUF models, as for model_here
    return: its folder, or a GGUF file in it
    """
    return model_here(cache_folder(name, revision), name, choice)


def fetch(name: str, revision: str, progress: Progress | None, choice: str | None = None) -> Path:
    """Download what is missing of a model.

    name:     "Qwen/Qwen3-0.6B"
    revision: a branch or a tag; "master" is the usual one
    choice:   which of its GGUF models, as for needed_files
    return:   its folder in the cache, or a GGUF file in it
    raises:   ModelNotFoundError, HubUnavailableError, CheckpointError
    """
    endpoint = _endpoint(name)
    api = f"{endpoint}/api/v1/models/{name}/repo"
    with _explained(name, endpoint):
        files = _files(name, revision, endpoint)
        folder = cache_folder(name, revision)
        needed = [files[path] for path in needed_files(files, name, choice)]
        meter = TransferMeter(sum(file["Size"] for file in needed), progress or ProgressLines(name))
        for file in needed:
            url = f"{api}?{urlencode({'Revision': revision, 'FilePath': file['Path']})}"
            remote = RemoteFile(file["Path"], url, file["Size"], file.get("Sha256") or None, _HEADERS)
            download(remote, folder / file["Path"], meter)
    first: str = needed[0]["Path"]
    return folder / first if first.endswith(".gguf") else folder


def fetch_config(name: str, revision: str) -> dict[str, Any]:
    """Ask for a model's config.json alone.

    return: the object in it
    raises: ModelNotFoundError, HubUnavailableError; CheckpointError where it isn't what the weights follow from, or
            there are none that would be downloaded
    """
    endpoint = _endpoint(name)
    with _explained(name, endpoint):
        refuse_gguf(needed_files(_files(name, revision, endpoint), name), name)
        query = urlencode({"Revision": revision, "FilePath": "config.json"})
        return get_json(f"{endpoint}/api/v1/models/{name}/repo?{query}", _HEADERS)


def _endpoint(name: str) -> str:
    """Where to ask. raises: HubUnavailableError where that is forbidden"""
    from huggingface_hub import constants

    endpoint = (os.environ.get("MODELSCOPE_ENDPOINT") or DEFAULT_ENDPOINT).rstrip("/")
    if constants.HF_HUB_OFFLINE:
        raise HubUnavailableError(
            f"{name} is not in the local cache, and HF_HUB_OFFLINE forbids asking {endpoint}.", hint=OFFLINE_HINT
        )
    return endpoint


@contextmanager
def _explained(name: str, endpoint: str) -> Iterator[None]:
    """Within this context, what goes wrong on the way is said in our words."""
    from huggingface_hub.errors import HTTPError  # type: ignore[attr-defined]  # the HTTP library's own

    try:
        yield
    except StatusError as problem:
        if problem.status in (401, 403, 404):
            raise refused(name, endpoint, problem.status, how=_PERMISSION) from None
        raise unavailable(name, endpoint, f"it answers {problem.status}") from None
    except (HTTPError, OSError) as problem:
        raise unavailable(name, endpoint, str(problem) or type(problem).__name__) from None


def _files(name: str, revision: str, endpoint: str) -> dict[str, dict[str, Any]]:
    """Ask for the list of a model's files; as _listed."""
    query = urlencode({"Revision": revision, "Recursive": "true"})
    answer = get_json(f"{endpoint}/api/v1/models/{name}/repo/files?{query}", _HEADERS)
    return _listed(answer, name, revision, endpoint)


def _listed(answer: dict[str, Any], name: str, revision: str, endpoint: str) -> dict[str, dict[str, Any]]:
    """The files in the API's answer, by path; each with a Path, a Size and perhaps a Sha256."""
    data = answer.get("Data")
    entries = data.get("Files") if isinstance(data, dict) else None
    if answer.get("Code") != 200 or not isinstance(entries, list):
        said = str(answer.get("Message") or answer.get("Code"))[:200]
        raise ModelNotFoundError(f"{endpoint} has no model {name} with a revision {revision!r}; it says: {said}.")
    files = {}
    for entry in entries:
        if not isinstance(entry, dict) or entry.get("Type") == "tree":
            continue
        path, size = entry.get("Path"), entry.get("Size")
        if not isinstance(path, str) or isinstance(size, bool) or not isinstance(size, int):
            raise unavailable(name, endpoint, "its list of files has an entry without a path or a size")
        if not 0 <= size <= _MAX_FILE_BYTES:
            raise unavailable(name, endpoint, f"it says that {path[:100]!r} has {size:,} bytes")
        files[path] = entry
    return files
