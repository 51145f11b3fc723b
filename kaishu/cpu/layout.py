"""Where every weight lies in the packed model: one block of memory, described by three small tables.

Owns the kinds of packed weights, their sizes, and the order of tensors. Knows nothing of files or instructions.
packing.py fills the memory from a checkpoint, the kernels read it through the tables.

Rows are packed by `lanes` (8, or 16 with AVX-512), so that one vector lane is one row and no kernel adds lanes up.
Along K, which is padded to whole groups of 32:

    bf16           for each pair (k, k + 1):  [lanes, 2] bfloat16
    int8           for each group of 32:      8 × [lanes, 4] int8; one float16 scale a row
    int4           for each group of 32:      4 × [lanes, 4] bytes; the lower halves hold k = 0 … 15, the upper halves
                                              16 … 31, each q + 8 with q from -8 to 7; one float16 scale a row
    int4_minimum   the same with q from 0 to 15; one float16 scale and one float16 minimum a row

A weight is scale · q, or scale · q + minimum. These are GGUF's Q8_0, Q4_0 and Q4_1 in another order of bytes.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from kaishu.config import ModelConfig

LAYOUT_VERSION = 1
GROUP = 32  # weights along K that share a scale
ALIGNMENT = 64

WeightKind = Literal["bf16", "int8", "int4", "int4_minimum"]
BF16, INT8, INT4, INT4_MINIMUM = range(4)  # the same kinds for the kernels: places in get_args(WeightKind)
# The forms of activations that linears read: whole numbers; or, for BF16, bfloat16 where the CPU multiplies that, else
# float32.
WHOLE, ROUNDED = 1, 2

# Columns of Layout.linears
KIND, WEIGHTS, SCALES, MINIMUMS, BIAS, ROWS, INPUTS, BLOCKS = range(8)
# Columns of Layout.layers: which linear; of a sparse layer, GATE to DOWN are expert 0's, the others follow in threes
QUERY, KEY, VALUE, OUTPUT, GATE, UP, DOWN, ROUTER = range(8)
# Columns of Layout.norms: where the scales lie; the last row has the final norm
INPUT_NORM, POST_ATTENTION_NORM, QUERY_NORM, KEY_NORM = range(4)


def padded(number: int, step: int) -> int:
    """The next multiple of `step`."""
    return -(-number // step) * step


@dataclass(frozen=True)
class PackedLinear:
    """One linear layer in the packed memory; offsets in bytes, -1 for what it doesn't have.

    name:   the Hugging Face name without `.weight`
    rows:   N, outputs; packed as padded(N, 2 · lanes), with zeros
    inputs: K; packed as padded(K, 32), with zeros
    """

    name: str
    kind: WeightKind
    rows: int
    inputs: int
    lanes: int
    weights: int
    scales: int
    minimums: int
    bias: int

    @property
    def padded_rows(self) -> int:
        """Rows with the zeros behind them: kernels take two blocks at a time."""
        return padded(self.rows, 2 * self.lanes)

    @property
    def padded_inputs(self) -> int:
        """Inputs with the zeros behind them."""
        return padded(self.inputs, GROUP)

    @property
    def weight_bytes(self) -> int:
        """Bytes of the packed weights, without scales."""
        halves = {"bf16": 4, "int8": 2, "int4": 1, "int4_minimum": 1}[self.kind]  # half bytes a weight
        return self.padded_rows * self.padded_inputs * halves // 2

    @property
    def scale_bytes(self) -> int:
        """Bytes of the scales; as many again for minimums."""
        return 0 if self.kind == "bf16" else self.padded_rows * (self.padded_inputs // GROUP) * 2

    @property
    def form_read(self) -> int:
        """The form of activations that it reads."""
        return ROUNDED if self.kind == "bf16" else WHOLE

    def described(self) -> list[int]:
        """This linear's row of Layout.linears."""
        kind = get_args(WeightKind).index(self.kind)
        blocks = self.padded_rows // self.lanes
        return [kind, self.weights, self.scales, self.minimums, self.bias, self.rows, self.padded_inputs, blocks]


@dataclass(frozen=True)
class Layout:
    """The packed model's memory.

    linears:   [n, 8] int64, see the columns above
    layers:    [L, 8] int64
    norms:     [L + 1, 4] int64
    vectors:   name of a norm's scales or of a bias → where its float32 lie, and how many there are, zeros included
    head:      which linear is the output head
    embedding: where the bfloat16 rows of an untied embedding lie; -1 when they are the head's
    """

    config: ModelConfig
    lanes: int
    packed: tuple[PackedLinear, ...]
    linears: NDArray[np.int64]
    layers: NDArray[np.int64]
    norms: NDArray[np.int64]
    vectors: dict[str, tuple[int, int]]
    head: int
    embedding: int
    num_bytes: int

    @property
    def forms_read(self) -> int:
        """The forms of activations that the layers' linears read, all together, without the head, and without routers,
        which are always bf16."""
        apart = {self.head, *self.layers[:, ROUTER].tolist()}
        forms = (linear.form_read for index, linear in enumerate(self.packed) if index not in apart)
        return functools.reduce(operator.or_, forms, 0)


