"""What enters each linear layer while a model reads a text: second moments, block by block.

Owns the walk: the hidden states of all tokens go through one block after another, so that memory holds one block, its
moments and the states, whatever the size of the model. Between two blocks the caller may change the weights of the one
just seen: then later blocks see what the changed one makes, its errors included. Knows nothing of what the moments are
for. Used by quantiser/ when it calibrates.

The operations of this folder stay as they are: torch is asked to show every `linear` that runs, and the identity of the
weight tells which one it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor
from torch.overrides import TorchFunctionMode

from kaishu.batch import SequenceTokens, pack
from kaishu.reference.block import DecoderBlock, decoder_block
from kaishu.reference.caches import RecomputeCache
from kaishu.reference.linear import Linear
from kaishu.reference.rope import rope_attention_factor, rope_frequencies, rotary_tables
from kaishu.reference.step import Step
from kaishu.reference.weights import WeightReader

if TYPE_CHECKING:
    from kaishu.checkpoint import Checkpoint

TOKENS_AT_ONCE = 1024


class BlockByBlock:
    """A model's hidden states over a few texts, advanced one block at a time, in float32 on the CPU."""

    def __init__(self, checkpoint: Checkpoint, texts: Sequence[Sequence[int]], *, threads: int | None = None) -> None:
        """Look the tokens up in the embedding; of it, only their rows are read.

        texts:   at least one, each of at least one token, at most as long as the model's context
        threads: how many compute; None leaves it to torch
        """
        if threads is not None:
            torch.set_num_threads(threads)
        self._config = checkpoint.config
        self._reader = WeightReader(checkpoint.tensors, torch.device("cpu"), torch.float32)
        self._frequencies = rope_frequencies(self._config.rope, self._config.head_dim)
        self._parts = [[list(text) for text in part] for part in _parts(texts)]
        self._layer = 0
        self._block: DecoderBlock | None = None
        embedding = checkpoint.tensors["model.embed_tokens.weight"]
        used = sorted({token for text in texts for token in text})
        rows = torch.from_numpy(np.concatenate([embedding.values(token, token + 1) for token in used]))  # [used, D]
        place = {token: row for row, token in enumerate(used)}
        self._states = [rows[[place[token] for text in part for token in text]] for part in self._parts]  # [T, D] each

    @property
    def tokens(self) -> int:
        """How many tokens are read, of all texts."""
        return sum(len(part) for part in self._states)

    def moments(self) -> dict[str, NDArray[np.float32]]:
        """Run the next block over all tokens, without going past it.

        return: by the name of each weight that ran, [n, n] float32: Σ x xᵀ of what entered. Weights that the same
                tensor enters, such as q_proj, k_proj and v_proj, share one array; one that no token reached has none
        """
        self._block = DecoderBlock.read(self._reader, self._layer, self._config)
        names = {id(found.weight): name for name, found in linears_of(self._block, f"model.layers.{self._layer}")}
        watch = _Watch(names)
        with torch.inference_mode(), watch:
            for part, states in zip(self._parts, self._states, strict=True):
                self._run(part, states)
        arrays = {id(total): total.numpy() for total in watch.totals.values()}
        return {name: arrays[id(total)] for name, total in watch.totals.items()}

    def advance(self, replaced: Mapping[str, NDArray[np.float32]]) -> None:
        """Go past the block whose moments were asked for last.

        replaced: by name, weights to use instead of the block's own, [m, n] float32
        """
        assert self._block is not None, "moments come first"
        for name, found in linears_of(self._block, f"model.layers.{self._layer}"):
            if name in replaced:
                found.weight.copy_(torch.from_numpy(replaced[name]))  # the block's own memory, which nobody else has
        with torch.inference_mode():
            self._states = [self._run(part, states) for part, states in zip(self._parts, self._states, strict=True)]
        self._layer, self._block = self._layer + 1, None

    def _run(self, part: list[list[int]], states: Tensor) -> Tensor:
        """One block over some texts. states: [T, D] float32; return: [T, D] float32"""
        assert self._block is not None
        batch = pack([SequenceTokens(text, start=0) for text in part])
        positions = torch.from_numpy(batch.positions)  # [T]
        rotary = rotary_tables(positions, self._frequencies, rope_attention_factor(self._config.rope), states.dtype)
        step = Step(self._config, batch, positions, rotary, RecomputeCache(), "sdpa", lambda _name, _tensor: None)
        return decoder_block(states, self._block, self._layer, step)


class _Watch(TorchFunctionMode):
    """Sums up x xᵀ for every linear layer that runs."""

    def __init__(self, names: Mapping[int, str]) -> None:
        """names: of each weight, by its identity"""
        super().__init__()
        self._names = names
        self._last: tuple[Tensor, str] | None = None  # what entered last, and where its sum is kept
        self.totals: dict[str, Tensor] = {}

    def __torch_function__(
        self, func: Callable[..., Any], _types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func is F.linear and id(args[1]) in self._names:
            self._add(self._names[id(args[1])], args[0])
        return func(*args, **(kwargs or {}))

    def _add(self, name: str, x: Tensor) -> None:
        if self._last is not None and self._last[0] is x:
            self.totals[name] = self.totals[self._last[1]]
            return
        self._last = x, name
        if name not in self.totals:
            self.totals[name] = torch.zeros(x.shape[-1], x.shape[-1])
        self.totals[name].addmm_(x.T, x)


def linears_of(weights: object, name: str) -> Iterator[tuple[str, Linear]]:
    """Every linear layer below a record of weights, with the name of its weight in the checkpoint."""
    if isinstance(weights, Linear):
        yield f"{name}.weight", weights
    elif isinstance(weights, tuple):
        for index, each in enumerate(weights):
            yield from linears_of(each, f"{name}.{index}")
    elif is_dataclass(weights):
        for field in fields(weights):
            yield from linears_of(getattr(weights, field.name), f"{name}.{field.name}")


def _parts(texts: Sequence[Sequence[int]]) -> Iterator[list[Sequence[int]]]:
    """Texts in order, as many together as have TOKENS_AT_ONCE tokens, one at least."""
    part: list[Sequence[int]] = []
    for text in texts:
        if part and sum(map(len, part)) + len(text) > TOKENS_AT_ONCE:
            yield part
            part = []
        part.append(text)
    yield part
