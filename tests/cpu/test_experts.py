"""Experts: the router's choice, the grouping of rows, and the weighted sum, each looked at in a step's buffers.

The models have one layer and are asked for no logits, so what is in the buffers is what that layer left there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

from kaishu.batch import SequenceTokens, pack
from kaishu.cpu.executor import CpuExecutor
from kaishu.cpu.kernels import Kernels
from kaishu.reference.experts import route
from kaishu.reference.linear import Linear
from tests.cpu.packed_models import (
    PackedModel,
    activations_after,
    assert_same_bits,
    groups_after,
    matrix_after,
    packed_model,
)
from tests.reference.parity import CheckpointInMemory, random_ids

TOKENS = 70
ROUTER = "model.layers.0.mlp.gate.weight"


@dataclass(frozen=True)
class Routed:
    """What one step's tokens were sent to. chosen, shares, places: [T, k] · starts: [E + 1] · x: [T, D], normalised"""

    chosen: np.ndarray
    shares: np.ndarray
    places: np.ndarray
    starts: np.ndarray
    x: np.ndarray


def routed(executor: CpuExecutor, model: PackedModel, ids: list[int]) -> Routed:
    executor.hidden(pack([SequenceTokens(ids, 0, range(executor.num_pages), range(len(ids)))]))  # no norm after it
    config, count = model.config, len(ids)
    return Routed(
        chosen=matrix_after(executor, "chosen", count, np.int64),
        shares=matrix_after(executor, "shares", count),
        places=matrix_after(executor, "places", count, np.int64),
        starts=matrix_after(executor, "expert_starts", 1, np.int64)[0],
        x=activations_after(executor, "normed", count, config.hidden_size),
    )


@pytest.fixture
def one_layer(packed: Callable[..., PackedModel], kernels: Kernels) -> Callable[..., PackedModel]:
    """`one_layer(weights, change={}, **options)`: a model of a single sparse layer; `change` replaces tensors."""

    def made(
        weights: str = "bf16", change: Mapping[str, torch.Tensor] | None = None, kind: str = "moe", **options: Any
    ) -> PackedModel:
        model = packed(kind, dtype="bfloat16", num_hidden_layers=1, **options)
        checkpoint: Any = CheckpointInMemory(model.config, {**model.tensors(), **(change or {})})
        return packed_model(checkpoint, kernels, weights)

    return made


@pytest.mark.parametrize("norm_topk_prob", [True, False])
@pytest.mark.parametrize("num_experts, chosen", [(6, 2), (6, 1), (6, 6), (40, 8), (3, 2)])
def test_tokens_are_routed_as_the_reference_routes_them(num_experts, chosen, norm_topk_prob, one_layer, start):
    options = {"num_experts": num_experts, "num_experts_per_tok": chosen, "norm_topk_prob": norm_topk_prob}
    model = one_layer("int8", **options)
    found = routed(start(model), model, random_ids(256, TOKENS))
    assert found.x.any(), "the router's own form of the rows"
    config = model.config.experts
    shares, numbers = route(torch.tensor(found.x), Linear(model.tensors()[ROUTER]), config)
    order = numbers.argsort(-1)
    assert found.chosen.tolist() == numbers.gather(-1, order).tolist()
    np.testing.assert_allclose(found.shares, shares.gather(-1, order).numpy(), rtol=2e-5, atol=1e-7)
    if norm_topk_prob:
        np.testing.assert_allclose(found.shares.sum(-1), 1, rtol=1e-6)


def test_of_equal_scores_the_lower_numbers_win(one_layer, start):
    model = one_layer(change={ROUTER: torch.zeros(6, 64)})
    found = routed(start(model), model, random_ids(256, 5))
    assert found.chosen.tolist() == [[0, 1]] * 5
    assert found.shares.tolist() == [[0.5, 0.5]] * 5


def test_of_two_best_that_are_equal_the_lower_number_wins(one_layer, start):
    router = torch.randn(6, 64, generator=torch.Generator().manual_seed(1)).bfloat16().float() / 64
    router[1] *= 16  # the best for every token that it likes at all
    router[4] = router[1]
    model = one_layer(change={ROUTER: router}, num_experts_per_tok=1)
    found = routed(start(model), model, random_ids(256, TOKENS))
    assert (found.chosen == 1).sum() > 10, "for many tokens the two are best"
    assert not (found.chosen == 4).any()


