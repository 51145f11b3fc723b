"""Grouped-query attention (Vaswani et al., 2017, arXiv:1706.03762; Ainslie et al., 2023, arXiv:2305.13245).

Owns the projections, QK-norm, the mask and the softmax, in two forms that give the same numbers: `attend_explicitly`
writes every step of the equation out, `attend_with_sdpa` gives the same inputs to torch's fused kernel.
Knows nothing of how keys and values are kept: it hands new ones to the step's cache and gets all of them back.
Called by block.py.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from kaishu.config import ModelConfig
from kaishu.reference.linear import Linear, linear
from kaishu.reference.norm import rms_norm
from kaishu.reference.rope import rotate
from kaishu.reference.step import Step
from kaishu.reference.weights import WeightReader


@dataclass(frozen=True)
class Attention:
    """The weights of one layer's attention.

    q_proj: [H·d, D] Linear, hidden state → queries of H heads
    k_proj: [K·d, D] Linear, hidden state → keys of K heads
    v_proj: [K·d, D] Linear, hidden state → values of K heads
    o_proj: [D, H·d] Linear, what the heads gathered → hidden state
    q_norm: [d] float, scale of the norm over each query head; None without QK-norm
    k_norm: [d] float, scale of the norm over each key head; None without QK-norm
    """

    q_proj: Linear
    k_proj: Linear
    v_proj: Linear
    o_proj: Linear
    q_norm: Tensor | None
    k_norm: Tensor | None

    @classmethod
    def read(cls, weights: WeightReader, name: str, config: ModelConfig) -> Attention:
        """Read the weights stored under `name`, for example `model.layers.0.self_attn`."""
        return cls(
            q_proj=weights.linear(f"{name}.q_proj", bias=config.attention_bias),
            k_proj=weights.linear(f"{name}.k_proj", bias=config.attention_bias),
            v_proj=weights.linear(f"{name}.v_proj", bias=config.attention_bias),
            o_proj=weights.linear(f"{name}.o_proj", bias=config.output_bias),
            q_norm=weights.tensor(f"{name}.q_norm.weight") if config.qk_norm else None,
            k_norm=weights.tensor(f"{name}.k_norm.weight") if config.qk_norm else None,
        )


def attention(x: Tensor, weights: Attention, layer: int, step: Step) -> Tensor:
    """Let each token look at the tokens before it in its own sequence, and gather what they hold.

    x:       [T, D] float, normalised hidden states
    weights: the layer's projections and norms
    layer:   its number: which keys of the cache are its own, and whether it has a window
    step:    what all layers of this step share
    return:  [T, D] dtype of x

    Sequences are attended one by one: a neighbour can't change a result, nor spoil it with a NaN.
    """
    config, batch = step.config, step.batch
    query = linear(x, weights.q_proj).view(len(x), -1, config.head_dim)  # [T, H, d]
    key = linear(x, weights.k_proj).view(len(x), -1, config.head_dim)  # [T, K, d]
    value = linear(x, weights.v_proj).view(len(x), -1, config.head_dim)  # [T, K, d]
    if weights.q_norm is not None and weights.k_norm is not None:
        query = rms_norm(query, weights.q_norm, config.rms_norm_eps)
        key = rms_norm(key, weights.k_norm, config.rms_norm_eps)
    query, key = rotate(query, step.rotary), rotate(key, step.rotary)

    attend = attend_explicitly if step.attention == "explicit" else attend_with_sdpa
    gathered = torch.empty_like(query)  # [T, H, d]
    for sequence, (keys, values) in enumerate(step.cache.append(layer, batch, key, value)):
        rows = batch.rows(sequence)
        visible = visible_keys(step.positions[rows], len(keys), config.sliding_window(layer))  # [t, S]
        gathered[rows] = attend(query[rows], keys, values, visible)
    return linear(gathered.flatten(-2), weights.o_proj)  # [T, H·d] → [T, D]


def visible_keys(positions: Tensor, num_keys: int, window: int | None) -> Tensor:
    """Which keys each query may see: those up to its own position and, with a window, only the last so many.

    positions: [t] int32, the queries' positions in their sequence
    num_keys:  S, the keys at positions 0 to S - 1
    window:    how many keys a query sees, its own included; None for all
    return:    [t, S] bool
    """
    query_positions, key_positions = positions[:, None], torch.arange(num_keys, device=positions.device)
    visible = key_positions <= query_positions  # [t, S]
    return visible if window is None else visible & (key_positions > query_positions - window)


def attend_explicitly(query: Tensor, keys: Tensor, values: Tensor, visible: Tensor) -> Tensor:
    """softmax(q kᵀ / √d) v for one sequence, each step written out.

    query:   [t, H, d] float, rotated queries of one sequence
    keys:    [S, K, d] float, all of its keys, rotated
    values:  [S, K, d] float, all of its values
    visible: [t, S] bool, which keys each query may see
    return:  [t, H, d] dtype of query

    The G = H/K query heads that share a key head are told apart by an index of their own, so no key is copied.
    Rounding: scores in the inputs' dtype, softmax in float32, its result rounded back before it weighs the values.
    """
    tokens, _, head_dim = query.shape
    grouped = query.view(tokens, keys.shape[1], -1, head_dim)  # [t, K, G, d]
    scores = torch.einsum("tkgd,skd->kgts", grouped, keys) * head_dim**-0.5  # [K, G, t, S]
    scores = scores.masked_fill(~visible, float("-inf"))
    shares = torch.softmax(scores, dim=-1, dtype=torch.float32).to(query.dtype)
    return torch.einsum("kgts,skd->tkgd", shares, values).flatten(1, 2)  # [t, K, G, d] → [t, H, d]


def attend_with_sdpa(query: Tensor, keys: Tensor, values: Tensor, visible: Tensor) -> Tensor:
    """The same by torch's fused kernel, which never stores the [t, S] scores: for long prompts.

    query:   [t, H, d] float, rotated queries of one sequence
    keys:    [S, K, d] float, all of its keys, rotated
    values:  [S, K, d] float, all of its values
    visible: [t, S] bool, which keys each query may see
    return:  [t, H, d] dtype of query

    The G heads of a group become G·t queries of one head: the kernel sees K heads on both sides, and no key is copied.
    Rounding: the kernel's own; softmax and sums in float32.
    """
    tokens, _, head_dim = query.shape
    grouped = query.view(tokens, keys.shape[1], -1, head_dim).permute(1, 2, 0, 3)  # [K, G, t, d]
    group = grouped.shape[1]
    gathered = F.scaled_dot_product_attention(
        grouped.flatten(1, 2)[None],  # [1, K, G·t, d]
        keys.transpose(0, 1)[None],  # [1, K, S, d]
        values.transpose(0, 1)[None],
        attn_mask=visible.repeat(group, 1),  # [G·t, S]
    )
    return gathered.view(-1, group, tokens, head_dim).permute(2, 0, 1, 3).flatten(1, 2)  # [t, K, G, d] → [t, H, d]
