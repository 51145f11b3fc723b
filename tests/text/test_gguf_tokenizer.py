"""Tokenizers from GGUF metadata, against the real tokenizers that the metadata were made from, and llama.cpp."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers.pre_tokenizers import ByteLevel

from kaishu.checkpoint.gguf import open_gguf
from kaishu.errors import TokenizerError
from kaishu.text.gguf_tokenizer import tokenizer_from_gguf
from kaishu.text.template import RenderedPrompt
from kaishu.text.tokenizer import Tokenizer
from tests.text.gguf_metadata import CONTROL, NORMAL, UNUSED, USER_DEFINED, metadata_of, write_gguf
from tests.text.test_tokenizer import INJECTION, NUM_RANDOM, SAMPLES, random_text

ROWS = 151_936
MORE_SAMPLES = [
    "1234567 ١٢٣٤ ½ ⅷ 3.14159e-10",
    "def f(x):\n    return x  # done\n\n\n",
    "I'LL can't 'Tis ’s'S 'ſ",  # the long s is an s to those who ignore case
    "a\u00a0b\u2003c\u3000d\u0085e\u2028f",
    "\r\n \r\n\t\t\r",
    "[PAD151700] <think>\n</think> <tool_call>",
    "naïve café Ångström \u212b",
    "🇨🇳👩🏽‍🚀👨‍👩‍👧‍👦🏴󠁧󠁢󠁳󠁣󠁴󠁿",
]


@pytest.fixture(scope="session")
def qwen3_json(qwen3_tokenizer_folder: Path) -> dict[str, Any]:
    return json.loads((qwen3_tokenizer_folder / "tokenizer.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="session")
def qwen3_metadata(qwen3_json: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Any]:
    """Qwen3's tokenizer as its GGUF files have it, once through a file."""
    ids = {"eos_token_id": 151_645, "bos_token_id": 151_643, "padding_token_id": 151_643, "add_bos_token": False}
    metadata = metadata_of(qwen3_json, pre="qwen2", rows=ROWS, **ids)
    return open_gguf(write_gguf(tmp_path_factory.mktemp("qwen3") / "tokenizer.gguf", metadata)).metadata


@pytest.fixture(scope="session")
def from_gguf(qwen3_metadata: Mapping[str, Any]) -> Tokenizer:
    return tokenizer_from_gguf(qwen3_metadata, "qwen3.gguf")


@pytest.mark.parametrize("text", SAMPLES + MORE_SAMPLES)
def test_texts_have_the_ids_of_the_real_tokenizer(text, from_gguf, tokenizer, library):
    assert from_gguf.encode(text) == tokenizer.encode(text)
    assert from_gguf.encode(text, allow_control=True) == library.encode(text, add_special_tokens=False).ids
    assert from_gguf.decode(from_gguf.encode(text)) == tokenizer.decode(tokenizer.encode(text))


def test_random_texts_have_the_ids_of_the_real_tokenizer(from_gguf, tokenizer, library):
    rng = random.Random(11)
    controls = set(from_gguf.control_tokens.values())
    pieces = [*tokenizer.control_tokens, "<|", "é", "e\u0301", "👩‍👩‍👧", "\n\n", " a", "  ", "12", "'ve"]
    for _ in range(NUM_RANDOM):
        text = random_text(rng, pieces)
        ids = from_gguf.encode(text)
        assert ids == tokenizer.encode(text), text
        assert controls.isdisjoint(ids), text
        assert from_gguf.encode(text, allow_control=True) == library.encode(text, add_special_tokens=False).ids, text


@given(st.text())
@settings(deadline=None, max_examples=300)
def test_any_text_has_the_ids_of_the_real_tokenizer(from_gguf, tokenizer, text):
    assert from_gguf.encode(text) == tokenizer.encode(text)


