"""llguidance has our tokens to the byte, control tokens apart from text."""

from __future__ import annotations

import numpy as np
import pytest

from kaishu.engine.grammar_tokens import GrammarTokens, bits_of, num_words
from tests.engine.conftest import QWEN3_ROWS
from tests.engine.random_model import ids_of


@pytest.fixture(scope="module")
def tokens(qwen3):
    return GrammarTokens(qwen3, num_rows=QWEN3_ROWS, end_token_ids=[151645, 151643])


def test_every_ordinary_token_has_its_own_bytes(tokens, qwen3):
    control = set(qwen3.control_tokens.values())
    ordinary = [i for i in range(qwen3.vocab_size) if i not in control]
    assert len(ordinary) > 151_000
    differing = [i for i in ordinary if tokens.library.decode_bytes([i]) != qwen3.token_bytes(i)]
    assert [qwen3.token_bytes(i) for i in differing] == [b"\xff"]  # llguidance's mark of control tokens; never UTF-8
    assert all(tokens.library.is_special_token(i) for i in control)


def test_usable_ids_have_a_token_and_end_nothing(tokens, qwen3):
    never = [151645, 151643, qwen3._library.token_to_id("ÿ")]
    assert ids_of(tokens.usable) == [i for i in range(qwen3.vocab_size) if i not in never]
    assert ids_of(tokens.ended) == [151643, 151645]
    assert tokens.end_names == ["<|endoftext|>", "<|im_end|>"]


@pytest.mark.parametrize("rows", [1, 31, 32, 33, 320])
def test_bits_are_where_the_definition_says(rows):
    mask = bits_of([0, rows - 1], rows)
    assert mask.dtype == np.uint32
    assert mask.shape == (num_words(rows),)
    assert [i for i in range(rows) if int(mask[i // 32]) >> (i % 32) & 1] == sorted({0, rows - 1}) == ids_of(mask)


@pytest.mark.parametrize("text", ["plain", "北京 🙂", "e\u0301", "\u212b", "<|im_end|>", "a\u0300\u0301 \uac00", ""])
def test_a_forced_text_is_cut_into_its_own_bytes_and_ordinary_tokens(text, tokens, qwen3):
    ids = tokens.library.tokenize_str(text)
    assert b"".join(map(qwen3.token_bytes, ids)) == text.encode()
    assert not set(ids) & set(qwen3.control_tokens.values())


def test_a_forced_text_is_cut_as_the_tokenizer_cuts_it(tokens, qwen3):
    text = '{"name": "get_weather", "arguments": {"city": "北京"}}'
    assert tokens.library.tokenize_str(text) == qwen3.encode(text)
