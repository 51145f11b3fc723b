"""One choice: what is forced and what is guessed comes out as a plain loop would have it, token by token.

`step_by_step` is that loop: the whole context to the model, one mask, one token; it knows no proposals.
"""

from __future__ import annotations

import itertools
from collections import deque
from typing import Any

import numpy as np
import pytest

from kaishu.engine.choice import Choice
from kaishu.engine.grammar import GrammarCompiler
from kaishu.engine.jobs import Generate
from kaishu.engine.output import Output
from kaishu.engine.request import Request
from kaishu.engine.speculation import Guessing
from kaishu.engine.thinking import ThinkingProgress, ThinkingTokens
from kaishu.output_format import OutputFormat
from kaishu.sampling import Sampler
from kaishu.text.tokenizer import Tokenizer
from tests.engine.engine_runs import END_THINK, THINK, LivelyExecutor, job, limits_of, lively

SCHEMA = {
    "type": "object",
    "properties": {"name": {"enum": ["alpha", "beta"]}, "cd": {"type": "boolean"}},
    "required": ["name", "cd"],
    "additionalProperties": False,
}
FORMATS = {
    "json": OutputFormat.json_schema(SCHEMA),
    "choice": OutputFormat.choice(["abc", "abd", "b"]),
    "forced": OutputFormat.regex("abcdabcd(a|b)abcd"),
    "blank": OutputFormat.regex(r"\n?(a|b)+c"),
}


PLACES = [("closed", None), ("none", None), ("open", None), ("none", 2), ("open", 0), ("open", 5)]


def sampler_of(one: Generate, tokenizer: Tokenizer) -> Sampler:
    limits = limits_of(tokenizer)
    return Sampler(
        one.params,
        prompt_ids=one.prompt_ids,
        num_token_ids=limits.num_token_ids,
        end_token_ids=limits.end_token_ids,
        absent_ids=limits.absent_token_ids,
    )