def test_every_id_has_the_bytes_of_the_real_tokenizer(from_gguf, tokenizer):
    assert from_gguf.vocab_size == tokenizer.vocab_size == 151_669
    ids = range(tokenizer.vocab_size)
    assert [from_gguf.token_bytes(i) for i in ids] == [tokenizer.token_bytes(i) for i in ids]


def test_ids_that_only_fill_the_embedding_up_have_no_token(from_gguf):
    assert from_gguf.ids_without_token(ROWS) == list(range(151_669, ROWS))
    with pytest.raises(TokenizerError, match="151669"):
        from_gguf.decode([151_669])


def test_control_tokens_and_what_ends_a_turn_are_the_models(from_gguf, tokenizer):
    assert from_gguf.control_tokens == tokenizer.control_tokens
    assert from_gguf.control_tokens["<think>"] not in from_gguf.special_token_ids
    assert from_gguf.special_token_ids >= tokenizer.special_token_ids
    assert from_gguf.pad_token_id == tokenizer.pad_token_id
    # As the model's generation_config.json: 151645 and 151643.
    assert from_gguf.eos_token_ids == {151_645, 151_643}


def test_control_tokens_that_a_user_types_stay_text(from_gguf, tokenizer):
    ids = from_gguf.encode(INJECTION)
    assert set(ids).isdisjoint(from_gguf.control_tokens.values()) and from_gguf.decode(ids) == INJECTION
    prompt = RenderedPrompt("<|im_start|>user\n<|im_end|><think>", outside=frozenset({18}))
    assert from_gguf.encode_prompt(prompt) == tokenizer.encode_prompt(prompt)


# Other rules, on a vocabulary of bytes and a few merges.

LETTERS = sorted(ByteLevel.alphabet())


def small(pre: str = "qwen2", **changes: Any) -> dict[str, Any]:
    """Metadata of the 256 bytes, one merge, and three control tokens; changes: by key, None to leave it out."""
    tokens = [*LETTERS, "ab", "<bos>", "<|eot_id|>", "<think>", "[PAD260]"]
    metadata = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": np.array([NORMAL] * 257 + [CONTROL, CONTROL, USER_DEFINED, UNUSED], np.int32),
        "tokenizer.ggml.merges": ["a b"],
        "tokenizer.ggml.bos_token_id": 257,
        "tokenizer.ggml.eos_token_id": 257,
    } | {key if "." in key else f"tokenizer.ggml.{key}": value for key, value in changes.items()}
    return {key: value for key, value in metadata.items() if value is not None}


def splitter(pre: str) -> Any:
    """The rule itself: without merges, ids don't show where words end."""
    return tokenizer_from_gguf(small(pre), "x.gguf")._library.pre_tokenizer


def words(pre: str, text: str) -> list[str]:
    return [word for word, _ in splitter(pre).pre_tokenize_str(text)]


def rule_of_transformers(pre: str) -> Any:
    """The rule as transformers builds it for the same family, and for SmolLM as its tokenizer.json describes it."""
    from tokenizers import Regex, pre_tokenizers
    from transformers import GPT2Tokenizer
    from transformers.convert_slow_tokenizer import TikTokenConverter
    from transformers.models.qwen2.tokenization_qwen2 import PRETOKENIZE_REGEX

    def split(pattern: str) -> Any:
        parts = [pre_tokenizers.Split(Regex(pattern), "isolated"), pre_tokenizers.ByteLevel(False, use_regex=False)]
        return pre_tokenizers.Sequence(parts)

    if pre == "qwen2":
        return split(PRETOKENIZE_REGEX)
    if pre == "llama-bpe":
        return split(TikTokenConverter().pattern)
    gpt = GPT2Tokenizer(vocab={}, merges=[]).backend_tokenizer.pre_tokenizer
    return gpt if pre == "gpt-2" else pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), gpt])


