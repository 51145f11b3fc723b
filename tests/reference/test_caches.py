"""The ladder: recomputed = contiguous = paged, explicit = fused, whole = cut up in any way, on ragged batches."""

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kaishu.batch import SequenceTokens, pack
from kaishu.errors import OutOfMemoryError
from kaishu.reference.caches import ContiguousCache, PagedCache, RecomputeCache
from tests.reference.parity import our_logits, random_ids

KINDS = ["dense_tied", "moe", "sliding_window", "odd_head_dim"]


def assert_close(found, expected):
    """Both differ by float32 rounding of logits up to 18: over 2,400 sequences 3.6e-5 at most, root mean square 5.5e-6;
    a wrong key changes whole rows, by far more."""
    assert found.shape == expected.shape
    difference = (found - expected).double()
    assert difference.abs().max() < 1e-4
    assert difference.square().mean().sqrt() < 1e-5


def run_in_steps(model, cache, sequences, cuts, pages=None):
    """All logits of several sequences of equal standing, each cut at its own places; step i runs every i-th piece.

    A sequence with fewer pieces is absent from later steps; with a ContiguousCache, row b must stay sequence b.
    """
    pieces = [list(zip([0, *cut], [*cut, len(ids)], strict=True)) for ids, cut in zip(sequences, cuts, strict=True)]
    logits = [[] for _ in sequences]
    for number in range(max(map(len, pieces))):
        present = [b for b in range(len(sequences)) if number < len(pieces[b])]
        step = []
        for b in present:
            start, end = pieces[b][number]
            own = pages[b] if pages else ()
            step.append(SequenceTokens(sequences[b][start:end], start, own, wants_logits=range(end - start)))
        found = model.forward(pack(step), cache)
        lengths = [len(sequence.token_ids) for sequence in step]
        for b, part in zip(present, found.split(lengths), strict=True):
            logits[b].append(part)
    return [torch.cat(parts) for parts in logits]


def poisoned(cache):
    """A cache full of NaN, so that reading what was never written shows."""
    cache.keys.fill_(torch.nan)
    cache.values.fill_(torch.nan)
    return cache


@pytest.mark.parametrize("attention", ["explicit", "sdpa"])
@pytest.mark.parametrize("kind", KINDS)
def test_every_cache_gives_the_logits_of_no_cache(kind, attention, tiny_model):
    model = tiny_model(kind, attention=attention)
    ids = random_ids(model.config.vocab_size, 40)
    expected = our_logits(tiny_model(kind, attention="explicit"), ids)
    one_by_one = [list(range(1, 40))]
    contiguous = poisoned(ContiguousCache(model, capacity_tokens=40))
    paged = poisoned(PagedCache(model, num_pages=10, page_tokens=8))
    for found in (
        our_logits(model, ids),
        *run_in_steps(model, contiguous, [ids], one_by_one),
        *run_in_steps(model, paged, [ids], one_by_one, pages=[[7, 2, 9, 0, 5]]),
    ):
        assert_close(found, expected)