def step_by_step(one: Generate, executor: LivelyExecutor, tokenizer: Tokenizer) -> list[tuple[int, float | None]]:
    """The tokens of an answer and their log probabilities, the end token included."""
    sampler, limits = sampler_of(one, tokenizer), limits_of(tokenizer)
    start, end = tokenizer.control_tokens[THINK], tokenizer.control_tokens[END_THINK]
    newline, gap = tokenizer.encode("\n"), tokenizer.encode("\n\n")
    grammar = one.grammar.start() if one.grammar is not None else None
    place = {"closed": "over", "none": "before", "open": "inside"}[one.thinking]
    due: deque[int] = deque()
    thought = 0
    context, taken = list(one.prompt_ids), list[tuple[int, float | None]]()
    while len(taken) < (one.params.max_tokens or 1000):
        row = executor.row(context)
        budget = one.params.thinking_budget
        if place == "inside" and budget is not None and thought >= budget and not due:
            due = deque([*newline, end, *gap])
        is_layout = bool(due)
        if due:
            token = sampler.take(due.popleft(), row)
        else:
            mask = None
            if grammar is not None and place == "inside":  # a thought doesn't end the output before its answer
                words = -(-executor.vocab_size // 32)
                mask = np.full(words, 0xFFFFFFFF, np.uint32)
                end_id = tokenizer.control_tokens["<|im_end|>"]  # the one that byte_compiler was told of
                mask[end_id >> 5] &= ~np.uint32(1 << (end_id & 31))
            elif grammar is not None:
                mask = grammar.allowed().copy()
                if place == "before":
                    mask[start >> 5] |= np.uint32(1 << (start & 31))
            token = sampler.sample(row, mask)
        token_id = token.token_id
        taken.append((token_id, token.logprob))
        context.append(token_id)
        if token_id in limits.end_token_ids:
            break
        before = place
        if place == "before":
            is_blank = not tokenizer.decode([token_id]).strip()
            place = "inside" if token_id == start else "before" if is_blank else "over"
        elif place == "inside":
            thought += token_id != end and not is_layout
            place = "over" if token_id == end else "inside"
            if place == "over" and grammar is not None and not is_layout:
                due = deque(gap)
        if grammar is not None and not is_layout and before != "inside" and place != "inside":
            grammar.accept(token_id)
    return taken


def driven(
    one: Generate, executor: LivelyExecutor, tokenizer: Tokenizer, guess: Any = None
) -> tuple[Choice, list[tuple[int, float | None]], int]:
    """A choice driven without scheduler or pages. guess(context, count) → guesses. return: it, its tokens, steps"""
    request = Request(0, list(one.prompt_ids), len(one.prompt_ids))
    choice = Choice(
        request,
        sampler=sampler_of(one, tokenizer),
        output=Output(tokenizer, one.params, limits_of(tokenizer), one.params.max_tokens or 1000),
        thinking=ThinkingProgress(one.thinking, ThinkingTokens.of(tokenizer), one.params.thinking_budget),
        grammar=one.grammar.start() if one.grammar is not None else None,
        guessing=Guessing(looks_up=False) if guess else None,
    )
    steps = 0
    while choice.output.finish_reason is None:
        if not choice.propose_forced() and guess and choice.output.room_tokens > 1:
            choice.propose_guesses(guess(request.token_ids, choice.output.room_tokens - 1))
        context = request.token_ids + request.proposed
        first = len(request.token_ids) - 1 if request.proposed_rows else len(context) - 1
        rows = np.stack([executor.row(context[: i + 1]) for i in range(first, len(context))])
        before = len(request.token_ids)
        pieces = choice.advance(rows)
        steps += 1
        assert [piece.token_id for piece in pieces] == request.token_ids[before:] and pieces
    ids = request.token_ids[request.prompt_tokens :]
    logprobs = [entry.chosen.logprob for entry in choice.output.logprobs] if one.params.logprobs is not None else []
    return choice, list(itertools.zip_longest(ids, logprobs)), steps


def assert_same(one: Generate, tokenizer: Tokenizer, guess: Any = None) -> Choice:
    executor = lively(tokenizer)
    choice, found, _ = driven(one, executor, tokenizer, guess)
    expected = step_by_step(one, executor, tokenizer)
    assert [token_id for token_id, _ in found] == [token_id for token_id, _ in expected]
    if one.params.logprobs is not None:
        assert [p for _, p in found if p is not None] == [p for _, p in expected][: len(choice.output.token_ids)]
    return choice


def always_wrong(context: list[int], count: int) -> list[int]:
    return [0] * min(count, 3)


def clairvoyant(tokenizer: Tokenizer, one: Generate, beyond: int = 8) -> Any:
    """Guesses what will come, and goes on guessing behind ends and limits."""
    from dataclasses import replace

    longer = replace(one, params=replace(one.params, max_tokens=(one.params.max_tokens or 40) + beyond))
    answer = [token_id for token_id, _ in step_by_step(longer, lively(tokenizer), tokenizer)]

    def guess(context: list[int], count: int) -> list[int]:
        done = len(context) - len(one.prompt_ids)
        return (answer[done:] + [5] * 8)[: min(count, 7)]

    return guess


@pytest.mark.parametrize("logprobs", [None, 2])
@pytest.mark.parametrize("format_", [None, *FORMATS])
@pytest.mark.parametrize(
    ("thinking", "budget"), [("closed", None), ("none", None), ("open", None), ("none", 2), ("open", 0), ("open", 5)]
)
def test_forced_and_guessed_tokens_are_those_of_going_step_by_step(
    byte_tokenizer: Tokenizer, byte_compiler: GrammarCompiler, thinking: Any, budget: Any, format_: Any, logprobs: Any
) -> None:
    grammar = byte_compiler.compile(FORMATS[format_]) if format_ else None
    fields = {"thinking": thinking, "thinking_budget": budget, "logprobs": logprobs, "grammar": grammar}
    for seed, temperature in ((0, 0.0), (1, 1.5)):
        for max_tokens in (9, 40):
            one = job(
                byte_tokenizer.encode(f"ab{seed}"), seed=seed, temperature=temperature, max_tokens=max_tokens, **fields
            )
            assert_same(one, byte_tokenizer)
            for guess in (always_wrong, clairvoyant(byte_tokenizer, one)):
                assert_same(one, byte_tokenizer, guess)


@pytest.mark.parametrize("fields", [
    {"repetition_penalty": 1.5}, {"frequency_penalty": 1.0, "presence_penalty": 0.5}, {"logit_bias": {70: 5.0}},
    {"min_tokens": 12}, {"stop": "ba"}, {"stop": ["cd", "ab"], "min_tokens": 4}, {"stop_token_ids": [66, 67]},
    {"ignore_eos": True},
])  # fmt: skip
def test_penalties_limits_and_stops_hold_inside_guesses(byte_tokenizer: Tokenizer, fields: dict[str, Any]) -> None:
    for seed in range(6):
        one = job(byte_tokenizer.encode(f"a{seed}"), seed=seed, temperature=1.0, max_tokens=20, **fields)
        executor = lively(byte_tokenizer)
        plain = driven(one, executor, byte_tokenizer)[0].output
        for guess in (always_wrong, clairvoyant(byte_tokenizer, one)):
            guessed = driven(one, executor, byte_tokenizer, guess)[0].output
            for name in ("text", "token_ids", "finish_reason", "num_taken"):
                assert getattr(plain, name) == getattr(guessed, name)


def test_forced_tokens_take_few_steps(byte_tokenizer: Tokenizer, byte_compiler: GrammarCompiler) -> None:
    one = job([1, 2], grammar=byte_compiler.compile(FORMATS["forced"]), max_tokens=40)
    choice, tokens, steps = driven(one, lively(byte_tokenizer), byte_tokenizer)
    assert steps <= 3 < len(tokens) == 14 and choice.output.text[:8] == "abcdabcd" and choice.output.text[9:] == "abcd"


def test_right_guesses_take_few_steps_and_are_counted(byte_tokenizer: Tokenizer) -> None:
    one = job([1, 2], max_tokens=33, ignore_eos=True)
    choice, tokens, steps = driven(one, lively(byte_tokenizer), byte_tokenizer, clairvoyant(byte_tokenizer, one))
    assert steps == 5 and len(tokens) == 33 and choice.guessing is not None
    assert choice.guessing.accepted == choice.guessing.guessed == 28


def test_a_grammar_begins_after_the_thought_and_its_gap(
    byte_tokenizer: Tokenizer, byte_compiler: GrammarCompiler
) -> None:
    grammar = byte_compiler.compile(FORMATS["json"])
    for seed in range(8):
        one = job(
            [seed, 2],
            grammar=grammar,
            thinking="open",
            temperature=2.0,
            seed=seed,
            max_tokens=200,
            thinking_budget=9,
            ignore_eos=True,
        )
        choice = driven(one, lively(byte_tokenizer), byte_tokenizer)[0]
        _, answer = choice.output.text.split("</think>")
        assert answer.startswith("\n\n{") and choice.output.finish_reason == "stop"
        assert choice.thinking.num_tokens <= 9
