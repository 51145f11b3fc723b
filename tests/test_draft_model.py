"""A draft changes no answer, bit for bit; it is refused where its tokens aren't the model's, and where it can't fit."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kaishu import LLM
from kaishu.engine.core import EngineSettings
from kaishu.errors import InvalidParameterError, OutOfMemoryError, TokenizerError
from kaishu.loading import load_model
from kaishu.planning import context_within, plan_model
from tests.tiny_checkpoints import VOCAB_SIZE

PROMPTS = ["12+30=?", "Once upon a time", "Count to five: one, two, three, four, five.\nAgain: one, two,", "从前"]
FIELDS: list[dict[str, Any]] = [
    {"temperature": 0.0, "max_tokens": 40, "logprobs": 2},
    {"temperature": 1.0, "seed": 7, "max_tokens": 40, "logprobs": 0},
    {"temperature": 0.7, "top_p": 0.9, "top_k": 20, "seed": 3, "max_tokens": 40, "repetition_penalty": 1.1},
]


@pytest.fixture(scope="module")
def folder(tiny_checkpoint) -> Path:
    return tiny_checkpoint("dense_tied", with_tokenizer=True)


@pytest.fixture(scope="module")
def other(tiny_checkpoint) -> Path:
    """Another model with the same tokenizer."""
    return tiny_checkpoint("dense_untied", with_tokenizer=True)


@pytest.fixture(scope="module")
def plain() -> LLM:
    return LLM("tiny", threads=1, speculation=False)


def told(completion: Any) -> Any:
    """Everything but time and what was found in the cache."""
    return replace(completion, timing=None, usage=replace(completion.usage, cached_tokens=0))


@pytest.mark.parametrize("weights", ["auto", "int4"])
def test_answers_with_a_draft_are_those_without_bit_for_bit(plain, weights):
    """The same model in fewer bits is right often, but not always."""
    guessing = LLM("tiny", threads=1, draft="tiny") if weights == "auto" else None
    if guessing is None:
        draft = load_model("tiny", threads=1, weights="int4").executor
        loaded = load_model("tiny", threads=1, draft="tiny")
        assert loaded.draft is not None
        guessing = LLM.of(replace(loaded, draft=replace(loaded.draft, executor=draft)))
    for fields in FIELDS:
        own = [told(plain.generate(prompt, **fields)) for prompt in PROMPTS]
        assert [told(guessing.generate(prompt, **fields)) for prompt in PROMPTS] == own
        assert [told(one) for one in guessing.generate(PROMPTS, **fields)] == own
    seen = guessing.statistics()
    assert 0 < seen.accepted < seen.guessed, "some guesses are right and some wrong"  # tokens are drawn at random, too


def test_a_draft_of_another_model_is_mostly_wrong_and_changes_nothing(folder, other):
    alone, guessing = LLM(folder, threads=1, speculation=False), LLM(folder, threads=1, draft=other)
    fields = {"max_tokens": 24, "temperature": 0.9, "seed": 1, "ignore_eos": True, "logprobs": 1}
    prompts = ["abc", "the same, the same", "x"]
    own = [told(alone.generate(prompt, **fields)) for prompt in prompts]
    assert [told(one) for one in guessing.generate(prompts, **fields)] == own
    assert guessing.statistics().guessed > 0
    assert alone.statistics().guessed == 0


def test_the_asynchronous_engine_takes_a_draft(plain):
    from kaishu import Engine, SamplingParams

    async def answer() -> Any:
        async with Engine("tiny", threads=1, draft="tiny") as engine:
            request = await engine.add(PROMPTS[2], SamplingParams(temperature=0, max_tokens=30))
            completion = await request.completion()
            return completion, engine.statistics()

    completion, seen = asyncio.run(answer())
    assert told(completion) == told(plain.generate(PROMPTS[2], temperature=0, max_tokens=30))
    assert seen.acceptance is not None and seen.acceptance > 0.5


def test_settings_without_lookup_leave_the_draft_and_no_speculation_leaves_nothing(plain):
    loaded = load_model("tiny", threads=1, draft="tiny")
    only_draft = LLM.of(loaded, EngineSettings(speculation=False))
    only_draft.generate("12+30=?", temperature=0, max_tokens=20)
    assert only_draft.statistics().accepted > 0
    nothing = LLM.of(load_model("tiny", threads=1, speculation=False), EngineSettings(speculation=True))
    nothing.generate("a a a a a a a a", temperature=0, max_tokens=20)
    assert nothing.statistics().guessed == 0


def test_the_description_names_the_draft(folder, other):
    assert LLM(folder, threads=1, draft=other).description.endswith(f"; guesses by {other}")


def test_a_draft_of_other_tokens_is_refused_by_the_first_that_differs(own_checkpoint, folder):
    with pytest.raises(TokenizerError, match=r"tiny can't be the draft: token \d+ is .* there, but .* in the model"):
        load_model(folder, draft="tiny")
    changed = own_checkpoint("dense_tied", with_tokenizer=True)
    described = json.loads((changed / "tokenizer.json").read_text())
    token = described["added_tokens"][-1]
    token["content"] = "<|another|>"
    (changed / "tokenizer.json").write_text(json.dumps(described))
    with pytest.raises(TokenizerError, match=rf"token {token['id']:,} is '<\|another\|>' there"):
        load_model(folder, draft=changed)


def test_a_draft_without_rows_for_all_tokens_is_refused(tiny_checkpoint, own_checkpoint, folder, monkeypatch):
    small = own_checkpoint("dense_tied", with_tokenizer=True)
    from kaishu import draft_model

    opened = draft_model.open_checkpoint

    def cut(path: Any) -> Any:
        found = opened(path)
        return replace(found, config=replace(found.config, vocab_size=100))

    monkeypatch.setattr(draft_model, "open_checkpoint", cut)
    with pytest.raises(TokenizerError, match=r"its embedding has 100 rows, but the tokenizer has \d+ tokens"):
        load_model(folder, draft=small)
    assert VOCAB_SIZE > 100


def test_a_draft_and_no_speculation_contradict_each_other():
    with pytest.raises(InvalidParameterError, match="speculation is False; allowed: True with a draft"):
        load_model("tiny", draft="tiny", speculation=False)


def test_a_bound_on_memory_counts_the_draft(folder, other):
    loaded = load_model(folder, threads=1, draft=other)
    assert loaded.draft is not None
    from kaishu.checkpoint import open_checkpoint
    from kaishu.draft_model import draft_form

    form = draft_form("auto", "auto", "auto", "cpu", "auto")
    both = [(found, form(found)) for found in map(open_checkpoint, (folder, other))]
    alone = plan_model(*both[0], threads=1)
    together = alone.with_draft(plan_model(*both[1], threads=1))
    more = together.serving_peak_bytes - alone.serving_peak_bytes
    layout = loaded.draft.executor.layout  # type: ignore[attr-defined]
    assert more > layout.num_bytes
    bound = alone.peak_bytes + (together.peak_bytes - alone.peak_bytes) // 2
    assert context_within(bound, *both[0], asked=512, threads=1) == (512, ())
    with pytest.raises(OutOfMemoryError):
        context_within(bound, *both[0], asked=512, threads=1, draft=both[1])
    assert context_within(together.peak_bytes, *both[0], asked=512, threads=1, draft=both[1]) == (512, ())


@pytest.mark.parametrize("arguments", [["--draft", "tiny"], ["--no-speculation"], ["--speculation"]])
def test_the_commands_take_a_draft_or_do_without_guesses(arguments, capsys):
    from kaishu.cli.main import main

    def said(*more: str) -> str:
        with pytest.raises(SystemExit) as ended:
            main(["generate", "tiny", "-p", "1 2 3 4 1 2 3 4 1 2", "--max-tokens", "24", "--temperature", "0", *more])
        assert ended.value.code == 0
        return capsys.readouterr().out

    assert said(*arguments) == said()


def test_a_draft_is_offered_where_text_is_generated_and_nowhere_else(capsys):
    from kaishu.cli.main import main

    for command, is_offered in [
        ("chat", True),
        ("generate", True),
        ("batch", True),
        ("embed", False),
        ("rerank", False),
    ]:
        with pytest.raises(SystemExit):
            main([command, "--help"])
        shown = capsys.readouterr().out
        assert ("--draft" in shown) == is_offered == ("--no-speculation" in shown), command
