"""What is far too long is refused after its beginning, and nothing else is."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kaishu.errors import ContextLengthError
from kaishu.loading import load_model
from kaishu.text.long_texts import SPARE_TOKENS, check_far_too_long, encode_beginning
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


LETTERS = st.sampled_from(["word after word, ", "北京", "🙂", "a", " ", "\n", "7", "é"])


@settings(max_examples=20, deadline=None)
@given(st.lists(LETTERS, min_size=1, max_size=6), st.integers(1, 3 * CONTEXT))
def test_a_beginning_begins_as_the_whole_text_does(tokenizer: Tokenizer, unit: list[str], num_tokens: int) -> None:
    text = "".join(unit) * (60_000 // len("".join(unit)))
    counting = Counting(tokenizer)
    found = encode_beginning(counting.encode, text, num_tokens)
    assert len(found) >= num_tokens and found[:num_tokens] == tokenizer.encode(text)[:num_tokens]


@pytest.mark.parametrize("unit", ["a ", "北京", "word after word, "])
def test_megabytes_are_read_no_further_than_they_may_be(unit: str, tokenizer: Tokenizer) -> None:
    counting = Counting(tokenizer)
    encode_beginning(counting.encode, unit * (2_000_000 // len(unit)), CONTEXT)
    assert counting.num_characters < 20 * (CONTEXT + SPARE_TOKENS)
    counting = Counting(tokenizer)
    assert encode_beginning(counting.encode, unit * 10, CONTEXT) == tokenizer.encode(unit * 10)
    assert counting.num_characters == len(unit) * 10, "what isn't long is read once"


def test_what_has_too_many_characters_is_left_to_the_tokenizer(tokenizer: Tokenizer) -> None:
    counting = Counting(tokenizer)
    check_far_too_long(counting, "a" * (MAX_TEXT_CHARACTERS + 1), CONTEXT)  # type: ignore[arg-type]
    assert counting.num_characters == 0
