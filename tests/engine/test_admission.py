"""Admission: what is refused before it waits, and what a job becomes."""

from __future__ import annotations

from typing import Any

import pytest

from kaishu.engine.admission import Admission
from kaishu.engine.grammar import GrammarCompiler
from kaishu.engine.jobs import Read
from kaishu.engine.thinking import ThinkingTokens
from kaishu.errors import ContextLengthError, InvalidParameterError, InvalidRequestError
from kaishu.output_format import OutputFormat
from kaishu.text.tokenizer import Tokenizer
from tests.engine.engine_runs import job, limits_of


def admission(tokenizer: Tokenizer, **fields: Any) -> Admission:
    return Admission(
        tokenizer,
        limits_of(tokenizer),
        **{"vocab_size": 320, "tag": b"model", "looks_up": False, "has_draft": False, **fields},
    )


@pytest.mark.parametrize(
    ("wanted", "error", "words"),
    [
        (lambda: job([]), InvalidRequestError, "prompt is empty"),
        (lambda: job([1] * 96), ContextLengthError, "96 tokens"),
        (lambda: job([1], min_tokens=96), InvalidParameterError, "min_tokens is 96"),
        (lambda: job([1], logit_bias={999_999: 1}), InvalidParameterError, "logit_bias is 999999"),
        (lambda: job([1], stop_token_ids=[999_999]), InvalidParameterError, "stop_token_ids is 999999"),
        (lambda: job([1, -1]), InvalidParameterError, "prompt is -1"),
        (lambda: job([1, 999_999]), InvalidParameterError, "prompt is 999999"),
        (lambda: Read([1, 999_999], "all_logits"), InvalidParameterError, "token_ids is 999999"),
        (lambda: Read([], "all_logits"), InvalidRequestError, "no token ids"),
        (lambda: Read([1] * 97, "last_hidden"), ContextLengthError, "97 tokens"),
    ],
)
def test_what_cannot_be_done_is_refused_by_name(byte_tokenizer: Tokenizer, wanted: Any, error: Any, words: str) -> None:
    with pytest.raises(error, match=words):
        admission(byte_tokenizer).checked(wanted())


def test_a_thinking_budget_needs_a_model_that_thinks(
    byte_tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ThinkingTokens, "of", lambda tokenizer: None)
    with pytest.raises(InvalidParameterError, match=r"thinking_budget is 5.*no thinking"):
        admission(byte_tokenizer).checked(job([1], thinking_budget=5))


def test_a_job_becomes_requests_whose_tags_part_models_and_salts(byte_tokenizer: Tokenizer) -> None:
    tags = {
        admission(byte_tokenizer, tag=tag).checked(job([1], salt=salt))(0).requests[0].tag
        for tag in (b"model", b"other")
        for salt in ("", "mine")
    }
    assert len(tags) == 4


def test_choices_have_samplers_and_states_of_their_own(
    byte_tokenizer: Tokenizer, byte_compiler: GrammarCompiler
) -> None:
    let_in = admission(byte_tokenizer, looks_up=True)
    grammar = byte_compiler.compile(OutputFormat.choice(["a", "b"]))
    running = let_in.checked(job([1, 2], n=3, seed=0, temperature=1, grammar=grammar, priority=-2, prompt_logprobs=1))(
        5
    )
    assert running.waiting_choices == [1, 2] and len(running.choices) == 1
    for number in (1, 2):
        let_in.add_choice(running, number)
    assert len({id(choice.sampler) for choice in running.choices}) == 3
    assert [request.wants_every_row for request in running.requests] == [True, False, False]
    assert {request.place for request in running.requests} == {(-2, 5)}
    assert all(choice.guessing is not None for choice in running.choices)
    assert admission(byte_tokenizer).checked(job([1]))(0).choices[0].guessing is None


@pytest.mark.parametrize("wants", ["last_hidden", "last_logits", "all_logits"])
def test_a_text_that_is_read_becomes_one_request(byte_tokenizer: Tokenizer, wants: Any) -> None:
    running = admission(byte_tokenizer).checked(Read([1, 2, 3], wants, priority=3))(7)
    (request,) = running.requests
    assert (request.token_ids, request.place, running.choices) == ([1, 2, 3], (3, 7), [])
    assert request.wants_every_row == (wants == "all_logits")
