"""One step of the whole model over a ragged batch: reference/model.py and block.py as work for ranks.

Owns the order of stages, what each stage's pieces are, and the buffers between stages. Every rank runs `forward`; in
each stage it claims pieces until none are left and then waits at a barrier. Prefill, decode and any mixture are the
same code: only the number of rows differs. executor.py makes the arguments.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit

from kaishu.cpu.embedding import embed_token
from kaishu.cpu.experts import mixture_of_experts
from kaishu.cpu.feed_forward import gated_blocks
from kaishu.cpu.layout import (
    BLOCKS,
    DOWN,
    INPUTS,
    GATE,
    GROUP,
    INPUT_NORM,
    KEY,
    KEY_NORM,
    OUTPUT,
    POST_ATTENTION_NORM,
    QUERY,
    QUERY_NORM,
    ROUTER,
    UP,
    VALUE,
)
from kaishu.cpu.linear import linear_blocks
from kaishu.cpu.norm import prepare, rms_norm
from kaishu.cpu.pages import clear_values, place_of, store_key, store_value
from kaishu.cpu.ragged_attention import attend_pieces, join_segments
from kaishu.cpu.rope import rotary_row, rotate
from kaishu.cpu.threads import barrier, claim
from kaishu.cpu.vector import KERNEL, floats_at, lanes, load, pointer, store


STAGES = 16  # counters for each layer; a layer with experts uses the most


def num_stages(num_layers: int) -> int:
    """How many counters a step needs."""
    return 3 + num_layers * STAGES


class PackedModel(NamedTuple):
    """The weights, as layout.py describes them, and the model's sizes.

    address: where the packed memory begins
    """

    address: int
    linears: Any
    layers: Any
    norms: Any
    head: int
    embedding: int
    is_quantised: bool
    hidden_size: int
    num_heads: int
    num_key_value_heads: int
    head_dim: int
    num_experts: int
    is_renormalised: bool
    eps: Any
    frequencies: Any
    rotary_factor: Any
    windows: Any


class StepInput(NamedTuple):
    """A TokenBatch, and what follows from it.

    sequence_of:  [T] int32, which sequence a row belongs to
    piece_starts: [B + 1] int64, the first piece of attention of each sequence
    all_rows:     [T] int32, 0 to T - 1
    """

    token_ids: Any
    positions: Any
    query_starts: Any
    page_table: Any
    logit_rows: Any
    sequence_of: Any
    piece_starts: Any
    all_rows: Any


class Buffers(NamedTuple):
    """Memory between stages, with room for at least T rows; rows are padded with zeros."""

    hidden: Any
    normed: Any
    qkv: Any
    attended: Any
    gates: Any
    inner: Any
    delta: Any
    cos: Any
    sin: Any
    logits: Any
    heads: Any
    scratch: Any
    experts: Any


@njit(**KERNEL)
def _pieces(total: int, ranks: int, smallest: int) -> int:
    """How many pieces to claim at once: an eighth of a rank's share, and even."""
    return max(smallest, total // (8 * ranks) // 2 * 2)


@njit(**KERNEL)
def _start(model, step, buffers, shared, stage, ranks):  # type: ignore[no-untyped-def]
    """Embeddings and rotary tables, token by token."""
    tokens, factor = len(step.token_ids), model.rotary_factor
    at_once = _pieces(tokens, ranks, 1)
    first = claim(shared, stage, at_once)
    while first < tokens:
        for token in range(first, min(tokens, first + at_once)):
            embed_token(model, step.token_ids[token], buffers.hidden, token)
            rotary_row(step.positions[token], model.frequencies, factor, buffers.cos[token], buffers.sin[token])
        first = claim(shared, stage, at_once)


@njit(**KERNEL)
def _normalise(model, buffers, norm, rows, shared, stage, ranks, pages, step, layer, is_first):  # type: ignore[no-untyped-def]
    """hidden → normed, row by row; before attention also makes room in pages that are begun."""
    count, size = len(rows), model.hidden_size
    padded_size = buffers.hidden.shape[1]
    weight = floats_at(model.address + norm)
    source, target = pointer(buffers.hidden), pointer(buffers.normed.words)
    at_once = _pieces(count, ranks, 1)
    first = claim(shared, stage, at_once)
    while first < count:
        for row in range(first, min(count, first + at_once)):
            place = row * buffers.normed.words.shape[1]
            rms_norm(source, rows[row] * padded_size, weight, size, padded_size, model.eps, target, place)
            prepare(buffers.normed, row, padded_size, model.is_quantised)
            if is_first and step.positions[row] % pages.page_tokens == 0:
                page = step.page_table[step.sequence_of[row], step.positions[row] // pages.page_tokens]
                clear_values(pages, page, layer, model.num_key_value_heads)
        first = claim(shared, stage, at_once)


@njit(**KERNEL)
def _project(model, buffers, layer, tokens, shared, stage, ranks):  # type: ignore[no-untyped-def]
    """Queries, keys and values, side by side in qkv: the blocks of three linears in one row of pieces."""
    queries, keys, values = model.layers[layer, QUERY], model.layers[layer, KEY], model.layers[layer, VALUE]
    num_queries, num_keys = model.linears[queries, BLOCKS], model.linears[keys, BLOCKS]
    total, width = num_queries + num_keys + model.linears[values, BLOCKS], lanes()
    at_once = _pieces(total, ranks, 2)
    first = claim(shared, stage, at_once)
    while first < total:
        for block in range(first, min(total, first + at_once), 2):
            if block < num_queries:
                which, own = queries, block
            elif block < num_queries + num_keys:
                which, own = keys, block - num_queries
            else:
                which, own = values, block - num_queries - num_keys
            column = (block - own) * width
            linear_blocks(model, which, own, own + 2, buffers.normed, tokens, buffers.qkv, column)
        first = claim(shared, stage, at_once)


@njit(**KERNEL)
def _rotate_and_keep(model, buffers, layer, step, pages, rank, shared, stage, ranks):  # type: ignore[no-untyped-def]
    """QK-norm and RoPE; keys and values go to their pages. A piece is one head of one token."""
    width, size = lanes(), model.head_dim
    key_start = model.linears[model.layers[layer, QUERY], BLOCKS] * width
    value_start = key_start + model.linears[model.layers[layer, KEY], BLOCKS] * width
    heads = model.num_heads + 2 * model.num_key_value_heads
    total, scratch = len(step.token_ids) * heads, buffers.heads[rank]
    at_once = _pieces(total, ranks, 2)
    first = claim(shared, stage, at_once)
    while first < total:
        for piece in range(first, min(total, first + at_once)):
            token, head = piece // heads, piece % heads
            place = pages_place = 0
            key_head = head - model.num_heads
            start = head * size if key_head < 0 else key_start + key_head * size
            is_value = key_head >= model.num_key_value_heads
            if is_value:
                key_head -= model.num_key_value_heads
                start = value_start + key_head * size
            for channel in range(size):
                scratch[channel] = buffers.qkv[token, start + channel]
            if not is_value:
                norm = model.norms[layer, QUERY_NORM if key_head < 0 else KEY_NORM]
                if norm >= 0:
                    place, weight = 0, floats_at(model.address + norm)
                    rms_norm(
                        pointer(scratch), place, weight, size, padded_head(size), model.eps, pointer(scratch), place
                    )
                rotate(scratch, buffers.cos[token], buffers.sin[token])
            if key_head < 0:
                for channel in range(size):
                    buffers.qkv[token, start + channel] = scratch[channel]
                continue
            position = step.positions[token]
            page = step.page_table[step.sequence_of[token], position // pages.page_tokens]
            pages_place = place_of(pages, page, layer, key_head)
            if is_value:
                store_value(pages, pages_place, position % pages.page_tokens, scratch, width)
            else:
                store_key(pages, pages_place, position % pages.page_tokens, scratch, width)
        first = claim(shared, stage, at_once)


@njit(**KERNEL)
def padded_head(size: int) -> int:
    """d with zeros up to whole groups."""
    return (size + GROUP - 1) // GROUP * GROUP


@njit(**KERNEL)
def _prepare_rows(model, x, inputs, tokens, shared, stage, ranks):  # type: ignore[no-untyped-def]
    """Rows of activations made ready for the next linear layer."""
    at_once = _pieces(tokens, ranks, 1)
    first = claim(shared, stage, at_once)
    while first < tokens:
        for token in range(first, min(tokens, first + at_once)):
            prepare(x, token, inputs, model.is_quantised)
        first = claim(shared, stage, at_once)


@njit(**KERNEL)
def _add_linear(model, buffers, which, x, tokens, shared, stage, ranks):  # type: ignore[no-untyped-def]
    """hidden += linear(x): the residual connection, in the rows that the rank has just computed."""
    blocks, width = model.linears[which, BLOCKS], lanes()
    at_once = _pieces(blocks, ranks, 2)
    delta, hidden = pointer(buffers.delta), pointer(buffers.hidden)
    stop = buffers.hidden.shape[1]
    first = claim(shared, stage, at_once)
    while first < blocks:
        last = min(blocks, first + at_once)
        linear_blocks(model, which, first, last, x, tokens, buffers.delta, 0)
        for token in range(tokens):
            for n in range(first * width, min(last * width, stop), width):
                place = token * stop + n
                store(hidden, place, load(hidden, place) + load(delta, token * buffers.delta.shape[1] + n))
        first = claim(shared, stage, at_once)


@njit(**KERNEL)
def _feed(model, buffers, layer, tokens, shared, stage, ranks):  # type: ignore[no-untyped-def]
    gate, up = model.layers[layer, GATE], model.layers[layer, UP]
    blocks = model.linears[gate, BLOCKS]
    at_once = _pieces(blocks, ranks, 2)
    first = claim(shared, stage, at_once)
    while first < blocks:
        last = min(blocks, first + at_once)
        gated_blocks(model, gate, up, first, last, buffers.normed, tokens, buffers.gates, buffers.inner.words)
        first = claim(shared, stage, at_once)


@njit(**KERNEL)
def _predict(model, buffers, rows, shared, stage, ranks):  # type: ignore[no-untyped-def]
    """The head, for the rows asked."""
    blocks = model.linears[model.head, BLOCKS]
    at_once = _pieces(blocks, 8 * ranks, 2)
    first = claim(shared, stage, at_once)
    while first < blocks:
        last = min(blocks, first + at_once)
        linear_blocks(model, model.head, first, last, buffers.normed, rows, buffers.logits, 0)
        first = claim(shared, stage, at_once)


@njit(**KERNEL)
def forward(rank, ranks, shared, model, step, buffers, pages):  # type: ignore[no-untyped-def]
    """One rank's part of a step; the logits asked for are in buffers.logits when every rank has returned.

    shared: see threads.py, zeros
    """
    tokens, stage, layers = len(step.token_ids), 0, model.layers
    _start(model, step, buffers, shared, stage, ranks)
    barrier(shared, ranks)
    for layer in range(layers.shape[0]):
        stage = 1 + layer * STAGES
        _attention_block(rank, ranks, shared, stage, model, step, buffers, pages, layer)
        norm = model.norms[layer, POST_ATTENTION_NORM]
        _normalise(model, buffers, norm, step.all_rows, shared, stage + 7, ranks, pages, step, layer, False)
        barrier(shared, ranks)
        if layers[layer, ROUTER] >= 0:
            mixture_of_experts(rank, ranks, shared, stage + 8, model, layer, tokens, buffers)
            continue
        _feed(model, buffers, layer, tokens, shared, stage + 8, ranks)
        barrier(shared, ranks)
        inputs = model.linears[layers[layer, DOWN], INPUTS]
        _prepare_rows(model, buffers.inner, inputs, tokens, shared, stage + 9, ranks)
        barrier(shared, ranks)
        _add_linear(model, buffers, layers[layer, DOWN], buffers.inner, tokens, shared, stage + 10, ranks)
        barrier(shared, ranks)
    stage = 1 + layers.shape[0] * STAGES
    norm, rows = model.norms[layers.shape[0], INPUT_NORM], step.logit_rows
    _normalise(model, buffers, norm, rows, shared, stage, ranks, pages, step, 0, False)
    barrier(shared, ranks)
    _predict(model, buffers, len(rows), shared, stage + 1, ranks)


@njit(**KERNEL)
def _attention_block(rank, ranks, shared, stage, model, step, buffers, pages, layer):  # type: ignore[no-untyped-def]
    """hidden += attention(norm(hidden))"""
    tokens, layers = len(step.token_ids), model.layers
    norm, output = model.norms[layer, INPUT_NORM], layers[layer, OUTPUT]
    _normalise(model, buffers, norm, step.all_rows, shared, stage, ranks, pages, step, layer, True)
    barrier(shared, ranks)
    _project(model, buffers, layer, tokens, shared, stage + 1, ranks)
    barrier(shared, ranks)
    _rotate_and_keep(model, buffers, layer, step, pages, rank, shared, stage + 2, ranks)
    barrier(shared, ranks)
    attend_pieces(model, buffers, layer, step, pages, rank, shared, stage + 3)
    barrier(shared, ranks)
    join_segments(model, buffers, step, pages, shared, stage + 4)
    barrier(shared, ranks)
    inputs = model.linears[output, INPUTS]
    _prepare_rows(model, buffers.attended, inputs, tokens, shared, stage + 5, ranks)
    barrier(shared, ranks)
    _add_linear(model, buffers, output, buffers.attended, tokens, shared, stage + 6, ranks)
    barrier(shared, ranks)
