"""Speculation: where guesses come from, how many pay, and that answers never depend on them."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kaishu.engine.speculation import LONGEST_MATCH, MOST_GUESSES, PAUSE_TOKENS, SHORTEST_MATCH, GuessCount, Guessing
from kaishu.engine.speculation import PromptLookup as Lookup
from kaishu.text.tokenizer import Tokenizer
from tests.engine.engine_runs import LivelyExecutor, core_of, job, lively, outcomes

TEXTS = st.lists(st.integers(0, 2), min_size=1, max_size=40)


def searched(token_ids: list[int], count: int) -> list[int]:
    """The definition: the longest of the last tokens that were there before, at the latest such place."""
    for length in range(LONGEST_MATCH, SHORTEST_MATCH - 1, -1):
        for end in range(len(token_ids) - 1, length - 1, -1):
            if len(token_ids) > length and token_ids[end - length : end] == token_ids[-length:]:
                repeated = token_ids[end:]
                while len(repeated) < count:
                    repeated = repeated + token_ids[end:]
                return repeated[:count]
    return []


@given(token_ids=TEXTS, cuts=st.lists(st.integers(1, 5), max_size=10), count=st.integers(1, 9))
def test_guesses_are_what_followed_the_same_tokens_before(token_ids: list[int], cuts: list[int], count: int) -> None:
    lookup, end = Lookup(), 0
    for cut in [*cuts, len(token_ids)]:
        end = min(end + cut, len(token_ids))
        if end:
            assert lookup.guess(token_ids[:end], count) == searched(token_ids[:end], count)


def test_new_text_has_no_guesses() -> None:
    assert Lookup().guess(list(range(50)), 5) == []


def test_right_guesses_are_followed_by_more_and_wrong_ones_by_fewer() -> None:
    good, bad = GuessCount(), GuessCount()
    first = good.count(1)
    for _ in range(30):
        good.saw(4, 4)
    for _ in range(3):
        bad.saw(4, 0)
    assert good.count(1) == MOST_GUESSES > first > bad.count(1)
    assert (good.guessed, good.accepted, bad.guessed, bad.accepted) == (120, 120, 12, 0)


def test_guessing_that_never_pays_is_given_up_and_tried_again_later() -> None:
    guessing, asked = GuessCount(), []
    for _ in range(10 * PAUSE_TOKENS):
        count = guessing.count(1)
        asked.append(count)
        guessing.saw(count, 0)
    assert sum(map(bool, asked)) <= 0.2 * len(asked) and any(asked[PAUSE_TOKENS:])


def test_the_more_decode_the_fewer_are_guessed() -> None:
    counts = [GuessCount().count(decoding) for decoding in range(1, 65)]
    assert counts == sorted(counts, reverse=True) and counts[0] > 0 == counts[-1]


def test_nothing_tried_changes_nothing() -> None:
    guessing = GuessCount()
    before = guessing.count(1)
    guessing.saw(0, 0)
    assert guessing.count(1) == before


def test_the_request_s_own_text_and_a_draft_are_judged_apart() -> None:
    guessing = Guessing(looks_up=True)
    text = [1, 2, 3, 4] * 3
    for _ in range(12):
        assert len(guessing.look_up(text, 1, 99)) in range(MOST_GUESSES + 1)
        guessing.saw(3, 0)
    assert guessing.look_up(text, 1, 99) == [] and guessing.num_drafted(1, 99) > 0
    guessing.saw(2, 2)
    assert (guessing.guessed, guessing.accepted) == (38, 2)


def test_no_more_is_guessed_than_there_is_room_for() -> None:
    guessing = Guessing(looks_up=True)
    text = [1, 2, 3, 4] * 3
    assert len(guessing.look_up(text, 1, 1)) == 1 and guessing.look_up(text, 1, 0) == []
    assert guessing.num_drafted(1, 1) == 1 and guessing.num_drafted(1, 0) == 0
    assert Guessing(looks_up=False).look_up(text, 1, 9) == []


@pytest.mark.parametrize("fields", [{}, {"temperature": 1.0}, {"temperature": 0.7, "top_p": 0.9, "logprobs": 3}])
def test_answers_with_guesses_are_the_same_bits_as_without(byte_tokenizer: Tokenizer, fields: dict[str, Any]) -> None:
    jobs = [job(byte_tokenizer.encode("abcd" * 4 + str(i)), seed=i, max_tokens=60, **fields) for i in range(12)]
    plain = core_of(lively(byte_tokenizer, num_pages=400), byte_tokenizer, speculation=False)
    guessing = core_of(lively(byte_tokenizer, num_pages=400), byte_tokenizer)
    found = [outcomes(guessing, [one])[0].comparable() for one in jobs]
    assert found == [outcomes(plain, [one])[0].comparable() for one in jobs]
    assert guessing.statistics().accepted > 20 and plain.statistics().guessed == 0
    assert guessing.statistics().steps < plain.statistics().steps


def test_guessed_samples_are_distributed_as_the_model_says(byte_tokenizer: Tokenizer) -> None:
    """Chi-square over the token after a guess that is often right: three tokens, each with the model's probability."""
    letters = byte_tokenizer.encode("ab")

    class Loop(LivelyExecutor):
        def row(self, context: Any) -> Any:
            logits = np.full(320, -np.inf, np.float32)
            logits[:282] = -40.0
            logits[letters[len(context) % 2]] = 1.0
            logits[letters[(len(context) + 1) % 2]] = 0.0
            return logits

    core = core_of(Loop(letters), byte_tokenizer)
    prompt = letters * 8
    jobs = [job(prompt, temperature=1.0, seed=seed, max_tokens=12) for seed in range(300)]
    found = [outcomes(core, [one])[0].choices[0].token_ids for one in jobs]
    assert core.statistics().guessed > 500
    expected = np.exp(1.0) / (np.exp(1.0) + 1.0)
    for place in range(12):
        counts = Counter(ids[place] for ids in found)
        likely = counts[letters[(len(prompt) + place) % 2]]
        chi_square = (likely - 300 * expected) ** 2 / (300 * expected * (1 - expected))
        assert chi_square < 15.1, f"one in 10,000 at place {place}"  # one degree of freedom
