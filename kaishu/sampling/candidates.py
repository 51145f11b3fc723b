"""Which tokens of a row may be drawn, and drawing one of them.

Owns temperature, top-k, top-p and min-p. The definition, which tests/sampling/definition.py writes out plainly:

1. Sort the tokens, likeliest first, equal logits by id. A token's weight is exp((logit - highest) / temperature).
2. top-k keeps the first k.
3. top-p keeps a token if those before it have less than the share p of what top-k left, and always the first.
4. min-p keeps a token if its weight is at least p; the likeliest token's weight is 1.
5. Draw a token that was kept, with probability proportional to its weight.

Every rule keeps a beginning of the sorted list, so the order of 2 and 4 doesn't matter for what is kept, and often a
short beginning is all that must be looked at. Where it isn't, because nothing was cut or because top-p's edge depends
on the sum of all weights, a token is proposed cheaply and kept or thrown away by the definition (rejection sampling,
von Neumann, 1951): the result has exactly the distribution above, and most draws never need the sum. Called by
sampler.py for each draw; where a few tokens are all that matters, listed.py draws.
"""

from __future__ import annotations

import math

import numpy as np

from kaishu.batch import BLOCK_TOKENS
from kaishu.sampling.listed import MOST_LISTED, Rules, draw_listed
from kaishu.sampling.logit_row import LikeliestTokens, LogitRow, Values
from kaishu.sampling.mass import Mass

GROWTH = 16
BLIND_PROPOSALS = 16  # a few microseconds; to look at all blocks takes some fifty
# Proposals from all tokens are inside top-p this often at least; with a smaller top_p the edge is looked for first.
SMALLEST_SHARE_TO_PROPOSE_FROM_ALL = 0.5


def drawn(row: LogitRow, rules: Rules, random: np.random.Generator) -> int:
    """One token of a row, in whichever way is the shortest; arguments as for Candidates."""
    likeliest = _first_look(row, rules)
    if rules.keep_a_list and len(likeliest.ids) <= MOST_LISTED:
        return draw_listed(likeliest.ids.tolist(), likeliest.values.tolist(), rules, random)
    return Candidates(row, rules, likeliest).draw(random)


