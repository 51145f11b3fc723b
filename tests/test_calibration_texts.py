"""Kaishu's texts to calibrate with: apart from those that are measured with, and read by the models they are for."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path

import pytest

import kaishu
from kaishu.calibration_texts import at_most, pages, windows, world_of_tiny
from kaishu.evaluation_texts import CONVERSATIONS, PASSAGES
from kaishu.text.template import ChatTemplate
from kaishu.text.tokenizer import Tokenizer

TINY = Path(kaishu.__file__).parent / "models" / "tiny"
OWN = files("kaishu.calibration_texts")


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_folder(TINY)


def test_no_conversation_has_a_question_or_an_answer_that_is_measured_with():
    measured = {text for question, _, answer in CONVERSATIONS for text in (question, answer)}
    rows = [json.loads(line) for line in OWN.joinpath("tiny.jsonl").read_text(encoding="utf-8").splitlines()]
    said = {message["content"].strip() for row in rows for message in row.get("messages", ())}
    assert len(rows) >= 100 and len(said) > 200
    assert not measured & said


def test_no_page_shares_a_line_of_words_with_the_passages_that_are_measured_with():
    def runs(text: str) -> set[str]:
        letters = "".join(letter for letter in text.lower() if letter.isalnum())
        return {letters[i : i + 24] for i in range(len(letters) - 23)} | {
            letters[i : i + 8] for i in range(len(letters) - 7) if letters[i] > "\u3000"
        }

    ours = runs(OWN.joinpath("pages.txt").read_text(encoding="utf-8"))
    assert len(ours) > 5000
    assert not ours & set().union(*map(runs, PASSAGES))


def test_the_world_of_tiny_is_rendered_as_the_model_has_learnt_it(tokenizer):
    template = ChatTemplate.from_folder(TINY, control_tokens=tokenizer.control_tokens)
    texts = [tokenizer.decode(ids) for ids in world_of_tiny(tokenizer, template)]
    assert sum(len(tokenizer.encode(text, allow_control=True)) for text in texts) > 10_000
    assert sum("<tool_call>\n" in text for text in texts) > 5 and sum("# Tools" in text for text in texts) > 5
    assert sum("<think>\nones:" in text or "<think>\n个位:" in text for text in texts) > 10
    assert all(text.startswith("<|im_start|>") == ("<|im_end|>" in text) for text in texts)
    assert any("<|im_start|>" not in text for text in texts), "stories"


def test_pages_are_several_thousand_characters_in_two_languages(tokenizer):
    found = [tokenizer.decode(ids) for ids in pages(tokenizer)]
    assert len(found) > 10 and sum(map(len, found)) > 8000
    assert any("Ishmael" in page for page in found) and any("桃花" in page for page in found)
    assert not any("%%" in page for page in found)


def test_windows_are_the_whole_text():
    assert windows(range(10), 4) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


@pytest.mark.parametrize(
    "tokens, context, kept",
    [(100, 10, [[0, 1, 2], [3, 4]]), (4, 10, [[0, 1, 2], [3]]), (3, 10, [[0, 1, 2]]), (4, 2, [[0, 1], [2], [3]])],
)
def test_no_more_is_kept_than_wanted_and_nothing_longer_than_the_context(tokens, context, kept):
    assert at_most([[0, 1, 2], [3, 4]], tokens, context) == kept