@pytest.mark.parametrize("pre", ["qwen2", "llama-bpe", "smollm", "gpt-2"])
def test_each_rule_cuts_as_transformers_does(pre):
    rng, ours, rule = random.Random(5), splitter(pre), rule_of_transformers(pre)
    pieces = ["'s", "'LL", "12345", "٣٤", "½", "\r\n", " \n ", "   ", "\t", "word", "中文", "é", "!?", "_", "\u00a0"]
    for text in [*SAMPLES, *MORE_SAMPLES, *(random_text(rng, pieces) for _ in range(2000))]:
        assert ours.pre_tokenize_str(text) == rule.pre_tokenize_str(text), text


def test_the_rules_differ_where_their_families_do():
    text = "it'S 1234\n\n x"
    line = "Ċ"
    assert words("qwen2", text) == ["it", "'S", "Ġ", "1", "2", "3", "4", line * 2, "Ġx"]
    assert words("llama-bpe", text) == ["it", "'S", "Ġ", "123", "4", line * 2, "Ġx"]
    assert words("smollm", text) == ["it", "'", "S", "Ġ", "1", "2", "3", "4", line * 2, "Ġx"]
    assert words("gpt-2", text) == ["it", "'", "S", "Ġ1234", line * 2, "Ġx"]


@pytest.mark.parametrize("alias", ["llama3", "llama-v3"])
def test_other_names_of_a_rule_are_known(alias):
    assert words(alias, "it's 1234") == words("llama-bpe", "it's 1234")


@pytest.mark.parametrize("pre, normalises", [("qwen2", 1), ("llama-bpe", 0), ("smollm", 0), ("gpt-2", 0)])
def test_only_qwen_normalises(pre, normalises):
    tokenizer = tokenizer_from_gguf(small(pre, add_bos_token=False), "x.gguf")
    assert (tokenizer.decode(tokenizer.encode("e\u0301")) == "\u00e9") is bool(normalises)
    assert tokenizer.decode(tokenizer.encode(" 楷书 ab\n")) == " 楷书 ab\n"


def test_llama_takes_a_word_that_is_a_token_without_merges():
    tokens = [*small()["tokenizer.ggml.tokens"][:-1], "word"]
    changes = {"tokens": tokens, "token_type": [NORMAL] * 257 + [CONTROL, CONTROL, USER_DEFINED, NORMAL]}
    assert tokenizer_from_gguf(small("llama-bpe", **changes, add_bos_token=False), "x").encode("word") == [260]
    assert len(tokenizer_from_gguf(small("qwen2", **changes), "x").encode("word")) == 4


@pytest.mark.parametrize(
    "pre, add_bos_token, starts",
    [("llama-bpe", None, True), ("llama-bpe", False, False), ("qwen2", None, False), ("smollm", True, True)],
)
def test_raw_text_begins_as_the_file_says_or_else_the_family(pre, add_bos_token, starts):
    tokenizer = tokenizer_from_gguf(small(pre, add_bos_token=add_bos_token), "x.gguf")
    assert (tokenizer.encode("ab") == [257, 256]) is starts
    assert tokenizer.encode_prompt(RenderedPrompt("ab")) == [256]


def test_what_ends_a_turn_is_every_token_that_says_so():
    assert tokenizer_from_gguf(small(), "x").eos_token_ids == {257, 258}
    assert tokenizer_from_gguf(small(eot_token_id=259), "x").eos_token_ids == {257, 258, 259}
    assert tokenizer_from_gguf(small(eos_token_id=None), "x").eos_token_ids == {258}
    tokens = [*LETTERS, "ab", "<bos>", "<end>", "<think>", "<|eot_id|>"]
    assert tokenizer_from_gguf(small(tokens=tokens), "x").eos_token_ids == {257}, "an unused token ends nothing"


@pytest.mark.parametrize("pre", [None, "default"])
def test_a_rule_that_isnt_named_is_the_familys_or_an_error(pre):
    tokenizer = tokenizer_from_gguf(small(pre, **{"general.architecture": "qwen2"}), "x.gguf")
    assert tokenizer.encode("e\u0301'S 12") == tokenizer_from_gguf(small(), "x.gguf").encode("é'S 12")
    with pytest.raises(TokenizerError, match=r"x\.gguf: tokenizer\.ggml\.pre is"):
        tokenizer_from_gguf(small(pre, **{"general.architecture": "llama"}), "x.gguf")


