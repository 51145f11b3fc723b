"""What a rendering may spend. How templates spend it is tested in test_sandbox.py."""

from __future__ import annotations

import pytest

from kaishu.text.budget import Budget, TooMuchError

SPENT = Budget(0, cpu_seconds=-1.0)


def budget(input_characters: int = 0) -> Budget:
    return Budget(input_characters, cpu_seconds=600)


@pytest.mark.parametrize(
    "step", [SPENT.spend, lambda: SPENT.hold(0), lambda: SPENT.measure(1), lambda: SPENT.search("a", "b")]
)
def test_every_question_asks_whether_time_is_left(step):
    with pytest.raises(TooMuchError, match="it computes for more than"):
        step()


@pytest.mark.parametrize("input_characters, allowed", [(0, 1_000_000), (1000, 1_008_000)])
def test_what_may_be_written_grows_with_what_was_given(input_characters, allowed):
    budget(input_characters).hold(allowed)
    with pytest.raises(TooMuchError, match=f"more than {allowed:,} characters"):
        budget(input_characters).hold(allowed + 1)


@pytest.mark.parametrize(
    "value, size",
    [
        *[("abc", 3), (5, 8), (["ab", "c"], 3), (("ab", ["c"]), 3), ({"ab": "c"}, 3), ({"ab": {"c": None}}, 11)],
        *[({"ab": "c"}.keys(), 2), ({"ab": "c"}.values(), 1), ({"ab": "c"}.items(), 3)],
    ],
)
def test_values_are_about_as_long_as_they_are_written(value, size):
    assert budget().measure(value) == size


def test_lists_within_lists_count_as_often_as_they_are_written():
    value: list[object] = ["x"]
    for _ in range(60):
        value = [value, value]
    small = budget()
    small.characters = 10_000  # so that it is soon found
    with pytest.raises(TooMuchError, match="a text of more than 10,000"):
        small.measure(value)


def test_searches_are_bounded_by_the_product_of_the_lengths():
    budget().search("x" * 5_000_000, "</think>")
    budget().search("x" * 7000, "y" * 7000)
    with pytest.raises(TooMuchError, match="a long text in a long text"):
        budget().search("x" * 7100, "y" * 7100)
    budget(10_000).search("x" * 7100, "y" * 7100)


def test_numbers_are_bounded_and_other_values_are_not_numbers():
    for value in (2**4096 - 1, -(2**4095), 1e300, "9" * 5000, True, None):
        budget().number(value)
    for value in (2**4096, -(2**4096)):
        with pytest.raises(TooMuchError, match="large numbers"):
            budget().number(value)
