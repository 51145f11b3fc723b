"""One step of the whole model over a ragged batch: reference/model.py and block.py as work for ranks.

Owns the order of stages, what each stage's pieces are, and the buffers between stages. Every rank runs `forward`; in
each stage it claims pieces until none are left and then waits at a barrier. Prefill, decode and any mixture are the
same code: only the number of rows differs. executor.py makes the arguments.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from kaishu.cpu.barriers import barrier, claim, claim_near, claim_two, comes_last, release
from kaishu.cpu.buffers import STAGES
from kaishu.cpu.embedding import embed_token
from kaishu.cpu.experts import mixture_of_experts
from kaishu.cpu.feed_forward import gated_blocks
from kaishu.cpu.layout import (
    BLOCKS,
    DOWN,
    GATE,
    INPUT_NORM,
    INPUTS,
    KEY,
    KEY_NORM,
    OUTPUT,
    POST_ATTENTION_NORM,
    QUERY,
    QUERY_NORM,
    ROUNDED,
    ROUTER,
    UP,
    VALUE,
)
from kaishu.cpu.likeliest import BLOCK, keep_maxima
from kaishu.cpu.linear import FEW_TOKENS, layer_field, linear_field, linear_runs
from kaishu.cpu.norm import prepare, rms_norm
from kaishu.cpu.page_access import clear_values, keep_key, keep_value, place_of
from kaishu.cpu.ragged_attention import attend_pieces, join_segments
from kaishu.cpu.rope import rotary_row, rotate
from kaishu.cpu.vector import KERNEL, floats_at, int32_at, int64_at, lanes, load, moved, store


@njit(**KERNEL)
def forward(rank, ranks, shared, model, step, wanted, buffers, pages):
    """One rank's part of a step; the logits asked for are in wanted.logits when every rank has returned.

    The last layer's keys and values are made of all rows, what follows of those alone that are wanted: nobody reads
    the others. They are then the first rows of all buffers.

    shared: the address of threads.py's shared_state, zeros
    wanted: the same step, or what wanted_rows.py leaves of it
    others: the records of records.py
    """
    _start(model, step, buffers, shared, 0, ranks)
    for layer in range(model.num_layers):
        stage = 1 + layer * STAGES
        _keep_block(rank, ranks, shared, stage, model, step, buffers, pages, layer)
        if comes_last(shared, ranks):
            if layer == model.num_layers - 1 and wanted.tokens < step.tokens:
                _take_wanted(model, buffers, step)
            release(shared, ranks)
        if layer == model.num_layers - 1:
            step = wanted
            if step.tokens == 0:
                return
        _attention_block(rank, ranks, shared, stage + 3, model, step, buffers, pages, layer)
        norm = _norm_place(model, layer, POST_ATTENTION_NORM)
        is_sparse = layer_field(model, layer, ROUTER) >= 0
        forms = model.forms | ROUNDED if is_sparse else model.forms
        _normalise(model, buffers, norm, step.all_rows, step.tokens, forms, shared, stage + 7, ranks)
        if is_sparse:
            mixture_of_experts(rank, ranks, shared, stage + 8, model, layer, step.tokens, buffers)
        else:
            _feed_forward_block(rank, ranks, shared, stage + 8, model, step, buffers, layer)
    if step.logits.at != 0:
        stage, norm = 1 + model.num_layers * STAGES, _norm_place(model, model.num_layers, INPUT_NORM)
        _normalise(model, buffers, norm, step.logit_rows, step.num_logit_rows, model.head_forms, shared, stage, ranks)
        _predict(rank, model, buffers, step, shared, stage + 1, ranks)


@njit(**KERNEL)
def _keep_block(rank, ranks, shared, stage, model, step, buffers, pages, layer):
    """qkv = the queries, keys and values of norm(hidden), the last two also in their pages; begins and ends without a
    barrier"""
    _begin_pages(model, step, pages, layer, shared, stage + 15)
    norm = _norm_place(model, layer, INPUT_NORM)
    _normalise(model, buffers, norm, step.all_rows, step.tokens, model.forms, shared, stage, ranks)
    _project(rank, model, buffers, layer, step.tokens, shared, stage + 1, ranks)
    barrier(shared, ranks)
    _rotate_and_keep(model, buffers, layer, step, pages, rank, shared, stage + 2, ranks)


@njit(**KERNEL)
def _take_wanted(model, buffers, step):
    """The rows whose logits are wanted become the first of hidden and of the queries, by way of buffers that are free
    here: they may be wanted in any order."""
    hidden, delta, width = floats_at(buffers.hidden.at), floats_at(buffers.delta.at), buffers.hidden.width
    qkv, attended = floats_at(buffers.qkv.at), floats_at(buffers.attended.words)
    queries, stride, free_stride = model.num_heads * model.head_dim, buffers.qkv.width, buffers.attended.width
    for row in range(step.num_logit_rows):
        place = int32_at(step.logit_rows)[row]
        _copy(hidden, place * width, delta, row * width, width)
        _copy(qkv, place * stride, attended, row * free_stride, queries)
    for row in range(step.num_logit_rows):
        _copy(delta, row * width, hidden, row * width, width)
        _copy(attended, row * free_stride, qkv, row * stride, queries)


@njit(**KERNEL)
def _copy(source, start, target, place, count):
    whole = count // lanes() * lanes()
    for element in range(0, whole, lanes()):
        store(target, place + element, load(source, start + element))
    for element in range(whole, count):
        target[place + element] = source[start + element]


@njit(**KERNEL)
def _attention_block(rank, ranks, shared, stage, model, step, buffers, pages, layer):
    """hidden += attention(queries); begins and ends without a barrier"""
    output = layer_field(model, layer, OUTPUT)
    attend_pieces(model, buffers, layer, step, pages, rank, shared, stage)
    _join_and_prepare(model, buffers, linear_field(model, output, INPUTS), step, pages, shared, stage + 1, ranks)
    _add_linear(rank, model, buffers, output, buffers.attended, step.tokens, shared, stage + 3, ranks)


@njit(**KERNEL)
def _feed_forward_block(rank, ranks, shared, stage, model, step, buffers, layer):
    """hidden += feed_forward(normed); begins and ends without a barrier"""
    down = layer_field(model, layer, DOWN)
    _feed(rank, model, buffers, layer, step.tokens, shared, stage, ranks)
    _prepare(model, buffers.inner, linear_field(model, down, INPUTS), step.tokens, shared, stage + 1, ranks)
    _add_linear(rank, model, buffers, down, buffers.inner, step.tokens, shared, stage + 2, ranks)


@njit(**KERNEL)
def _pieces(total, ranks, smallest):
    """How many pieces to claim at once: an eighth of a rank's share, and even."""
    return max(smallest, total // (8 * ranks) // 2 * 2)


@njit(**KERNEL)
def _claim_runs(rank, ranks, shared, stage, blocks, tokens, parts):
    """What a rank computes next of a linear layer: as `claim_two`, in `parts` times smaller pieces than elsewhere."""
    is_few = tokens <= FEW_TOKENS
    at_once = _pieces(blocks, parts * ranks * (2 if is_few else 1), 2)
    return claim_two(rank, ranks, shared, stage, at_once, blocks, is_few)


@njit(**KERNEL)
def _norm_place(model, layer, which):
    """Where a norm's weights lie in the packed memory; -1 for a norm that the model doesn't have."""
    return int64_at(model.norms)[layer * 4 + which]


@njit(**KERNEL)
def _start(model, step, buffers, shared, stage, ranks):
    """Embeddings and rotary tables, token by token. The zeros behind a row are written too: layers add to them, and
    nothing times a row that was no number leaves no zero there."""
    hidden, cos, sin = floats_at(buffers.hidden.at), floats_at(buffers.cos.at), floats_at(buffers.sin.at)
    frequencies, pairs, at_once = floats_at(model.frequencies), buffers.cos.width, _pieces(step.tokens, ranks, 1)
    first = claim(shared, stage, at_once)
    while first < step.tokens:
        for token in range(first, min(step.tokens, first + at_once)):
            row = token * buffers.hidden.width
            embed_token(model, int32_at(step.token_ids)[token], hidden, row)
            for k in range(model.hidden_size, buffers.hidden.width):
                hidden[row + k] = np.float32(0.0)
            position = int32_at(step.positions)[token]
            rotary_row(position, frequencies, pairs, model.rotary_factor, cos, sin, token * pairs)
        first = claim(shared, stage, at_once)


@njit(**KERNEL)
def _begin_pages(model, step, pages, layer, shared, stage):
    """Make room in the pages whose first position is in this step."""
    token = claim(shared, stage, 1)
    while token < step.tokens:
        position = int32_at(step.positions)[token]
        if position % pages.page_tokens == 0:
            row = int32_at(step.sequence_of)[token] * step.table_width
            page = int32_at(step.page_table)[row + position // pages.page_tokens]
            clear_values(pages, page, layer, model.num_key_value_heads)
        token = claim(shared, stage, 1)


@njit(**KERNEL)
def _normalise(model, buffers, norm, rows, count, forms, shared, stage, ranks):
    """The rows of hidden that `rows` lists → normed, one after another, in these forms (layout.py); with a barrier
    before and after"""
    if count < ranks:
        if comes_last(shared, ranks):
            _normalise_rows(model, buffers, norm, rows, 0, count, forms)
            release(shared, ranks)
        return
    barrier(shared, ranks)
    at_once = _pieces(count, ranks, 1)
    first = claim(shared, stage, at_once)
    while first < count:
        _normalise_rows(model, buffers, norm, rows, first, min(count, first + at_once), forms)
        first = claim(shared, stage, at_once)
    barrier(shared, ranks)


@njit(**KERNEL)
def _normalise_rows(model, buffers, norm, rows, first, stop, forms):
    width, target_width = buffers.hidden.width, buffers.normed.width
    weight, chosen = floats_at(model.address + norm), int32_at(rows)
    source, target = floats_at(buffers.hidden.at), floats_at(buffers.normed.words)
    for row in range(first, stop):
        start, size = chosen[row] * width, model.hidden_size
        rms_norm(source, start, weight, size, width, model.eps, target, row * target_width)
        prepare(buffers.normed, row, width, forms)


@njit(**KERNEL)
def _project(rank, model, buffers, layer, tokens, shared, stage, ranks):
    """Queries, keys and values, side by side in qkv: the blocks of three linears in one row of pieces."""
    total = _run_of(model, layer, 0, 0)[4]
    first, last, other_first, other_last = _claim_runs(rank, ranks, shared, stage, total, tokens, 1)
    while first < total:
        while first < last:
            which, start, stop, column, _ = _run_of(model, layer, first, last)
            other_which, other_start, other_stop, other_column, _ = _run_of(model, layer, other_first, other_last)
            if other_start < other_stop:
                count = min(stop - start, other_stop - other_start)
                stop, other_stop = start + count, other_start + count
            run, other = (which, start, stop, column), (other_which, other_start, other_stop, other_column)
            linear_runs(model, run, other, buffers.normed, np.int64(0), tokens, buffers.qkv, buffers.qkv)
            first, other_first = first + stop - start, other_first + other_stop - other_start
        first, last, other_first, other_last = _claim_runs(rank, ranks, shared, stage, total, tokens, 1)


@njit(**KERNEL)
def _run_of(model, layer, first, last):
    """What blocks `first` to `last` of queries, keys and values, side by side, are, as far as they are of one linear.

    return: the linear, its first block, the end, its column; how many blocks the three have together
    """
    queries, keys = layer_field(model, layer, QUERY), layer_field(model, layer, KEY)
    values = layer_field(model, layer, VALUE)
    num_queries, num_keys = linear_field(model, queries, BLOCKS), linear_field(model, keys, BLOCKS)
    total = num_queries + num_keys + linear_field(model, values, BLOCKS)
    which, start, end = values, num_queries + num_keys, total
    if first < num_queries:
        which, start, end = queries, 0, num_queries
    elif first < num_queries + num_keys:
        which, start, end = keys, num_queries, num_queries + num_keys
    return which, first - start, min(last, end) - start, start * lanes(), total


@njit(**KERNEL)
def _rotate_and_keep(model, buffers, layer, step, pages, rank, shared, stage, ranks):
    """QK-norm and RoPE; keys and values go to their pages. A piece is one head of one token."""
    key_heads = model.num_key_value_heads
    key_start = linear_field(model, layer_field(model, layer, QUERY), BLOCKS) * lanes()
    value_start = key_start + linear_field(model, layer_field(model, layer, KEY), BLOCKS) * lanes()
    heads = model.num_heads + 2 * key_heads
    total = step.tokens * heads
    at_once = _pieces(total, ranks, 2)
    first = claim(shared, stage, at_once)
    while first < total:
        for piece in range(first, min(total, first + at_once)):
            token, head = piece // heads, piece % heads
            row = token * buffers.qkv.width
            if head < model.num_heads:
                _query_head(model, buffers, layer, token, row + head * model.head_dim, rank)
                continue
            position = int32_at(step.positions)[token]
            table_row = int32_at(step.sequence_of)[token] * step.table_width
            page = int32_at(step.page_table)[table_row + position // pages.page_tokens]
            slot, own = position % pages.page_tokens, (head - model.num_heads) % key_heads
            place = place_of(pages, page, layer, own)
            if head < model.num_heads + key_heads:
                scratch = _turned(model, buffers, layer, token, row + key_start + own * model.head_dim, rank, KEY_NORM)
                keep_key(pages, place, slot, buffers.heads.at, scratch)
            else:
                scratch = _copied(model, buffers, row + value_start + own * model.head_dim, rank)
                keep_value(pages, place, slot, buffers.heads.at, scratch)
        first = claim(shared, stage, at_once)


@njit(**KERNEL)
def _copied(model, buffers, index, rank):
    """A head to the rank's scratch row, and zeros behind it; return: where that row starts"""
    source, heads, start = floats_at(buffers.qkv.at), floats_at(buffers.heads.at), rank * buffers.heads.width
    _copy(source, index, heads, start, model.head_dim)
    for channel in range(model.head_dim, buffers.heads.width):
        heads[start + channel] = np.float32(0.0)
    return start


@njit(**KERNEL)
def _turned(model, buffers, layer, token, index, rank, which):
    """A head, normalised where the model does that, and rotated, in the rank's scratch row"""
    start, heads = _copied(model, buffers, index, rank), floats_at(buffers.heads.at)
    norm = _norm_place(model, layer, which)
    if norm >= 0:
        weight = floats_at(model.address + norm)
        rms_norm(heads, start, weight, model.head_dim, buffers.heads.width, model.eps, heads, start)
    pairs = buffers.cos.width
    rotate(heads, start, floats_at(buffers.cos.at), floats_at(buffers.sin.at), token * pairs, pairs)
    return start


@njit(**KERNEL)
def _query_head(model, buffers, layer, token, index, rank):
    """A query's head, normalised and rotated where it lies."""
    start = _turned(model, buffers, layer, token, index, rank, QUERY_NORM)
    _copy(floats_at(buffers.heads.at), start, floats_at(buffers.qkv.at), index, model.head_dim)


@njit(**KERNEL)
def _join_and_prepare(model, buffers, inputs, step, pages, shared, stage, ranks):
    """What attention computed apart is joined; then as `_prepare`."""
    if step.tokens < ranks:
        if comes_last(shared, ranks):
            join_segments(model, buffers, step, pages, shared, stage)
            _prepare_rows(model, buffers.attended, inputs, 0, step.tokens)
            release(shared, ranks)
        return
    barrier(shared, ranks)
    join_segments(model, buffers, step, pages, shared, stage)
    _prepare(model, buffers.attended, inputs, step.tokens, shared, stage + 1, ranks)


@njit(**KERNEL)
def _prepare(model, x, inputs, tokens, shared, stage, ranks):
    """Rows of activations made ready for the next linear layer, with a barrier before and after."""
    if tokens < ranks:
        if comes_last(shared, ranks):
            _prepare_rows(model, x, inputs, 0, tokens)
            release(shared, ranks)
        return
    barrier(shared, ranks)
    at_once = _pieces(tokens, ranks, 1)
    first = claim(shared, stage, at_once)
    while first < tokens:
        _prepare_rows(model, x, inputs, first, min(tokens, first + at_once))
        first = claim(shared, stage, at_once)
    barrier(shared, ranks)


@njit(**KERNEL)
def _prepare_rows(model, x, inputs, first, stop):
    for token in range(first, stop):
        prepare(x, token, inputs, model.forms)


@njit(**KERNEL)
def _add_linear(rank, model, buffers, which, x, tokens, shared, stage, ranks):
    """hidden += linear(x): the residual connection, in the rows that the rank has just computed."""
    blocks, width = linear_field(model, which, BLOCKS), lanes()
    delta, hidden, columns = floats_at(buffers.delta.at), floats_at(buffers.hidden.at), buffers.hidden.width
    first, last, other_first, other_last = _claim_runs(rank, ranks, shared, stage, blocks, tokens, 1)
    while first < blocks:
        run, other = (which, first, last, np.int64(0)), (which, other_first, other_last, np.int64(0))
        linear_runs(model, run, other, x, np.int64(0), tokens, buffers.delta, buffers.delta)
        for token in range(tokens):
            for own in (run, other):
                for n in range(own[1] * width, min(own[2] * width, columns), width):
                    place = token * columns + n
                    store(hidden, place, load(hidden, place) + load(delta, token * buffers.delta.width + n))
        first, last, other_first, other_last = _claim_runs(rank, ranks, shared, stage, blocks, tokens, 1)


@njit(**KERNEL)
def _feed(rank, model, buffers, layer, tokens, shared, stage, ranks):
    """Gate and up, multiplied."""
    gate, up = layer_field(model, layer, GATE), layer_field(model, layer, UP)
    blocks = linear_field(model, gate, BLOCKS)
    at_once = _pieces(blocks, ranks, 2)
    first, last = claim_near(rank, ranks, shared, stage, at_once, blocks)
    while first < blocks:
        gates, values, inner = buffers.gates, buffers.values, buffers.inner
        gated_blocks(model, gate, up, first, last, buffers.normed, np.int64(0), tokens, gates, values, inner)
        first, last = claim_near(rank, ranks, shared, stage, at_once, blocks)


@njit(**KERNEL)
def _predict(rank, model, buffers, step, shared, stage, ranks):
    """The head, for the rows asked, and the maximum of each block of tokens, while it is in the cache. A piece is one
    such block."""
    blocks, each = linear_field(model, model.head, BLOCKS), BLOCK // lanes()
    total = (blocks + each - 1) // each
    first, last, other_first, other_last = _claim_runs(rank, ranks, shared, stage, total, step.num_logit_rows, 8)
    while first < total:
        run = (model.head, first * each, min(last * each, blocks), np.int64(0))
        other = (model.head, other_first * each, min(other_last * each, blocks), np.int64(0))
        linear_runs(model, run, other, buffers.normed, np.int64(0), step.num_logit_rows, step.logits, step.logits)
        for row in range(step.num_logit_rows):
            for own in (run, other):
                start = own[1] // each
                logits = moved(floats_at(step.logits.at), row * step.logits.width + start * BLOCK)
                maxima = moved(floats_at(step.maxima.at), row * step.maxima.width + start)
                keep_maxima(logits, own[2] // each - start, maxima)
        first, last, other_first, other_last = _claim_runs(rank, ranks, shared, stage, total, step.num_logit_rows, 8)