class _Planner:
    """Hands out places in the memory, one after another."""

    def __init__(self, lanes: int) -> None:
        self.lanes = lanes
        self.end = 0
        self.packed: list[PackedLinear] = []
        self.vectors: dict[str, tuple[int, int]] = {}

    def take(self, num_bytes: int) -> int:
        start = self.end
        self.end = padded(start + num_bytes, ALIGNMENT)
        return start

    def vector(self, name: str, size: int) -> int:
        length = padded(size, GROUP)
        start = self.take(4 * length)
        self.vectors[name] = (start, length)
        return start

    def linear(self, name: str, kind: WeightKind, rows: int, inputs: int, *, bias: bool = False) -> int:
        """return: its place in Layout.linears"""
        sized = PackedLinear(name, kind, rows, inputs, self.lanes, -1, -1, -1, -1)
        weights = self.take(sized.weight_bytes)
        scales = self.take(sized.scale_bytes) if sized.scale_bytes else -1
        minimums = self.take(sized.scale_bytes) if kind == "int4_minimum" else -1
        offset = -1
        if bias:
            offset = self.take(4 * sized.padded_rows)
            self.vectors[f"{name}.bias"] = (offset, sized.padded_rows)
        self.packed.append(PackedLinear(name, kind, rows, inputs, self.lanes, weights, scales, minimums, offset))
        return len(self.packed) - 1


def plan_layout(
    config: ModelConfig, weights: WeightKind | Mapping[str, WeightKind], head: WeightKind, lanes: int
) -> Layout:
    """Lay out a model.

    config:  the model; with a tied head the head's memory is the embedding too
    weights: the kind of every linear in the layers, or of each by its name, bf16 where it isn't named; routers stay
             bf16, because a wrong expert costs more than a byte
    head:    the kind of the output head
    lanes:   rows packed together
    return:  where everything lies; the same arguments give the same layout
    """
    planner = _Planner(lanes)
    layers, norms = [], []
    kinds = _one_kind(weights) if isinstance(weights, str) else lambda name: weights.get(name, "bf16")
    for layer in range(config.num_hidden_layers):
        norms.append(_plan_norms(planner, config, layer))
        layers.append(_plan_layer(planner, config, layer, kinds))
    norms.append([planner.vector("model.norm.weight", config.hidden_size), -1, -1, -1])
    head_name = "model.embed_tokens" if config.tie_word_embeddings else "lm_head"
    head_place = planner.linear(head_name, head, config.vocab_size, config.hidden_size)
    embedding = -1 if config.tie_word_embeddings else planner.take(2 * config.vocab_size * config.hidden_size)
    return Layout(
        config=config,
        lanes=lanes,
        packed=tuple(planner.packed),
        linears=np.array([linear.described() for linear in planner.packed], np.int64),
        layers=np.array(layers, np.int64),
        norms=np.array(norms, np.int64),
        vectors=planner.vectors,
        head=head_place,
        embedding=embedding,
        num_bytes=planner.end,
    )


KindOf = Callable[[str], WeightKind]


def _one_kind(kind: WeightKind) -> KindOf:
    return lambda _: kind


def _plan_norms(planner: _Planner, config: ModelConfig, layer: int) -> list[int]:
    prefix = f"model.layers.{layer}"
    names = [(f"{prefix}.input_layernorm.weight", config.hidden_size)]
    names.append((f"{prefix}.post_attention_layernorm.weight", config.hidden_size))
    places = [planner.vector(name, size) for name, size in names]
    if not config.qk_norm:
        return [*places, -1, -1]
    heads = [f"{prefix}.self_attn.{which}_norm.weight" for which in "qk"]
    return places + [planner.vector(name, config.head_dim) for name in heads]


def _plan_layer(planner: _Planner, config: ModelConfig, layer: int, kind_of: KindOf) -> list[int]:
    c, prefix = config, f"model.layers.{layer}"
    sizes: list[tuple[str, int, int, bool]] = [
        ("self_attn.q_proj", c.query_size, c.hidden_size, c.attention_bias),
        ("self_attn.k_proj", c.key_value_size, c.hidden_size, c.attention_bias),
        ("self_attn.v_proj", c.key_value_size, c.hidden_size, c.attention_bias),
        ("self_attn.o_proj", c.hidden_size, c.query_size, c.output_bias),
    ]
    places = [
        planner.linear(f"{prefix}.{name}", kind_of(f"{prefix}.{name}"), rows, inputs, bias=bias)
        for name, rows, inputs, bias in sizes
    ]
    if c.experts is None or not c.is_sparse(layer):
        return [*places, *_plan_feed_forward(planner, c, f"{prefix}.mlp", c.intermediate_size, kind_of), -1]
    experts = [
        _plan_feed_forward(planner, c, f"{prefix}.mlp.experts.{expert}", c.experts.moe_intermediate_size, kind_of)
        for expert in range(c.experts.num_experts)
    ]
    router = planner.linear(f"{prefix}.mlp.gate", "bf16", c.experts.num_experts, c.hidden_size)
    return [*places, *experts[0], router]


def _plan_feed_forward(planner: _Planner, config: ModelConfig, name: str, inner: int, kind_of: KindOf) -> list[int]:
    bias, hidden = config.mlp_bias and ".experts." not in name, config.hidden_size
    sizes = (("gate_proj", inner, hidden), ("up_proj", inner, hidden), ("down_proj", hidden, inner))
    return [
        planner.linear(f"{name}.{part}", kind_of(f"{name}.{part}"), rows, inputs, bias=bias)
        for part, rows, inputs in sizes
    ]


def view(memory: NDArray[np.uint8], offset: int, dtype: Any, shape: tuple[int, ...]) -> NDArray[Any]:
    """A part of the packed memory as an array."""
    count = int(np.prod(shape))
    part: NDArray[Any] = memory[offset : offset + count * np.dtype(dtype).itemsize].view(dtype).reshape(shape)
    return part
