"""A mixture of experts in place of the feed-forward network (Shazeer et al., 2017, arXiv:1701.06538).

Owns the router and the sum over the chosen experts. An expert itself is feed_forward.py, only smaller.
Called by block.py in the layers where the config has experts.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from kaishu.config import ExpertsConfig
from kaishu.reference.feed_forward import FeedForward, feed_forward
from kaishu.reference.linear import Linear, linear
from kaishu.reference.weights import WeightReader


@dataclass(frozen=True)
class Experts:
    """The weights of one sparse layer: E experts and the router that scores them.

    gate: [E, D] Linear, one score for each expert
    """

    gate: Linear
    experts: tuple[FeedForward, ...]

    @classmethod
    def read(cls, weights: WeightReader, name: str, config: ExpertsConfig) -> Experts:
        """Read the router and the experts stored under `name`, for example `model.layers.0.mlp`. None has a bias."""
        return cls(
            gate=weights.linear(f"{name}.gate", bias=False),
            experts=tuple(
                FeedForward.read(weights, f"{name}.experts.{expert}", bias=False)
                for expert in range(config.num_experts)
            ),
        )


def route(x: Tensor, gate: Linear, config: ExpertsConfig) -> tuple[Tensor, Tensor]:
    """Choose each token's experts and how much each one counts.

    x:      [T, D] float, normalised hidden states
    gate:   the router's weights
    config: how many experts a token gets, and whether their weights are rescaled to sum to one
    return: [T, k] dtype of x, the chosen experts' weights; [T, k] int64, their numbers, heaviest first

    Rounding: the softmax runs in float32 over *all* experts, then the k best are taken, then (if the config says so)
    they are divided by their sum; only the result is rounded to x's dtype.
    """
    probabilities = torch.softmax(linear(x, gate), dim=-1, dtype=torch.float32)  # [T, E]
    shares, chosen = probabilities.topk(config.num_experts_per_tok, dim=-1)  # [T, k] each
    if config.norm_topk_prob:
        shares = shares / shares.sum(-1, keepdim=True)
    return shares.to(x.dtype), chosen


def mixture_of_experts(x: Tensor, weights: Experts, config: ExpertsConfig) -> Tensor:
    """Send each token through its chosen experts and add up what they return, weighted.

    x:       [T, D] float, normalised hidden states
    weights: router and experts
    config:  passed on to `route`
    return:  [T, D] dtype of x

    Tokens are grouped by expert, so each expert's matrices are read once a step; an expert that nobody chose isn't
    read at all. Experts add in the order of their numbers, the same for every token, whoever else is in the step.
    """
    shares, chosen = route(x, weights.gate, config)
    mixed = torch.zeros_like(x)
    for expert in sorted(set(chosen.flatten().tolist())):
        rows, rank = torch.where(chosen == expert)  # [t] each: the tokens that chose it, and as their how-many-th
        answers = feed_forward(x[rows], weights.experts[expert])  # [t, D]
        mixed.index_add_(0, rows, answers * shares[rows, rank, None])
    return mixed
