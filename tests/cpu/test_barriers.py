"""Every piece of work is claimed once, and nobody passes a barrier before all have come."""

from __future__ import annotations

import os

import numpy as np
import pytest
from numba import njit

from kaishu.cpu.barriers import barrier, claim, claim_near, claim_two, comes_last, own_share, release
from kaishu.cpu.records import address
from kaishu.cpu.threads import COUNTERS, LINE, Ranks, shared_state


@pytest.fixture(params=[1, 2, 3, 4])
def ranks(request):
    started = Ranks(request.param)
    yield started
    started.close()


@njit(nogil=True)
def take_all(shared, stage, total, at_once, taken, mark):
    first = claim(shared, stage, at_once)
    while first < total:
        for piece in range(first, min(total, first + at_once)):
            taken[piece] += mark
        first = claim(shared, stage, at_once)


@njit(nogil=True)
def take_near(rank, ranks, shared, total, at_once, taken, runs):
    """runs: how many runs this rank got that don't begin where its last one ended"""
    end, (first, last) = -1, claim_near(rank, ranks, shared, 1, at_once, total)
    while first < total:
        for piece in range(first, last):
            taken[piece] += 1
        runs[rank] += first != end
        end, (first, last) = last, claim_near(rank, ranks, shared, 1, at_once, total)


@njit(nogil=True)
def take_two(rank, ranks, shared, total, at_once, are_two, taken, odd):
    """odd: how many runs this rank got that break what claim_two promises"""
    first, last, other_first, other_last = claim_two(rank, ranks, shared, 1, at_once, total, are_two)
    while first < total:
        for piece in range(first, last):
            taken[piece] += 1
        for piece in range(other_first, other_last):
            taken[piece] += 1
        odd[rank] += not (0 < last - first <= at_once and other_last - other_first <= last - first)
        odd[rank] += not are_two and other_first < other_last
        odd[rank] += first % 2 + (other_first % 2 if other_first < other_last else 0)
        first, last, other_first, other_last = claim_two(rank, ranks, shared, 1, at_once, total, are_two)
    odd[rank] += not (first == last == other_first == other_last == total)


@njit
def share(rank, ranks, total):
    return own_share(rank, ranks, total)


@njit
def two(rank, ranks, shared, total):
    return claim_two(rank, ranks, shared, 1, 4, total, True)


@njit(nogil=True)
def count_alone(shared, ranks, rounds, counter, seen):
    """The last rank counts, with no other protection; all see what it left."""
    for turn in range(1, rounds + 1):
        if comes_last(shared, ranks):
            counter[0] += 1
            release(shared, ranks)
        if counter[0] < turn:
            seen[0] += 1
        barrier(shared, ranks)


@njit(nogil=True)
def pass_on(shared, ranks, rank, rounds, notes, wrong):
    """In every round each rank writes a note, and after the barrier reads all the others'."""
    for turn in range(1, rounds + 1):
        notes[rank * 8] = turn
        barrier(shared, ranks)
        for other in range(ranks):
            if notes[other * 8] != turn:
                wrong[rank] += 1
        barrier(shared, ranks)


def test_every_piece_is_claimed_exactly_once(ranks):
    shared = shared_state(2, 4)
    take_all(address(shared), 1, 0, 1, np.zeros(1, np.int64), 1)  # compiled, so that ranks begin together
    for total in (0, 1, 7, 20_000):
        for at_once in (1, 2, 7):
            shared, taken = shared_state(3, 4), np.zeros(max(1, total), np.int64)
            ranks.run(lambda rank: take_all(address(shared), 1, total, at_once, taken, 1))  # noqa: B023
            assert (taken[:total] == 1).all()
            assert not shared[COUNTERS + 2 * LINE], "stages have counters of their own"


def test_every_piece_near_or_far_is_claimed_exactly_once(ranks):
    take_near(0, 1, address(shared_state(3, 1)), 0, 1, np.zeros(1, np.int64), np.zeros(1, np.int64))  # compiled
    for total in (0, 1, 7, 20_000):
        for at_once in (2, 4):
            shared, taken = shared_state(3, ranks.count), np.zeros(max(1, total), np.int64)
            runs = np.zeros(ranks.count, np.int64)
            ranks.run(lambda rank: take_near(rank, ranks.count, address(shared), total, at_once, taken, runs))  # noqa: B023
            assert (taken[:total] == 1).all()


