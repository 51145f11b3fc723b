"""What the names of GGUF files say: which are parts of one model, which are of no model, and which one is meant.

Owns those conventions, and the words for who has to choose. Knows names alone, and opens nothing. Used by hub.py for
folders, by download.py for repositories and caches, and by gguf.py for split models.

    Qwen3-8B-Q4_K_M.gguf                           one model, called Q4_K_M or by its file's name
    Q8_0/Qwen3-32B-Q8_0-00001-of-00002.gguf  …     one model in two parts, called Q8_0
    Qwen3-8B-UD-Q4_K_XL.gguf                       UD-Q4_K_XL: Q4_K_XL would be another file
    mmproj-F16.gguf, imatrix.gguf                  no models: for images, and what a quantiser measured
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import PurePath, PurePosixPath

from kaishu.errors import CheckpointError, ModelNotFoundError, and_more, shown

SPLIT_NAME = re.compile(r"(?P<prefix>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.DOTALL)
_KIND = re.compile(
    r"(?:^|[-._])(?P<kind>(?:UD-)?(?:I?Q\d\w*|TQ\d_\d|MXFP4\w*|NVFP4\w*|BF16|FP?16|FP?32))$", re.IGNORECASE | re.ASCII
)
_NO_MODELS = ("mmproj", "imatrix")
_MAX_PATH = 1000


@dataclass(frozen=True)
class GgufModel:
    """One model among files.

    parts: paths of its files, in their order; of a split one those that there are
    count: how many files it has when it is whole
    """

    parts: tuple[str, ...]
    count: int

    @property
    def is_whole(self) -> bool:
        """Whether no part is missing."""
        return len(self.parts) == self.count

    @property
    def stem(self) -> str:
        """What its files are called, without folder, part and ending."""
        name = PurePosixPath(self.parts[0]).name
        split = SPLIT_NAME.fullmatch(name)
        return split["prefix"] if split else name.removesuffix(".gguf")

    @property
    def kind(self) -> str | None:
        """The quantisation that its name ends in; None where it ends in none."""
        found = _KIND.search(self.stem)
        return found["kind"] if found else None

    def is_called(self, choice: str) -> bool:
        """Whether that may mean this model; upper and lower case are the same."""
        names = {self.stem, *self.parts, *(PurePosixPath(part).name for part in self.parts)}
        names |= {self.kind} if self.kind else set()
        return choice.lower() in {name.lower() for name in names}


def split_set(path: PurePath) -> str:
    """What the names of all parts of one model have in common; of a file that isn't split, its own name."""
    match = SPLIT_NAME.fullmatch(path.name)
    return path.name if match is None else f"{match['prefix']} of {match['count']}"


def gguf_models(paths: Iterable[str]) -> list[GgufModel]:
    """The models among files, by name.

    paths: with slashes; other files, and paths that would lead elsewhere, are left out
    """
    sets: dict[str, list[str]] = {}
    for path in sorted(paths):
        if _is_model(path):
            sets.setdefault(str(PurePosixPath(path).with_name(split_set(PurePosixPath(path)))), []).append(path)
    found = []
    for parts in sets.values():
        split = SPLIT_NAME.fullmatch(PurePosixPath(parts[0]).name)
        found.append(GgufModel(tuple(parts), int(split["count"]) if split else 1))
    return found


def _is_model(path: str) -> bool:
    parts = path.split("/")
    is_inside = len(path) <= _MAX_PATH and not any(part in ("", ".", "..") for part in parts)
    is_plain = not any(character in path for character in "\\\0:")
    return is_inside and is_plain and path.endswith(".gguf") and not parts[-1].lower().startswith(_NO_MODELS)


def chosen_gguf(models: list[GgufModel], choice: str | None, where: str) -> GgufModel:
    """The one that is meant.

    choice: a kind or a file's name; None for the only one
    where:  the folder or repository, as people know it
    raises: CheckpointError where several may be meant, ModelNotFoundError where none is; both list what there is
    """
    meant = [model for model in models if choice is None or model.is_called(choice)]
    if len(meant) == 1:
        return meant[0]
    if not models:
        raise ModelNotFoundError(f"{where} has no GGUF model, of which {shown(choice)} could be one.")
    listed = and_more([model.parts[0] for model in meant or models], shown=12)
    hint = f"Add the one that you want to the name: {and_more(_calls(meant or models), shown=12)}."
    if not meant:
        raise ModelNotFoundError(f"{where} has no GGUF model {shown(choice)}. It has: {listed}.", hint=hint)
    called = "" if choice is None else f" called {choice}"
    raise CheckpointError(f"{where} has {len(meant):,} GGUF models{called}: {listed}.", hint=hint)


def _calls(models: list[GgufModel]) -> list[str]:
    """What to add to a name for each: the shortest that means this one alone."""
    calls = []
    for model in models:
        names = [model.kind or model.stem, PurePosixPath(model.parts[0]).name, model.parts[0]]
        only = (name for name in names if sum(other.is_called(name) for other in models) == 1)
        calls.append(f":{next(only, model.parts[0])}")
    return calls
