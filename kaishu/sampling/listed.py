"""Drawing one of a few tokens that are all listed, likeliest first.

Owns the rules of candidates.py for the case that a row's likeliest tokens are all that must be known: under top-k, and
under min-p without top-p. In plain Python, because for some twenty tokens each call of numpy takes longer than the
arithmetic. Called by candidates.py with what it found in a row, and by sampler.py with what the executor found: the
same tokens lead to the same draw.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

MOST_LISTED = 64  # with more, numpy is faster


@dataclass(frozen=True)
class Rules:
    """What a request asks for, with neutral values filled in: top_k 0, top_p 1 and min_p 0 keep everything."""

    temperature: float
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0

    @property
    def keep_a_list(self) -> bool:
        """Whether what may be drawn is the beginning of a list that the rules alone bound: the mass of tokens that
        aren't in it doesn't matter."""
        return self.top_k > 0 or (self.min_p > 0.0 and self.top_p == 1.0)

    def lowest(self, highest: float) -> float:
        """A logit that everything reaches that min_p keeps; a few others may, too.

        highest: the largest logit
        """
        # A little lower than needed, because the rule itself is applied to weights, which are rounded.
        reach = self.temperature * math.log(self.min_p)
        slack = 1e-9 * (abs(highest) + abs(reach)) + 1e-15 * self.temperature
        return highest + reach - slack


def beginning(logits: Sequence[float], rules: Rules, *, are_all: bool) -> int | None:
    """How many of a row's likeliest tokens `draw_listed` needs.

    logits:  of the likeliest tokens, at least one
    are_all: whether no other token may come
    return:  None if the list doesn't suffice
    """
    if not rules.keep_a_list:
        return None
    if rules.top_k > 0:
        wanted = min(rules.top_k, len(logits)) if are_all else rules.top_k
    else:
        lowest = rules.lowest(logits[0])
        wanted = sum(logit >= lowest for logit in logits)
        if wanted == len(logits) and not are_all:
            return None
    return wanted if wanted <= min(len(logits), MOST_LISTED) else None


def draw_listed(ids: Sequence[int], logits: Sequence[float], rules: Rules, random: np.random.Generator) -> int:
    """Draw one of the tokens that top-k or min-p has left.

    ids:    likeliest first, equal ones by id
    logits: theirs
    random: where the one number comes from
    """
    highest, temperature = logits[0], rules.temperature
    weights = [math.exp((logit - highest) / temperature) for logit in logits]
    cumulative = list(accumulate(weights))
    kept = len(weights)
    if rules.top_p < 1.0:
        edge = rules.top_p * cumulative[-1]
        kept = max(1, sum(up_to - own < edge for up_to, own in zip(cumulative, weights, strict=True)))
    if rules.min_p > 0.0:
        kept = min(kept, sum(weight >= rules.min_p for weight in weights))
    total = cumulative[kept - 1]
    # Below the total, whatever was rounded, so that a token is found and has a weight.
    drawn = min(random.random() * total, math.nextafter(total, 0.0))
    return ids[bisect_right(cumulative, drawn, 0, kept)]
