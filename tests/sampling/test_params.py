"""SamplingParams: every field's edges, and errors that name the field."""

from __future__ import annotations

import math
from dataclasses import fields

import pytest

from kaishu.config import GenerationDefaults
from kaishu.errors import InvalidParameterError, InvalidRequestError
from kaishu.output_format import OutputFormat
from kaishu.sampling import SamplingParams

ACCEPTED = [
    ("temperature", [None, 0, 1e-12, 1e-4, 1.0, 2, 1e30]),
    ("top_k", [None, -1, 0, 1, 10**9]),
    ("top_p", [None, 0, 1e-9, 0.5, 1]),
    ("min_p", [None, 0, 0.5, 1]),
    ("repetition_penalty", [None, 0.01, 1, 100]),
    ("presence_penalty", [-2, 0, 2]),
    ("frequency_penalty", [-2, 0, 2]),
    ("seed", [None, 0, 2**63 - 1]),
    ("max_tokens", [None, 1, 10**6]),
    ("min_tokens", [0, 7]),
    ("stop", [(), "x", ["a", "b"], ("中",)]),
    ("stop_token_ids", [(), [0, 5], {3}]),
    ("ignore_eos", [True, False]),
    ("logit_bias", [None, {}, {1: -100, 2: 100}, {"7": 0.5}]),
    ("logprobs", [None, 0, 20]),
    ("n", [1, 128]),
    ("prompt_logprobs", [None, 0, 20]),
    ("thinking_budget", [None, 0, 10**6]),
    ("output_format", [None, OutputFormat.json_object(), OutputFormat.regex("a+")]),
]
REFUSED = [
    ("temperature", [-1, -1e-9, math.nan, math.inf, "1", True, [1], 10**400]),
    ("top_k", [-2, 1.5, "3", True, math.nan]),
    ("top_p", [-0.1, 1.5, math.nan, "1"]),
    ("min_p", [-0.1, 2, math.nan]),
    ("repetition_penalty", [0, -1, 5e-324, 1e308, math.nan, math.inf]),
    ("presence_penalty", [-2.1, 2.1, math.nan, None]),
    ("frequency_penalty", [-2.1, 2.1, math.nan, None]),
    ("seed", [-1, 2**63, 1.0, "0"]),
    ("max_tokens", [0, -1, 1.5, "5"]),
    ("min_tokens", [-1, 1.0, None]),
    ("stop", ["", ["a", ""], [1], None, 5, ["x"] * 65]),
    ("stop_token_ids", [[-1], ["1"], 5, None, [True], [1] * 1001]),
    ("ignore_eos", [1, None, "yes"]),
    (
        "logit_bias",
        [
            {"abc": 1},
            {-1: 1},
            {1: 101},
            {1: math.nan},
            {1: "x"},
            [1],
            {1.5: 1},
            {"-1": 1},
            {1: 10**400},
            dict.fromkeys(range(10_001), 1),
        ],
    ),
    ("logprobs", [-1, 21, 2 * 10**9, True, 1.0]),
    ("n", [0, -1, 129, True, 1.0, None, "2"]),
    ("prompt_logprobs", [-1, 21, True, 1.0]),
    ("thinking_budget", [-1, 1.5, "5", True]),
    ("output_format", ["json_object", {"kind": "regex"}, 1, OutputFormat]),
]


@pytest.mark.parametrize("field, value", [(field, value) for field, values in ACCEPTED for value in values])
def test_a_value_in_range_is_accepted(field: str, value: object) -> None:
    SamplingParams(**{field: value})


@pytest.mark.parametrize("field, value", [(field, value) for field, values in REFUSED for value in values])
def test_a_value_out_of_range_is_an_error_that_names_the_field(field: str, value: object) -> None:
    with pytest.raises(InvalidParameterError) as caught:
        SamplingParams(**{field: value})
    assert caught.value.field.startswith(field)
    assert field in str(caught.value) and "allowed:" in str(caught.value)


def test_a_number_too_long_to_write_out_is_refused_all_the_same() -> None:
    with pytest.raises(InvalidParameterError, match="seed is a number of thousands of digits"):
        SamplingParams(seed=-(10**5000))


def test_every_field_has_accepted_and_refused_values_here() -> None:
    names = {field.name for field in fields(SamplingParams)}
    assert {field for field, _ in ACCEPTED} == names == {field for field, _ in REFUSED}


def test_more_minimum_than_maximum_tokens_is_an_error_with_both_numbers() -> None:
    with pytest.raises(InvalidParameterError, match=r"min_tokens is 9.*max_tokens, which is 8"):
        SamplingParams(min_tokens=9, max_tokens=8)


def test_a_misspelt_field_is_an_error_with_the_nearest_name() -> None:
    with pytest.raises(InvalidRequestError, match=r"(?s)'temprature'.*Did you mean temperature\?") as caught:
        SamplingParams.from_fields({"temprature": 1})
    assert caught.value.field == "temprature"


def test_the_model_fills_only_what_the_request_left_out() -> None:
    defaults = GenerationDefaults(temperature=0.6, top_k=20, top_p=0.95)
    filled = SamplingParams(top_k=0, temperature=0).with_defaults(defaults)
    assert (filled.temperature, filled.top_k, filled.top_p) == (0, 0, 0.95)
    assert (filled.min_p, filled.repetition_penalty) == (0.0, 1.0)
    neutral = SamplingParams().with_defaults(GenerationDefaults())
    assert (neutral.temperature, neutral.top_k, neutral.top_p) == (1.0, 0, 1.0)


@pytest.mark.parametrize("params", [SamplingParams(logit_bias={"99999999": 1}), SamplingParams(stop_token_ids=[100])])
def test_ids_past_the_tokenizer_are_refused(params: SamplingParams) -> None:
    with pytest.raises(InvalidParameterError, match=r"allowed: token ids from 0 to 99\."):
        params.check_vocabulary(100)


def test_a_long_value_is_shortened_in_the_message() -> None:
    with pytest.raises(InvalidParameterError) as caught:
        SamplingParams(stop=["x" * 10**6, ""])
    assert len(str(caught.value)) < 300
