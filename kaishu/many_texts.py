"""Many texts that are read, each for its last token's row: checked, and cut to fit or refused.

Owns what embedding and reranking have in common: which texts a caller may give and how long they may be. Knows nothing
of prompts or of what a row means. Used by embedding.py and reranking.py; the engine computes the rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set

import numpy as np
from numpy.typing import NDArray

from kaishu.errors import ContextLengthError, InvalidParameterError, InvalidRequestError
from kaishu.text.tokenizer import check_text

RowsOf = Callable[[Sequence[Sequence[int]]], NDArray[np.float32]]
"""For each of many token sequences, the row of its last token."""


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


def check_leaves_room(num_tokens: int, context_tokens: int, *, field: str) -> None:
    """Refuse what stands beside every text where it leaves no token for one, so that cutting would leave nothing.

    raises: ContextLengthError
    """
    if num_tokens >= context_tokens:
        raise ContextLengthError(
            num_tokens, context_tokens, field=field, hint="Shorten it: each text stands beside it."
        )


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
