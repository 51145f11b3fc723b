"""A mixture of experts on the CPU: reference/experts.py over packed weights.

Owns the router's softmax and choice, the grouping of rows by expert, and the weighted sum. An expert itself is
feed_forward.py, only smaller. A token's rows are copied next to the others of the same expert, so that an expert's
matrices are read once a step, and not at all when nobody chose it.

Experts are added in the order of their numbers, the same for every token, whoever else is in the step.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit

from kaishu.cpu.feed_forward import gated_blocks
from kaishu.cpu.layout import BLOCKS, DOWN, GATE, INPUTS, ROUTER, UP
from kaishu.cpu.linear import Activations, linear_blocks
from kaishu.cpu.norm import prepare
from kaishu.cpu.threads import barrier, claim
from kaishu.cpu.vector import KERNEL, exponential, max_lanes, splat


class ExpertBuffers(NamedTuple):
    """Memory for the rows of chosen experts: T·k of them, k for each token.

    scores: [T, ≥ E] float32, the router's logits
    chosen: [T, k] int64, the experts' numbers, ascending
    shares: [T, k] float32, how much each counts
    places: [T, k] int64, where in the grouped rows
    starts: [E + 1] int64, the first grouped row of each expert
    rows:   Activations of [T·k] grouped rows; inner likewise; gates and out: [T·k, …] float32
    """

    scores: Any
    chosen: Any
    shares: Any
    places: Any
    starts: Any
    rows: Any
    gates: Any
    inner: Any
    out: Any


@njit(**KERNEL)
def mixture_of_experts(rank, ranks, shared, stage, model, layer, tokens, buffers):
    """hidden += the weighted sum of each token's chosen experts."""
    experts = buffers.experts
    _score(model, model.layers[layer, ROUTER], buffers.normed, tokens, experts, shared, stage)
    barrier(shared, ranks)
    token = claim(shared, stage + 1, 1)
    while token < tokens:
        _choose(experts, token, model.num_experts, model.is_renormalised)
        token = claim(shared, stage + 1, 1)
    barrier(shared, ranks)
    if rank == 0:
        _group(experts, tokens, model.num_experts)
    barrier(shared, ranks)
    _copy_rows(buffers.normed, experts, tokens, shared, stage + 2)
    barrier(shared, ranks)
    _run_gates(model, layer, experts, shared, stage + 3)
    barrier(shared, ranks)
    row, total = claim(shared, stage + 4, 1), experts.starts[model.num_experts]
    while row < total:
        prepare(experts.inner, row, model.linears[model.layers[layer, DOWN], INPUTS], model.is_quantised)
        row = claim(shared, stage + 4, 1)
    barrier(shared, ranks)
    _run_down(model, layer, experts, shared, stage + 5)
    barrier(shared, ranks)
    token = claim(shared, stage + 6, 1)
    while token < tokens:
        _add_up(experts, token, buffers.hidden)
        token = claim(shared, stage + 6, 1)
    barrier(shared, ranks)


@njit(**KERNEL)
def _score(model, router, x, tokens, experts, shared, stage):
    block = claim(shared, stage, 2)
    while block < model.linears[router, BLOCKS]:
        linear_blocks(model, router, block, block + 2, x, tokens, experts.scores, 0)
        block = claim(shared, stage, 2)


@njit(**KERNEL)
def _choose(experts, token, num_experts, is_renormalised):
    """Softmax over all experts, then the k largest; of equals the lower number."""
    scores, chosen, shares = experts.scores[token], experts.chosen[token], experts.shares[token]
    count = len(chosen)
    top = scores[0]
    for expert in range(num_experts):
        top = max(top, scores[expert])
    total = np.float32(0.0)
    for expert in range(num_experts):
        scores[expert] = max_lanes(exponential(splat(np.float32(scores[expert] - top))))
        total += scores[expert]
    for place in range(count):
        best = -1
        for expert in range(num_experts):
            if scores[expert] >= 0 and (best < 0 or scores[expert] > scores[best]):
                best = expert
        best = max(best, 0)
        chosen[place], shares[place] = best, scores[best] / total
        scores[best] = np.float32(-1.0)
    if is_renormalised:
        kept = np.float32(0.0)
        for place in range(count):
            kept += shares[place]
        for place in range(count):
            shares[place] /= kept
    _sort_by_expert(chosen, shares)


