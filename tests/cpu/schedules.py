"""Random schedules: which tokens of which texts go into which step, and into which pages.

Owns the drawing and the bookkeeping of pages, as an engine would do it: texts arrive in any order, their prompts are
cut anywhere, whole pages of a common beginning are shared, pages are handed out in any order and given back. Knows
nothing of models. test_executor.py runs them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from hypothesis import strategies as st

from kaishu.batch import SequenceTokens, pack

Step = Callable[[object], np.ndarray]


@dataclass
class Text:
    """One text on its way through an executor.

    name:     whose logits it should have
    pages:    its pages so far
    computed: how many of its tokens have been through
    """

    name: int
    ids: Sequence[int]
    pages: list[int] = field(default_factory=list)
    computed: int = 0

    @property
    def is_done(self) -> bool:
        return self.computed == len(self.ids)


@dataclass
class PagePool:
    """Free pages, handed out in the order of a shuffle; how many texts hold each page."""

    free: list[int]
    holders: dict[int, int] = field(default_factory=dict)

    def take(self) -> int:
        page = self.free.pop()
        self.holders[page] = 1
        return page

    def share(self, page: int) -> int:
        self.holders[page] += 1
        return page

    def give_back(self, pages: Sequence[int]) -> None:
        for page in pages:
            self.holders[page] -= 1
            if not self.holders[page]:
                self.free.insert(0, page)


def run_schedule(
    data: st.DataObject,
    texts: Sequence[Sequence[int]],
    step: Step,
    *,
    num_pages: int,
    page_tokens: int,
    check: Callable[[int, int, np.ndarray], None],
) -> None:
    """Draw a schedule and run it.

    texts: of which some (or one several times) are drawn
    step:  the executor's
    check: called with a text's number, a position and the logits there, for every row that was asked for
    """
    pool = PagePool(data.draw(st.permutations(range(num_pages)), label="order of pages"))
    names = data.draw(st.lists(st.sampled_from(range(len(texts))), min_size=2, max_size=4), label="texts")
    waiting, present = [Text(name, texts[name]) for name in names], []
    while waiting or present:
        if waiting and (not present or data.draw(st.booleans(), label="one arrives")):
            arrived = waiting.pop()
            _share_beginning(arrived, present, pool, page_tokens)
            present.append(arrived)
        now = data.draw(st.permutations(present), label="order in the step")
        now = now[: data.draw(st.integers(1, len(now)), label="how many")]
        pieces = [_next_piece(data, text, pool, page_tokens) for text in now]
        logits = iter(step(pack(pieces)))
        for text, piece in zip(now, pieces, strict=True):
            for index in piece.wants_logits:
                check(text.name, piece.start + index, next(logits))
            text.computed += len(piece.token_ids)
            if text.is_done:
                pool.give_back(text.pages)
                present.remove(text)
        assert not list(logits)


def _share_beginning(text: Text, others: Sequence[Text], pool: PagePool, page_tokens: int) -> None:
    """Take over the pages of the longest common beginning that another text has computed, but never the last token."""
    best, source = 0, None
    for other in others:
        same = 0
        while same < min(other.computed, len(text.ids) - 1) and other.ids[same] == text.ids[same]:
            same += 1
        if same // page_tokens > best:
            best, source = same // page_tokens, other
    if source is not None:
        text.pages = [pool.share(page) for page in source.pages[:best]]
        text.computed = best * page_tokens


def _next_piece(data: st.DataObject, text: Text, pool: PagePool, page_tokens: int) -> SequenceTokens:
    left = len(text.ids) - text.computed
    # Decoding one by one, a few (as when guesses are verified), the sizes around a page, or as much as there is.
    sizes = st.sampled_from([1, 2, 3, 5, 8, page_tokens - 1, page_tokens, page_tokens + 1, 100, left])
    count = min(left, data.draw(sizes, label="tokens"))
    while len(text.pages) * page_tokens < text.computed + count:
        text.pages.append(pool.take())
    wanted = data.draw(st.sampled_from([(), (count - 1,), (0, count - 1), tuple(range(count))]), label="logits")
    ids = text.ids[text.computed : text.computed + count]
    return SequenceTokens(ids, text.computed, tuple(text.pages), wanted)