@pytest.mark.parametrize("weights", ["bf16", "int8"])
def test_rows_lie_by_expert_then_by_token_and_carry_their_activations(weights, one_layer, start):
    model = one_layer(weights)
    executor = start(model, threads=3)
    found = routed(executor, model, random_ids(256, TOKENS))
    order = np.argsort(found.chosen.ravel(), kind="stable")  # [T · k]: by expert, and within one by token
    assert found.places.ravel()[order].tolist() == list(range(TOKENS * 2))
    counts = np.bincount(found.chosen.ravel(), minlength=6)
    assert found.starts.tolist() == [0, *np.cumsum(counts)]
    busy = matrix_after(executor, "busy", 1, np.int64)[0].tolist()
    assert busy[: busy[-1]] == np.flatnonzero(counts).tolist()
    columns = int(executor._buffers.record["normed"]["width"])
    if weights == "bf16":
        moved = activations_after(executor, "expert_rows", TOKENS * 2, columns)[found.places]  # [T, k, columns]
        assert_same_bits(moved, np.repeat(activations_after(executor, "normed", TOKENS, columns)[:, None], 2, axis=1))
        return
    for form in ("whole", "scales", "sums", "shifts"):
        moved = groups_after(executor, "expert_rows", form, TOKENS * 2)[found.places]  # [T, k, …]
        source = groups_after(executor, "normed", form, TOKENS)
        assert source.any() and np.array_equal(moved, np.repeat(source[:, None], 2, axis=1)), form


@pytest.mark.parametrize("norm_topk_prob", [True, False])
def test_answers_are_weighed_and_added_in_the_order_of_the_experts_numbers(norm_topk_prob, one_layer, start):
    """With an attention that adds nothing, the hidden state before the experts is the embedding, exactly."""
    nothing = {"model.layers.0.self_attn.o_proj.weight": torch.zeros(64, 128)}
    model = one_layer("bf16", nothing, norm_topk_prob=norm_topk_prob, num_experts_per_tok=4)
    executor, ids = start(model, threads=2), random_ids(256, TOKENS)
    found = routed(executor, model, ids)
    answers = matrix_after(executor, "expert_out", TOKENS * 4)[found.places][..., :64]  # [T, k, D]
    total = np.zeros((TOKENS, 64), np.float32)
    for place in range(4):
        total += found.shares[:, place, None] * answers[:, place]
    expected = model.tensors()["model.embed_tokens.weight"].numpy()[ids] + total
    assert_same_bits(matrix_after(executor, "hidden", TOKENS)[:, :64], expected)
    backwards = np.zeros((TOKENS, 64), np.float32)
    for place in reversed(range(4)):
        backwards += found.shares[:, place, None] * answers[:, place]
    assert not np.array_equal(total, backwards), "the order can be told from the result"


def test_only_experts_that_have_rows_are_listed(one_layer, start):
    model = one_layer("int8")
    executor = start(model, threads=2)
    for ids in (random_ids(256, 1), random_ids(256, TOKENS), random_ids(256, 2)):  # more, and then fewer
        chosen = routed(executor, model, ids).chosen
        busy = matrix_after(executor, "busy", 1, np.int64)[0].tolist()
        assert busy[: busy[-1]] == sorted(set(chosen.ravel().tolist()))


@pytest.mark.parametrize("weights", ["bf16", "int8", "int4", "int4_minimum"])
def test_an_expert_that_nobody_chose_is_not_read(weights, one_layer, start):
    model = one_layer(weights)
    ids = random_ids(256, 2)
    executor = start(model)
    found = routed(executor, model, ids)
    expected = matrix_after(executor, "hidden", 2)
    unchosen = sorted(set(range(6)) - set(found.chosen.ravel().tolist()))
    assert unchosen
    for linear in model.layout.packed:
        if any(f".experts.{expert}." in linear.name for expert in unchosen):
            for first, size in ((linear.weights, linear.weight_bytes), (linear.scales, linear.scale_bytes)):
                model.memory[first : first + size] = 0x7F  # bfloat16 and float16 so large that products are infinite
    routed(executor, model, ids)
    assert_same_bits(matrix_after(executor, "hidden", 2), expected)


def test_a_token_that_is_no_number_is_sent_somewhere_and_spoils_no_other(one_layer, start):
    model = one_layer("int8", tie_word_embeddings=False)
    rows = model.memory[model.layout.embedding :].view(np.uint16)[: 320 * 64].reshape(320, 64)
    rows[300] = 0x7FC0
    executor, ids = start(model), random_ids(256, TOKENS)

    def hidden_after(*last: int) -> np.ndarray:
        others = [SequenceTokens([token], 0, (11,)) for token in last]
        executor.step(pack([SequenceTokens(ids, 0, range(10), range(len(ids))), *others]))
        return matrix_after(executor, "hidden", TOKENS + len(last))[:, :64]

    expected, found = hidden_after(), hidden_after(300)
    assert_same_bits(found[:-1], expected)
    assert np.isnan(found[-1]).all()
    chosen = matrix_after(executor, "chosen", TOKENS + 1, np.int64)[-1]
    assert ((chosen >= 0) & (chosen < 6)).all()