def test_two_runs_at_once_are_claimed_exactly_once_and_lie_half_a_share_apart(ranks):
    take_two(0, 1, address(shared_state(3, 1)), 0, 2, True, np.zeros(1, np.int64), np.zeros(1, np.int64))  # compiled
    for total in (0, 1, 2, 6, 7, 30, 1000, 20_000):
        for at_once, are_two in ((2, True), (4, True), (14, True), (4, False)):
            shared, taken = shared_state(3, ranks.count), np.zeros(max(1, total), np.int64)
            odd = np.zeros(ranks.count, np.int64)
            ranks.run(lambda rank: take_two(rank, ranks.count, address(shared), total, at_once, are_two, taken, odd))  # noqa: B023
            assert (taken[:total] == 1).all() and not odd.any()
    first, last, other_first, other_last = two(
        0, ranks.count, address(shared_state(3, ranks.count)), 1000 * ranks.count
    )
    assert (first, last, other_first, other_last) == (0, 4, 500, 504)


def test_a_rank_alone_takes_its_own_share_in_one_run_and_then_the_others(ranks):
    """The other ranks never come: as if their cores were busy with something else."""
    total, taken, runs = 1000, np.zeros(1000, np.int64), np.zeros(ranks.count, np.int64)
    take_near(ranks.count - 1, ranks.count, address(shared_state(3, ranks.count)), total, 2, taken, runs)
    assert (taken == 1).all()
    assert runs.tolist() == [0] * (ranks.count - 1) + [min(ranks.count, 2)], "its own, then the others' from 0 on"


@pytest.mark.parametrize("total", [0, 1, 2, 3, 10, 11, 1000])
@pytest.mark.parametrize("count", [1, 2, 3, 4, 16])
def test_shares_follow_each_other_and_begin_with_even_pieces(count, total):
    shares = [share(rank, count, total) for rank in range(count)]
    assert shares[0][0] == 0 and shares[-1][1] == total
    assert all(start % 2 == 0 for start, _ in shares)
    pieces = [piece for start, end in shares for piece in range(start, end)]
    assert pieces == list(range(total))
    assert max(end - start for start, end in shares) <= total // count + 3


def test_the_last_rank_works_alone_and_the_others_see_it(ranks):
    shared, counter, seen = shared_state(1, ranks.count), np.zeros(1, np.int64), np.zeros(1, np.int64)
    count_alone(address(shared_state(1, 1)), 1, 0, counter, seen)  # compiled
    ranks.run(lambda rank: count_alone(address(shared), ranks.count, 500, counter, seen))
    assert counter[0] == 500 and not seen[0]


def test_nobody_passes_a_barrier_before_all_have_come_even_on_fewer_cores_than_ranks(ranks):
    shared, notes = shared_state(1, 4), np.zeros(8 * ranks.count, np.int64)
    pass_on(address(shared), 1, 0, 1, np.zeros(8, np.int64), np.zeros(1, np.int64))  # compiled
    wrong, rounds = np.zeros(ranks.count, np.int64), 500
    ranks.run(lambda rank: pass_on(address(shared), ranks.count, rank, rounds, notes, wrong))
    assert not wrong.any()
    assert (notes[::8] == rounds).all()


def test_four_ranks_on_one_core_finish():
    allowed, rounds = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None, 1000
    if allowed:
        os.sched_setaffinity(0, {min(allowed)})
    ranks = Ranks(4)  # threads inherit the affinity
    try:
        shared, notes, wrong = shared_state(1, 4), np.zeros(32, np.int64), np.zeros(4, np.int64)
        pass_on(address(shared), 1, 0, 1, np.zeros(8, np.int64), np.zeros(1, np.int64))  # compiled
        ranks.run(lambda rank: pass_on(address(shared), 4, rank, rounds, notes, wrong))
    finally:
        if allowed:
            os.sched_setaffinity(0, allowed)
        ranks.close()
    assert not wrong.any() and (notes[::8] == rounds).all()


def test_a_waiting_rank_gives_its_core_away():
    """Without that, every barrier of four ranks on one core takes whole turns of the system's scheduler."""
    shared = shared_state(1, 4)
    pass_on(address(shared), 1, 0, 1, np.zeros(8, np.int64), np.zeros(1, np.int64))
    (code,) = pass_on.inspect_llvm().values()
    assert "call i32 @sched_yield()" in code or "call i32 @SwitchToThread()" in code
