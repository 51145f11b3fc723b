"""The loop around an executor: chunks, ends, limits and released text, with a scripted executor in place of a model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kaishu
from kaishu.config import GenerationDefaults
from kaishu.errors import ContextLengthError, InvalidParameterError, InvalidRequestError, NumericalError
from kaishu.generation import PREFILL_CHUNK_TOKENS, Generation, Limits
from kaishu.sampling import SamplingParams
from kaishu.text.tokenizer import Tokenizer
from tests.scripted import Script, ScriptedExecutor

TEXT = "ok 👩‍👩‍👧 ďábel 中文𠮷 ends"


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    assert kaishu.__file__
    return Tokenizer.from_folder(Path(kaishu.__file__).parent / "models" / "tiny")


def run(
    tokenizer: Tokenizer, answer: list[int], prompt: list[int] | None = None, context_tokens: int = 4096, **fields: Any
) -> tuple[Generation, list[str], ScriptedExecutor]:
    end = tokenizer.control_tokens["<|im_end|>"]
    executor = ScriptedExecutor(Script([answer], end), vocab_size=tokenizer.vocab_size + 7)
    generation = make(tokenizer, executor, [1, 2, 3] if prompt is None else prompt, context_tokens, **fields)
    return generation, list(generation), executor


def make(
    tokenizer: Tokenizer, executor: ScriptedExecutor, prompt: list[int], context_tokens: int = 4096, **fields: Any
) -> Generation:
    limits = Limits(
        context_tokens=context_tokens,
        end_token_ids=frozenset({tokenizer.control_tokens["<|im_end|>"], tokenizer.control_tokens["<|endoftext|>"]}),
        num_token_ids=tokenizer.vocab_size,
        absent_token_ids=frozenset(),
    )
    params = SamplingParams(**{"temperature": 0, **fields}).with_defaults(GenerationDefaults())
    return Generation(executor, tokenizer, prompt, params, limits)


def test_an_answer_ends_at_the_end_token_which_is_counted_but_not_shown(tokenizer: Tokenizer) -> None:
    answer = tokenizer.encode(TEXT)
    generation, pieces, _ = run(tokenizer, answer)
    assert generation.text == TEXT == "".join(pieces)
    assert generation.token_ids == answer and generation.finish_reason == "stop"
    assert (generation.usage.prompt_tokens, generation.usage.completion_tokens) == (3, len(answer) + 1)


def test_no_streamed_piece_shows_half_a_character(tokenizer: Tokenizer) -> None:
    ids = [token_id for byte in TEXT.encode() for token_id in _byte_token(tokenizer, byte)]
    assert len(ids) == len(TEXT.encode())
    generation, pieces, _ = run(tokenizer, ids)
    assert "\ufffd" not in "".join(pieces) and generation.text == TEXT
    assert len(pieces) > 10


def _byte_token(tokenizer: Tokenizer, byte: int) -> list[int]:
    return [i for i in range(tokenizer.vocab_size) if tokenizer.token_bytes(i) == bytes([byte])][:1]


def test_a_character_cut_by_the_limit_is_shown_as_replaced(tokenizer: Tokenizer) -> None:
    ids = _byte_token(tokenizer, 0xE4) + _byte_token(tokenizer, 0xB8)
    generation, _, _ = run(tokenizer, ids, max_tokens=2)
    assert generation.text == "\ufffd" and generation.finish_reason == "length"


@pytest.mark.parametrize("max_tokens", [1, 3])
def test_max_tokens_ends_with_length_and_runs_no_step_more(tokenizer: Tokenizer, max_tokens: int) -> None:
    answer = tokenizer.encode("alpha beta gamma delta epsilon")
    generation, _, executor = run(tokenizer, answer, max_tokens=max_tokens)
    assert generation.token_ids == answer[:max_tokens] and generation.finish_reason == "length"
    assert len(executor.steps) == max_tokens


def test_the_context_ends_an_answer_with_length(tokenizer: Tokenizer) -> None:
    answer = tokenizer.encode("one two three four five six seven")
    for fields in ({}, {"max_tokens": 4096}):
        generation, _, _ = run(tokenizer, answer, context_tokens=8, **fields)
        assert generation.token_ids == answer[:5] and generation.finish_reason == "length"


@pytest.mark.parametrize("length", [1, 2, PREFILL_CHUNK_TOKENS, PREFILL_CHUNK_TOKENS + 1, 3 * PREFILL_CHUNK_TOKENS - 1])
def test_a_prompt_of_any_length_is_computed_in_chunks_and_answered(tokenizer: Tokenizer, length: int) -> None:
    answer = tokenizer.encode("fine")
    generation, _, executor = run(tokenizer, answer, prompt=[i % 200 for i in range(length)])
    assert generation.token_ids == answer
    new_tokens = [len(step.token_ids) for step in executor.steps]
    assert sum(new_tokens) == length + len(answer) and max(new_tokens) <= PREFILL_CHUNK_TOKENS


@pytest.mark.parametrize("stop", ["b,c", ["zzz", "b,c"], [",c"]])
def test_a_stop_string_across_tokens_ends_the_text_before_it(tokenizer: Tokenizer, stop: Any) -> None:
    answer = [i for part in ("alpha, b", ",", "c tail") for i in tokenizer.encode(part)]
    generation, pieces, executor = run(tokenizer, answer, stop=stop)
    assert generation.text == "".join(pieces) == ("alpha, b" if stop == [",c"] else "alpha, ")
    assert generation.finish_reason == "stop" and len(executor.steps) <= len(answer)


def test_text_held_back_for_a_stop_string_is_given_out_at_the_end(tokenizer: Tokenizer) -> None:
    generation, _, _ = run(tokenizer, tokenizer.encode("alpha, b,"), stop="b,c")
    assert generation.text == "alpha, b," and generation.finish_reason == "stop"


def test_before_min_tokens_neither_end_tokens_nor_stop_strings_end_the_text(tokenizer: Tokenizer) -> None:
    end = tokenizer.control_tokens["<|im_end|>"]
    answer = [*tokenizer.encode("a"), *tokenizer.encode("b")]
    executor = ScriptedExecutor(Script([[*answer, end]], end), vocab_size=tokenizer.vocab_size)
    generation = make(tokenizer, executor, [1], stop="ab", min_tokens=3, max_tokens=6)
    text = "".join(generation)
    assert text.startswith("ab") and len(generation.token_ids) == 3 and end not in generation.token_ids
    assert generation.finish_reason == "stop"  # after the third token, the script's end may come


def test_stop_token_ids_end_the_text_and_stay_out_of_it(tokenizer: Tokenizer) -> None:
    answer = tokenizer.encode("alpha beta gamma")
    generation, _, _ = run(tokenizer, answer, stop_token_ids=[answer[-1]])
    assert generation.token_ids == answer[: answer.index(answer[-1])] and generation.finish_reason == "stop"


def test_log_probability_entries_carry_bytes_that_add_up_to_the_text(tokenizer: Tokenizer) -> None:
    special = tokenizer.control_tokens["<|im_start|>"]
    answer = [*tokenizer.encode(TEXT), special, *tokenizer.encode("x")]
    generation, _, _ = run(tokenizer, answer, logprobs=3)
    assert b"".join(entry.chosen.bytes for entry in generation.logprobs).decode() == generation.text == TEXT + "x"
    assert [entry.chosen.token_id for entry in generation.logprobs] == generation.token_ids
    assert all(len(entry.top) == 3 and entry.top[0].token_id == entry.chosen.token_id for entry in generation.logprobs)
    (hidden,) = [entry for entry in generation.logprobs if entry.chosen.token_id == special]
    assert (hidden.chosen.text, hidden.top[0].bytes) == ("", b"<|im_start|>")


def test_an_empty_prompt_is_an_error(tokenizer: Tokenizer) -> None:
    with pytest.raises(InvalidRequestError, match="The prompt is empty"):
        run(tokenizer, [], prompt=[])


@pytest.mark.parametrize("length", [8, 9, 5000])
def test_a_prompt_that_fills_the_context_is_an_error_with_both_numbers(tokenizer: Tokenizer, length: int) -> None:
    with pytest.raises(ContextLengthError, match=f"{length:,} tokens.*holds 8"):
        run(tokenizer, [], prompt=[1] * length, context_tokens=8)


def test_more_min_tokens_than_the_context_has_room_for_is_an_error(tokenizer: Tokenizer) -> None:
    with pytest.raises(InvalidParameterError, match=r"min_tokens is 6.*5 left of the context"):
        run(tokenizer, [], prompt=[1] * 3, context_tokens=8, min_tokens=6)


def test_a_row_that_is_not_a_number_ends_the_request_with_a_typed_error(tokenizer: Tokenizer) -> None:
    class Overflowing(ScriptedExecutor):
        def step(self, batch: Any) -> Any:
            return super().step(batch) * np.float32(np.nan)

    executor = Overflowing(Script([[5]], 0), vocab_size=tokenizer.vocab_size)
    with pytest.raises(NumericalError):
        list(make(tokenizer, executor, [1, 2]))


def test_leaving_early_runs_no_further_step(tokenizer: Tokenizer) -> None:
    executor = ScriptedExecutor(Script([tokenizer.encode("one two three four")], 0), vocab_size=tokenizer.vocab_size)
    for _ in make(tokenizer, executor, [1, 2]):
        break
    assert len(executor.steps) <= 2
