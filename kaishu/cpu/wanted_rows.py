"""What is left of a batch for the last layer, once it has kept its keys and values: the rows whose logits are wanted.

Owns that choice. Of a prompt it is one row, of a piece of a prompt none, so that the last layer's attention and feed
forward cost nothing there. Asked by executor.py for steps that want fewer rows than they have; forward.py moves the
rows themselves.
"""

from __future__ import annotations

import numpy as np

from kaishu.batch import TokenBatch


def wanted_rows(batch: TokenBatch) -> TokenBatch:
    """The batch of the wanted rows alone, in the order wanted, as if all other tokens had been in earlier steps.

    return: R rows, all wanted; neighbours of one sequence are a sequence, so that they are attended to together
    """
    rows = batch.logit_rows
    sequences = np.searchsorted(batch.query_starts, rows, side="right") - 1  # [R]
    follows = (np.diff(rows, prepend=-2) == 1) & (np.diff(sequences, prepend=-1) == 0)  # [R]
    starts = np.flatnonzero(~follows)  # [runs]
    return TokenBatch(
        token_ids=batch.token_ids[rows],
        positions=batch.positions[rows],
        query_starts=np.append(starts, len(rows)).astype(np.int32),
        page_table=batch.page_table[sequences[starts]],
        logit_rows=np.arange(len(rows), dtype=np.int32),
    )
