"""What is far too long is refused after its beginning, and nothing else is."""

from __future__ import annotations

import pytest

from kaishu.errors import ContextLengthError
from kaishu.loading import load_model
from kaishu.text.long_texts import SPARE_TOKENS, check_far_too_long
from kaishu.text.template import RenderedPrompt
from kaishu.text.tokenizer import MAX_TEXT_CHARACTERS, Tokenizer

CONTEXT = 100


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return load_model("tiny", threads=1, context_tokens=CONTEXT, say=lambda _: None).tokenizer


class Counting:
    """A tokenizer that notes how many characters it was given."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer, self.num_characters = tokenizer, 0

    def encode(self, text: str) -> list[int]:
        self.num_characters += len(text)
        return self._tokenizer.encode(text)


@pytest.mark.parametrize("unit", ["a ", "北京", "🙂", "word after word, ", "\n"])
def test_megabytes_are_refused_after_thousands_of_characters(unit: str, tokenizer: Tokenizer) -> None:
    counting = Counting(tokenizer)
    with pytest.raises(ContextLengthError, match=r"here has more than \d\d,\d\d\d tokens, but the context holds 100"):
        check_far_too_long(counting, unit * (2_000_000 // len(unit)), CONTEXT, field="here")  # type: ignore[arg-type]
    assert counting.num_characters < 20 * (2 * CONTEXT + SPARE_TOKENS)


@pytest.mark.parametrize("num_tokens", [CONTEXT, 2 * CONTEXT + SPARE_TOKENS])
def test_what_is_less_than_far_too_long_passes(num_tokens: int, tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("word after word, " * num_tokens)[:num_tokens]
    check_far_too_long(tokenizer, tokenizer.decode(ids), CONTEXT)


def test_long_texts_of_few_tokens_pass(tokenizer: Tokenizer) -> None:
    text = "<|im_end|>" * 3000
    assert len(tokenizer.encode(text)) > len(tokenizer.encode_prompt(RenderedPrompt(text))) == 3000
    check_far_too_long(tokenizer, RenderedPrompt(text), CONTEXT)


def test_what_has_too_many_characters_is_left_to_the_tokenizer(tokenizer: Tokenizer) -> None:
    counting = Counting(tokenizer)
    check_far_too_long(counting, "a" * (MAX_TEXT_CHARACTERS + 1), CONTEXT)  # type: ignore[arg-type]
    assert counting.num_characters == 0
