"""A name → a local folder, or a GGUF file.

Owns what a name may mean, and in which order: the bundled model, a folder, a file, a model on a hub. Knows nothing of
what is in them. Hands over to huggingface.py or modelscope.py; its answer goes to open.py and to the tokenizer.

    tiny                               the model that comes with Kaishu
    ./folder  /folder  ~/folder        a folder on this machine (any name, if such a folder exists)
    ./model.gguf                       a GGUF file, of a split one any part; also the folder that holds one such model
    Qwen/Qwen3-0.6B                    a model on Hugging Face (or where KAISHU_HUB says)
    Qwen/Qwen3-0.6B@v1.0               ... a branch, tag or commit of it
    modelscope:Qwen/Qwen3-0.6B         a model on ModelScope; huggingface: is possible too
"""

from __future__ import annotations

import importlib.resources
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from kaishu.checkpoint.download import Progress
from kaishu.config import folder_contents
from kaishu.errors import CheckpointError, InvalidParameterError, ModelNotFoundError, and_more
from kaishu.json_fields import shown

__all__ = ["BUNDLED", "Progress", "resolve", "resolve_without_weights"]

_Found = TypeVar("_Found")
BUNDLED = "tiny"
_HUBS = ("huggingface", "modelscope")
_HUB_NAME = re.compile(r"(?:(?P<hub>\w+):)?(?P<name>[\w-][\w.-]*/[\w-][\w.-]*)(?:@(?P<revision>[\w.-]+(?:/[\w.-]+)*))?")
_MAX_HUB_NAME = 240  # the caches make one file name of it; the hubs themselves stop earlier
_WHAT_NAMES_ARE = (
    "A name is `tiny`, a folder with config.json in it, a GGUF file, or a model on a hub, such as Qwen/Qwen3-0.6B."
)


def resolve(name: str, *, progress: Progress | None = None, refresh: bool = False) -> Path:
    """Find the folder or GGUF file that a name means, downloading a folder if need be.

    name:     as in the table above
    progress: called with (bytes done, bytes in all) while weights arrive
    refresh:  ask the hub for a newer version even if the model is in the cache; without it, a cached model needs no
              network and starts at once
    return:   a folder with config.json in it, or a GGUF file
    raises:   ModelNotFoundError, HubUnavailableError, CheckpointError
    """
    return _found(name, lambda hub, model, revision: _from_hub(hub, model, revision, progress, refresh))


def resolve_without_weights(name: str) -> Path | dict[str, Any]:
    """What can be known of a model without downloading its weights.

    return: as `resolve` where nothing is missing here; else the object in the config.json that the hub has
    raises: as `resolve`
    """
    return _found(name, _cached_or_config)


def _found(name: str, on_hub: Callable[[str, str, str | None], _Found]) -> Path | _Found:
    """What a name means on this machine, or what `on_hub` makes of the hub, the model's name there, the revision."""
    if name == BUNDLED:
        return _bundled()
    if not name:  # as a path it would be the folder one stands in
        raise ModelNotFoundError("The name of the model is empty.", hint=_WHAT_NAMES_ARE)
    try:
        return _local_path(name) or on_hub(*_hub_name(name))
    except OSError as problem:  # a name longer than a file's may be, a folder that others mustn't look into
        why = problem.strerror or str(problem)
        raise ModelNotFoundError(f"{shown(name)} can't be looked up: {why}.", hint=_WHAT_NAMES_ARE) from None


def _local_path(name: str) -> Path | None:
    """The folder or file of that name on this machine; None if there is none."""
    try:
        path = Path(name).expanduser()
    except RuntimeError:
        user = shown(name.partition("/")[0])
        raise ModelNotFoundError(f"{user} is nobody's home folder here.", hint=_WHAT_NAMES_ARE) from None
    if path.is_dir():
        return _model_in(path)
    if path.is_file() and path.suffix == ".gguf":
        return path
    if path.exists():
        raise _is_a_file(path)
    return None


def _hub_name(name: str) -> tuple[str, str, str | None]:
    """What a name says if it isn't a local folder's. return: the hub, the model's name there, the revision if any"""
    match = _HUB_NAME.fullmatch(name)
    if match is None or ".." in name or len(name) > _MAX_HUB_NAME:
        looks_like_path = name.startswith((".", "/", "~")) or name.count("/") > 1
        is_not = f"There is no such folder: {Path(name).expanduser()}"
        found = is_not if looks_like_path else f"{shown(name)} is neither a folder nor a model's name"
        raise ModelNotFoundError(f"{found}.", hint=_WHAT_NAMES_ARE)
    source = match["hub"] or os.environ.get("KAISHU_HUB") or _HUBS[0]
    if source not in _HUBS:
        raise InvalidParameterError("model" if match["hub"] else "KAISHU_HUB", source, f"{' or '.join(_HUBS)}")
    return source, match["name"], match["revision"]


def _from_hub(source: str, name: str, revision: str | None, progress: Progress | None, refresh: bool) -> Path:
    if source == "modelscope":
        from kaishu.checkpoint import modelscope

        revision = revision or "master"
        cached = None if refresh else modelscope.cached_folder(name, revision)
        return cached or modelscope.fetch(name, revision, progress)
    from kaishu.checkpoint import huggingface

    revision = revision or "main"
    cached = None if refresh else huggingface.cached_folder(name, revision)
    return cached or huggingface.fetch(name, revision, progress)


def _cached_or_config(source: str, name: str, revision: str | None) -> Path | dict[str, Any]:
    if source == "modelscope":
        from kaishu.checkpoint import modelscope

        revision = revision or "master"
        return modelscope.cached_folder(name, revision) or modelscope.fetch_config(name, revision)
    from kaishu.checkpoint import huggingface

    revision = revision or "main"
    return huggingface.cached_folder(name, revision) or huggingface.fetch_config(name, revision)


def _bundled() -> Path:
    folder = Path(str(importlib.resources.files("kaishu").joinpath("models", BUNDLED)))
    if not (folder / "config.json").is_file():
        raise ModelNotFoundError(
            f"This installation of Kaishu lacks its bundled model ({folder}).", hint="Install it again."
        )
    return folder


def _model_in(folder: Path) -> Path:
    """The folder itself where it has a config.json; else the one GGUF model in it, of a split one the first part."""
    if (folder / "config.json").exists():
        return folder
    found = sorted(entry for entry in folder.iterdir() if entry.suffix == ".gguf" and entry.is_file())
    if not found:
        contents = folder_contents(folder)
        raise ModelNotFoundError(f"{folder} has no config.json. It holds: {contents}.", hint=_WHAT_NAMES_ARE)
    from kaishu.checkpoint.gguf import split_set

    models = {split_set(path): path for path in reversed(found)}
    if len(models) == 1:
        return found[0]
    from kaishu.checkpoint.shards import GGUF_HINT

    names = and_more(sorted(path.name for path in models.values()))
    raise CheckpointError(f"{folder} has no config.json, but {len(models)} GGUF models: {names}.", hint=GGUF_HINT)


def _is_a_file(path: Path) -> Exception:
    from kaishu.checkpoint.shards import PICKLE_HINT, PICKLE_SUFFIXES

    if path.suffix in PICKLE_SUFFIXES:
        return CheckpointError(f"{path} is a pickle, which is not opened.", hint=PICKLE_HINT)
    return ModelNotFoundError(f"{path} is a file; allowed: the folder that it is in.", hint=_WHAT_NAMES_ARE)
