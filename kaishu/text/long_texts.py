"""Texts that can't fit a context, refused or cut without tokenising all of them.

Owns how much of a text is looked at for this. To tokenise takes seconds for megabytes, and a request may bring these;
what is far too long is known after its beginning. Called wherever a text comes from a request: prompting.py,
embedding.py, reranking.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from kaishu.errors import ContextLengthError
from kaishu.text.template import RenderedPrompt
from kaishu.text.tokenizer import MAX_TEXT_CHARACTERS, Tokenizer

SPARE_TOKENS = 10_000  # beyond twice the context; up to there the error says how many tokens there are


def check_far_too_long(
    tokenizer: Tokenizer, text: str | RenderedPrompt, context_tokens: int, *, field: str = "prompt"
) -> None:
    """Refuse a text of which a beginning alone has more than twice the context's tokens.

    What follows a beginning can change its last token or two, never thousands. Texts that aren't long are not looked
    at; of others ever longer beginnings are, so the work is a few times what an allowed text may take.

    raises: ContextLengthError; InvalidRequestError as Tokenizer.encode
    """
    most_tokens = 2 * context_tokens + SPARE_TOKENS
    for length in _beginnings(len(text if isinstance(text, str) else text.text), most_tokens):
        if isinstance(text, str):
            ids = tokenizer.encode(text[:length])
        else:
            ids = tokenizer.encode_prompt(replace(text, text=text.text[:length]))
        if len(ids) > most_tokens:
            raise ContextLengthError(len(ids), context_tokens, field=field, is_whole=False)


def encode_beginning(encode: Callable[[str], list[int]], text: str, num_tokens: int) -> list[int]:
    """The ids of a text; of a long one those of a beginning, the first `num_tokens` of which are the whole text's.

    raises: as `encode`
    """
    for length in _beginnings(len(text), num_tokens + SPARE_TOKENS):
        ids = encode(text[:length])
        if len(ids) >= num_tokens + SPARE_TOKENS:
            return ids
    return encode(text)


def _beginnings(num_characters: int, num_tokens: int) -> Iterator[int]:
    """Lengths of ever longer beginnings, in characters."""
    length = 2 * num_tokens
    while length < num_characters <= MAX_TEXT_CHARACTERS:  # what is even longer is refused at once, by its characters
        yield length
        length *= 2
