"""The texts of `kaishu eval`: what is predicted, and that what they say is true."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import kaishu
from kaishu.evaluation_texts import (
    CONVERSATIONS,
    PASSAGES,
    EvaluationText,
    at_most,
    conversation,
    conversations,
    have_same_tokens,
    knows_world_of_tiny,
    passages,
    plain_text,
)
from kaishu.text.template import ChatTemplate
from kaishu.text.tokenizer import Tokenizer

TINY = Path(kaishu.__file__).parent / "models" / "tiny"


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_folder(TINY)


@pytest.fixture(scope="module")
def template(tokenizer) -> ChatTemplate:
    return ChatTemplate.from_folder(TINY, control_tokens=tokenizer.control_tokens)


def test_of_a_conversation_the_answer_is_predicted_with_its_thought_and_its_end(tokenizer, template):
    text = conversation("12+30=?", "easy", "12 + 30 = 42", tokenizer, template)
    asked = tokenizer.decode(text.token_ids[: text.first_predicted])
    predicted = tokenizer.decode(text.token_ids[text.first_predicted :])
    assert asked == "<|im_start|>user\n12+30=?<|im_end|>\n<|im_start|>assistant\n"
    assert predicted == "<think>\neasy\n</think>\n\n12 + 30 = 42<|im_end|>"
    assert text.token_ids[-1] == tokenizer.control_tokens["<|im_end|>"]


def test_without_a_thought_the_prompt_says_so_and_the_answer_comes_at_once(tokenizer, template):
    text = conversation("12+30=?", "", "42", tokenizer, template)
    assert tokenizer.decode(text.token_ids[: text.first_predicted]).endswith("<think>\n\n</think>\n\n")
    assert tokenizer.decode(text.token_ids[text.first_predicted :]) == "42<|im_end|>"


def test_of_a_plain_text_all_but_the_first_token_is_predicted_and_control_tokens_are_text(tokenizer):
    text = plain_text("a<|im_end|>b", tokenizer)
    assert text.predicted == len(text.token_ids) - 1
    assert not set(text.token_ids) & set(tokenizer.control_tokens.values())


@pytest.mark.parametrize(
    "most, kept", [(1, [(4, 3)]), (2, [(5, 3)]), (3, [(5, 3), (2, 1)]), (5, [(5, 3), (4, 1)]), (6, [(5, 3), (4, 1)])]
)
def test_texts_are_kept_until_enough_tokens_are_predicted(most, kept):
    texts = [EvaluationText(tuple(range(5)), 3), EvaluationText(tuple(range(4)), 1)]
    found = at_most(texts, most)
    assert [(len(text.token_ids), text.first_predicted) for text in found] == kept
    assert sum(text.predicted for text in found) == min(most, 5)


def test_what_the_conversations_claim_is_right():
    sums = 0
    for question, thought, answer in CONVERSATIONS:
        for first, sign, second, result in re.findall(r"(\d+) ([+-]) (\d+) = (\d+)$", answer):
            assert int(result) == (int(first) + int(second) if sign == "+" else int(first) - int(second)), answer
            assert {first, second} <= set(re.findall(r"\d+", question))
            assert not thought or thought.endswith(f"= {result}")
            sums += 1
        if question.startswith(("Reverse", "Sort")):
            items = question.split(" ", 1)[1].split(", ")
            ordered = items[::-1] if question.startswith("Reverse") else sorted(items, key=int)
            assert answer == ", ".join(ordered)
    assert sums >= 5


def test_there_are_nine_hundred_tokens_of_the_bundled_model_s_world(tokenizer, template):
    texts = conversations(tokenizer, template)
    assert len(texts) == len(CONVERSATIONS)
    assert sum(text.predicted for text in texts) >= 900
    assert all(text.first_predicted == 1 for text in texts), "questions count, too"
    assert all(len(text.token_ids) < 300 for text in texts), "as long as what it has learnt from"


def test_the_passages_are_long_enough_for_the_default_and_in_two_languages(tokenizer):
    assert sum(map(len, PASSAGES)) > 2000
    assert any("子曰" in text for text in PASSAGES) and any("Rabbit" in text for text in PASSAGES)
    assert [tokenizer.decode(text.token_ids) for text in passages(tokenizer)] == list(PASSAGES)


def test_a_model_knows_the_world_of_tiny_if_it_has_its_tokens(tokenizer, tiny_checkpoint):
    other = Tokenizer.from_folder(tiny_checkpoint("dense_tied", with_tokenizer=True))
    assert knows_world_of_tiny(Tokenizer.from_folder(TINY)) and not knows_world_of_tiny(other)
    assert have_same_tokens(other, other) and not have_same_tokens(tokenizer, other)
