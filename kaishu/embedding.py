"""Texts as vectors, in the way of Qwen3-Embedding (Zhang et al., 2025, arXiv:2506.05176).

Owns what such a model reads (a document as it is, a query behind its task, the end token after both), and what is made
of the last token's hidden state: cut to the dimensions wanted, then of unit length. So the inner product of two vectors
is their cosine. The engine makes steps of many texts. Called by llm.py.

Models are trained so that the first dimensions alone are an embedding, too ("Matryoshka"); so cutting comes first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kaishu.errors import InvalidParameterError, InvalidRequestError, NumericalError
from kaishu.many_texts import RowsOf, check_leaves_room, check_one, check_truth, checked_texts, fitted
from kaishu.text.long_texts import check_far_too_long, encode_beginning
from kaishu.text.tokenizer import Tokenizer

END_OF_TEXT = "<|endoftext|>"  # what Qwen's embedding models were trained to sum a text up in


def embed(
    rows_of: RowsOf,
    tokenizer: Tokenizer,
    texts: object,
    *,
    instruct: str | None,
    dimensions: int | None,
    hidden_size: int,
    context_tokens: int,
    truncate: bool,
) -> NDArray[np.float32]:
    """Embed texts; the arguments are those of LLM.embed, and what the model says of itself.

    rows_of:        hidden states, [n, D]
    hidden_size:    D
    context_tokens: how many tokens a text may have, the end token included
    return:         [n, D or dimensions] float32
    raises:         InvalidRequestError and its kinds; NumericalError
    """
    dimensions = checked_dimensions(dimensions, hidden_size)
    if instruct is not None:
        check_one("instruct", instruct)
    check_truth("truncate", truncate)
    ids = embedding_ids(
        tokenizer,
        checked_texts("texts", texts),
        instruct=instruct,
        context_tokens=context_tokens,
        truncate=truncate,
    )
    return unit_vectors(rows_of(ids), dimensions)


def checked_dimensions(dimensions: object, hidden_size: int) -> int:
    """How many dimensions an embedding keeps; None keeps all.

    raises: InvalidParameterError
    """
    if dimensions is None:
        return hidden_size
    if not isinstance(dimensions, int) or isinstance(dimensions, bool) or not 1 <= dimensions <= hidden_size:
        raise InvalidParameterError("dimensions", dimensions, f"a whole number from 1 to the model's {hidden_size:,}")
    return dimensions


def embedding_prompt(text: str, instruct: str | None) -> str:
    """What the model reads, without the end token.

    instruct: what is looked for, in a sentence, where the text is a query; None for a document
    """
    return text if instruct is None else f"Instruct: {instruct}\nQuery:{text}"


def end_ids(tokenizer: Tokenizer) -> list[int]:
    """What stands after every text: the last of these tokens has the state that is the embedding.

    return: what tokenizer.json puts after a text; where it says nothing, the token for a text's end
    raises: InvalidRequestError where there is none
    """
    after = tokenizer.ids_after_text()
    if after:
        return after
    end = tokenizer.control_tokens.get(END_OF_TEXT)
    if end is not None:
        return [end]
    if len(tokenizer.eos_token_ids) == 1:
        return list(tokenizer.eos_token_ids)
    raise InvalidRequestError(
        "This model's tokenizer has no token that ends a text, in which a text could be summed up.",
        field="model",
        hint="Use a model for embeddings, such as Qwen/Qwen3-Embedding-0.6B.",
    )


def embedding_ids(
    tokenizer: Tokenizer, texts: Sequence[str], *, instruct: str | None, context_tokens: int, truncate: bool
) -> list[list[int]]:
    """The ids that the model reads for each text; what looks like a control token in a text stays text.

    texts:          checked
    context_tokens: how many a text may have, the end token included
    truncate:       cut longer texts at their end, before the end token, instead of refusing them
    raises:         ContextLengthError naming the text that is too long, or the instruct that leaves no room for one
    """
    end = end_ids(tokenizer)
    if instruct is not None:
        before = embedding_prompt("", instruct)
        check_far_too_long(tokenizer, before, context_tokens, field="instruct")
        check_leaves_room(len(tokenizer.encode(before)) + len(end), context_tokens, field="instruct")
    for index, text in enumerate(() if truncate else texts):
        check_far_too_long(tokenizer, text, context_tokens, field=f"texts[{index}]")
    return [
        fitted(
            ([], encode_beginning(tokenizer.encode, embedding_prompt(text, instruct), context_tokens), end),
            context_tokens,
            field=f"texts[{index}]",
            truncate=truncate,
        )
        for index, text in enumerate(texts)
    ]


def unit_vectors(states: NDArray[np.float32], dimensions: int) -> NDArray[np.float32]:
    """Cut hidden states and scale them to unit length.

    states:     [n, D] float32
    dimensions: how many of D to keep, the first ones
    return:     [n, dimensions] float32
    raises:     NumericalError naming the text whose state is no number, or has no direction
    """
    kept: NDArray[Any] = states[:, :dimensions].astype(np.float64)  # [n, dimensions]
    lengths = np.sqrt(np.square(kept).sum(-1, keepdims=True))  # [n, 1]
    wrong = np.flatnonzero(~(np.isfinite(lengths) & (lengths > 0)))
    if len(wrong):
        raise NumericalError(
            f"The hidden state of texts[{wrong[0]}] is {'zero' if lengths[wrong[0]] == 0 else 'NaN or infinite'}, "
            "which has no direction: there is no embedding of it."
        )
    vectors: NDArray[np.float32] = (kept / lengths).astype(np.float32)
    return vectors
