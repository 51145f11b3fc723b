"""The whole model: token ids → embedding → decoder blocks → norm → head → logits.

Owns the order of the parts and which tensors they are built from. Refuses to know where keys and values are kept
(caches.py), which token comes next (generate.py, or the engine through executor.py) and how files look (checkpoint/).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from kaishu.batch import TokenBatch
from kaishu.config import ModelConfig
from kaishu.errors import InvalidParameterError
from kaishu.reference.block import DecoderBlock, decoder_block
from kaishu.reference.caches import Cache
from kaishu.reference.linear import Linear, linear
from kaishu.reference.norm import rms_norm
from kaishu.reference.rope import rope_attention_factor, rope_frequencies, rotary_tables
from kaishu.reference.step import AttentionKind, Observe, Step
from kaishu.reference.weights import DtypeName, WeightReader, torch_device, torch_dtype

if TYPE_CHECKING:
    from kaishu.checkpoint import Checkpoint


def _look_away(name: str, tensor: Tensor) -> None:
    """The observer of a run that nobody watches."""


@dataclass(frozen=True)
class Model:
    """A decoder's weights, ready to run. The field names are Hugging Face's.

    embed_tokens:     [V, D] float, a row for each token id
    norm:             [D] float, scale of the last norm
    lm_head:          [V, D] Linear, hidden state → a score for each token id; the embedding itself where tied
    rope_frequencies: [d/2] float32, whatever the dtype of the weights
    """

    config: ModelConfig
    embed_tokens: Tensor
    layers: tuple[DecoderBlock, ...]
    norm: Tensor
    lm_head: Linear
    rope_frequencies: Tensor
    attention: AttentionKind

    @classmethod
    def from_checkpoint(
        cls,
        checkpoint: Checkpoint,
        *,
        device: str = "cpu",
        dtype: DtypeName = "float32",
        attention: AttentionKind = "sdpa",
    ) -> Model:
        """Read each tensor once, convert it, and put it on the device.

        checkpoint: an open checkpoint, complete by its own promise
        device:     any that torch has: cpu, cuda, cuda:1, mps
        dtype:      of weights, activations and cache; files in another dtype are converted
        attention:  which of attention.py's two forms; the explicit one is far slower on long prompts in bfloat16
        return:     the model
        raises:     InvalidParameterError for a device, dtype or attention that doesn't exist
        """
        if attention not in get_args(AttentionKind):
            raise InvalidParameterError("attention", attention, " or ".join(get_args(AttentionKind)))
        config = checkpoint.config
        weights = WeightReader(checkpoint.tensors, torch_device(device), torch_dtype(dtype))
        embed_tokens = weights.tensor("model.embed_tokens.weight")
        return cls(
            config=config,
            embed_tokens=embed_tokens,
            layers=tuple(DecoderBlock.read(weights, layer, config) for layer in range(config.num_hidden_layers)),
            norm=weights.tensor("model.norm.weight"),
            lm_head=Linear(embed_tokens) if config.tie_word_embeddings else weights.linear("lm_head", bias=False),
            rope_frequencies=rope_frequencies(config.rope, config.head_dim).to(weights.device),
            attention=attention,
        )

    def with_attention(self, attention: AttentionKind) -> Model:
        """The same weights, attended in the other form."""
        return replace(self, attention=attention)

    def forward(self, batch: TokenBatch, cache: Cache, *, observe: Observe = _look_away) -> Tensor:
        """Run one step: the new tokens of every sequence through every layer.

        batch:   which tokens of which sequences, and the rows whose logits are wanted
        cache:   holds the keys and values of earlier positions, and takes the new ones
        observe: called with a name and a tensor as each stage is done: `embed_tokens`, what decoder_block names,
                 `norm` and `logits`; it may look but must not change
        return:  [R, V] float, logits of the wanted rows
        """
        logits = linear(self.hidden(batch, cache, observe=observe), self.lm_head)  # [R, V]
        observe("logits", logits)
        return logits

    def hidden(self, batch: TokenBatch, cache: Cache, *, observe: Observe = _look_away) -> Tensor:
        """Run one step up to the head: what a text's embedding is made of, too.

        batch:   as for forward
        cache:   as for forward
        observe: as for forward; there are no `logits`
        return:  [R, D] float, the wanted rows after the last norm
        """
        device = self.embed_tokens.device
        positions = torch.from_numpy(batch.positions).to(device)  # [T]
        factor = rope_attention_factor(self.config.rope)
        rotary = rotary_tables(positions, self.rope_frequencies, factor, self.embed_tokens.dtype)
        step = Step(self.config, batch, positions, rotary, cache, self.attention, observe)

        x = F.embedding(torch.from_numpy(batch.token_ids).to(device), self.embed_tokens)  # [T, D]
        observe("embed_tokens", x)
        for layer, weights in enumerate(self.layers):
            x = decoder_block(x, weights, layer, step)
        x = rms_norm(x, self.norm, self.config.rms_norm_eps)
        observe("norm", x)
        return x[torch.from_numpy(batch.logit_rows).to(device).long()]  # [R, D]
