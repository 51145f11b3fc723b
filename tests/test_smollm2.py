"""A real model in one file that nobody here made: SmolLM2-135M-Instruct, Q4_1 with a Q8_0 embedding.

Three witnesses: the reference model on the same weights as float32, llama.cpp's likeliest tokens, and its perplexity of
an old book (golden/smollm2_continuations.json, made by make_smollm2_continuations.py).
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from kaishu import LLM
from tests.make_smollm2_continuations import GOLDEN


@pytest.fixture(scope="module")
def golden() -> dict[str, Any]:
    return json.loads(GOLDEN.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def llm(smollm2_file) -> LLM:
    return LLM(smollm2_file)


def log_probabilities(logits):
    shifted = logits.astype(np.float64) - logits.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


def perplexity(logits, ids):
    return float(np.exp(-log_probabilities(logits)[np.arange(len(ids) - 1), ids[1:]].mean()))


def test_it_runs_as_it_is_stored_and_one_file_is_enough(llm):
    assert "weights as stored (210 Q4_1, 1 Q8_0)" in llm.description
    linears = {linear.kind for linear in llm.executor.layout.packed}
    assert linears == {"int4_minimum", "int8"}
    prompt = llm.render([{"role": "user", "content": "Who wrote Hamlet?"}])
    assert prompt.text.startswith("<|im_start|>system\n") and prompt.text.endswith("<|im_start|>assistant\n")
    answer = llm.chat([{"role": "user", "content": "Explain photosynthesis in one sentence."}], temperature=0)
    assert "carbon dioxide" in answer.content and answer.finish_reason == "stop"


def test_its_logits_are_those_of_the_reference_within_what_int8_activations_cost(llm, smollm2_file, golden):
    """Nothing of the weights is rounded again, so the difference is the activations'; measured on all 387 tokens: a
    mean divergence of 0.0033 nats, 0.5 % in perplexity."""
    ids = golden["text"][:160]
    exact = LLM(smollm2_file, executor="reference", weights="float32", context_tokens=512).logits(ids)
    found = llm.logits(ids)
    true, ours = log_probabilities(exact), log_probabilities(found)
    divergence = (np.exp(true) * (true - ours)).sum(-1)
    assert divergence.mean() < 0.006 and np.quantile(divergence, 0.99) < 0.04
    assert np.abs(found - exact).mean() < 0.04 * exact.std()
    assert (found.argmax(-1) == exact.argmax(-1)).mean() > 0.95


def test_its_perplexity_is_llama_cpps_within_half_a_percent(llm, golden):
    ids = golden["text"]
    assert perplexity(llm.logits(ids)[:-1], ids) == pytest.approx(golden["perplexity"], rel=0.005)


def test_it_continues_as_llama_cpp_does_until_two_tokens_are_as_good_as_each_other(llm, golden):
    """Both round activations to int8, each in its own way; where they part, llama.cpp's two best tokens must be closer
    than that: two logits differ from the exact ones by 0.2 each on average, see above."""
    parted = []
    for entry in golden["prompts"]:
        found = llm.generate(entry["ids"], temperature=0, max_tokens=len(entry["continuation"])).token_ids
        expected = entry["continuation"]
        different = [place for place, (ours, theirs) in enumerate(zip(found, expected, strict=False)) if ours != theirs]
        if different:
            parted.append(entry["margins"][different[0]])
    assert len(parted) <= 12, "as measured; the others agree to the end"
    assert max(parted) < 0.3, parted
