"""A model from Hugging Face, or a mirror of it, into Hugging Face's own cache.

Owns the way there: the cache first, then huggingface_hub for the list of files, permissions, small files and the
cache's layout; only the weights are brought by download.py, because they must be resumed and checked, and that client
starts a broken file anew. Knows nothing of what is in the files. Honours HF_ENDPOINT, HF_HOME, HF_HUB_CACHE,
HF_HUB_OFFLINE and HF_TOKEN. Used by hub.py.
"""

from __future__ import annotations

import glob
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kaishu.checkpoint.download import (
    OFFLINE_HINT,
    WEIGHT_SUFFIXES,
    Progress,
    ProgressLines,
    RemoteFile,
    StatusError,
    TransferMeter,
    download,
    model_here,
    needed_files,
    refuse_gguf,
    refused,
    unavailable,
)
from kaishu.errors import ConfigError, HubUnavailableError, KaishuError, ModelNotFoundError
from kaishu.json_fields import read_json_object

if TYPE_CHECKING:
    from huggingface_hub.hf_api import RepoSibling

_TIMEOUT_SECONDS = 15
_PERMISSION = (
    "Accept the model's terms on its page, then set HF_TOKEN to a token of yours (or run `hf auth login`). "
    "Check the spelling too: a name that doesn't exist looks the same from outside."
)


def cached_model(name: str, revision: str, choice: str | None = None) -> Path | None:
    """A model in the local cache, if it is whole. Asks no network.

    name:     "Qwen/Qwen3-0.6B"
    revision: a branch, a tag or a commit
    choice:   which of its GGUF models, as for model_here
    return:   its snapshot folder, or a GGUF file in it
    """
    from huggingface_hub import constants

    model = Path(constants.HF_HUB_CACHE) / f"models--{name.replace('/', '--')}"
    reference = model / "refs" / revision
    commit = reference.read_text().strip() if reference.is_file() else revision
    return model_here(model / "snapshots" / commit, name, choice)


def fetch(name: str, revision: str, progress: Progress | None, choice: str | None = None) -> Path:
    """Download what is missing of a model.

    choice: which of its GGUF models, as for needed_files
    return: its snapshot folder in the cache, or a GGUF file in it
    raises: ModelNotFoundError, HubUnavailableError, CheckpointError
    """
    from huggingface_hub import HfApi, constants, snapshot_download

    api = HfApi(library_name="kaishu")
    try:
        info = api.model_info(name, revision=revision, files_metadata=True, timeout=_TIMEOUT_SECONDS)
        siblings = {sibling.rfilename: sibling for sibling in info.siblings or []}
        needed = needed_files(siblings, name, choice)
        weights = [path for path in needed if path.endswith(WEIGHT_SUFFIXES)]
        small = [path for path in needed if path not in weights]
        meter = TransferMeter(sum(siblings[path].size or 0 for path in weights), progress or ProgressLines(name))
        if small:
            with _no_bars():
                snapshot_download(name, revision=revision, allow_patterns=_as_patterns(small), endpoint=api.endpoint)
        blobs = Path(constants.HF_HUB_CACHE) / f"models--{name.replace('/', '--')}" / "blobs"
        for path in weights:
            remote = _remote_weight(name, info.sha or revision, siblings[path], api.endpoint)
            if remote is not None:
                download(remote, blobs / str(remote.sha256), meter)
        # Finds the weights among the blobs, downloads what isn't there, and lays the links.
        with _no_bars():
            patterns = _as_patterns(needed)
            folder = Path(snapshot_download(name, revision=revision, allow_patterns=patterns, endpoint=api.endpoint))
        return folder / needed[0] if needed[0].endswith(".gguf") else folder
    except KaishuError:
        raise
    except Exception as problem:  # the client's own, its HTTP library's (which changes between versions), the system's
        raise _explained(problem, name, revision, api.endpoint) from problem


