"""One step: planned work becomes a batch, and the batch's result each request's rows.

Owns packing and cutting apart. Knows what requests are no more than scheduler.py does; which rows are sampled from, and
so have their likeliest tokens looked for, it is told. Used by core.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

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
    likeliest: the likeliest tokens of R rows, if they were looked for
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
    runs: Sequence[Run], finder: FindsLikeliest | None, num_token_ids: int, is_sampled: Callable[[Request], bool]
) -> list[WorkRows]:
    """Give each work its rows.

    runs:          from `compute`
    finder:        who finds the likeliest tokens; None where nobody can
    num_token_ids: ids from here on have no token
    is_sampled:    whether a request's rows are all for choosing tokens; beside others, of which there may be many more,
                   nothing is looked for
    """
    computed: list[WorkRows] = []
    for works, rows in runs:
        likeliest, first = None, 0
        if finder is not None and len(rows) and all(is_sampled(work.request) for work in works):
            likeliest = finder.likeliest(rows, num_token_ids)
        for work in works:
            end = first + len(work.wants_logits)
            own = None if likeliest is None else likeliest[first:end]
            computed.append(WorkRows(work, rows[first:end] if work.wants_logits else None, own))
            first = end
    return computed


def _sequence(work: Work) -> SequenceTokens:
    request = work.request
    known = len(request.token_ids)
    token_ids = request.token_ids[work.start : work.end]
    if work.end > known:
        token_ids = token_ids + request.proposed[: work.end - known]
    return SequenceTokens(token_ids, work.start, request.pages, tuple(work.wants_logits))
