"""Where weights come from: a name becomes a folder (hub.py), a folder becomes a Checkpoint (open.py).

Everyone else needs only these three names, and `kaishu.checkpoint.hub.resolve`.
"""

from kaishu.checkpoint.open import Checkpoint, open_checkpoint
from kaishu.checkpoint.safetensors import StoredTensor

__all__ = ["Checkpoint", "StoredTensor", "open_checkpoint"]
