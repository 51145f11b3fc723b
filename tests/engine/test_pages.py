"""The pages' bookkeeping against a plain model: who holds what, what may be found again, what is given up first."""

from __future__ import annotations

import hashlib
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from kaishu.engine import pages as pages_module
from kaishu.engine.pages import PagePool, page_keys

TOKENS = st.lists(st.integers(0, 1), min_size=1, max_size=9)


class PoolMachine(RuleBasedStateMachine):
    """Sequences come, compute their pages one by one, offer them, and go; each finds only what was really computed."""

    @initialize(num_pages=st.integers(1, 12), page_tokens=st.integers(1, 3), warm=st.none() | st.integers(0, 14))
    def make(self, num_pages: int, page_tokens: int, warm: int | None) -> None:
        self.pool = PagePool(num_pages, page_tokens, warm_pages=warm)
        self.sequences: list[SimpleNamespace] = []
        self.contents: dict[int, tuple[bytes, tuple[int, ...]]] = {}  # of a page: the tag and all tokens up to its end

    @rule(token_ids=TOKENS, tag=st.sampled_from([b"", b"other"]))
    def start(self, token_ids: list[int], tag: bytes) -> None:
        pool, size = self.pool, self.pool.page_tokens
        keys = page_keys(token_ids, size, tag)
        found = pool.find(keys, token_ids)
        for index, page in enumerate(found):
            assert self.contents[page] == (tag, tuple(token_ids[: (index + 1) * size]))
        available = pool.num_available
        pool.hold(found)
        wanted = -(-len(token_ids) // size) - len(found)
        held = {page for sequence in self.sequences for page in sequence.pages} | set(found)
        taken = pool.take(wanted)
        if taken is None:
            assert wanted > pool.num_available
            pool.release(found)
            assert pool.num_available == available
            return
        assert len(set(taken)) == wanted and not held & set(taken)
        for page in taken:
            self.contents.pop(page, None)
        self.sequences.append(
            SimpleNamespace(token_ids=token_ids, tag=tag, keys=keys, pages=found + taken, computed=len(found))
        )

    @rule(data=st.data())
    def compute_a_page(self, data: Any) -> None:
        size = self.pool.page_tokens
        unfinished = [one for one in self.sequences if one.computed < len(one.token_ids) // size]
        if not unfinished:
            return
        one = data.draw(st.sampled_from(unfinished))
        index = one.computed
        self.contents[one.pages[index]] = one.tag, tuple(one.token_ids[: (index + 1) * size])
        self.pool.publish(one.pages[index], one.keys[index], one.token_ids[index * size : (index + 1) * size])
        one.computed += 1
        found = self.pool.find(one.keys, one.token_ids)
        assert not found or self.contents[found[0]] == (one.tag, tuple(one.token_ids[:size]))

    @rule(data=st.data())
    def leave(self, data: Any) -> None:
        if self.sequences:
            one = data.draw(st.sampled_from(self.sequences))
            self.sequences.remove(one)
            self.pool.release(one.pages)

    @rule()
    def forget_all(self) -> None:
        self.pool.forget_all()
        assert self.pool.num_cached == 0

    @invariant()
    def every_page_is_where_it_should_be(self) -> None:
        self.pool.check_invariants()
        counts = [0] * self.pool.num_pages
        for sequence in self.sequences:
            for page in sequence.pages:
                counts[page] += 1
        assert self.pool.holders == counts
        assert self.pool.num_held == sum(map(bool, counts))
        assert self.pool.num_available == self.pool.num_pages - self.pool.num_held

    def teardown(self) -> None:
        if hasattr(self, "pool"):
            for sequence in self.sequences:
                self.pool.release(sequence.pages)
            self.pool.check_invariants()
            assert self.pool.num_held == 0 and self.pool.take(self.pool.num_pages) is not None


TestPool = PoolMachine.TestCase
TestPool.settings = settings(max_examples=200, stateful_step_count=40, deadline=None)


def computed(pool: PagePool, token_ids: list[int], tag: bytes = b"") -> list[int]:
    """The pages of a text, held, all of its full ones offered."""
    size = pool.page_tokens
    keys = page_keys(token_ids, size, tag)
    pages = pool.take(-(-len(token_ids) // size))
    assert pages is not None
    for index, key in enumerate(keys):
        pool.publish(pages[index], key, token_ids[index * size : (index + 1) * size])
    return pages


def found(pool: PagePool, token_ids: list[int], tag: bytes = b"") -> list[int]:
    return pool.find(page_keys(token_ids, pool.page_tokens, tag), token_ids)


def test_a_longer_text_finds_the_full_pages_of_its_beginning() -> None:
    pool = PagePool(8, 2)
    pages = computed(pool, [1, 2, 3, 4, 5])
    assert found(pool, [1, 2, 3, 4, 9, 9]) == pages[:2] == found(pool, [1, 2, 3, 4])
    assert found(pool, [1, 2, 3]) == pages[:1] and found(pool, [1]) == [] == found(pool, [2, 1, 3, 4])
    assert found(pool, [9, 9, 3, 4]) == []  # the same page after another beginning is another page


def test_a_text_of_another_tag_finds_nothing() -> None:
    pool = PagePool(8, 2)
    pages = computed(pool, [1, 2, 3, 4], b"mine")
    assert found(pool, [1, 2, 3, 4], b"yours") == [] and found(pool, [1, 2, 3, 4], b"mine") == pages


def test_known_keys_are_gone_on_from() -> None:
    token_ids = list(range(11))
    whole = page_keys(token_ids, 3, b"tag")
    assert len(whole) == 3 and len(set(whole)) == 3
    for count in range(4):
        assert page_keys(token_ids, 3, b"tag", whole[:count]) == whole
    assert page_keys(token_ids[:9], 3, b"tag") == whole == page_keys(token_ids, 3, b"tag", whole)


def test_keys_are_those_of_sha256() -> None:
    first = hashlib.sha256(
        hashlib.sha256(b"kaishu pages" + b"t").digest()
        + (258).to_bytes(8, "little")
        + (1).to_bytes(8, "little")
    ).digest()  # fmt: skip
    assert page_keys([258, 1], 2, b"t") == [first]


def test_a_collision_of_hashes_gives_no_wrong_page(monkeypatch: pytest.MonkeyPatch) -> None:
    same: Any = lambda _: SimpleNamespace(digest=lambda: b"the same")  # noqa: E731
    monkeypatch.setattr(pages_module.hashlib, "sha256", same)
    pool = PagePool(8, 2)
    pages = computed(pool, [1, 2])
    assert page_keys([1, 2], 2, b"") == page_keys([3, 4], 2, b"x") and found(pool, [1, 2]) == pages
    assert found(pool, [3, 4]) == []
    other = computed(pool, [3, 4])  # its key is taken: it isn't indexed, and the first one still is
    assert found(pool, [3, 4]) == [] and found(pool, [1, 2]) == pages
    pool.release(other)
    pool.release(pages)
    pool.check_invariants()


def test_what_is_not_offered_is_not_found_and_is_free_when_it_is_released() -> None:
    pool = PagePool(2, 2)
    pages = pool.take(2)
    assert pages is not None and found(pool, [1, 2]) == []
    pool.release(pages)
    assert (pool.num_cached, pool.num_available, pool.num_held) == (0, 2, 0)


def test_the_page_released_longest_ago_is_given_up_first_and_of_one_text_the_last() -> None:
    pool = PagePool(4, 1)
    old, new = computed(pool, [1, 2]), computed(pool, [3, 4])
    pool.release(old)
    pool.release(new)
    assert pool.take(1) == [old[1]] and found(pool, [1, 2]) == [old[0]]
    pool.hold(found(pool, [1]))  # used again: now it is the newest
    pool.release([old[0]])
    assert pool.take(1) == [new[1]] and pool.take(1) == [new[0]] and pool.take(1) == [old[0]]
    assert found(pool, [1]) == [] == found(pool, [3])


def test_a_page_held_by_two_stays_until_both_have_left() -> None:
    pool = PagePool(2, 2)
    pages = computed(pool, [1, 2])
    pool.hold(pages)
    pool.release(pages)
    assert pool.num_held == 1 and pool.take(2) is None
    pool.release(pages)
    assert (pool.num_held, pool.num_cached) == (0, 1)


def test_a_second_page_of_the_same_text_changes_nothing_and_is_free_afterwards() -> None:
    pool = PagePool(3, 2)
    first, second = computed(pool, [1, 2]), computed(pool, [1, 2])
    assert found(pool, [1, 2]) == first != second
    pool.release(second)
    assert pool.num_cached == 0 and found(pool, [1, 2]) == first


@pytest.mark.parametrize(("warm", "expected"), [(None, [2, 3]), (3, [2, 1]), (1, [1, 0])])
def test_beyond_the_warm_pages_cached_ones_are_given_up_before_unused_ones_are_touched(
    warm: int | None, expected: list[int]
) -> None:
    pool = PagePool(4, 1, warm_pages=warm)
    pool.release(computed(pool, [1, 2]))  # pages 0 and 1, cached; 2 and 3 were never used
    assert [pool.take(1) for _ in range(2)] == [[page] for page in expected]
    assert pool.take(2) is not None and pool.take(1) is None  # all pages can be had if they are needed


def test_after_forgetting_held_pages_stay_held_and_nothing_is_found() -> None:
    pool = PagePool(4, 1)
    held, cached = computed(pool, [1, 2]), computed(pool, [3])
    pool.release(cached)
    pool.forget_all()
    pool.check_invariants()
    assert found(pool, [1, 2]) == [] == found(pool, [3]) and pool.num_held == 2 and pool.num_cached == 0
    pool.release(held)
    assert pool.num_cached == 0 and pool.num_available == 4
