"""The sampler as a whole: its rules in their order against the definition, seeds, masks, and the edges where sampling
usually breaks."""

from __future__ import annotations

import math
import pickle
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from kaishu.config import GenerationDefaults
from kaishu.errors import NumericalError
from kaishu.sampling import Sampler, SamplingParams
from tests.likeliest import likeliest_of
from tests.sampling.definition import changed, chi_square_is_small, distribution, either_side, mask_of


def make_sampler(
    prompt_ids: Sequence[int] = (), num_token_ids: int = 24, ends: Sequence[int] = (), choice: int = 0, **fields: Any
) -> Sampler:
    params = SamplingParams(**fields).with_defaults(GenerationDefaults())
    return Sampler(params, prompt_ids=prompt_ids, num_token_ids=num_token_ids, end_token_ids=ends, choice=choice)


def random_state(sampler: Sampler) -> object:
    return sampler._random.bit_generator.state


@pytest.mark.parametrize(
    "fields", [{"temperature": 0}, {"temperature": 1e-12}, {"temperature": 1e-320}, {"top_k": 1}, {"top_p": 0},
               {"top_p": 1e-9}, {"min_p": 1}]
)  # fmt: skip
def test_what_means_greedy_is_greedy(fields, rng) -> None:
    sampler = make_sampler(num_token_ids=500, **fields)
    for _ in range(20):
        logits = rng.normal(size=500).astype(np.float32)
        assert sampler.sample(logits).token_id == logits.argmax()


@pytest.mark.parametrize(
    "fields",
    [{"temperature": t} for t in (1e-4, 1.0, 2.0, 1e30)]
    + [{"top_k": k} for k in (-1, 0, 10**9)]
    + [{"repetition_penalty": r} for r in (0.01, 100.0)]
    + [{"presence_penalty": 2.0, "frequency_penalty": -2.0, "logit_bias": {3: -100, 4: 100}}],
)
@pytest.mark.parametrize("scale", [0.0, 1.0, 1e4, 1e30])
def test_extreme_settings_still_give_a_token_in_range(fields, scale, rng) -> None:
    sampler = make_sampler(num_token_ids=500, prompt_ids=(1, 2, 499), **fields)
    for _ in range(5):
        token = sampler.sample((rng.normal(size=512) * scale).astype(np.float32))
        assert 0 <= token.token_id < 500


def test_ties_go_to_the_lowest_id() -> None:
    assert make_sampler(temperature=0).sample(np.zeros(24, np.float32)).token_id == 0
    sampler = make_sampler(temperature=0, logit_bias={7: 1.0, 9: 1.0})
    assert sampler.sample(np.zeros(24, np.float32)).token_id == 7
    logits = np.zeros(24, np.float32)
    logits[3] = 1.0
    assert [sampler.sample(np.roll(logits, shift)).token_id for shift in (0, 5)] == [3, 7]


def test_rows_without_a_token_are_never_chosen_nor_listed() -> None:
    logits = np.zeros(40, np.float32)
    logits[24:] = 50.0
    for fields in ({"temperature": 0}, {"temperature": 1.0}, {"top_k": 5}):
        sampled = make_sampler(num_token_ids=24, logprobs=20, seed=0, **fields).sample(logits)
        assert sampled.token_id < 24 and all(entry.token_id < 24 for entry in sampled.top)
        assert sampled.logprob == pytest.approx(-math.log(24))


def test_gaps_in_the_vocabulary_are_never_chosen_nor_listed() -> None:
    params = SamplingParams(logprobs=20, seed=0).with_defaults(GenerationDefaults())
    sampler = Sampler(params, prompt_ids=(), num_token_ids=8, end_token_ids=(), absent_ids=(2, 3, 9))
    logits = np.array([0, 0, 50, 50, 0, 0, 0, 0], np.float32)
    for _ in range(20):
        sampled = sampler.sample(logits)
        assert {sampled.token_id, *(entry.token_id for entry in sampled.top)} == {0, 1, 4, 5, 6, 7}
        assert sampled.logprob == pytest.approx(-math.log(6))


def test_a_seed_repeats_and_zero_is_a_seed(rng) -> None:
    rows = rng.normal(size=(30, 24)).astype(np.float32)

    def run(seed: int | None) -> list[int]:
        sampler = make_sampler(seed=seed, temperature=1.0)
        return [sampler.sample(row).token_id for row in rows]

    assert run(0) == run(0) and run(5) == run(5)
    assert run(0) != run(5)
    assert run(None) != run(None)


