"""Pages of the KV cache: who holds which, and which of them can be used again because they begin like a new request.

Owns the bookkeeping of page numbers, reference counts and the index of prefixes. Knows whole numbers and bytes only:
the pages' contents are the executor's. Called by scheduler.py.

A page is always in one of three states:

    held     by one or more sequences; never touched by anybody else
    cached   by nobody, but its contents are indexed: a new sequence that begins with them can hold it again
    free     by nobody, and its contents mean nothing

Full pages are indexed by a chain of hashes: a page's key is the SHA-256 of the page's tokens and of the key of the page
before it, so a key stands for everything from the first token on; the first key begins with a tag, which stands for
whatever else the contents depend on. The tokens are compared as well. A page is indexed only by `publish`, which is
called once its contents are computed; when pages run out, the cached one that was released longest ago is taken.
"""

from __future__ import annotations

import hashlib
from array import array
from collections import OrderedDict, deque
from collections.abc import Iterable, Sequence

Key = bytes


class PagePool:
    """All pages of one executor.

    num_pages:   numbered from 0
    page_tokens: p, positions a page
    warm_pages:  memory is taken when a page is first written; until so many pages were ever used, unused ones are
                 preferred to giving up cached ones, and after that it is the other way round; None: no limit
    """

    def __init__(self, num_pages: int, page_tokens: int, *, warm_pages: int | None = None) -> None:
        self.num_pages, self.page_tokens = num_pages, page_tokens
        self._warm_pages = num_pages if warm_pages is None else min(max(warm_pages, 1), num_pages)
        self._holders = [0] * num_pages
        self._free: deque[int] = deque()  # used before
        self._unused = 0  # pages from here on were never used
        self._cached: OrderedDict[int, None] = OrderedDict()  # released longest ago first
        self._page_of: dict[Key, int] = {}
        self._keys: list[Key | None] = [None] * num_pages
        self._tokens: dict[int, array[int]] = {}

    @property
    def num_available(self) -> int:
        """How many pages could be taken now."""
        return len(self._free) + self.num_pages - self._unused + len(self._cached)

    @property
    def num_cached(self) -> int:
        """How many pages nobody holds, whose contents can be used again."""
        return len(self._cached)

    @property
    def holders(self) -> list[int]:
        """By how many sequences each page is held."""
        return list(self._holders)

    @property
    def num_held(self) -> int:
        """How many pages somebody holds."""
        return self.num_pages - self.num_available

    def take(self, count: int) -> list[int] | None:
        """Hold `count` pages whose contents mean nothing; None, and nothing changes, if there aren't so many."""
        if count > self.num_available:
            return None
        return [self._take_one() for _ in range(count)]

    def _take_one(self) -> int:
        if self._free:
            page = self._free.popleft()
        elif self._unused < (self._warm_pages if self._cached else self.num_pages):
            page, self._unused = self._unused, self._unused + 1
        else:
            page, _ = self._cached.popitem(last=False)
            self._forget(page)
        self._holders[page] = 1
        return page

    def hold(self, pages: Iterable[int]) -> None:
        """Hold pages that are held or cached."""
        for page in pages:
            assert self._holders[page] or page in self._cached, f"page {page} means nothing"
            self._cached.pop(page, None)
            self._holders[page] += 1

    def release(self, pages: Sequence[int]) -> None:
        """Hold pages no longer. The last ones become the first to be given up: what comes earlier is shared by more."""
        for page in reversed(pages):
            assert self._holders[page] > 0, f"page {page} isn't held"
            self._holders[page] -= 1
            if not self._holders[page]:
                if self._keys[page] is None:
                    self._free.append(page)
                else:
                    self._cached[page] = None

    def find(self, keys: Sequence[Key], token_ids: Sequence[int]) -> list[int]:
        """The pages of the longest known beginning; they aren't held yet.

        keys:      of the sequence's full pages, from the first on
        token_ids: of the sequence
        """
        pages: list[int] = []
        for index, key in enumerate(keys):
            page = self._page_of.get(key)
            own = token_ids[index * self.page_tokens : (index + 1) * self.page_tokens]
            if page is None or self._tokens[page] != array("q", own):
                break
            pages.append(page)
        return pages

    def publish(self, page: int, key: Key, token_ids: Sequence[int]) -> None:
        """Say that a held page is computed, and stands for `key`. Where another page does already, nothing happens."""
        assert self._holders[page] and len(token_ids) == self.page_tokens, "full pages, while somebody holds them"
        if self._keys[page] is None and key not in self._page_of:
            self._keys[page], self._page_of[key], self._tokens[page] = key, page, array("q", token_ids)

    def forget_all(self) -> None:
        """Give up everything that is indexed. Held pages stay with their holders."""
        for page in list(self._page_of.values()):
            self._forget(page)
        self._free.extend(self._cached)
        self._cached.clear()

    def _forget(self, page: int) -> None:
        key = self._keys[page]
        assert key is not None, "only published pages are indexed"
        del self._page_of[key], self._tokens[page]
        self._keys[page] = None

    def check_invariants(self) -> None:
        """Every page is in exactly one state, and the index knows the pages that it should."""
        free, cached = set(self._free), set(self._cached)
        held = {page for page, count in enumerate(self._holders) if count}
        unused = set(range(self._unused, self.num_pages))
        assert all(count >= 0 for count in self._holders)
        assert len(free) == len(self._free), "no page is free twice"
        assert sum(map(len, (free, cached, held, unused))) == self.num_pages
        assert free | cached | held | unused == set(range(self.num_pages))
        published = {page for page, key in enumerate(self._keys) if key is not None}
        assert published == set(self._page_of.values()) == set(self._tokens)
        assert all(self._keys[page] == key for key, page in self._page_of.items())
        assert cached <= published and not published & (free | unused)


def page_tag(model_tag: bytes, salt: str) -> bytes:
    """What the contents of a request's pages depend on beside its tokens. Requests of another salt share none."""
    return model_tag + b"\0" + salt.encode()


def page_keys(token_ids: Sequence[int], page_tokens: int, tag: bytes, known: Sequence[Key] = ()) -> list[Key]:
    """The keys of a sequence's full pages.

    tag:   what the contents depend on beside the tokens
    known: the keys of the first pages, so that they needn't be computed again
    """
    keys = list(known)
    before = keys[-1] if keys else hashlib.sha256(b"kaishu pages" + tag).digest()
    for start in range(len(keys) * page_tokens, len(token_ids) - page_tokens + 1, page_tokens):
        own = array("q", token_ids[start : start + page_tokens]).tobytes()
        before = hashlib.sha256(before + own).digest()
        keys.append(before)
    return keys
