"""A model known by its config.json alone: what its tensors would be, if they were here.

Owns that guess: every tensor that the config needs, stored plain in the type that the config names. Nothing of it can
be read. Made of what hub.py finds; `kaishu plan` counts its bytes before anything is downloaded.
"""

from __future__ import annotations

from pathlib import Path

from kaishu.checkpoint.hub import resolve_without_weights
from kaishu.checkpoint.names import needed_tensors
from kaishu.checkpoint.open import Checkpoint, open_checkpoint
from kaishu.checkpoint.safetensors import StoredTensor
from kaishu.config import config_from_json
from kaishu.errors import CheckpointError

_STORED = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}


def describe(name: str) -> Checkpoint:
    """Open a model that is here; of one that isn't, ask its hub for the config, and download nothing else.

    name:   as for hub.resolve
    return: the checkpoint; one that isn't here has a note that says so
    raises: as hub.resolve and open_checkpoint; CheckpointError for a quantised model that isn't here, because only its
            files say how its weights are kept
    """
    found = resolve_without_weights(name)
    if isinstance(found, Path):
        return open_checkpoint(found)
    config = config_from_json(found)
    if config.quantisation is not None:
        raise CheckpointError(
            f"{name} is quantised, and only its files say how: they are not here.",
            hint=f"Run `kaishu pull {name}` first.",
        )
    nowhere = Path(name)
    tensors = {
        needed.name: StoredTensor(needed.name, _STORED[config.dtype], needed.shape, nowhere, 0)
        for needed in needed_tensors(config).values()
    }
    note = f"{name} is not here yet; this follows from its config.json. `kaishu pull {name}` downloads it."
    return Checkpoint(nowhere, config, tensors, (note,), identity="")
