"""A model that knows nothing: it takes any token that the grammar allows, those that close something a little sooner.

Used by tests of grammars. Without that preference it would seldom close a string in which 147,000 tokens are allowed.
"""

from __future__ import annotations

import sys

import numpy as np

from kaishu.engine.grammar import CompiledGrammar
from kaishu.text.tokenizer import Tokenizer

CLOSING = b'"}],:0123456789'


def rows_of(mask: np.ndarray) -> np.ndarray:
    """The ids of a mask: id i is bit i % 32 of word i // 32."""
    bytes_ = mask if sys.byteorder == "little" else mask.byteswap()
    return np.flatnonzero(np.unpackbits(bytes_.view(np.uint8), bitorder="little"))


def ids_of(mask: np.ndarray) -> list[int]:
    """The same as a list."""
    return rows_of(mask).tolist()


def written_ids(
    grammar: CompiledGrammar,
    tokenizer: Tokenizer,
    rng: np.random.Generator,
    *,
    limit: int = 400,
    closing: float = 0.7,
    steps_ahead: bool = True,
) -> list[int] | None:
    """The ids of one answer without its end token; None if it isn't over after `limit` tokens.

    closing:     how often a token is taken that closes something or is a digit, where one is allowed
    steps_ahead: at each step, hold what `forced` says against what the masks say then
    """
    state, ids, expected = grammar.start(), [], []
    closers = np.array([token for byte in CLOSING for token in tokenizer.encode(chr(byte))])
    ends = set(ids_of(state._tokens.ended))
    for _ in range(limit):
        mask = state.allowed()
        allowed = rows_of(mask)
        if steps_ahead:
            if expected:
                assert allowed.tolist() == [expected[0]]
            else:
                expected = state.forced(20)
                assert bool(expected) == (len(allowed) == 1)
        preferred = closers[mask[closers >> 5] >> (closers & 31).astype(np.uint32) & 1 == 1]
        chosen = int(rng.choice(preferred if len(preferred) and rng.random() < closing else allowed))
        assert state.is_over == (len(allowed) <= len(ends) and set(allowed.tolist()) <= ends)
        state.accept(chosen)
        expected = expected[1:]
        if state.has_ended:
            return ids
        ids.append(chosen)
    return None
