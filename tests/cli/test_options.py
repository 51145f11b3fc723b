"""The shared options: one for each field, and the same errors as everywhere."""

from __future__ import annotations

from dataclasses import fields
from typing import get_args

import pytest

from kaishu.cli.options import (
    GENERATING_MODEL_OPTIONS,
    MODEL_OPTIONS,
    SAMPLING_OPTIONS,
    ModelOptions,
    as_typed,
    given_flags,
    parse_logit_bias,
)
from kaishu.errors import InvalidParameterError
from kaishu.sampling import SamplingParams

NOTHING = {name: False if name == "ignore_eos" else None for name in SAMPLING_OPTIONS.options}


def test_every_sampling_field_about_one_text_has_an_option():
    elsewhere = {"n", "prompt_logprobs", "output_format"}  # for callers that read objects, not text
    assert set(SAMPLING_OPTIONS.options) == {field.name for field in fields(SamplingParams)} - elsewhere


def test_what_is_not_given_is_left_to_the_model():
    assert SAMPLING_OPTIONS.gather(**NOTHING) == SamplingParams()
    assert MODEL_OPTIONS.gather(weights=None, device=None, threads=None, context_tokens=None) == ModelOptions()


def test_what_is_given_arrives():
    given = {
        "temperature": 0.0, "top_k": 1, "top_p": 0.5, "min_p": 0.1, "repetition_penalty": 1.1, "presence_penalty": 0.2,
        "frequency_penalty": 0.3, "seed": 0, "max_tokens": 9, "min_tokens": 2, "stop": ["a", "b"],
        "stop_token_ids": [7], "ignore_eos": True, "logit_bias": ["3=-5", "4=1.5"], "logprobs": 0,
        "thinking_budget": 0,
    }  # fmt: skip
    expected = SamplingParams(**{**given, "logit_bias": {3: -5.0, 4: 1.5}})
    assert SAMPLING_OPTIONS.gather(**given) == expected
    loading = {
        "weights": "bf16", "head": "int8", "executor": "cpu", "device": "cpu", "threads": 1, "context_tokens": 64,
        "max_memory": "4GB", "lora": ["one", "two"],
    }  # fmt: skip
    assert MODEL_OPTIONS.gather(**loading) == ModelOptions(**loading)


def test_an_error_calls_the_option_as_the_user_wrote_it():
    for field, flag in [
        ("top_p", "--top-p"),
        ("stop_token_ids", "--stop-token-id"),
        ("context_tokens", "--context"),
        ("logit_bias[5]", "--logit-bias[5]"),
        ("prompt", "prompt"),
    ]:
        typed = as_typed(InvalidParameterError(field, 1.5, "less", hint="Try less."))
        assert str(typed) == f"{flag} is 1.5; allowed: less.\n  Try less."


@pytest.mark.parametrize("entry", ["", "5", "a=1", "5=x", "=", "5=1=2"])
def test_a_bias_of_another_form_is_an_error(entry):
    with pytest.raises(InvalidParameterError, match="ID=VALUE"):
        parse_logit_bias([entry])


def test_a_bias_given_twice_is_an_error():
    with pytest.raises(InvalidParameterError, match="each token id once"):
        parse_logit_bias(["5=1", "5=2"])


def test_every_option_says_what_it_does():
    for group in (GENERATING_MODEL_OPTIONS, SAMPLING_OPTIONS):
        for kind in group.options.values():
            assert get_args(kind)[1].help.endswith((".", "output."))


def test_a_draft_and_no_speculation_are_options_where_text_is_generated():
    given = {"draft": "small", "speculation": None}
    assert GENERATING_MODEL_OPTIONS.gather(**given) == ModelOptions(draft="small")
    assert set(GENERATING_MODEL_OPTIONS.options) - set(MODEL_OPTIONS.options) == {"draft", "speculation"}
    typed = as_typed(InvalidParameterError("speculation", False, "True with a draft"))
    assert str(typed).startswith("--speculation is False")


def test_what_was_given_is_called_as_it_was_typed():
    assert given_flags(ModelOptions()) == []
    assert given_flags(ModelOptions(context_tokens=64, speculation=False)) == ["--context", "--speculation"]
