"""A name → a local folder, or a GGUF file.

Owns what a name may mean, and in which order: the bundled model, a folder, a file, a model on a hub. Knows nothing of
what is in them. Hands over to huggingface.py or modelscope.py; its answer goes to open.py and to the tokenizer.

    tiny                               the model that comes with Kaishu
    ./folder  /folder  ~/folder        a folder on this machine (any name, if such a folder exists)
    ./model.gguf                       a GGUF file, of a split one any part; also the folder that holds one such model
    ./folder:Q4_K_M                    of the GGUF models in a folder, the one of this kind, or with this file's name
    Qwen/Qwen3-0.6B                    a model on Hugging Face (or where KAISHU_HUB says)
    Qwen/Qwen3-0.6B@v1.0               ... a branch, tag or commit of it
    Qwen/Qwen3-0.6B-GGUF:Q8_0          ... of its GGUF models, this one; where it has one, none need be named
    modelscope:Qwen/Qwen3-0.6B         a model on ModelScope; huggingface: is possible too
"""

from __future__ import annotations

import importlib.resources
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from kaishu.checkpoint.download import Progress
from kaishu.config import folder_contents
from kaishu.errors import CheckpointError, InvalidParameterError, ModelNotFoundError
from kaishu.json_fields import shown

__all__ = ["BUNDLED", "Progress", "resolve", "resolve_without_weights"]

_Found = TypeVar("_Found")
BUNDLED = "tiny"
_HUBS = ("huggingface", "modelscope")
_HUB_NAME = re.compile(
    r"(?:(?P<hub>\w+):)?(?P<name>[\w-][\w.-]*/[\w-][\w.-]*)(?:@(?P<revision>[\w.-]+(?:/[\w.-]+)*))?"
    r"(?::(?P<choice>[\w.+-]+(?:/[\w.+-]+)*))?"
)
_MAX_HUB_NAME = 240  # the caches make one file name of it; the hubs themselves stop earlier
_WHAT_NAMES_ARE = (
    "A name is `tiny`, a folder with config.json in it, a GGUF file, or a model on a hub, such as Qwen/Qwen3-0.6B or "
    "Qwen/Qwen3-0.6B-GGUF:Q8_0."
)


def resolve(name: str, *, progress: Progress | None = None, refresh: bool = False) -> Path:
    """Find the folder or GGUF file that a name means, downloading it if need be.

    name:     as in the table above
    progress: called with (bytes done, bytes in all) while weights arrive
    refresh:  ask the hub for a newer version even if the model is in the cache; without it, a cached model needs no
              network and starts at once
    return:   a folder with config.json in it, or a GGUF file
    raises:   ModelNotFoundError, HubUnavailableError, CheckpointError
    """
    return _found(name, lambda on_hub: _from_hub(on_hub, progress, refresh))


def resolve_without_weights(name: str) -> Path | dict[str, Any]:
    """What can be known of a model without downloading its weights.

    return: as `resolve` where nothing is missing here; else the object in the config.json that the hub has
    raises: as `resolve`
    """
    return _found(name, _cached_or_config)


@dataclass(frozen=True)
class _OnHub:
    """What a name says of a model on a hub.

    source:   which hub
    revision: None for the hub's usual one
    choice:   which of its GGUF models
    """

    source: str
    name: str
    revision: str | None
    choice: str | None


def _found(name: str, on_hub: Callable[[_OnHub], _Found]) -> Path | _Found:
    """What a name means on this machine, or what `on_hub` makes of it."""
    if name == BUNDLED:
        return _bundled()
    if not name:  # as a path it would be the folder one stands in
        raise ModelNotFoundError("The name of the model is empty.", hint=_WHAT_NAMES_ARE)
    try:
        return _local_path(name) or on_hub(_hub_name(name))
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
    folder, _, choice = str(path).rpartition(":")
    if folder and "/" not in choice and Path(folder).is_dir():
        return _gguf_in(Path(folder), choice)
    return None