def test_end_tokens_wait_for_min_tokens_and_never_come_under_ignore_eos() -> None:
    logits = np.zeros(24, np.float32)
    logits[[5, 6]] = 30.0
    sampler = make_sampler(ends=(5,), stop_token_ids=[6], min_tokens=3, temperature=0)
    assert [sampler.sample(logits).token_id for _ in range(4)] == [0, 0, 0, 5]
    sampler = make_sampler(ends=(5, 6), ignore_eos=True, temperature=0)
    assert [sampler.sample(logits).token_id for _ in range(4)] == [0] * 4
    sampler = make_sampler(ends=(5, 6), ignore_eos=True, min_tokens=2, temperature=0, logit_bias={5: 100})
    assert [sampler.sample(logits).token_id for _ in range(4)] == [0] * 4


def test_forbidding_every_token_is_an_error_not_a_crash() -> None:
    sampler = make_sampler(num_token_ids=2, ends=(0,), stop_token_ids=[1], min_tokens=1)
    with pytest.raises(NumericalError, match="Every token is forbidden"):
        sampler.sample(np.zeros(2, np.float32))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("temperature", [0, 1])
def test_a_row_that_is_not_a_number_is_an_error(bad, temperature) -> None:
    logits = np.zeros(24, np.float32)
    logits[7] = bad
    with pytest.raises(NumericalError, match="not a number"):
        make_sampler(temperature=temperature).sample(logits)


@settings(deadline=None)
@given(logits=st.lists(st.floats(-1e4, 1e4, width=32), min_size=24, max_size=24), count=st.integers(0, 20))
def test_log_probabilities_are_finite_sorted_and_include_the_chosen_token(logits, count) -> None:
    row = np.array(logits, np.float32)
    for fields in ({"top_k": 1}, {"logit_bias": {int(row.argmax()): -100}}, {"temperature": 0.0}, {"top_p": 0.5}):
        sampled = make_sampler(logprobs=count, seed=1, **fields).sample(row)
        expected = row.astype(np.float64) - np.logaddexp.reduce(row.astype(np.float64))
        assert sampled.logprob == pytest.approx(expected[sampled.token_id], abs=1e-9)
        assert len(sampled.top) == count
        values = [entry.logprob for entry in sampled.top]
        assert values == sorted(values, reverse=True) and np.isfinite(values).all()
        assert_allclose(values, np.sort(expected)[::-1][:count], atol=1e-9)


def test_no_log_probabilities_unless_asked() -> None:
    assert make_sampler().sample(np.zeros(24, np.float32)).logprob is None
    sampled = make_sampler(logprobs=0).sample(np.zeros(24, np.float32))
    assert sampled.logprob is not None and sampled.top == ()


def test_the_sampler_leaves_the_callers_logits_alone() -> None:
    logits = np.zeros(24, np.float32)
    make_sampler(prompt_ids=(1,), repetition_penalty=3.0, logit_bias={2: 5}, min_tokens=1, ends=(0,)).sample(logits)
    assert not logits.any()


USUAL = [
    {"temperature": 0},
    {"temperature": 0.6, "top_k": 20, "top_p": 0.95},
    {"temperature": 1.0},
    {"temperature": 1.0, "top_p": 0.9},
    {"temperature": 0.8, "min_p": 0.05},
]
PENALTIES = {"repetition_penalty": 1.2, "presence_penalty": 1.0, "frequency_penalty": 0.3, "logit_bias": {17: 4.0}}


@pytest.mark.parametrize("penalties", [{}, PENALTIES])
@pytest.mark.parametrize("fields", USUAL)
def test_tokens_of_a_whole_vocabulary_are_those_the_definition_allows(fields, penalties, rng) -> None:
    prompt, output = rng.integers(0, 151_669, 300).tolist(), []
    sampler = make_sampler(prompt, 151_669, ends=(5,), ignore_eos=True, seed=1, **fields, **penalties)
    for _ in range(12):
        logits = (rng.normal(size=151_936) * 3).astype(np.float32)
        logits[[5, 151_700]] = 60.0
        exact = logits[:151_669].astype(np.float64)
        if penalties:
            exact = changed(
                logits[:151_669],
                prompt=prompt,
                output=output,
                repetition=1.2,
                presence=1.0,
                frequency=0.3,
                bias={17: 4.0},
            )
        exact[5] = -np.inf
        token_id = sampler.sample(logits).token_id
        if fields["temperature"] == 0:
            assert token_id == exact.argmax()
        else:
            rules = [fields.get(name, other) for name, other in (("top_k", 0), ("top_p", 1.0), ("min_p", 0.0))]
            assert token_id in either_side(exact, fields["temperature"], *rules)[1]
        output.append(token_id)