def fetch_config(name: str, revision: str) -> dict[str, Any]:
    """Download a model's config.json alone; it stays in the cache.

    return: the object in it
    raises: ModelNotFoundError, HubUnavailableError; ConfigError if it can't be parsed; CheckpointError where it isn't
            what the weights follow from, or there are none that would be downloaded
    """
    from huggingface_hub import HfApi, hf_hub_download

    api = HfApi(library_name="kaishu")
    endpoint = api.endpoint
    try:
        info = api.model_info(name, revision=revision, timeout=_TIMEOUT_SECONDS)
        refuse_gguf(needed_files([sibling.rfilename for sibling in info.siblings or []], name), name)
        with _no_bars():
            path = hf_hub_download(name, "config.json", revision=revision, endpoint=endpoint)
    except KaishuError:
        raise
    except Exception as problem:
        raise _explained(problem, name, revision, endpoint) from problem
    return read_json_object(Path(path), ConfigError)


def _as_patterns(paths: list[str]) -> list[str]:
    """Paths as the client's patterns, in which brackets mean something."""
    return [glob.escape(path) for path in paths]


@contextmanager
def _no_bars() -> Iterator[None]:
    """Keep the client from drawing bars of its own: small files need none, and weights are reported by `progress`."""
    from huggingface_hub import utils

    client: Any = utils
    if client.are_progress_bars_disabled():
        yield
        return
    client.disable_progress_bars()
    try:
        yield
    finally:
        client.enable_progress_bars()


def _remote_weight(name: str, commit: str, sibling: RepoSibling, endpoint: str) -> RemoteFile | None:
    """Where a weight file is and how to check it; None when the hub doesn't say (then its own client downloads it)."""
    from huggingface_hub import get_token, hf_hub_url

    if sibling.lfs is None:
        return None
    url = hf_hub_url(name, sibling.rfilename, revision=commit, endpoint=endpoint)
    token = get_token()
    headers = {"User-Agent": "kaishu", **({"Authorization": f"Bearer {token}"} if token else {})}
    return RemoteFile(sibling.rfilename, url, sibling.lfs["size"], sibling.lfs["sha256"], headers)


def _explained(problem: Exception, name: str, revision: str, endpoint: str) -> KaishuError:
    """Our words for what went wrong in the hub's client."""
    from huggingface_hub.errors import (
        EntryNotFoundError,
        GatedRepoError,
        HfHubHTTPError,
        HFValidationError,
        LocalEntryNotFoundError,
        OfflineModeIsEnabled,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    if isinstance(problem, LocalEntryNotFoundError) and isinstance(problem.__cause__, Exception):
        problem = problem.__cause__
    if isinstance(problem, OfflineModeIsEnabled):
        return HubUnavailableError(
            f"{name} is not in the local cache, and HF_HUB_OFFLINE forbids asking {endpoint}.",
            hint=OFFLINE_HINT,
        )
    if isinstance(problem, GatedRepoError):
        return refused(name, endpoint, 403, how=_PERMISSION)
    if isinstance(problem, RevisionNotFoundError):
        return ModelNotFoundError(f"{endpoint} has {name}, but no revision {revision!r} of it.")
    if isinstance(problem, EntryNotFoundError) and not isinstance(problem, LocalEntryNotFoundError):
        return ConfigError(f"{name} has no config.json, so it is no model folder.")
    if isinstance(problem, HFValidationError):
        return ModelNotFoundError(f"{name!r} is not a name a model can have: {problem}.")
    if isinstance(problem, StatusError):
        return refused(name, endpoint, problem.status, how=_PERMISSION)
    if isinstance(problem, HfHubHTTPError):
        status = problem.response.status_code
        if isinstance(problem, RepositoryNotFoundError) or status in (401, 403, 404):
            return refused(name, endpoint, status, how=_PERMISSION)
        return unavailable(name, endpoint, f"it answers {status}")
    return unavailable(
        name, endpoint, f"{type(problem).__name__}: {str(problem).splitlines()[0] if str(problem) else ''}"
    )
