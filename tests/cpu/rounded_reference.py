"""The reference model with the CPU executor's roundings, and no others: what int8 activations and bfloat16 pages cost.

Owns the rounding rules as norm.py, pages.py and attention.py of kaishu/cpu state them, written over torch in float32.
Knows nothing of packed memory, tiles, ranks or pages.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from kaishu.batch import SequenceTokens, pack
from kaishu.cpu.pages import SEGMENT
from kaishu.cpu.target import current_target
from kaishu.reference.caches import RecomputeCache
from kaishu.reference.linear import Linear
from kaishu.reference.model import Model


def as_bfloat16(x: Tensor) -> Tensor:
    """To the nearest bfloat16 where the CPU multiplies those, else as it is."""
    return x.bfloat16().float() if current_target().has_bf16 else x


def as_int8(x: Tensor) -> Tensor:
    """Groups of 32 to whole numbers of max|x| / 127, to nearest even; returned as the numbers that they stand for."""
    padded = F.pad(x, (0, -x.shape[-1] % 32)).unflatten(-1, (-1, 32))
    largest = padded.abs().amax(-1, keepdim=True)
    whole = (padded * (127.0 / largest.clamp(min=1e-30))).round()
    return (whole * (largest / 127.0)).flatten(-2)[..., : x.shape[-1]]


class RoundingWeight(Tensor):
    """A weight matrix whose linear layer rounds its inputs first."""

    is_quantised: bool

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is F.linear:
            x, weight, bias = args
            x = as_int8(x) if weight.is_quantised else as_bfloat16(x)
            return F.linear(x, weight.as_subclass(Tensor), bias)
        return super().__torch_function__(function, types, args, kwargs or {})


def rounding(linear: Linear, kind: str) -> Linear:
    weight = linear.weight.as_subclass(RoundingWeight)
    weight.is_quantised = kind != "bf16"
    return Linear(weight, linear.bias)


def with_rounding_linears(part: Any, kinds: Mapping[str, str], name: str) -> Any:
    """The same weights; every linear below `part`, which has this name, rounds as its packed kind does."""
    if isinstance(part, Linear):
        return rounding(part, kinds[name])
    if isinstance(part, tuple):
        return tuple(with_rounding_linears(own, kinds, f"{name}.{number}") for number, own in enumerate(part))
    if is_dataclass(part):
        names = [field.name for field in fields(part)]
        return replace(
            part, **{own: with_rounding_linears(getattr(part, own), kinds, f"{name}.{own}") for own in names}
        )
    return part


def rounding_model(model: Model, kinds: Mapping[str, str]) -> Model:
    """The reference model with rounding linears. kinds: of every linear, by its name; the head's is lm_head"""
    layers = with_rounding_linears(model.layers, kinds, "model.layers")
    return replace(model, layers=layers, lm_head=rounding(model.lm_head, kinds["lm_head"]))


class Bfloat16Cache(RecomputeCache):
    """Keys and values as pages keep them."""

    def append(self, layer: int, batch: Any, keys: Tensor, values: Tensor) -> Any:
        return super().append(layer, batch, keys.bfloat16().float(), values.bfloat16().float())


def attend_by_segments(query: Tensor, keys: Tensor, values: Tensor, visible: Tensor) -> Tensor:
    """reference/attention.py's attend_explicitly, where the softmax's parts are rounded as the kernels round them."""
    tokens, _, head_dim = query.shape
    grouped = as_bfloat16(query.view(tokens, keys.shape[1], -1, head_dim) * head_dim**-0.5)
    scores = torch.einsum("tkgd,skd->kgts", grouped, keys).masked_fill(~visible, float("-inf"))  # [K, G, t, S]
    largest = scores.amax(-1, keepdim=True)
    total, gathered = torch.zeros_like(largest), torch.zeros(*scores.shape[:-1], head_dim)
    for first in range(0, len(keys), SEGMENT):
        own = scores[..., first : first + SEGMENT]
        top = own.amax(-1, keepdim=True)  # -inf where nothing is seen
        weights = torch.where(own > float("-inf"), (own - top).exp(), 0.0)
        factor = torch.where(top > float("-inf"), (top - largest).exp(), 0.0)
        total += factor * weights.sum(-1, keepdim=True)
        gathered += factor * torch.einsum("kgts,skd->kgtd", as_bfloat16(weights), values[first : first + SEGMENT])
    return (gathered / total).permute(2, 0, 1, 3).flatten(1, 2)  # [K, G, t, d] → [t, H, d]


@torch.inference_mode()
def rounded_logits(model: Model, ids: Sequence[int], monkeypatch: pytest.MonkeyPatch) -> Tensor:
    """[n, V] float32, logits of every position of a model from rounding_model."""
    batch = pack([SequenceTokens(list(ids), 0, wants_logits=range(len(ids)))])
    with monkeypatch.context() as rounding_attention:
        rounding_attention.setattr("kaishu.reference.attention.attend_explicitly", attend_by_segments)
        return model.forward(batch, Bfloat16Cache()).as_subclass(Tensor)