class Candidates:
    """The tokens of one row that may be drawn.

    row:       the logits after biases, penalties and whatever forbids tokens
    rules:     temperature above 0
    likeliest: the row's, as far as they are known already
    """

    def __init__(self, row: LogitRow, rules: Rules, likeliest: LikeliestTokens | None = None) -> None:
        self._top_p = rules.top_p
        likeliest = _first_look(row, rules) if likeliest is None else likeliest
        mass = Mass(row, likeliest, rules.temperature)
        if likeliest.is_all:
            # Nothing outside the list counts, so that top-p's edge is known at once.
            kept = _inside_top_p(mass, mass.of_likeliest, rules.top_p)
            self._edge_is_known = self._only_listed = True
        else:
            while rules.top_p < SMALLEST_SHARE_TO_PROPOSE_FROM_ALL and rules.min_p == 0.0:
                if likeliest.is_all or _inside_top_p(mass, mass.bound(), rules.top_p) < len(likeliest.ids):
                    break
                likeliest = row.likeliest(GROWTH * len(likeliest.ids))
                mass = Mass(row, likeliest, rules.temperature)
            kept = len(likeliest.ids)
            if rules.top_p < 1.0:
                kept = _inside_top_p(mass, mass.bound(), rules.top_p)
            self._edge_is_known = rules.top_p == 1.0
            self._only_listed = likeliest.is_all or rules.min_p > 0.0 or kept < len(likeliest.ids)
        if rules.min_p > 0.0:
            kept = min(kept, int((mass.weights >= rules.min_p).sum()))
        self._mass, self._likeliest, self._kept = mass, likeliest, kept

    def __contains__(self, token_id: int) -> bool:
        """Whether a token may be drawn, exactly."""
        found = np.flatnonzero(self._likeliest.ids == token_id)
        return self._holds(token_id, int(found[0]) if len(found) else None)

    def draw(self, random: np.random.Generator) -> int:
        """Draw one token.

        random: where the numbers come from; how many are used depends on the row
        """
        while True:
            token_id, position = self._propose_listed(random) if self._only_listed else self._propose(random)
            if self._edge_is_known or self._holds(token_id, position):
                return token_id

    def _holds(self, token_id: int, position: int | None) -> bool:
        if self._only_listed and (position is None or position >= self._kept):
            return False
        if position is None and self._mass.row.forbids(token_id):
            return False
        if self._edge_is_known or position == 0:
            return True
        for bounds in self._mass.around(token_id, position):
            if bounds.likelier[1] < self._top_p * bounds.total[0]:
                return True
            if bounds.likelier[0] >= self._top_p * bounds.total[1]:
                return False
        raise AssertionError("the last bounds are exact")

    def _propose_listed(self, random: np.random.Generator) -> tuple[int, int]:
        """One of the first `_kept` tokens, by weight, and its position."""
        cumulative = self._mass.cumulative[: self._kept]
        position = _place(cumulative, random.random() * float(cumulative[-1]))
        return int(self._likeliest.ids[position]), position

    def _propose(self, random: np.random.Generator) -> tuple[int, int | None]:
        """One of all tokens, by weight, and its position if it is among the likeliest."""
        found = self._propose_blindly(random)
        return self._propose_from_blocks(random) if found is None else found

    def _propose_blindly(self, random: np.random.Generator) -> tuple[int, int | None] | None:
        """As `_propose`, under the simplest envelope: the others are below the likeliest tokens' limit.

        It costs nothing to make, and holds often enough where the likeliest have much of the mass, or all have much the
        same. return: None after some proposals that were thrown away, which says nothing of the next
        """
        mass, likeliest, logits = self._mass, self._likeliest, self._mass.row.row
        if len(mass.row.apart_ids):
            return None
        highest, temperature, limit = mass.row.highest, mass.temperature, likeliest.limit
        ceiling = math.exp((limit - highest) / temperature)
        listed, num_tokens = mass.of_likeliest, len(logits)
        total = listed + num_tokens * ceiling
        for place, which, height in random.random((BLIND_PROPOSALS, 3)).tolist():  # one call is cheaper than three
            if place * total < listed:
                position = _place(mass.cumulative, place * total)
                return int(likeliest.ids[position]), position
            token_id = int(which * num_tokens)
            value = float(logits[token_id])  # -inf where no token may come: its weight is zero
            if value < limit and height * ceiling < math.exp((value - highest) / temperature):
                return token_id, None
        return None

    def _propose_from_blocks(self, random: np.random.Generator) -> tuple[int, int | None]:
        """As `_propose`, under a closer envelope.

        The likeliest tokens have their weights; every block has BLOCK_TOKENS times its ceiling, which is an envelope
        over its tokens: choose a block, then one of its tokens blindly, and keep it as often as its weight reaches the
        ceiling.
        """
        mass, row = self._mass, self._mass.row
        ceilings, apart = mass.ceilings(), mass.apart().cumsum()
        listed, envelope = mass.of_likeliest, mass.envelope()
        listed_or_apart = listed + (float(apart[-1]) if len(apart) else 0.0)
        total = listed_or_apart + float(envelope[-1])
        while True:
            drawn = random.random() * total
            if drawn < listed:
                position = _place(mass.cumulative, drawn)
                return int(self._likeliest.ids[position]), position
            if drawn < listed_or_apart:
                return int(row.apart_ids[_place(apart, drawn - listed)]), None
            block = _place(envelope, drawn - listed_or_apart)
            token_id = block * BLOCK_TOKENS + int(random.random() * BLOCK_TOKENS)
            if token_id >= len(row.row):
                continue  # the last block may be shorter
            value = float(row.row[token_id])
            if value >= self._likeliest.limit or value == -np.inf:
                continue  # listed already, or this token may not come
            if random.random() * float(ceilings[block]) < math.exp((value - row.highest) / mass.temperature):
                return token_id, None


def _first_look(row: LogitRow, rules: Rules) -> LikeliestTokens:
    if rules.top_k > 0:
        return row.likeliest(rules.top_k).first(rules.top_k)
    if rules.min_p > 0.0:
        return row.at_least(rules.lowest(row.highest))
    return row.first_look()


def _inside_top_p(mass: Mass, total: float, top_p: float) -> int:
    """How many of the likeliest tokens are inside top-p if the mass of all is `total`; at least one."""
    if top_p >= 1.0:
        return len(mass.weights)
    before = mass.cumulative - mass.weights
    return max(1, int((before < top_p * total).sum()))


def _place(cumulative: Values, drawn: float) -> int:
    """The first index whose cumulative weight exceeds `drawn`; one that has a weight, whatever was rounded."""
    limit = math.nextafter(cumulative[-1], 0.0)
    return int(cumulative.searchsorted(min(drawn, limit), side="right"))
