"""A block is two residual sums around two normalised parts; and it takes experts where the config has them."""

import pytest
import torch

from kaishu.batch import SequenceTokens, pack
from kaishu.reference.block import decoder_block
from kaishu.reference.caches import RecomputeCache
from kaishu.reference.experts import Experts
from kaishu.reference.feed_forward import feed_forward
from kaishu.reference.norm import rms_norm
from kaishu.reference.rope import rotary_tables
from kaishu.reference.step import Step


def some_step(model, observe, tokens=5):
    positions = torch.arange(tokens, dtype=torch.int32)
    rotary = rotary_tables(positions, model.rope_frequencies, 1.0, torch.float32)
    batch = pack([SequenceTokens([0] * tokens, 0)])
    return Step(model.config, batch, positions, rotary, RecomputeCache(), "explicit", observe)


def test_each_part_is_added_to_what_came_in(tiny_model, rng):
    model, seen = tiny_model("dense_tied"), {}
    x = torch.tensor(rng.normal(size=(5, 64))).float()
    block = model.layers[1]
    y = decoder_block(
        x,
        block,
        1,
        some_step(model, seen.__setitem__),
    )
    between = x + seen["layers.1.attention"]
    normalised = rms_norm(between, block.post_attention_layernorm, model.config.rms_norm_eps)
    torch.testing.assert_close(y, between + feed_forward(normalised, block.mlp))
    assert list(seen) == ["layers.1.attention", "layers.1.feed_forward", "layers.1"] and seen["layers.1"] is y


@pytest.mark.parametrize("kind, sparse", [("dense_tied", []), ("moe", [0, 1, 2]), ("moe_mixed", [1, 5])])
def test_experts_are_where_the_config_says(kind, sparse, tiny_model):
    """moe_mixed: every second layer, but for the one in mlp_only_layers."""
    layers = tiny_model(kind).layers
    assert [number for number, block in enumerate(layers) if isinstance(block.mlp, Experts)] == sparse
