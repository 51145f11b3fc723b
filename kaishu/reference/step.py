"""What all layers of one step share.

Owns nothing but the bundle: model.py makes it once a step and passes it down, so that a layer depends on its arguments
alone. Read by block.py and attention.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from kaishu.batch import TokenBatch
from kaishu.config import ModelConfig
from kaishu.reference.caches import Cache
from kaishu.reference.rope import RotaryTables

AttentionKind = Literal["explicit", "sdpa"]
Observe = Callable[[str, Tensor], None]


@dataclass(frozen=True)
class Step:
    """One step's batch, where its tokens stand, where keys and values go, and who is watching.

    positions: [T] int32, each token's position in its own sequence, on the model's device
    """

    config: ModelConfig
    batch: TokenBatch
    positions: Tensor
    rotary: RotaryTables
    cache: Cache
    attention: AttentionKind
    observe: Observe