@njit(**KERNEL)
def _sort_by_expert(chosen, shares):
    for end in range(1, len(chosen)):
        place = end
        while place > 0 and chosen[place - 1] > chosen[place]:
            chosen[place - 1], chosen[place] = chosen[place], chosen[place - 1]
            shares[place - 1], shares[place] = shares[place], shares[place - 1]
            place -= 1


@njit(**KERNEL)
def _group(experts, tokens, num_experts):
    """Count each expert's rows, then give every row its place: by expert, then by token."""
    starts, chosen = experts.starts, experts.chosen
    starts[:] = 0
    for token in range(tokens):
        for place in range(chosen.shape[1]):
            starts[chosen[token, place] + 1] += 1
    for expert in range(num_experts):
        starts[expert + 1] += starts[expert]
    for token in range(tokens):
        for place in range(chosen.shape[1]):
            experts.places[token, place] = starts[chosen[token, place]]
            starts[chosen[token, place]] += 1
    for expert in range(num_experts, 0, -1):
        starts[expert] = starts[expert - 1]
    starts[0] = 0


@njit(**KERNEL)
def _copy_rows(x, experts, tokens, shared, stage):
    """A token's activations to each of its places."""
    token = claim(shared, stage, 1)
    while token < tokens:
        for place in range(experts.chosen.shape[1]):
            row = experts.places[token, place]
            experts.rows.words[row] = x.words[token]
            experts.rows.whole[row] = x.whole[token]
            experts.rows.scales[row] = x.scales[token]
            experts.rows.sums[row] = x.sums[token]
        token = claim(shared, stage, 1)


@njit(**KERNEL)
def _part(x, first, last):
    return Activations(x.words[first:last], x.whole[first:last], x.scales[first:last], x.sums[first:last])


@njit(**KERNEL)
def _run_gates(model, layer, experts, shared, stage):
    """Gate and up of every expert that has rows; a piece is two blocks of one expert."""
    gate, up = model.layers[layer, GATE], model.layers[layer, UP]
    pairs = model.linears[gate, BLOCKS] // 2
    piece = claim(shared, stage, 1)
    while piece < pairs * model.num_experts:
        expert, block = piece // pairs, piece % pairs * 2
        first, last = experts.starts[expert], experts.starts[expert + 1]
        if last > first:
            gates, inner = experts.gates[first:last], experts.inner.words[first:last]
            own = _part(experts.rows, first, last)
            gated_blocks(model, gate + 3 * expert, up + 3 * expert, block, block + 2, own, last - first, gates, inner)
        piece = claim(shared, stage, 1)


@njit(**KERNEL)
def _run_down(model, layer, experts, shared, stage):
    down = model.layers[layer, DOWN]
    pairs = model.linears[down, BLOCKS] // 2
    piece = claim(shared, stage, 1)
    while piece < pairs * model.num_experts:
        expert, block = piece // pairs, piece % pairs * 2
        first, last = experts.starts[expert], experts.starts[expert + 1]
        if last > first:
            own = _part(experts.inner, first, last)
            linear_blocks(model, down + 3 * expert, block, block + 2, own, last - first, experts.out[first:last], 0)
        piece = claim(shared, stage, 1)


@njit(**KERNEL)
def _add_up(experts, token, hidden):
    """The weighted sum of the token's experts, from the lowest number up, added to the hidden state."""
    for k in range(hidden.shape[1]):
        total = np.float32(0.0)
        for place in range(experts.chosen.shape[1]):
            total += experts.shares[token, place] * experts.out[experts.places[token, place], k]
        hidden[token, k] += total
