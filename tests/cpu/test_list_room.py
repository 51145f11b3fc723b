"""Room for lists: a list is nobody else's, what doesn't fit is seen. test_likeliest.py has what is found."""

from __future__ import annotations

import numpy as np

from kaishu.cpu.list_room import LISTED, ListRoom


def test_it_fits_as_many_rows_or_fewer_of_the_same_tokens() -> None:
    room = ListRoom(3, 1000)
    assert room.fits(3, 1000) and room.fits(1, 1000)
    assert not room.fits(4, 1000) and not room.fits(1, 999)


def test_lists_stay_when_the_room_is_used_again() -> None:
    room = ListRoom(2, 1000)
    room.ask_for([4, 1])
    assert room._wanted.tolist() == [4, 1]
    room._finite[:], room._ids[:], room._values[:], room._maxima[:] = 1, 7, 0.5, 2
    first, second = room.found(2)
    assert first.maxima.tolist() == second.maxima.tolist() == [2] * 16
    room._ids[:], room._values[:] = 0, 0
    for found in (first, second):
        assert found.is_finite and found.ids.tolist() == [7] * LISTED and found.logits.tolist() == [0.5] * LISTED
    assert first.ids.dtype == np.int64 and first.logits.dtype == np.float64


def test_fewer_rows_and_fewer_tokens_have_shorter_lists_and_a_row_that_is_not_finite_has_none() -> None:
    room = ListRoom(5, 3)
    room._finite[:2] = 1, 0
    found = room.found(2)
    assert [one.is_finite for one in found] == [True, False]
    assert len(found[0].ids) == len(found[0].logits) == 3
