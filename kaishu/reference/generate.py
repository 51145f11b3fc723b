"""The loop that writes a text, in its clearest form.

Owns the order: feed what the model hasn't seen, choose a token, stop or go on. Knows nothing of text, requests or
sampling: tokens are ids, and the choice is the caller's. For reading and for tests; kaishu.LLM runs the same idea for
many requests through an Executor.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence

import torch
from torch import Tensor

from kaishu.batch import SequenceTokens, pack
from kaishu.reference.caches import Cache
from kaishu.reference.model import Model


def greedy(logits: Tensor) -> int:
    """The likeliest token.

    logits: [V] float, the scores of one position
    """
    return int(logits.argmax())


def generate(
    model: Model,
    prompt: Sequence[int],
    cache: Cache,
    *,
    max_tokens: int,
    end_tokens: Collection[int] | None = None,
    choose: Callable[[Tensor], int] = greedy,
) -> Iterator[int]:
    """Continue a prompt token by token, until an end token (which is not yielded) or `max_tokens`.

    prompt:     token ids, at least one
    cache:      RecomputeCache() feeds the whole text each time; any other cache, only what is new
    end_tokens: which ids end the text; None for the model's own
    choose:     from [V] logits to a token id
    return:     the new token ids, as they come
    """
    end_tokens = model.config.eos_token_ids if end_tokens is None else end_tokens
    tokens, seen = list(prompt), 0
    for _ in range(max_tokens):
        with torch.inference_mode():
            batch = pack([SequenceTokens(tokens[seen:], start=seen, pages=cache.pages)])
            logits = model.forward(batch, cache)[-1]  # [V]
        seen = len(tokens) if cache.remembers else 0
        token = choose(logits)
        if token in end_tokens:
            return
        yield token
        tokens.append(token)
