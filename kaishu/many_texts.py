"""Many texts through an executor, each for its last token's row: checked, cut to fit or refused, and packed into steps.

Owns what embedding and reranking have in common: which texts a caller may give, how long they may be, and the ragged
steps in which several short texts share one pass over the weights. Knows nothing of prompts or of what a row means.
Used by embedding.py and reranking.py; steps go to an Executor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set

import numpy as np
from numpy.typing import NDArray

from kaishu.batch import Executor, SequenceTokens, TokenBatch, pack
from kaishu.errors import ContextLengthError, InvalidParameterError, InvalidRequestError
from kaishu.text.tokenizer import check_text

STEP_TOKENS = 512  # bounds the memory of one step; the result doesn't depend on it


def checked_texts(field: str, texts: object) -> list[str]:
    """A caller's texts as a list.

    texts:  a string, or any ordered collection of strings
    return: at least one character in each; a single string makes a list of one
    raises: InvalidRequestError and its kinds, naming the text that is empty or isn't one
    """
    if isinstance(texts, str):
        texts = [texts]
    if isinstance(texts, bytes | bytearray | Mapping | Set) or not isinstance(texts, Iterable):
        raise InvalidParameterError(field, texts, "a string or a list of strings")
    found = list(texts)
    for index, text in enumerate(found):
        check_one(f"{field}[{index}]", text)
    return found


def check_one(field: str, text: str) -> None:
    """Refuse a text that is empty or can't be encoded.

    raises: InvalidRequestError
    """
    check_text(text, field=field)
    if not text:
        raise InvalidRequestError(
            f"{field} is empty; allowed: a text of at least one character.", field=field, hint="Leave it out."
        )


def check_truth(field: str, value: object) -> None:
    """Refuse what is neither True nor False. raises: InvalidParameterError"""
    if not isinstance(value, bool):
        raise InvalidParameterError(field, value, "True or False")


def fitted(
    parts: tuple[Sequence[int], Sequence[int], Sequence[int]], context_tokens: int, *, field: str, truncate: bool
) -> list[int]:
    """Join three runs of ids; of the middle one, which is the caller's, as much from its start as fits.

    parts:    before, text, after
    field:    names the text in messages
    truncate: whether the text may be cut
    return:   at most context_tokens ids
    raises:   ContextLengthError when something would have to be cut that may not be
    """
    before, text, after = parts
    num_tokens = len(before) + len(text) + len(after)
    if num_tokens <= context_tokens:
        return [*before, *text, *after]
    room = context_tokens - len(before) - len(after)
    if not truncate or room < 1:
        hint = "Shorten it" + (", or set truncate to have it cut." if room >= 1 else ".")
        raise ContextLengthError(num_tokens, context_tokens, field=field, hint=hint)
    return [*before, *text[:room], *after]


def ragged_steps(texts: Sequence[Sequence[int]], page_tokens: int, num_pages: int) -> Iterator[TokenBatch]:
    """Cut texts into steps of at most STEP_TOKENS tokens, several texts in a step; a text may go over several.

    texts:     ids, at least one each; every text fits into the pages
    num_pages: of the executor; all of them are used as if nobody else had any
    return:    batches that want the last token's row of each text that ends in them, in the order of the texts
    """
    position, done = 0, 0  # the text that comes next, and how much of it is computed
    held: list[int] = []  # its pages, if some is
    while position < len(texts):
        pieces: list[SequenceTokens] = []
        room, free = STEP_TOKENS, [page for page in range(num_pages) if page not in set(held)]
        while position < len(texts) and room:
            text = texts[position]
            needed = -(-len(text) // page_tokens)
            if not held:
                if needed > len(free):
                    break
                held, free = free[:needed], free[needed:]
            new = text[done : done + room]
            room -= len(new)
            ends = done + len(new) == len(text)
            pieces.append(SequenceTokens(new, done, held, (-1,) if ends else ()))
            position, done, held = (position + 1, 0, []) if ends else (position, done + len(new), held)
        assert pieces, "every text fits into the pages"
        yield pack(pieces)


def last_rows(
    executor: Executor, compute: Callable[[TokenBatch], NDArray[np.float32]], texts: Sequence[Sequence[int]], width: int
) -> NDArray[np.float32]:
    """Compute the last token's row of each text.

    executor: whose pages are used
    compute:  its step or hidden, or a part of what that returns: batch → a row for each that is wanted
    texts:    as for ragged_steps
    width:    of a row
    return:   [n, width] float32, a row for each text, in their order
    """
    rows = [compute(batch) for batch in ragged_steps(texts, executor.page_tokens, executor.num_pages)]
    return np.concatenate(rows) if rows else np.zeros((0, width), np.float32)