@pytest.mark.parametrize("fields", USUAL[1:])
def test_draws_follow_the_distribution(fields, rng) -> None:
    logits = (rng.normal(size=4500) * 3).astype(np.float32)
    mask = mask_of(range(0, 4500, 2), 141)
    sampler = make_sampler(num_token_ids=4500, seed=7, logit_bias={4: 5.0, 5: 90.0}, **fields)
    exact = logits.astype(np.float64)
    exact[4] += 5.0
    exact[1::2] = -np.inf
    rules = [fields.get(name, other) for name, other in (("top_k", 0), ("top_p", 1.0), ("min_p", 0.0))]
    expected = distribution(exact, fields["temperature"], *rules)
    assert chi_square_is_small(lambda: sampler.sample(logits, mask).token_id, expected, 4000)


@pytest.mark.parametrize("fields", [*USUAL, {**USUAL[1], **PENALTIES}, {"top_p": 0.9, "logprobs": 5}])
def test_the_result_does_not_depend_on_where_the_row_lies(fields, rng) -> None:
    rows = (rng.normal(size=(4, 5003)) * 3).astype(np.float32)

    def run(place) -> list:
        sampler = make_sampler((1, 2, 3), 5003, seed=3, **fields)
        return [sampler.sample(place(row)) for row in rows for _ in range(5)]

    def inside(start: int, stride: int):
        def place(row: np.ndarray) -> np.ndarray:
            big = rng.normal(size=40_000).astype(np.float32)
            view = big[start::stride][:5003]
            view[:] = row
            return view

        return place

    alone = run(lambda row: row.copy())
    for start, stride in ((0, 1), (1, 1), (3, 1), (17, 1), (2, 3)):
        assert run(inside(start, stride)) == alone


def test_a_bad_row_ends_one_request_and_leaves_its_neighbours_alone(rng) -> None:
    rows = rng.normal(size=(8, 24)).astype(np.float32)

    def run(*, beside_a_bad_one: bool) -> list[int]:
        sampler, neighbour = make_sampler(seed=4), make_sampler(seed=9)
        tokens = []
        for row in rows:
            if beside_a_bad_one:
                with pytest.raises(NumericalError):
                    neighbour.sample(np.full(24, np.nan, np.float32))
            tokens.append(sampler.sample(row).token_id)
        return tokens

    assert run(beside_a_bad_one=True) == run(beside_a_bad_one=False)


def test_choices_of_one_seed_differ_and_repeat_and_the_first_is_what_one_gets(rng) -> None:
    rows = rng.normal(size=(30, 24)).astype(np.float32)

    def run(seed: int | None, choice: int, n: int = 4) -> tuple[int, ...]:
        sampler = make_sampler(seed=seed, choice=choice, n=n)
        return tuple(sampler.sample(row).token_id for row in rows)

    for seed in (0, 1, 2**63 - 1):
        choices = [run(seed, choice) for choice in range(4)]
        assert len(set(choices)) == 4
        assert choices == [run(seed, choice) for choice in range(4)]
        assert choices[0] == run(seed, 0, n=1)
    assert len({run(seed, choice) for seed in range(10) for choice in range(10)}) == 100
    assert len({run(None, choice) for choice in (0, 0, 1, 1)}) == 4


@pytest.mark.parametrize("fields", [{}, {"temperature": 0}, {"top_p": 0.5, "logprobs": 3}, PENALTIES])
def test_a_token_that_alone_is_left_takes_no_random_number(fields, rng) -> None:
    sampler = make_sampler(seed=1, **fields)
    before = random_state(sampler)
    logits = rng.normal(size=24).astype(np.float32)
    assert sampler.sample(logits, mask_of([9], 1)).token_id == 9
    sampler.take(9)
    assert random_state(sampler) == before
    two = make_sampler(num_token_ids=2, ends=(0,), ignore_eos=True, seed=1)
    before = random_state(two)
    assert two.sample(np.array([90, 0], np.float32)).token_id == 1 and random_state(two) == before


def test_greedy_takes_no_random_number(rng) -> None:
    sampler = make_sampler(seed=1, temperature=0, **PENALTIES)
    before = random_state(sampler)
    sampler.sample(rng.normal(size=24).astype(np.float32))
    assert random_state(sampler) == before


