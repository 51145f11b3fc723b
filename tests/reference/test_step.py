"""State is passed, never ambient: steps of different models, taken in turns, know nothing of each other."""

import dataclasses

import pytest

from kaishu.reference.caches import ContiguousCache, RecomputeCache
from kaishu.reference.generate import generate
from tests.reference.parity import our_greedy_tokens


def test_two_models_and_three_caches_taken_in_turns_write_what_each_writes_alone(tiny_model):
    models = [tiny_model("dense_untied"), tiny_model("moe"), tiny_model("dense_untied", attention="sdpa")]
    prompts = [[5, 6, 7], [9] * 11, [200, 3]]
    caches = [
        ContiguousCache(models[0], capacity_tokens=40),
        RecomputeCache(),
        ContiguousCache(models[2], capacity_tokens=40),
    ]
    texts = [
        generate(model, prompt, cache, max_tokens=12, end_tokens=())
        for model, prompt, cache in zip(models, prompts, caches, strict=True)
    ]
    in_turns = list(zip(*zip(*texts, strict=True), strict=True))
    assert in_turns == [tuple(our_greedy_tokens(m, p, 12)) for m, p in zip(models, prompts, strict=True)]


def test_a_model_cannot_be_changed_in_passing(tiny_model):
    with pytest.raises(dataclasses.FrozenInstanceError):
        tiny_model("dense_tied").attention = "sdpa"
