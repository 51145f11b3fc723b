"""One step: planned work becomes a batch, and the batch's result each request's rows.

Owns packing and cutting apart. Knows what requests are no more than scheduler.py does; whose likeliest tokens should be
looked for it is told. Used by core.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, islice

import numpy as np
from numpy.typing import NDArray

from kaishu.batch import Executor, FindsLikeliest, Likeliest, SequenceTokens, pack
from kaishu.engine.request import Request
from kaishu.engine.scheduler import Work

Rows = NDArray[np.float32]
Run = tuple[list[Work], Rows]


@dataclass(frozen=True)
class WorkRows:
    """One work with its rows, in the order of its wants_logits.

    rows:      [R, V] float32, logits, or [1, D] float32, the hidden state; None where it wants none
    likeliest: the likeliest tokens of each row, if they were looked for
    """

    work: Work
    rows: Rows | None
    likeliest: Sequence[Likeliest] | None


def compute(executor: Executor, works: Sequence[Work], wants_hidden: Callable[[Request], bool]) -> list[Run]:
    """Have the executor compute those that want logits, and then those that want hidden states.

    return: what was computed together: its works, and the rows of all of them
    """
    runs: list[Run] = []
    for is_hidden, run in ((False, executor.step), (True, executor.hidden)):
        own = [work for work in works if wants_hidden(work.request) == is_hidden]
        if own:
            runs.append((own, run(pack([_sequence(work) for work in own]))))
    return runs


def cut_apart(
    runs: Sequence[Run], finder: FindsLikeliest | None, num_token_ids: int, wants_likeliest: Callable[[Request], bool]
) -> list[WorkRows]:
    """Give each work its rows.

    runs:            from `compute`
    finder:          who finds the likeliest tokens; None where nobody can
    num_token_ids:   ids from here on have no token
    wants_likeliest: whether a request's rows should come with their likeliest tokens
    """
    computed: list[WorkRows] = []
    for works, rows in runs:
        ends = list(accumulate(len(work.wants_logits) for work in works))
        owned = [range(end - len(work.wants_logits), end) for work, end in zip(works, ends, strict=True)]
        wanted = [finder is not None and wants_likeliest(work.request) for work in works]
        listed = [row for own, is_wanted in zip(owned, wanted, strict=True) if is_wanted for row in own]
        found = iter(finder.likeliest(rows, listed, num_token_ids) if finder is not None and listed else ())
        for work, own, is_wanted in zip(works, owned, wanted, strict=True):
            likeliest = list(islice(found, len(own))) if is_wanted else None
            computed.append(WorkRows(work, rows[own.start : own.stop] if own else None, likeliest))
    return computed


def _sequence(work: Work) -> SequenceTokens:
    request = work.request
    known = len(request.token_ids)
    token_ids = request.token_ids[work.start : work.end]
    if work.end > known:
        token_ids = token_ids + request.proposed[: work.end - known]
    return SequenceTokens(token_ids, work.start, request.pages, tuple(work.wants_logits))