@settings(deadline=None, max_examples=30)
@given(forced=st.lists(st.none() | st.integers(0, 23), min_size=1, max_size=12), min_tokens=st.integers(0, 5))
def test_tokens_that_are_taken_and_tokens_that_alone_are_allowed_leave_the_same_request(forced, min_tokens) -> None:
    rows = np.random.default_rng(2).normal(size=(len(forced), 24)).astype(np.float32)
    fields = {"seed": 5, "min_tokens": min_tokens, "ends": (3, 4), "logprobs": 2, **PENALTIES}
    in_a_chunk, step_by_step = make_sampler((1, 2), **fields), make_sampler((1, 2), **fields)
    for row, token_id in zip(rows, forced, strict=True):
        if token_id is None:
            assert in_a_chunk.sample(row) == step_by_step.sample(row)
        else:
            assert in_a_chunk.take(token_id, row) == step_by_step.sample(row, mask_of([token_id], 1))


def test_a_mask_comes_before_every_rule_that_narrows(rng) -> None:
    logits = rng.normal(size=24).astype(np.float32)
    logits[[0, 1, 2]] = 20.0
    for fields in ({"temperature": 0}, {"top_k": 1}, {"top_p": 0.01}, {"min_p": 1.0}, {"logit_bias": {1: 100}}):
        for dtype in (np.uint32, np.int32):
            mask = mask_of([7, 8, 23], 1, dtype)
            sampled = make_sampler(seed=0, logprobs=2, **fields).sample(logits, mask)
            assert sampled.token_id in (7, 8, 23)
            assert sampled.logprob < -10 and [entry.token_id for entry in sampled.top] == [0, 1]
    for size in (24, 20):  # a mask may reach past the tokens, and then says nothing
        assert make_sampler(num_token_ids=size).sample(logits, mask_of([2, *range(20, 40)], 2)).token_id in (
            2,
            20,
            21,
            22,
            23,
        )
    with pytest.raises(NumericalError, match="allows no token"):
        make_sampler(num_token_ids=20).sample(logits, mask_of([20, 23], 1))


def test_an_end_that_alone_is_allowed_comes_before_min_tokens() -> None:
    logits = np.zeros(24, np.float32)
    for fields in ({"min_tokens": 5}, {"ignore_eos": True}):
        sampler = make_sampler(ends=(6,), temperature=0, **fields)
        assert sampler.sample(logits, mask_of([6, 8], 1)).token_id == 8
        assert sampler.sample(logits, mask_of([6], 1)).token_id == 6


def test_a_token_that_is_taken_counts_for_penalties_and_min_tokens() -> None:
    logits = np.zeros(24, np.float32)
    logits[[3, 5]] = [1.0, 2.0]
    sampler = make_sampler(ends=(5,), temperature=0, min_tokens=2, presence_penalty=2.0)
    assert sampler.take(3).logprob is None
    assert sampler.sample(logits).token_id == 0  # 3 is penalised, 5 is too early
    assert sampler.sample(logits).token_id == 5


def test_a_sampler_without_penalties_is_small() -> None:
    prompt = list(range(30_000))

    def bytes_of(**fields: Any) -> int:
        sampler = make_sampler(prompt, 151_669, **fields)
        sampler.sample(np.zeros(151_669, np.float32))
        return len(pickle.dumps(sampler))

    assert bytes_of(top_k=20) < 5000
    assert bytes_of(top_k=20, presence_penalty=1.0) < 10_000


SETTINGS: list[dict[str, Any]] = [
    {"temperature": 0},
    {"temperature": 0.6, "top_k": 20, "top_p": 0.95},
    {"top_k": 1},
    {"top_k": 64},
    {"top_k": 65, "min_p": 0.1},
    {"top_k": 5, "min_p": 0.2, "top_p": 0.5, "temperature": 1.5},
    {"min_p": 0.05},
    {"min_p": 1e-9, "temperature": 0.1},
    {"min_p": 0.05, "top_p": 0.9},
    {"top_p": 0.7},
    {"temperature": 1.0},
    {"temperature": 2.0, "top_p": 0.3},
    {"temperature": 0, "logprobs": 3},
    {"top_k": 20, "logprobs": 3},
    {"temperature": 0, **PENALTIES},
    {"top_k": 20, **PENALTIES},
    {"min_p": 0.2, **PENALTIES},
    {"temperature": 1.0, **PENALTIES},
    {"top_p": 0.7, **PENALTIES},
    {"temperature": 0, "logit_bias": {0: 1.5, 2: -3}},
    {"top_k": 20, "logit_bias": dict.fromkeys(range(0, 5000, 7), -4.0) | dict.fromkeys(range(3, 5000, 500), 3.0)},
]


