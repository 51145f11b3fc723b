"""Which files of a folder hold the weights, and all tensors in them.

Owns the choice between one file and shards, the index of the shards, and the rule that nothing outside the folder is
opened. Knows nothing of what a model needs: that is names.py. Reads through safetensors.py; used by open.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kaishu.checkpoint.safetensors import RESUME_HINT, SafetensorsFile, StoredTensor, open_safetensors
from kaishu.config import folder_contents
from kaishu.errors import CheckpointError, and_more
from kaishu.json_fields import read_json_object, shown

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
_MAX_FILE_NAME_BYTES = 255  # what file systems take
PICKLE_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
PICKLE_HINT = (
    "Pickles run code when they are opened. Use a revision with *.safetensors, or convert it where you trust it: "
    "load it with transformers and call `save_pretrained(folder)`."
)
GGUF_HINT = "Open one GGUF file, not its folder or repository: `kaishu chat path/to/MODEL-Q8_0.gguf`."


@dataclass(frozen=True)
class Shards:
    """The weight files of a folder, opened, and every tensor in them by its name in the file."""

    files: tuple[SafetensorsFile, ...]
    tensors: Mapping[str, StoredTensor]
    notes: tuple[str, ...] = ()


def open_shards(folder: Path) -> Shards:
    """Open model.safetensors, or the shards that model.safetensors.index.json lists.

    folder: a model folder
    return: its files and tensors; headers are read and checked, tensors are not touched
    raises: CheckpointError naming the file or tensor: missing, damaged, unsafe, twice, only pickles or GGUF
    """
    single, index = folder / SINGLE_FILE, folder / INDEX_FILE
    if single.exists() or single.is_symlink():
        notes = (f"{INDEX_FILE} is ignored, because {SINGLE_FILE} is there.",) if index.exists() else ()
        file = open_safetensors(path_inside(folder, SINGLE_FILE))
        return Shards((file,), file.tensors, notes)
    if index.exists() or index.is_symlink():
        return _open_indexed(folder, _weight_map(path_inside(folder, INDEX_FILE)))
    raise _no_weights(folder)


def path_inside(folder: Path, name: str) -> Path:
    """The path of a file in the folder, if that is where it really is.

    Links may lead elsewhere in the folder and, from a snapshot in a hub cache, to the blobs of the same model:
    `models--org--name/snapshots/revision/file` is a link to `models--org--name/blobs/hash`.

    raises: CheckpointError for names with a directory in them and for links that lead out
    """
    is_path = name in ("", ".", "..") or any(character in name for character in "/\\\0")
    if is_path or len(name.encode("utf-8", "surrogatepass")) > _MAX_FILE_NAME_BYTES:
        raise CheckpointError(f"{folder} names {shown(name)} as one of its files; allowed: a plain file name, no path.")
    home = folder.resolve()
    try:
        real = (home / name).resolve()
    except (OSError, RuntimeError):  # a link to itself
        raise CheckpointError(f"{folder / name} is a link that leads nowhere.") from None
    allowed = [home]
    if home.parent.name == "snapshots":
        allowed.append(home.parent.parent / "blobs")
    if not any(real.is_relative_to(place) for place in allowed):
        raise CheckpointError(
            f"{folder / name} is a link to {real}, outside the folder; it is not opened.",
            hint="Copy the file into the folder, or open the folder that the link leads to.",
        )
    return folder / name


def _weight_map(path: Path) -> dict[str, str]:
    index: dict[str, Any] = read_json_object(path, CheckpointError)
    weight_map = index.get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f"{path.name} has no weight_map from tensor names to files.")
    for tensor, file in weight_map.items():
        if not isinstance(file, str) or not file.endswith(".safetensors"):
            raise CheckpointError(
                f"{path.name} puts {shown(tensor)} into {shown(file)}; allowed: a *.safetensors file beside it."
            )
    return weight_map


def _open_indexed(folder: Path, weight_map: Mapping[str, str]) -> Shards:
    names = sorted(set(weight_map.values()))
    paths = [path_inside(folder, name) for name in names]  # every name is judged before any file is opened
    missing = [path.name for path in paths if not path.exists()]
    if missing:
        tensors_in = Counter(weight_map.values())
        lost = sum(tensors_in[file] for file in missing)
        raise CheckpointError(
            f"{folder} lacks {len(missing)} of {len(names)} weight files: {and_more(missing)}. "
            f"{INDEX_FILE} lists {lost:,} tensors in what is missing.",
            hint=RESUME_HINT,
        )
    files = tuple(open_safetensors(path) for path in paths)
    tensors: dict[str, StoredTensor] = {}
    for file in files:
        for name, tensor in file.tensors.items():
            if name in tensors:
                raise CheckpointError(
                    f"{shown(name)} is in two files, {tensors[name].file.name} and {file.path.name}; allowed: one."
                )
            tensors[name] = tensor
    lacking = [name for name, file in weight_map.items() if name not in tensors or tensors[name].file.name != file]
    if lacking:
        raise CheckpointError(
            f"{INDEX_FILE} lists {len(lacking):,} tensors in files that don't have them: "
            + and_more([f"{name} in {weight_map[name]}" for name in lacking], shown=4)
            + ".",
            hint="The index and the weight files are of different versions; download all of them again.",
        )
    return Shards(files, tensors)


def _no_weights(folder: Path) -> CheckpointError:
    """Say what the folder has instead of weights that we read."""
    names = sorted(entry.name for entry in folder.iterdir()) if folder.is_dir() else []
    what = f"{folder} has neither {SINGLE_FILE} nor {INDEX_FILE}"
    pickles = [name for name in names if name.endswith(PICKLE_SUFFIXES)]
    if any(name.endswith(".safetensors") for name in names):
        hint = "Shards need their index. " + RESUME_HINT
        if any(name.startswith("adapter_") for name in names):
            hint = "An adapter is not a model: open its base model, and give the adapter with --lora."
        return CheckpointError(f"{what}. It holds: {folder_contents(folder)}.", hint=hint)
    if any(name.endswith(".gguf") for name in names):
        return CheckpointError(f"{what}, only GGUF: {folder_contents(folder)}.", hint=GGUF_HINT)
    if pickles:
        return CheckpointError(f"{what}, only pickles, which are not opened: {and_more(pickles)}.", hint=PICKLE_HINT)
    return CheckpointError(f"{what}. It holds: {folder_contents(folder)}.", hint=RESUME_HINT)
