"""The scripted executor itself: it says its script however the work is cut, and it notices wrong page tables."""

from __future__ import annotations

import numpy as np
import pytest

from kaishu.batch import SequenceTokens, pack
from tests.scripted import Script, ScriptedExecutor, state_of

END = 9


def executor(*answers: list[int]) -> ScriptedExecutor:
    return ScriptedExecutor(Script(answers, END), vocab_size=10, page_tokens=4, num_pages=8)


def next_tokens(scripted: ScriptedExecutor, *sequences: SequenceTokens) -> list[int]:
    return np.argmax(scripted.step(pack(sequences)), axis=-1).tolist()


def test_the_answer_follows_the_prompt_token_by_token_and_then_ends():
    scripted = executor([7, 8])
    assert next_tokens(scripted, SequenceTokens([1, 2, 3], 0, pages=[5])) == [7]
    assert next_tokens(scripted, SequenceTokens([7], 3, pages=[5])) == [8]
    assert next_tokens(scripted, SequenceTokens([8], 4, pages=[5, 2])) == [END]


def test_a_prompt_in_chunks_gets_the_same_answer():
    scripted = executor([7])
    scripted.step(pack([SequenceTokens([1, 2, 3, 4], 0, pages=[0], wants_logits=())]))
    assert next_tokens(scripted, SequenceTokens([5, 6], 4, pages=[0, 1])) == [7]


def test_two_sequences_in_one_step_have_their_own_answers():
    scripted = executor([7], [8])
    assert next_tokens(
        scripted, SequenceTokens([1, 2], 0, pages=[0]), SequenceTokens([3, 4, 5, 6, 1], 0, pages=[1, 2])
    ) == [7, 8]


def test_a_second_turn_that_extends_the_first_is_a_new_prompt():
    scripted = executor([7], [8])
    assert next_tokens(scripted, SequenceTokens([1, 2], 0, pages=[0])) == [7]
    assert next_tokens(scripted, SequenceTokens([1, 2, 7, END, 3], 0, pages=[1, 2])) == [8]


def test_recomputing_prompt_and_answer_after_a_preemption_goes_on_where_it_was():
    scripted = executor([7, 8, 6])
    assert next_tokens(scripted, SequenceTokens([1, 2], 0, pages=[0])) == [7]
    assert next_tokens(scripted, SequenceTokens([1, 2, 7, 8], 0, pages=[3])) == [6]


def test_the_hidden_state_is_that_of_the_whole_context_however_it_was_cut():
    scripted = executor()
    scripted.hidden(pack([SequenceTokens([1, 2, 3], 0, pages=[5], wants_logits=())]))
    found = scripted.hidden(pack([SequenceTokens([4, 5], 3, pages=[5, 1], wants_logits=(1, 0))]))
    assert found.tolist() == [state_of([1, 2, 3, 4, 5]).tolist(), state_of([1, 2, 3, 4]).tolist()]


@pytest.mark.parametrize(
    "wrong", [SequenceTokens([7], 4, pages=[0, 1]), SequenceTokens([7], 2, pages=[6]), SequenceTokens([7], 2, pages=[])]
)
def test_reading_what_was_never_computed_is_noticed(wrong):
    scripted = executor([7])
    scripted.step(pack([SequenceTokens([1, 2], 0, pages=[0])]))
    with pytest.raises(AssertionError):
        scripted.step(pack([wrong]))