@settings(deadline=None, max_examples=300)
@given(
    fields=st.sampled_from(SETTINGS),
    size=st.sampled_from([1, 2, 3, 24, 63, 64, 65, 300, 5000]),
    kind=st.sampled_from(["drawn", "ties", "all equal", "few above", "rising", "not finite"]),
    rules=st.fixed_dictionaries({"min_tokens": st.integers(0, 4), "ignore_eos": st.booleans()}),
    num_ends=st.integers(0, 3),
    has_mask=st.booleans(),
    seed=st.integers(0, 10**6),
)
def test_who_knows_the_likeliest_tokens_gets_the_same_ones(fields, size, kind, rules, num_ends, has_mask, seed) -> None:
    rng = np.random.default_rng(seed)
    rows = (rng.normal(size=(6, size + 3)) * 3).astype(np.float32)
    rows = np.round(rows) if kind == "ties" else np.zeros_like(rows) if kind == "all equal" else rows
    if kind == "rising":
        rows = np.sort(rows, axis=1)
    if kind == "few above":
        rows = np.maximum(rows, np.sort(rows, axis=1)[:, -min(70, size) :][:, :1])
    if kind == "not finite":
        rows[3, rng.integers(size)] = rng.choice([np.nan, np.inf, -np.inf])
    # The likeliest tokens may be ends, and there may be so many of those that the list hasn't enough others.
    ends = np.argsort(-rows[0, :size])[: [0, 1, 2, 60][num_ends]].tolist()
    given = {"num_token_ids": size, "seed": seed, "ends": ends, **rules, **fields}
    given["logit_bias"] = {i: b for i, b in fields.get("logit_bias", {}).items() if i < size}
    mask = mask_of(range(0, size, 2), size // 32 + 1) if has_mask else None
    outcomes = [_outcomes(make_sampler((0,), **given), rows, mask, is_told) for is_told in (False, True)]
    assert outcomes[0] == outcomes[1]


@pytest.mark.parametrize("top_p", [0.05, 0.3, 0.45, 0.9, 1.0])
def test_likely_neighbours_are_drawn_alike_by_who_knows_them_and_who_looks_for_them(top_p) -> None:
    """A few blocks hold all that is likely, so that a look at the row finds far more tokens than it was asked for."""
    rows = np.tile(np.linspace(0, 3, 9000, dtype=np.float32), (8, 1))
    given = {"num_token_ids": 9000, "seed": 5, "temperature": 1.0, "top_p": top_p}
    outcomes = [_outcomes(make_sampler((0,), **given), rows, None, is_told) for is_told in (False, True)]
    assert outcomes[0] == outcomes[1]


def _outcomes(sampler: Sampler, rows: np.ndarray, mask: Any, is_told: bool) -> list[Any]:
    """The tokens of rows one after another, or the errors, and the state of the random numbers at last."""
    outcomes: list[Any] = []
    for row in rows:
        try:
            outcomes.append(sampler.sample(row, mask, likeliest_of(row[: sampler._num_token_ids]) if is_told else None))
        except NumericalError as error:
            outcomes.append(str(error))
    return [*outcomes, random_state(sampler)]


@pytest.mark.parametrize("fields", [{"temperature": 0}, {"top_k": 20, "top_p": 0.9}, {"min_p": 0.3}])
def test_who_knows_the_likeliest_tokens_needs_no_row(fields, rng) -> None:
    row = (rng.normal(size=5000) * 4).astype(np.float32)
    expected = make_sampler(num_token_ids=5000, seed=3, ends=(7,), min_tokens=1, **fields).sample(row)
    sampler = make_sampler(num_token_ids=5000, seed=3, ends=(7,), min_tokens=1, **fields)
    assert sampler.wants_likeliest
    assert sampler.sample(np.full(5000, np.nan, np.float32), None, likeliest_of(row)) == expected


def test_whom_the_likeliest_tokens_tell_nothing_does_not_ask() -> None:
    for fields in ({"logprobs": 0}, {"temperature": 0, "logprobs": 0}):
        assert not make_sampler(**fields).wants_likeliest
    for fields in ({}, {"top_p": 0.9}, {"top_k": 3, "logit_bias": {1: 2}}):
        assert make_sampler(**fields).wants_likeliest
