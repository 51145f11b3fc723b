"""Requests take turns, and one that comes too early is told so."""

from __future__ import annotations

import pytest

from kaishu.errors import InvalidRequestError
from kaishu.turns import Turns


def test_the_next_turn_begins_when_the_last_has_ended():
    turns = Turns()
    for _ in range(2):
        with turns:
            pass


def test_a_turn_within_another_is_refused_and_the_first_goes_on():
    turns = Turns()
    with turns:
        for _ in range(2):
            with pytest.raises(InvalidRequestError, match="still answering another request"), turns:
                pass
    with turns:
        pass


def test_a_turn_that_fails_ends_too():
    turns = Turns()
    with pytest.raises(LookupError), turns:
        raise LookupError
    with turns:
        pass
