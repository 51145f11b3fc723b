"""The plan of the packed memory: nothing overlaps, nothing is missing, and a kind costs what GGUF's block does."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

from kaishu.checkpoint import open_checkpoint
from kaishu.config import ModelConfig
from kaishu.cpu.layout import (
    ALIGNMENT,
    BIAS,
    BLOCKS,
    DOWN,
    GATE,
    GROUP,
    INPUT_NORM,
    INPUTS,
    KEY,
    KEY_NORM,
    KIND,
    MINIMUMS,
    OUTPUT,
    POST_ATTENTION_NORM,
    QUERY,
    QUERY_NORM,
    ROUNDED,
    ROUTER,
    ROWS,
    SCALES,
    UP,
    VALUE,
    WEIGHTS,
    WHOLE,
    PackedLinear,
    padded,
    plan_layout,
    view,
)
from tests.cpu.drawn_weights import KINDS
from tests.tiny_checkpoints import KINDS as MODELS

every_model = pytest.mark.parametrize("model", MODELS)
both_lanes = pytest.mark.parametrize("lanes", [8, 16])


def config_of(tiny_checkpoint, model):
    return ModelConfig.from_folder(tiny_checkpoint(model))


def pieces_of(layout):
    """Every stretch of the memory that something lies in: (start, bytes), from the table that kernels read."""
    for linear, row in zip(layout.packed, layout.linears, strict=True):
        yield row[WEIGHTS], linear.weight_bytes
        if row[SCALES] >= 0:
            yield row[SCALES], linear.scale_bytes
        if row[MINIMUMS] >= 0:
            yield row[MINIMUMS], linear.scale_bytes
    for offset, length in layout.vectors.values():
        yield offset, 4 * length
    if layout.embedding >= 0:
        yield layout.embedding, 2 * layout.config.vocab_size * layout.config.hidden_size


@every_model
@both_lanes
@pytest.mark.parametrize("weights, head", [("bf16", "bf16"), ("int8", "int4"), ("int4_minimum", "int8")])
def test_pieces_are_aligned_inside_the_memory_and_apart(model, lanes, weights, head, tiny_checkpoint):
    layout = plan_layout(config_of(tiny_checkpoint, model), weights, head, lanes)
    pieces = sorted((int(start), int(size)) for start, size in pieces_of(layout))
    assert all(start % ALIGNMENT == 0 and size > 0 for start, size in pieces)
    for (start, size), (following, _) in itertools.pairwise([*pieces, (layout.num_bytes, 0)]):
        assert start + size <= following < start + size + ALIGNMENT, "no overlap, and no gap but for alignment"


@every_model
def test_every_tensor_of_the_checkpoint_has_one_place(model, tiny_checkpoint):
    checkpoint = open_checkpoint(tiny_checkpoint(model))
    layout = plan_layout(checkpoint.config, "int8", "int8", 8)
    placed = [f"{linear.name}.weight" for linear in layout.packed] + list(layout.vectors)
    if layout.embedding >= 0:
        placed.append("model.embed_tokens.weight")
    assert sorted(placed) == sorted(checkpoint.tensors)
    for linear in layout.packed:
        assert (linear.rows, linear.inputs) == checkpoint.tensors[f"{linear.name}.weight"].shape
    for name, (_, length) in layout.vectors.items():
        assert length >= checkpoint.tensors[name].shape[0] and length % GROUP == 0


@every_model
def test_the_tables_name_what_each_layer_computes_with(model, tiny_checkpoint):
    config = config_of(tiny_checkpoint, model)
    layout = plan_layout(config, "int4", "int8", 8)
    for layer, row in enumerate(layout.layers):
        names = {column: layout.packed[place].name for column, place in enumerate(row) if place >= 0}
        attention, mlp = f"model.layers.{layer}.self_attn", f"model.layers.{layer}.mlp"
        for column, letter in {QUERY: "q", KEY: "k", VALUE: "v", OUTPUT: "o"}.items():
            assert names[column] == f"{attention}.{letter}_proj"
        is_sparse = config.experts is not None and config.is_sparse(layer)
        assert (row[ROUTER] >= 0) == is_sparse
        experts = [f"{mlp}.experts.{e}" for e in range(config.experts.num_experts)] if is_sparse else [mlp]
        for index, name in enumerate(experts):
            for column, part in {GATE: "gate_proj", UP: "up_proj", DOWN: "down_proj"}.items():
                assert layout.packed[row[column] + 3 * index].name == f"{name}.{part}"
        if is_sparse:
            assert names[ROUTER] == f"{mlp}.gate" and layout.packed[row[ROUTER]].kind == "bf16"
        expected = {INPUT_NORM: "input_layernorm", POST_ATTENTION_NORM: "post_attention_layernorm"}
        if config.qk_norm:
            expected |= {QUERY_NORM: "self_attn.q_norm", KEY_NORM: "self_attn.k_norm"}
        for column in range(4):
            name = f"model.layers.{layer}.{expected[column]}.weight" if column in expected else None
            assert layout.norms[layer, column] == (layout.vectors[name][0] if name else -1)
    assert layout.norms[-1, INPUT_NORM] == layout.vectors["model.norm.weight"][0]
    assert layout.packed[layout.head].kind == "int8"
    assert layout.packed[layout.head].name == ("model.embed_tokens" if config.tie_word_embeddings else "lm_head")
    assert (layout.embedding < 0) == config.tie_word_embeddings


@every_model
@both_lanes
def test_the_kernels_table_says_what_each_linear_is(model, lanes, tiny_checkpoint):
    layout = plan_layout(config_of(tiny_checkpoint, model), "int4_minimum", "bf16", lanes)
    for linear, row in zip(layout.packed, layout.linears, strict=True):
        assert row[KIND] == KINDS[linear.kind] and row[ROWS] == linear.rows
        assert row[INPUTS] % GROUP == 0 and 0 <= row[INPUTS] - linear.inputs < GROUP
        assert row[BLOCKS] % 2 == 0 and 0 <= row[BLOCKS] * lanes - linear.rows < 2 * lanes
        assert (row[SCALES] >= 0) == (linear.kind != "bf16")
        assert (row[MINIMUMS] >= 0) == (linear.kind == "int4_minimum")
        bias = layout.vectors.get(f"{linear.name}.bias")
        assert row[BIAS] == (bias[0] if bias else -1)
        assert bias is None or bias[1] == row[BLOCKS] * lanes


@every_model
@pytest.mark.parametrize("weights, head", [*itertools.product(["bf16", "int8", "int4_minimum"], ["bf16", "int4"])])
def test_a_row_gets_the_forms_of_activations_that_its_readers_take(model, weights, head, tiny_checkpoint):
    layout = plan_layout(config_of(tiny_checkpoint, model), weights, head, 8)
    assert layout.forms_read == (ROUNDED if weights == "bf16" else WHOLE)
    assert layout.packed[layout.head].form_read == (ROUNDED if head == "bf16" else WHOLE)
    other = "int8" if weights == "bf16" else "bf16"
    place = layout.layers[-1, DOWN]
    packed = [replace(linear, kind=other) if n == place else linear for n, linear in enumerate(layout.packed)]
    assert replace(layout, packed=tuple(packed)).forms_read == ROUNDED | WHOLE


@pytest.mark.parametrize("kind, block_bytes", [("int8", 34), ("int4", 18), ("int4_minimum", 20), ("bf16", 64)])
def test_a_group_takes_the_bytes_of_ggufs_block(kind, block_bytes):
    """Q8_0: 2 + 32 · Q4_0: 2 + 16 · Q4_1: 2 + 2 + 16 · BF16: 2 · 32."""
    linear = PackedLinear("x", kind, 64, 96, 16, 0, 0, 0, -1)
    scales = linear.scale_bytes * (2 if kind == "int4_minimum" else 1)
    assert linear.weight_bytes + scales == 64 * 3 * block_bytes


def test_the_same_arguments_give_the_same_layout(tiny_checkpoint):
    config = config_of(tiny_checkpoint, "moe_mixed")
    first, second = (plan_layout(config, "int4", "int8", 16) for _ in range(2))
    assert first.packed == second.packed and first.vectors == second.vectors
    assert np.array_equal(first.linears, second.linears) and np.array_equal(first.layers, second.layers)
    assert (first.head, first.embedding, first.num_bytes) == (second.head, second.embedding, second.num_bytes)


@pytest.mark.parametrize("number, step, expected", [(0, 32, 0), (1, 32, 32), (32, 32, 32), (33, 32, 64), (7, 1, 7)])
def test_padding_goes_to_the_next_multiple(number, step, expected):
    assert padded(number, step) == expected


def test_a_view_is_the_memory_itself():
    memory = np.zeros(64, np.uint8)
    view(memory, 8, np.float32, (2, 3))[1, 2] = 1.0
    assert memory[8 + 5 * 4 : 8 + 6 * 4].view(np.float32)[0] == 1.0 and memory.astype(bool).sum() == 2
