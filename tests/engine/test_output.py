"""One output: ends, limits, stop strings and the bytes of log probabilities, token by token."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kaishu
from kaishu.config import GenerationDefaults
from kaishu.engine.output import Limits, Output, described, described_prompt
from kaishu.sampling import SampledToken, SamplingParams
from kaishu.sampling.log_probabilities import TokenProbability
from kaishu.text.tokenizer import Tokenizer

TEXT = "ok 👩‍👩‍👧 ďábel 中文𠮷 ends"


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    assert kaishu.__file__
    return Tokenizer.from_folder(Path(kaishu.__file__).parent / "models" / "tiny")


def limits_of(tokenizer: Tokenizer) -> Limits:
    ends = {tokenizer.control_tokens["<|im_end|>"], tokenizer.control_tokens["<|endoftext|>"]}
    return Limits(100, frozenset(ends), tokenizer.vocab_size, frozenset())


def written(tokenizer: Tokenizer, ids: list[int], *, ends: bool = True, **fields: Any) -> tuple[Output, list[str]]:
    """An output given these tokens and an end token, until it is over. return: it, and the pieces of text"""
    params = SamplingParams(**fields).with_defaults(GenerationDefaults())
    output = Output(tokenizer, params, limits_of(tokenizer), params.max_tokens or 100)
    pieces = []
    for token_id in [*ids, *([tokenizer.control_tokens["<|im_end|>"]] if ends else [])]:
        if output.finish_reason is not None:
            break
        top = (TokenProbability(token_id, -0.5),)
        pieces.append(
            output.take(SampledToken(token_id, -0.5, top) if "logprobs" in fields else SampledToken(token_id))
        )
    assert "".join(pieces) == output.text
    return output, [piece for piece in pieces if piece]


def byte_tokens(tokenizer: Tokenizer, text: bytes) -> list[int]:
    ids = {tokenizer.token_bytes(i): i for i in range(tokenizer.vocab_size)}
    return [ids[bytes([byte])] for byte in text]


def test_an_answer_ends_at_the_end_token_which_is_counted_but_not_shown(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode(TEXT)
    output, _ = written(tokenizer, ids)
    assert (output.text, output.token_ids, output.finish_reason) == (TEXT, ids, "stop")
    assert output.num_taken == len(ids) + 1 and output.room_tokens == 100 - len(ids) - 1


def test_no_piece_shows_half_a_character(tokenizer: Tokenizer) -> None:
    output, pieces = written(tokenizer, byte_tokens(tokenizer, TEXT.encode()))
    assert "\ufffd" not in "".join(pieces) and output.text == TEXT and len(pieces) > 10


def test_a_character_cut_by_the_limit_is_shown_as_replaced(tokenizer: Tokenizer) -> None:
    output, _ = written(tokenizer, byte_tokens(tokenizer, b"\xe4\xb8"), max_tokens=2)
    assert (output.text, output.finish_reason) == ("\ufffd", "length")


@pytest.mark.parametrize("max_tokens", [1, 3])
def test_max_tokens_ends_with_length(tokenizer: Tokenizer, max_tokens: int) -> None:
    ids = tokenizer.encode("alpha beta gamma delta epsilon")
    output, _ = written(tokenizer, ids, max_tokens=max_tokens)
    assert output.token_ids == ids[:max_tokens] and output.finish_reason == "length" and output.room_tokens == 0


@pytest.mark.parametrize("by", [1, 2])
def test_an_end_or_a_stop_string_with_the_last_token_is_a_stop(tokenizer: Tokenizer, by: int) -> None:
    assert written(tokenizer, tokenizer.encode("a"), max_tokens=2)[0].finish_reason == "stop"
    ids = byte_tokens(tokenizer, b"xab")
    output, _ = written(tokenizer, ids, max_tokens=3, stop="ab")
    assert (output.text, output.finish_reason, output.stop_string) == ("x", "stop", "ab")


@pytest.mark.parametrize("stop", ["b,c", ["zzz", "b,c"], [",c"]])
def test_a_stop_string_across_tokens_ends_the_text_before_it(tokenizer: Tokenizer, stop: Any) -> None:
    ids = [i for part in ("alpha, b", ",", "c tail") for i in tokenizer.encode(part)]
    output, _ = written(tokenizer, ids, stop=stop)
    assert output.text == ("alpha, b" if stop == [",c"] else "alpha, ") and output.finish_reason == "stop"
    assert output.stop_string == (",c" if stop == [",c"] else "b,c")


def test_text_held_back_for_a_stop_string_is_given_out_at_the_end(tokenizer: Tokenizer) -> None:
    for fields in ({}, {"max_tokens": len(tokenizer.encode("alpha, b,"))}):
        output, _ = written(tokenizer, tokenizer.encode("alpha, b,"), stop="b,c", **fields)
        assert output.text == "alpha, b," and output.finish_reason == ("length" if fields else "stop")
        assert output.stop_string is None


def test_before_min_tokens_stop_strings_end_nothing(tokenizer: Tokenizer) -> None:
    ids = byte_tokens(tokenizer, b"abxab")
    output, _ = written(tokenizer, ids, stop="ab", min_tokens=2)
    assert (output.text, output.num_taken) == ("abx", 5)
    assert written(tokenizer, ids, stop="ab", min_tokens=1)[0].text == "abx"  # `a` came too early to count


def test_stop_token_ids_end_the_text_and_stay_out_of_it(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("alpha beta gamma")
    output, _ = written(tokenizer, ids, stop_token_ids=[ids[-1]])
    assert output.token_ids == ids[: ids.index(ids[-1])] and output.finish_reason == "stop"


def test_log_probabilities_carry_bytes_that_add_up_to_the_text_and_are_given_out_once(tokenizer: Tokenizer) -> None:
    special = tokenizer.control_tokens["<|im_start|>"]
    ids = [*tokenizer.encode(TEXT), special, *tokenizer.encode("x")]
    output, _ = written(tokenizer, ids, logprobs=1)
    fresh = output.take_logprobs()
    assert list(fresh) == output.logprobs and output.take_logprobs() == ()
    assert b"".join(entry.chosen.bytes for entry in fresh).decode() == output.text == TEXT + "x"
    assert [entry.chosen.token_id for entry in fresh] == output.token_ids
    (hidden,) = [entry for entry in fresh if entry.chosen.token_id == special]
    assert (hidden.chosen.text, hidden.top[0].bytes) == ("", b"<|im_start|>")


def test_nothing_follows_the_end(tokenizer: Tokenizer) -> None:
    output, _ = written(tokenizer, [])
    with pytest.raises(AssertionError, match="nothing follows the end"):
        output.take(SampledToken(1))


def test_a_token_is_described_by_its_own_bytes(tokenizer: Tokenizer) -> None:
    (half,) = byte_tokens(tokenizer, b"\xe4")
    found = described(tokenizer, half, -1.0)
    assert (found.token_id, found.text, found.bytes, found.logprob) == (half, "\ufffd", b"\xe4", -1.0)


def test_tokens_of_a_prompt_are_described_by_the_rows_before_them(tokenizer: Tokenizer) -> None:
    rows = np.zeros((2, tokenizer.vocab_size + 7), np.float32)
    rows[0, 5], rows[1, 9] = 3.0, 2.0
    rows[:, tokenizer.vocab_size :] = 50.0  # rows of the head without a token count for nothing
    first, second = described_prompt(tokenizer, limits_of(tokenizer), rows, [5, 4], 1)
    total = np.log(np.exp(3.0) + tokenizer.vocab_size - 1)
    assert first.chosen.token_id == first.top[0].token_id == 5 and abs(first.chosen.logprob - (3.0 - total)) < 1e-6
    assert second.chosen.token_id == 4 and second.top[0].token_id == 9
