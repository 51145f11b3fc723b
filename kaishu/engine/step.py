"""One step: planned work becomes a batch, and the batch's result each request's rows.

Owns packing and cutting apart. Knows what requests are no more than scheduler.py does. Used by core.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from kaishu.batch import Executor, SequenceTokens, pack
from kaishu.engine.request import Request
from kaishu.engine.scheduler import Work

Rows = NDArray[np.float32]


def compute(
    executor: Executor, works: Sequence[Work], wants_hidden: Callable[[Request], bool]
) -> list[tuple[Work, Rows | None]]:
    """Have the executor compute those that want logits, and then those that want hidden states.

    return: each work with its rows, in the order of its wants_logits; None where it wants none
    """
    computed: list[tuple[Work, Rows | None]] = []
    for is_hidden, run in ((False, executor.step), (True, executor.hidden)):
        own = [work for work in works if wants_hidden(work.request) == is_hidden]
        if not own:
            continue
        rows, first = run(pack([_sequence(work) for work in own])), 0
        for work in own:
            computed.append((work, rows[first : first + len(work.wants_logits)] if work.wants_logits else None))
            first += len(work.wants_logits)
    return computed


def _sequence(work: Work) -> SequenceTokens:
    request = work.request
    known = len(request.token_ids)
    token_ids = request.token_ids[work.start : work.end]
    if work.end > known:
        token_ids = token_ids + request.proposed[: work.end - known]
    return SequenceTokens(token_ids, work.start, request.pages, tuple(work.wants_logits))
