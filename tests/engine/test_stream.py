"""A stream: events in order, each read once, an error after them."""

from __future__ import annotations

import pytest

from kaishu.engine.stream import Stream, TextPiece


def test_events_are_read_once_and_in_order() -> None:
    stream = Stream(7)
    pieces = [TextPiece(0, text, ()) for text in "abc"]
    for piece in pieces[:2]:
        stream.add(piece)
    assert stream.take() == pieces[:2] and stream.take() == []
    stream.add(pieces[2])
    stream.end()
    assert stream.number == 7 and stream.is_over and stream.take() == pieces[2:] and stream.take() == []


def test_an_error_comes_after_all_events_and_again_every_time() -> None:
    stream = Stream(0)
    stream.add(TextPiece(0, "a", (1,)))
    stream.end(MemoryError("none left"))
    assert len(stream.take()) == 1
    for _ in range(2):
        with pytest.raises(MemoryError, match="none left"):
            stream.take()


def test_the_first_end_counts_and_nothing_follows_it() -> None:
    stream = Stream(0)
    stream.end()
    stream.end(MemoryError())
    assert stream.error is None and stream.take() == []
    with pytest.raises(AssertionError, match="nothing follows the end"):
        stream.add(TextPiece(0, "", ()))
