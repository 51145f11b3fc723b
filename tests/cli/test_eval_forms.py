"""Which forms are compared with which truth, what they weigh, and which models can't be compared."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest

from kaishu.checkpoint import open_checkpoint
from kaishu.cli.eval_forms import Model, _tokens_per_second, lines_of, run
from kaishu.cpu.executor import CpuExecutor
from kaishu.errors import ContextLengthError, InvalidRequestError
from kaishu.llm import LLM
from kaishu.quantiser.quantise import quantise

TEXT = "Kaishu: 楷书 is regular script."


@pytest.fixture(scope="module")
def plain(tiny_checkpoint) -> Model:
    return Model("plain", open_checkpoint(tiny_checkpoint("dense_tied", with_tokenizer=True)))


@pytest.fixture(scope="module")
def quantised(plain, tmp_path_factory) -> Model:
    folder = tmp_path_factory.mktemp("quantised") / "int4"
    quantise(plain.checkpoint, folder, "int4", threads=1)
    return Model("quantised", open_checkpoint(folder))


def evaluated(model, against=None, weights=None, heads=("auto",), **options):
    options = {"written": TEXT, "tokens": 100, "threads": 1, "advance": lambda *_: None, **options}
    return run(model, against, weights, heads, **options)


def test_a_plain_model_is_compared_in_three_forms_and_a_quantised_one_as_it_is(plain, quantised):
    assert [form.weights for form in evaluated(plain).forms] == ["bf16", "int8", "int4"]
    found = evaluated(quantised, heads=("auto", "int8"))
    assert [(form.weights, form.head) for form in found.forms] == [("stored", "stored"), ("stored", "int8")]


def test_the_truth_of_a_quantised_model_is_its_own_values_unless_another_is_named(plain, quantised):
    alone, against = evaluated(quantised), evaluated(quantised, plain)
    assert against.truth.startswith("plain, reference executor (PyTorch), float32")
    assert alone.truth.startswith("reference executor")
    assert alone.forms[0].comparison.kl_mean < 0.1 * against.forms[0].comparison.kl_mean
    logits = [
        LLM(model.path, executor=executor, threads=1).logits(LLM(plain.path, threads=1).tokenizer.encode(TEXT)[:-1])
        for model, executor in ((plain, "reference"), (quantised, "cpu"))
    ]
    vocabulary = LLM(plain.path, threads=1).tokenizer.vocab_size
    log_p, log_q = (
        rows - np.log(np.exp(rows).sum(axis=-1, keepdims=True))
        for rows in (each[:, :vocabulary].astype(np.float64) for each in logits)
    )
    expected = (np.exp(log_p) * (log_p - log_q)).sum(axis=-1).mean()
    assert against.forms[0].comparison.kl_mean == pytest.approx(expected, rel=1e-6)


def test_bytes_are_those_of_the_packed_model_and_speed_is_measured(plain):
    (form,) = evaluated(plain, weights=["int8"]).forms
    executor = CpuExecutor.from_checkpoint(plain.checkpoint, weights="int8", head="int8", threads=1)
    assert form.bytes == executor.layout.num_bytes
    assert form.tokens_per_second > 0
    assert form.label == "int8"


def test_after_timing_nothing_is_found_in_pages_that_were_written_to(plain):
    llm = LLM(plain.path, threads=1)
    prompt = [number % 200 for number in range(100)]
    expected = llm.logits(prompt)[-1]
    llm.generate(prompt, max_tokens=1)
    assert llm.statistics().cached_pages > 0
    assert _tokens_per_second(llm) > 0
    assert llm.statistics().cached_pages == 0
    answer = llm.generate(prompt, max_tokens=1, temperature=0)
    assert answer.usage.cached_tokens == 0 and answer.token_ids == (expected[: llm.tokenizer.vocab_size].argmax(),)


def test_models_with_other_tokens_cannot_be_compared(plain, own_checkpoint):
    folder = own_checkpoint("dense_tied", with_tokenizer=True)
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    vocabulary = tokenizer["model"]["vocab"]
    vocabulary["a"], vocabulary["b"] = vocabulary["b"], vocabulary["a"]
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    with pytest.raises(InvalidRequestError, match="plain and other have different tokens"):
        evaluated(plain, Model("other", open_checkpoint(folder)))


def test_a_text_longer_than_the_shorter_context_is_refused(plain, own_checkpoint):
    folder = own_checkpoint("dense_tied", with_tokenizer=True, max_position_embeddings=20)
    shutil.copy(plain.path / "tokenizer.json", folder / "tokenizer.json")
    with pytest.raises(ContextLengthError, match="33 tokens, but the context holds 20"):
        evaluated(plain, Model("short", open_checkpoint(folder)))


def test_progress_counts_the_tokens_of_the_truth_and_of_every_form(plain):
    seen = []
    evaluated(plain, weights=["bf16", "int8"], advance=lambda *step: seen.append(step))
    assert [what for what, _, _ in seen[::2]] == ["the truth", "bf16 weights, bf16 head", "int8 weights, int8 head"]
    assert seen[-1][1] == seen[-1][2] == 3 * 33 and [done for _, done, _ in seen] == sorted(done for _, done, _ in seen)


def test_the_table_has_a_row_for_each_form(plain):
    lines = [line for line, _ in lines_of(evaluated(plain))]
    assert lines[0] == "plain: 32 tokens: your text"
    assert len({len(line) for line in lines[2:6]}) == 1, "columns stand below their heads"
    assert [line.split()[0] for line in lines[3:6]] == ["bf16", "int8", "int4"]
