"""What is no text and what are no ids, and how much text there may be. Text and ids are in test_tokenizer.py."""

from __future__ import annotations

import os

import numpy as np
import pytest

import kaishu.text.tokenizer as tokenizer_module
from kaishu.errors import InvalidParameterError, InvalidRequestError, TokenizerError
from kaishu.text.template import RenderedPrompt

# KAISHU_LONG_TESTS=1 encodes the longest text that is allowed.
LONG_RUN = 4_000_000 if os.environ.get("KAISHU_LONG_TESTS") else 200_000

WAYS = {
    "text": lambda tokenizer, text: tokenizer.encode(text),
    "text with control": lambda tokenizer, text: tokenizer.encode(text, allow_control=True),
    "prompt": lambda tokenizer, text: tokenizer.encode_prompt(RenderedPrompt(text)),
}
every_way = pytest.mark.parametrize("encode", WAYS.values(), ids=WAYS)


@pytest.mark.parametrize("text", ["\ud800", "a\udc00b", "👩"[0] + "\ud83d"])
def test_a_lone_surrogate_is_an_error_that_names_it(text, tokenizer):
    with pytest.raises(InvalidRequestError, match=r"lone surrogate, U\+D"):
        tokenizer.encode(text)


def test_bytes_are_not_text(tokenizer):
    with pytest.raises(InvalidRequestError, match="bytes; allowed: a string"):
        tokenizer.encode(b"abc")


def test_a_byte_that_is_not_utf8_is_not_called_half_an_emoji(tokenizer):
    for raw in (b"\x80", b"\xff"):
        with pytest.raises(
            InvalidRequestError, match=rf"(?s)U\+DC.*byte 0x{raw.hex().upper()} of something that isn't"
        ):
            tokenizer.encode("a" + raw.decode(errors="surrogateescape"))
    for half in "\ud83d\udc7f\udd00":
        with pytest.raises(InvalidRequestError, match="emoji"):
            tokenizer.encode(half)


@every_way
def test_a_text_longer_than_any_context_is_an_error(encode, tokenizer):
    text = " " * 4_000_000 + "a"
    with pytest.raises(InvalidRequestError, match="has 4,000,001 characters; allowed: 4,000,000"):
        encode(tokenizer, text)


@pytest.mark.parametrize("unit", [" ", "\n", "\t", " \n", "\u3000"])
def test_long_runs_of_white_space_can_be_encoded(unit, tokenizer):
    text = unit * (LONG_RUN // len(unit) - 1) + "a"
    assert tokenizer.decode(tokenizer.encode(text)) == text


@every_way
def test_a_panic_of_the_library_is_an_error_about_the_text(encode, tokenizer, monkeypatch, capfd):
    monkeypatch.setattr(tokenizer_module, "MAX_TEXT_CHARACTERS", 11_000_000)
    text = " " * 10_500_000 + "a"
    with pytest.raises(InvalidRequestError, match=r"can't cut into words.*retry-limit"):
        encode(tokenizer, text)


@pytest.mark.parametrize("ids", [[1.5], ["1"], "12", b"12", None, 5, [None], [[1]], [True], [float("nan")]])
def test_what_is_no_list_of_ids_is_an_error(ids, tokenizer):
    with pytest.raises(InvalidParameterError, match=r"^ids(\[0\])? is .*allowed: a"):
        tokenizer.decode(ids)


@pytest.mark.parametrize("token_id", [1.5, "1", None, True])
def test_what_is_no_id_is_an_error(token_id, tokenizer):
    for decode in (tokenizer.token_bytes, tokenizer.decoder().push):
        with pytest.raises(InvalidParameterError, match=r"^token_id is .*allowed: a token id"):
            decode(token_id)


def test_an_id_of_thousands_of_digits_is_unknown(tokenizer):
    for decode in (lambda i: tokenizer.decode([i]), tokenizer.token_bytes, tokenizer.decoder().push):
        with pytest.raises(TokenizerError, match="has no token with id a number of thousands of digits"):
            decode(10**5000)


def test_ids_may_be_any_whole_numbers_in_anything_that_can_be_read_once(tokenizer):
    ids = tokenizer.encode("one two")
    assert tokenizer.decode(iter(ids)) == tokenizer.decode(tuple(ids)) == tokenizer.decode(np.array(ids)) == "one two"