def _hub_name(name: str) -> _OnHub:
    """What a name says if it isn't a local folder's."""
    match = _HUB_NAME.fullmatch(name)
    if match is None or ".." in name or len(name) > _MAX_HUB_NAME:
        looks_like_path = name.startswith((".", "/", "~")) or name.count("/") > 1
        is_not = f"There is no such folder: {Path(name).expanduser()}"
        found = is_not if looks_like_path else f"{shown(name)} is neither a folder nor a model's name"
        raise ModelNotFoundError(f"{found}.", hint=_WHAT_NAMES_ARE)
    source = match["hub"] or os.environ.get("KAISHU_HUB") or _HUBS[0]
    if source not in _HUBS:
        raise InvalidParameterError("model" if match["hub"] else "KAISHU_HUB", source, f"{' or '.join(_HUBS)}")
    return _OnHub(source, match["name"], match["revision"], match["choice"])


def _from_hub(model: _OnHub, progress: Progress | None, refresh: bool) -> Path:
    if model.source == "modelscope":
        from kaishu.checkpoint import modelscope

        revision = model.revision or "master"
        cached = None if refresh else modelscope.cached_model(model.name, revision, model.choice)
        return cached or modelscope.fetch(model.name, revision, progress, model.choice)
    from kaishu.checkpoint import huggingface

    revision = model.revision or "main"
    cached = None if refresh else huggingface.cached_model(model.name, revision, model.choice)
    return cached or huggingface.fetch(model.name, revision, progress, model.choice)


def _cached_or_config(model: _OnHub) -> Path | dict[str, Any]:
    if model.source == "modelscope":
        from kaishu.checkpoint import modelscope

        revision = model.revision or "master"
        cached = modelscope.cached_model(model.name, revision, model.choice)
        return cached or _config(model, lambda: modelscope.fetch_config(model.name, revision))
    from kaishu.checkpoint import huggingface

    revision = model.revision or "main"
    cached = huggingface.cached_model(model.name, revision, model.choice)
    return cached or _config(model, lambda: huggingface.fetch_config(model.name, revision))


def _config(model: _OnHub, fetch: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """The config.json; of a GGUF model that isn't here, it says nothing."""
    if model.choice is not None:
        from kaishu.checkpoint.download import refuse_gguf

        refuse_gguf([f"{model.choice}.gguf"], f"{model.name}:{model.choice}")
    return fetch()


def _bundled() -> Path:
    folder = Path(str(importlib.resources.files("kaishu").joinpath("models", BUNDLED)))
    if not (folder / "config.json").is_file():
        raise ModelNotFoundError(
            f"This installation of Kaishu lacks its bundled model ({folder}).", hint="Install it again."
        )
    return folder


def _model_in(folder: Path) -> Path:
    """The folder itself where it has a config.json and weights for it; else the one GGUF model in it."""
    if (folder / "config.json").exists() and (any(folder.glob("*.safetensors")) or not any(folder.glob("*.gguf"))):
        return folder
    return _gguf_in(folder, None)


def _gguf_in(folder: Path, choice: str | None) -> Path:
    """A GGUF model in a folder, of a split one the first part.

    choice: which one; None for the only one
    raises: ModelNotFoundError, or CheckpointError where several may be meant
    """
    from kaishu.checkpoint.gguf_names import chosen_gguf, gguf_models

    models = gguf_models(entry.name for entry in folder.glob("*.gguf") if entry.is_file())
    if not models and choice is None:
        contents = folder_contents(folder)
        raise ModelNotFoundError(f"{folder} has no config.json. It holds: {contents}.", hint=_WHAT_NAMES_ARE)
    return folder / chosen_gguf(models, choice, str(folder)).parts[0]


def _is_a_file(path: Path) -> Exception:
    from kaishu.checkpoint.shards import PICKLE_HINT, PICKLE_SUFFIXES

    if path.suffix in PICKLE_SUFFIXES:
        return CheckpointError(f"{path} is a pickle, which is not opened.", hint=PICKLE_HINT)
    return ModelNotFoundError(f"{path} is a file; allowed: the folder that it is in.", hint=_WHAT_NAMES_ARE)
