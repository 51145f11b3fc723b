"""The router and the mixture against one token at a time in float64."""

import dataclasses

import numpy as np
import pytest
import torch

from kaishu.config import ExpertsConfig
from kaishu.reference.experts import Experts, mixture_of_experts, route
from kaishu.reference.feed_forward import FeedForward, feed_forward
from kaishu.reference.linear import Linear

CONFIG = ExpertsConfig(
    num_experts=6, num_experts_per_tok=2, moe_intermediate_size=12, norm_topk_prob=True, sparse_layers=(0,)
)


def some_experts(rng):
    def some_linear(m, n):
        return Linear(torch.tensor(rng.normal(size=(m, n))).float())

    experts = tuple(FeedForward(some_linear(12, 8), some_linear(12, 8), some_linear(8, 12)) for _ in range(6))
    return Experts(some_linear(6, 8), experts)


@pytest.mark.parametrize("normalised", [True, False])
def test_the_softmax_is_over_all_experts_and_comes_before_the_choice(normalised, rng):
    weights, config = some_experts(rng), dataclasses.replace(CONFIG, norm_topk_prob=normalised)
    x = rng.normal(size=(7, 8)).astype(np.float32)
    shares, chosen = route(torch.tensor(x), weights.gate, config)
    scores = x.astype(np.float64) @ weights.gate.weight.double().numpy().T
    probabilities = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
    best = np.argsort(-probabilities, axis=-1)[:, :2]
    expected = np.take_along_axis(probabilities, best, -1)
    if normalised:
        expected = expected / expected.sum(-1, keepdims=True)
    assert chosen.tolist() == best.tolist()
    np.testing.assert_allclose(shares.numpy(), expected, rtol=2e-6)


def test_the_router_rounds_only_its_result_in_a_bfloat16_model(rng):
    scores = torch.tensor(rng.normal(size=(200, 6))).bfloat16()
    shares, chosen = route(scores, Linear(torch.eye(6).bfloat16()), CONFIG)
    best, expected_choice = torch.softmax(scores.double(), -1).topk(2)
    expected = (best / best.sum(-1, keepdim=True)).bfloat16()
    assert shares.dtype == torch.bfloat16
    assert torch.equal(chosen, expected_choice) and torch.equal(shares, expected)


def test_probabilities_that_bfloat16_cannot_tell_apart_are_told_apart():
    scores = torch.tensor([[0.0, 0.001, -9.0]]).bfloat16()
    config = dataclasses.replace(CONFIG, num_experts=3, num_experts_per_tok=1)
    assert route(scores, Linear(torch.eye(3).bfloat16()), config)[1].tolist() == [[1]]


def test_the_mixture_equals_each_token_sent_alone(rng):
    weights = some_experts(rng)
    x = torch.tensor(rng.normal(size=(9, 8))).float()
    shares, chosen = route(x, weights.gate, CONFIG)
    expected = [
        sum(shares[t, i] * feed_forward(x[t], weights.experts[chosen[t, i]]) for i in range(2)) for t in range(9)
    ]
    torch.testing.assert_close(mixture_of_experts(x, weights, CONFIG), torch.stack(expected), rtol=1e-4, atol=1e-4)


def test_an_expert_without_tokens_is_not_read(rng):
    weights = some_experts(rng)
    x = torch.tensor(rng.normal(size=(1, 8))).float()
    _, chosen = route(x, weights.gate, CONFIG)
    expected = mixture_of_experts(x, weights, CONFIG)
    broken = Linear(torch.full((12, 8), torch.nan))
    spoilt = tuple(
        expert if number in chosen else dataclasses.replace(expert, up_proj=broken)
        for number, expert in enumerate(weights.experts)
    )
    assert torch.equal(mixture_of_experts(x, dataclasses.replace(weights, experts=spoilt), CONFIG), expected)


def test_a_nan_token_spoils_no_other(rng):
    weights = some_experts(rng)
    x = torch.tensor(rng.normal(size=(5, 8))).float()
    expected = mixture_of_experts(x, weights, CONFIG)
    x[2] = torch.nan
    found = mixture_of_experts(x, weights, CONFIG)
    assert found[2].isnan().all()
    others = [0, 1, 3, 4]
    torch.testing.assert_close(found[others], expected[others], rtol=1e-5, atol=1e-5)
