"""Which tokens may not come next: ids without a token, end tokens that are too early, and what a grammar rules out.

Owns how these rules meet. A grammar's word is final: where min_tokens or ignore_eos forbid every token that the grammar
allows, they give way, because the text can't go on but by ending. Asked by sampler.py before anything is chosen.
"""

from __future__ import annotations

from collections.abc import Collection, Set

import numpy as np
from numpy.typing import NDArray

from kaishu.errors import NumericalError
from kaishu.sampling.logit_row import Float32Row, Ids
from kaishu.sampling.params import SamplingParams

FEW = 4096  # tokens; so few are written into an empty row one by one

Mask = NDArray[np.uint32] | NDArray[np.int32]


class ForbiddenTokens:
    """The tokens that one request's rules forbid.

    params:        min_tokens, ignore_eos and stop_token_ids are read
    num_token_ids: ids from here on are rows of the head without a token
    absent_ids:    smaller ids without a token
    end_token_ids: the model's end tokens
    """

    def __init__(
        self,
        params: SamplingParams,
        *,
        num_token_ids: int,
        absent_ids: Collection[int],
        end_token_ids: Collection[int],
    ) -> None:
        self._min_tokens = params.min_tokens
        self._num_token_ids = num_token_ids
        absent = {i for i in absent_ids if i < num_token_ids}
        ends = {i for i in end_token_ids if i < num_token_ids}
        self.absent: Ids = _sorted(absent)
        self._early: Ids = _sorted(absent | ends | set(params.stop_token_ids))
        self._later: Ids = _sorted(absent | ends) if params.ignore_eos else self.absent
        self._early_set, self._later_set = frozenset(self._early.tolist()), frozenset(self._later.tolist())

    def without_mask(self, num_taken: int) -> Set[int]:
        """The tokens that are forbidden where no grammar has a say; arguments as for `rule`."""
        return self._early_set if num_taken < self._min_tokens else self._later_set

    def rule(self, num_taken: int, mask: Mask | None) -> TokensLeft:
        """What is left to choose from.

        num_taken: tokens in the output so far
        mask:      [W] uint32 or int32, W ≥ V/32; bit i % 32 of word i // 32 says whether a grammar allows token i
        raises:    NumericalError if nothing is left
        """
        forbidden = self._early if num_taken < self._min_tokens else self._later
        if mask is None:
            count = self._num_token_ids - len(forbidden)
            if count == 0:
                raise NumericalError("Every token is forbidden by min_tokens, ignore_eos and stop_token_ids together.")
            return TokensLeft(count, forbidden, None, self._num_token_ids)
        allowed = self._unpacked(mask)
        allowed[self.absent] = False
        strictly = allowed.copy()
        strictly[forbidden] = False
        count = int(np.count_nonzero(strictly))
        if count == 0:
            strictly, count = allowed, int(np.count_nonzero(allowed))
        if count == 0:
            raise NumericalError("The output format allows no token here, so none can be chosen.")
        return TokensLeft(count, forbidden, strictly, self._num_token_ids)

    def _unpacked(self, mask: Mask) -> NDArray[np.bool_]:
        assert mask.ndim == 1 and mask.dtype.itemsize == 4 and 32 * len(mask) >= self._num_token_ids
        # Little-endian words, so that bit i of the bytes is token i.
        as_bytes = np.ascontiguousarray(mask).astype(mask.dtype.newbyteorder("<"), copy=False).view(np.uint8)
        return np.unpackbits(as_bytes, count=self._num_token_ids, bitorder="little").view(np.bool_)


class TokensLeft:
    """The tokens that may come next: `count` of them.

    forbidden: [N] int64, the tokens that may not come; they matter where `allowed` is None
    allowed:   [V] bool, the tokens that may come; None: all but the forbidden ones
    """

    def __init__(self, count: int, forbidden: Ids, allowed: NDArray[np.bool_] | None, num_token_ids: int) -> None:
        self.count = count
        self._forbidden, self._allowed, self._num_token_ids = forbidden, allowed, num_token_ids

    @property
    def is_every_token(self) -> bool:
        """Whether nothing is forbidden."""
        return self.count == self._num_token_ids

    @property
    def is_all_but_a_few(self) -> bool:
        """Whether `few_forbidden` says all; else `keep` is needed."""
        return self._allowed is None

    @property
    def few_forbidden(self) -> Ids:
        """[N] int64: the tokens that may not come, if those are all but a few; otherwise none."""
        return self._forbidden if self._allowed is None else _sorted(set())

    def are_forbidden(self, ids: Ids) -> NDArray[np.bool_]:
        """For each token whether it may not come."""
        return np.isin(ids, self._forbidden) if self._allowed is None else ~self._allowed[ids]

    def only_one(self) -> int:
        """The token, where there is only one."""
        assert self.count == 1
        if self._allowed is not None:
            return int(self._allowed.argmax())
        return int(np.setdiff1d(np.arange(self._num_token_ids), self._forbidden)[0])

    def keep(self, logits: Float32Row) -> Float32Row:
        """A copy of a row of logits, -inf where no token may come.

        logits: [V] float32
        return: [V] float32
        """
        if self._allowed is None:
            kept = logits.copy()
            kept[self._forbidden] = -np.inf
        elif self.count <= FEW:
            kept = np.full(len(logits), -np.inf, np.float32)
            few = np.flatnonzero(self._allowed)
            kept[few] = logits[few]
        else:
            # Bits of float32: 0xff800000 is -inf, 0 is 0. Ten times faster than choosing by the mask.
            bits = (self._allowed.view(np.int8).astype(np.int32) - 1) & np.int32(-0x800000)
            kept = np.add(logits, bits.view(np.float32))
        return kept


def _sorted(ids: set[int]) -> Ids:
    return np.array(sorted(ids), np.int64)
