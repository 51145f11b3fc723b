"""What enters each linear layer, against hooks in transformers' model and against the whole model's forward pass."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from kaishu.batch import SequenceTokens, pack
from kaishu.checkpoint import open_checkpoint
from kaishu.reference.caches import RecomputeCache
from kaishu.reference.input_moments import BlockByBlock
from kaishu.reference.model import Model

TEXTS = [[1, 2, 3, 4, 5, 6, 7], [9] * 20, list(range(100, 130)), [7]]


@pytest.mark.parametrize("kind", ["dense_tied", "llama_biased", "qwen2_sliding_window"])
def test_sums_are_those_of_what_enters_transformers_layers(kind, tiny_checkpoint):
    from transformers import AutoModelForCausalLM

    folder = tiny_checkpoint(kind)
    theirs = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    sums: dict[str, torch.Tensor] = {}

    def add(name):
        def hook(_module, inputs, _output):
            x = inputs[0].flatten(0, 1)
            sums[name] = sums.get(name, 0) + x.T @ x

        return hook

    for name, module in theirs.named_modules():
        if name.endswith("_proj"):
            module.register_forward_hook(add(f"{name}.weight"))
    with torch.no_grad():
        for text in TEXTS:
            theirs(torch.tensor([text]))
    walk, found = BlockByBlock(open_checkpoint(folder), TEXTS), {}
    assert walk.tokens == 58
    for _ in range(theirs.config.num_hidden_layers):
        found |= walk.moments()
        walk.advance({})
    assert found.keys() == sums.keys()
    for name, expected in sums.items():
        np.testing.assert_allclose(found[name], expected.numpy(), rtol=1e-3, atol=1e-3 * float(expected.abs().max()))


@pytest.mark.parametrize("tokens_at_once", [1, 10, 1000])
def test_texts_may_be_run_a_few_at_a_time(tokens_at_once, tiny_checkpoint, monkeypatch):
    monkeypatch.setattr("kaishu.reference.input_moments.TOKENS_AT_ONCE", tokens_at_once)
    checkpoint = open_checkpoint(tiny_checkpoint("dense_tied"))
    walk, together = (
        BlockByBlock(checkpoint, TEXTS),
        BlockByBlock(checkpoint, [[token for text in TEXTS for token in text]]),
    )
    assert walk.tokens == together.tokens
    name = "model.layers.0.self_attn.q_proj.weight"  # before attention, no token knows of another
    np.testing.assert_allclose(walk.moments()[name], together.moments()[name], rtol=1e-4, atol=1e-3)


def test_experts_see_the_tokens_that_chose_them_and_all_of_them_are_seen_once(tiny_checkpoint):
    checkpoint = open_checkpoint(tiny_checkpoint("moe"))
    found = BlockByBlock(checkpoint, TEXTS).moments()
    gate = found["model.layers.0.mlp.gate.weight"]
    experts = [found[name] for name in found if name.endswith("gate_proj.weight")]
    chosen = checkpoint.config.experts.num_experts_per_tok
    np.testing.assert_allclose(np.sum(experts, axis=0), chosen * gate, rtol=1e-4, atol=1e-2)
    few = BlockByBlock(checkpoint, [[5]]).moments()
    assert sum(name.endswith("gate_proj.weight") for name in few) == chosen


def test_what_enters_alike_is_summed_once(tiny_checkpoint):
    found = BlockByBlock(open_checkpoint(tiny_checkpoint("dense_tied")), TEXTS).moments()
    attention, mlp = "model.layers.0.self_attn", "model.layers.0.mlp"
    assert found[f"{attention}.q_proj.weight"] is found[f"{attention}.k_proj.weight"]
    assert found[f"{attention}.q_proj.weight"] is found[f"{attention}.v_proj.weight"]
    assert found[f"{mlp}.gate_proj.weight"] is found[f"{mlp}.up_proj.weight"]
    assert found[f"{mlp}.gate_proj.weight"] is not found[f"{mlp}.down_proj.weight"]


def test_replaced_weights_are_what_later_blocks_see(tiny_checkpoint):
    checkpoint = open_checkpoint(tiny_checkpoint("dense_tied"))
    name = "model.layers.0.mlp.down_proj.weight"
    plain, silent = BlockByBlock(checkpoint, TEXTS), BlockByBlock(checkpoint, TEXTS)
    for walk, factor in ((plain, 1), (silent, 0)):
        walk.moments()
        walk.advance({name: checkpoint.tensors[name].values(0, 64) * np.float32(factor)})
    q = "model.layers.1.self_attn.q_proj.weight"
    model = Model.from_checkpoint(checkpoint)
    seen = {}
    batch = pack([SequenceTokens(text, 0) for text in TEXTS])
    with torch.inference_mode():
        model.forward(batch, RecomputeCache(), observe=lambda stage, x: seen.setdefault(stage, x))
    for walk, states in ((plain, seen["layers.0"]), (silent, seen["layers.0"] - seen["layers.0.feed_forward"])):
        norm = model.layers[1].input_layernorm
        x = states * torch.rsqrt(states.pow(2).mean(-1, keepdim=True) + checkpoint.config.rms_norm_eps) * norm
        np.testing.assert_allclose(walk.moments()[q], (x.T @ x).numpy(), rtol=1e-3, atol=1e-3)


def test_of_the_embedding_only_the_rows_of_the_text_are_read(tiny_checkpoint, monkeypatch):
    checkpoint = open_checkpoint(tiny_checkpoint("dense_tied"))
    read = []
    monkeypatch.setattr(
        "kaishu.checkpoint.safetensors.StoredTensor.values",
        lambda self, first, last: (read.append((self.name, first, last)), np.ones((1, 64), np.float32))[1],
    )
    BlockByBlock(checkpoint, [[3, 5, 3]])
    assert read == [("model.embed_tokens.weight", 3, 4), ("model.embed_tokens.weight", 5, 6)]
