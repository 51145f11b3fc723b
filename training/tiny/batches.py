"""Batches for training: conversations of one step, sorted by length and cut into blocks with little padding.

Padding is on the right, so causal attention needs no mask: a real token never looks at a padded one.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

import torch
from tokenizers import Tokenizer

from encode import Encoded, encode_many
from world import conversations, mixture_at

LENGTH_STEP = 8  # block lengths are multiples of this
PER_STEP, BLOCK_TOKENS = 48, 2048  # conversations of a step; tokens of a block, padding included
PREPARED = 16  # steps drawn and tokenised at once


@dataclass
class Block:
    """Conversations of similar length.

    ids:     [B, T] int64, padded on the right
    places:  [N] int64, indices into B*T whose next token is learnt
    targets: [N] int64, those next tokens
    """

    ids: torch.Tensor
    places: torch.Tensor
    targets: torch.Tensor


def make_block(items: list[Encoded], pad: int) -> Block:
    longest = max(len(item.ids) for item in items)
    length = -(-longest // LENGTH_STEP) * LENGTH_STEP
    ids = torch.full((len(items), length), pad)
    places, targets = [], []
    for row, item in enumerate(items):
        ids[row, : len(item.ids)] = torch.tensor(item.ids)
        for position in range(1, len(item.ids)):
            if item.learnt[position]:
                places.append(row * length + position - 1)
                targets.append(item.ids[position])
    return Block(ids, torch.tensor(places), torch.tensor(targets))


def blocks_of_step(items: list[Encoded], pad: int) -> list[Block]:
    """Longest first; a block is closed before it would exceed BLOCK_TOKENS with its padding, or waste much of it."""
    ordered = sorted(items, key=lambda item: -len(item.ids))
    blocks, current = [], []
    for item in ordered:
        is_full = current and (len(current) + 1) * len(current[0].ids) > BLOCK_TOKENS
        is_shorter = (
            current
            and len(item.ids) * 1.3 < len(current[0].ids)
            and len(current) * len(current[0].ids) > BLOCK_TOKENS // 4
        )
        if is_full or is_shorter:
            blocks.append(make_block(current, pad))
            current = []
        current.append(item)
    return [*blocks, make_block(current, pad)]


def steps(tokenizer: Tokenizer, seed: int, start: int, total: int) -> Iterator[list[Block]]:
    """The seeded steps of a run of `total`, from step `start` on, prepared sixteen at a time."""
    pad = tokenizer.token_to_id("<|endoftext|>")
    rng = random.Random(seed * 1_000_003 + start)
    for first in range(start, total, PREPARED):
        source = conversations(rng, mixture_at(first / total))
        items = encode_many(tokenizer, list(islice(source, PER_STEP * PREPARED)))
        for place in range(0, len(items), PER_STEP):
            yield blocks_of_step(items[place : place + PER_STEP], pad)