KINDS = [NORMAL] * 257 + [CONTROL, CONTROL, USER_DEFINED, UNUSED]


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"model": None}, r"tokenizer\.ggml\.model is missing"),
        ({"model": "llama"}, r'model is "llama"; allowed: "gpt2"'),
        ({"model": np.zeros(2)}, r"tokenizer\.ggml\.model is"),
        ({"pre": "deepseek-llm"}, 'pre is "deepseek-llm"; allowed: qwen2, llama-bpe'),
        ({"pre": ["qwen2"]}, r"tokenizer\.ggml\.pre is"),
        ({"tokens": None}, r"tokenizer\.ggml\.tokens is missing"),
        ({"tokens": "abc"}, "tokens isn't a list of strings"),
        ({"tokens": [*LETTERS, b"ab"]}, "tokens isn't a list of strings"),
        ({"token_type": None}, r"tokenizer\.ggml\.token_type is missing"),
        ({"token_type": KINDS[:-1]}, "token_type has 260 entries, tokenizer.ggml.tokens 261"),
        ({"token_type": [*KINDS[:-1], 6]}, r"token_type has 6 \(first for token 260\)"),
        ({"token_type": [*KINDS[:-1], 10**5000]}, "token_type has a number of thousands"),
        ({"token_type": [*KINDS[:-1], True]}, "token_type isn't a list of whole numbers"),
        ({"token_type": np.ones((261, 1), int)}, "token_type isn't a list of whole numbers"),
        ({"token_type": np.ones(261)}, "token_type isn't a list of whole numbers"),
        ({"tokens": [*LETTERS, "ab", "<bos>", "ab", "<think>", "p"]}, "tokens has 'ab' twice, as 256 and 258"),
        ({"tokens": [*LETTERS, "ab", "", "<x>", "<think>", "p"]}, r"tokens\[257\] is empty"),
        ({"tokens": [*LETTERS, "a\ud800", "<bos>", "<x>", "<think>", "p"]}, "surrogate"),
        ({"merges": None}, r"tokenizer\.ggml\.merges is missing"),
        ({"merges": ["a b", "ab"]}, r"merges\[1\] is 'ab'"),
        ({"merges": ["a b c"]}, r"merges\[0\] is 'a b c'"),
        ({"merges": ["a "]}, r"merges don't fit"),
        ({"merges": ["a 楷"]}, r"merges don't fit"),
        ({"merges": ["b a"]}, r"merges don't fit"),
        ({"bos_token_id": 261}, r"bos_token_id is 261; allowed: an integer from 0 to 260"),
        ({"eos_token_id": -1}, r"eos_token_id is -1"),
        ({"padding_token_id": True}, r"padding_token_id is true"),
        ({"eot_token_id": 260}, r"eot_token_id is 260; allowed: the id of a token that is used"),
        ({"add_bos_token": "yes"}, r"add_bos_token is \"yes\""),
        ({"add_bos_token": True, "bos_token_id": None}, r"add_bos_token is true, but .*bos_token_id is missing"),
    ],
)
def test_metadata_that_are_wrong_are_an_error_that_names_the_key(changes, message):
    with pytest.raises(TokenizerError, match=message):
        tokenizer_from_gguf(small(**changes), "x.gguf")


keys = st.sampled_from(sorted(small()))
values = st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.lists(st.text(max_size=3) | st.integers())


@given(st.dictionaries(keys, values, min_size=1, max_size=3))
@settings(deadline=None, max_examples=300)
def test_any_metadata_are_a_tokenizer_or_a_typed_error(changes):
    try:
        tokenizer_from_gguf(small(**changes), "x.gguf")
    except TokenizerError as error:
        assert len(str(error)) < 1000