@st.composite
def ragged_sequences(draw):
    """One to four sequences, how each is cut into steps, the page size and a shuffled order of pages."""
    lengths = draw(st.lists(st.integers(1, 40), min_size=1, max_size=4))
    cuts = [sorted(draw(st.sets(st.integers(1, n - 1), max_size=5))) if n > 1 else [] for n in lengths]
    page_tokens = draw(st.sampled_from([1, 4, 16]))
    needed = [-(-n // page_tokens) for n in lengths]
    order = draw(st.permutations(range(sum(needed) + 2)))
    ends = np.cumsum(needed)
    pages = [order[end - n : end] for n, end in zip(needed, ends, strict=True)]
    return lengths, cuts, page_tokens, pages, draw(st.integers(0, 1000))


@pytest.mark.parametrize("kind", ["dense_tied", "moe", "sliding_window"])
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(case=ragged_sequences())
def test_any_ragged_split_over_pages_equals_each_sequence_whole(kind, case, tiny_model):
    lengths, cuts, page_tokens, pages, seed = case
    model = tiny_model(kind, attention="sdpa" if seed % 2 else "explicit")
    sequences = [random_ids(model.config.vocab_size, n, seed + b) for b, n in enumerate(lengths)]
    cache = poisoned(PagedCache(model, num_pages=sum(map(len, pages)) + 2, page_tokens=page_tokens))
    found = run_in_steps(model, cache, sequences, cuts, pages)
    for ids, logits in zip(sequences, found, strict=True):
        assert_close(logits, our_logits(model, ids))


def test_a_ragged_batch_without_a_cache_equals_each_sequence_alone(tiny_model):
    model = tiny_model("dense_tied")
    sequences = [random_ids(320, n, n) for n in (3, 17, 1, 30)]
    for cache in (RecomputeCache(), ContiguousCache(model, capacity_tokens=30, sequences=4)):
        found = run_in_steps(model, cache, sequences, [[]] * 4)
        for ids, logits in zip(sequences, found, strict=True):
            assert_close(logits, our_logits(model, ids))


@pytest.mark.parametrize("paged", [True, False])
def test_a_step_may_start_again_from_an_earlier_position(paged, tiny_model):
    """As after rejected guesses: the keys of the guesses are overwritten, or lie beyond what is read."""
    model = tiny_model("dense_tied")
    ids, guesses = random_ids(320, 20), random_ids(320, 9, seed=5)
    cache = PagedCache(model, num_pages=4, page_tokens=8) if paged else ContiguousCache(model, capacity_tokens=32)
    model.forward(pack([SequenceTokens(ids[:12] + guesses, 0, cache.pages)]), cache)
    logits = model.forward(pack([SequenceTokens(ids[12:], 12, cache.pages, wants_logits=range(8))]), cache)
    assert_close(logits, our_logits(model, ids)[12:])


def test_sequences_may_share_the_pages_of_a_common_beginning(tiny_model):
    model = tiny_model("dense_tied")
    beginning, first, second = (random_ids(320, n, n) for n in (16, 5, 7))
    cache = PagedCache(model, num_pages=6, page_tokens=8)
    model.forward(pack([SequenceTokens(beginning, 0, [4, 1])]), cache)
    logits = model.forward(pack([SequenceTokens(first, 16, [4, 1, 0]), SequenceTokens(second, 16, [4, 1, 3])]), cache)
    assert_close(logits[0], our_logits(model, beginning + first)[-1])
    assert_close(logits[1], our_logits(model, beginning + second)[-1])


def test_a_page_written_in_a_step_can_be_read_by_another_sequence_in_the_same_step(tiny_model):
    model = tiny_model("dense_tied")
    ids = random_ids(320, 10)
    cache = poisoned(PagedCache(model, num_pages=3, page_tokens=8))
    reader, writer = SequenceTokens(ids[8:], 8, [2, 1]), SequenceTokens(ids[:8], 0, [2])
    logits = model.forward(pack([reader, writer]), cache)  # the reader comes first
    assert_close(logits[0], our_logits(model, ids)[-1])


def test_a_cache_that_keeps_nothing_refuses_to_start_in_the_middle(tiny_model):
    with pytest.raises(AssertionError, match="starts at position 0"):
        tiny_model("dense_tied").forward(pack([SequenceTokens([1, 2], 3)]), RecomputeCache())


def test_a_page_table_that_does_not_reach_is_refused(tiny_model):
    model = tiny_model("dense_tied")
    cache = PagedCache(model, num_pages=4, page_tokens=4)
    step = pack([SequenceTokens([1] * 6, 0, [2]), SequenceTokens([1] * 6, 0, [0, 1])])
    with pytest.raises(AssertionError, match="covers every position"):
        model.forward(step, cache)


def test_pages_take_memory_when_they_are_first_used_and_keep_what_they_hold(tiny_model):
    model = tiny_model("dense_tied")
    ids = random_ids(320, 80)
    cache = PagedCache(model, num_pages=10**9, page_tokens=1)  # would be terabytes if it were taken at once
    first = cache.keys.shape[1]
    pages = [position * 7 % 400 for position in range(80)]
    (found,) = run_in_steps(model, cache, [ids], [list(range(5, 80, 9))], pages=[pages])
    assert_close(found, our_logits(model, ids))
    assert first < 400 <= cache.keys.shape[1] < 2000


def test_memory_that_is_not_there_is_an_error_with_its_size(tiny_model):
    cache = PagedCache(tiny_model("dense_tied"), num_pages=2**40, page_tokens=16)
    with pytest.raises(OutOfMemoryError, match=r"keys and values need [\d,.]+ GB"):
        tiny_model("dense_tied").forward(pack([SequenceTokens([1], 0, [2**30])]), cache)
