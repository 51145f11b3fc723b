"""A decoder block: attention, then a feed-forward network, each on a normalised copy, each added to what came in.

Owns the order and the two residual sums. Called by model.py, once for each layer.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from kaishu.config import ModelConfig
from kaishu.reference.attention import Attention, attention
from kaishu.reference.experts import Experts, mixture_of_experts
from kaishu.reference.feed_forward import FeedForward, feed_forward
from kaishu.reference.norm import rms_norm
from kaishu.reference.step import Step
from kaishu.reference.weights import WeightReader


@dataclass(frozen=True)
class DecoderBlock:
    """The weights of one layer.

    input_layernorm:          [D] float, scale of the norm before attention
    post_attention_layernorm: [D] float, scale of the norm before the feed-forward network
    """

    input_layernorm: Tensor
    self_attn: Attention
    post_attention_layernorm: Tensor
    mlp: FeedForward | Experts

    @classmethod
    def read(cls, weights: WeightReader, layer: int, config: ModelConfig) -> DecoderBlock:
        """Read layer `layer`, which is stored under `model.layers.<layer>`."""
        name = f"model.layers.{layer}"
        experts = config.experts if config.is_sparse(layer) else None
        return cls(
            input_layernorm=weights.tensor(f"{name}.input_layernorm.weight"),
            self_attn=Attention.read(weights, f"{name}.self_attn", config),
            post_attention_layernorm=weights.tensor(f"{name}.post_attention_layernorm.weight"),
            mlp=Experts.read(weights, f"{name}.mlp", experts)
            if experts
            else FeedForward.read(weights, f"{name}.mlp", bias=config.mlp_bias),
        )


def decoder_block(x: Tensor, weights: DecoderBlock, layer: int, step: Step) -> Tensor:
    """Look at the earlier tokens, then work alone on what was found; each time add to the hidden state.

    x:       [T, D] float, hidden states, not normalised
    weights: the layer's
    layer:   its number, from 0
    step:    what all layers of this step share
    return:  [T, D] dtype of x

    Shows the step's observer `layers.<n>.attention` and `layers.<n>.feed_forward` before they are added, and
    `layers.<n>`, the hidden state that leaves; [T, D] each.
    """
    config = step.config
    attended = attention(rms_norm(x, weights.input_layernorm, config.rms_norm_eps), weights.self_attn, layer, step)
    step.observe(f"layers.{layer}.attention", attended)
    x = x + attended

    normalised = rms_norm(x, weights.post_attention_layernorm, config.rms_norm_eps)
    if isinstance(weights.mlp, Experts):
        assert config.experts is not None, "experts were read because the config has them"
        worked = mixture_of_experts(normalised, weights.mlp, config.experts)
    else:
        worked = feed_forward(normalised, weights.mlp)
    step.observe(f"layers.{layer}.feed_forward", worked)
    x = x + worked

    step.observe(f"layers.{layer}", x)
    return x
