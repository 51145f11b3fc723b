"""The result types' few derived numbers."""

from __future__ import annotations

from dataclasses import FrozenInstanceError

import pytest

from kaishu.results import TextDelta, Timing, Usage


def test_speed_counts_the_tokens_after_the_first() -> None:
    assert Timing(first_token_seconds=3.0, decode_seconds=2.0, decoded_tokens=10).tokens_per_second == 5.0
    assert Timing(first_token_seconds=3.0, decode_seconds=0.0, decoded_tokens=0).tokens_per_second is None


def test_usage_adds_up() -> None:
    assert Usage(prompt_tokens=3, completion_tokens=4).total_tokens == 7


def test_results_are_frozen() -> None:
    with pytest.raises(FrozenInstanceError):
        TextDelta("a").text = "b"  # type: ignore[misc]
