"""A mixture of experts on the CPU: reference/experts.py over packed weights.

Owns the router's softmax and choice, the grouping of rows by expert, and the weighted sum. An expert itself is
feed_forward.py, only smaller. A token's rows are copied next to the others of the same expert, so that an expert's
matrices are read once a step, and not at all when nobody chose it.

Experts are added in the order of their numbers, the same for every token, whoever else is in the step.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from kaishu.cpu.activations import group_step, row_place, rows_together
from kaishu.cpu.barriers import barrier, claim
from kaishu.cpu.exponential import exponential
from kaishu.cpu.feed_forward import gated_blocks
from kaishu.cpu.layout import BLOCKS, DOWN, GATE, INPUTS, ROUNDED, ROUTER, UP, WHOLE
from kaishu.cpu.linear import layer_field, linear_blocks, linear_field, linear_runs
from kaishu.cpu.norm import prepare
from kaishu.cpu.vector import (
    KERNEL,
    floats_at,
    halves_at,
    int8_at,
    int32_at,
    int64_at,
    lanes,
    load,
    max_lanes,
    splat,
    store,
)


@njit(**KERNEL)
def mixture_of_experts(rank, ranks, shared, stage, model, layer, tokens, buffers):
    """hidden += the weighted sum of each token's chosen experts, from the normalised rows in buffers.normed."""
    _score(model, layer_field(model, layer, ROUTER), buffers, tokens, shared, stage)
    barrier(shared, ranks)
    token = claim(shared, stage + 1, 1)
    while token < tokens:
        _choose(model, buffers, token)
        token = claim(shared, stage + 1, 1)
    barrier(shared, ranks)
    if rank == 0:
        _group(model, buffers, tokens)
    barrier(shared, ranks)
    _copy_rows(model, buffers, tokens, shared, stage + 2)
    barrier(shared, ranks)
    _run_gates(ranks, model, layer, buffers, shared, stage + 3)
    barrier(shared, ranks)
    inputs, total = linear_field(model, layer_field(model, layer, DOWN), INPUTS), tokens * model.experts_per_token
    row = claim(shared, stage + 4, 1)
    while row < total:
        prepare(buffers.expert_inner, row, inputs, model.forms)
        row = claim(shared, stage + 4, 1)
    barrier(shared, ranks)
    _run_down(ranks, model, layer, buffers, shared, stage + 5)
    barrier(shared, ranks)
    token = claim(shared, stage + 6, 1)
    while token < tokens:
        _add_up(model, buffers, token)
        token = claim(shared, stage + 6, 1)
    barrier(shared, ranks)


@njit(**KERNEL)
def _score(model, router, buffers, tokens, shared, stage):
    """The router's logits."""
    block = claim(shared, stage, 2)
    while block < linear_field(model, router, BLOCKS):
        linear_blocks(model, router, block, block + 2, buffers.normed, 0, tokens, buffers.router, 0)
        block = claim(shared, stage, 2)


@njit(**KERNEL)
def _choose(model, buffers, token):
    """Softmax over all experts, then the k largest (of equals the lower number), then in the order of numbers."""
    scores, row = floats_at(buffers.router.at), token * buffers.router.width
    chosen, shares = int64_at(buffers.chosen.at), floats_at(buffers.shares.at)
    count = model.experts_per_token
    top, total = scores[row], np.float32(0.0)
    for expert in range(model.num_experts):
        top = max(top, scores[row + expert])
    for expert in range(model.num_experts):
        scores[row + expert] = max_lanes(exponential(splat(np.float32(scores[row + expert] - top))))
        total += scores[row + expert]
    kept = np.float32(0.0)
    for place in range(token * count, token * count + count):
        best = -1
        for expert in range(model.num_experts):
            if scores[row + expert] >= 0 and (best < 0 or scores[row + expert] > scores[row + best]):
                best = expert
        best = max(best, 0)  # only with scores that are no numbers
        chosen[place], shares[place] = best, scores[row + best] / total
        scores[row + best] = np.float32(-1.0)
        kept += shares[place]
    if model.is_renormalised:
        for place in range(token * count, token * count + count):
            shares[place] /= kept
    _sort_by_expert(chosen, shares, token * count, count)


@njit(**KERNEL)
def _sort_by_expert(chosen, shares, start, count):
    for end in range(start + 1, start + count):
        place = end
        while place > start and chosen[place - 1] > chosen[place]:
            expert, share = chosen[place], shares[place]
            chosen[place], shares[place] = chosen[place - 1], shares[place - 1]
            chosen[place - 1], shares[place - 1] = expert, share
            place -= 1


@njit(**KERNEL)
def _group(model, buffers, tokens):
    """Count each expert's rows, then give every row its place: by expert, then by token.

    Experts that have rows are listed in buffers.busy: one token has 8 of 128, and claiming pieces of all 128 to find
    that they have nothing to do would be seen in its time.
    """
    starts, chosen, places, busy = (
        int64_at(buffers.expert_starts.at),
        int64_at(buffers.chosen.at),
        int64_at(buffers.places.at),
        int64_at(buffers.busy.at),
    )
    total = tokens * model.experts_per_token
    for expert in range(model.num_experts + 1):
        starts[expert] = 0
    for choice in range(total):
        starts[chosen[choice] + 1] += 1
    busy[model.num_experts] = 0
    for expert in range(model.num_experts):
        if starts[expert + 1] > 0:
            busy[busy[model.num_experts]] = expert
            busy[model.num_experts] += 1
        starts[expert + 1] += starts[expert]
    for choice in range(total):
        places[choice] = starts[chosen[choice]]
        starts[chosen[choice]] += 1
    for expert in range(model.num_experts, 0, -1):
        starts[expert] = starts[expert - 1]
    starts[0] = 0


@njit(**KERNEL)
def _copy_rows(model, buffers, tokens, shared, stage):
    """A token's activations, in the forms that linear layers read, to each of its places."""
    source, target, count = buffers.normed, buffers.expert_rows, model.experts_per_token
    choice = claim(shared, stage, 1)
    while choice < tokens * count:
        token, place = choice // count, int64_at(buffers.places.at)[choice]
        if model.forms & ROUNDED and rows_together() == 1:
            for k in range(source.width):
                floats_at(target.words)[place * target.width + k] = floats_at(source.words)[token * source.width + k]
        for group in range(source.width // 32):
            row, other = (
                row_place(source, token) + group * group_step(),
                row_place(target, place) + group * group_step(),
            )
            if model.forms & ROUNDED and rows_together() > 1:
                for k in range(32):
                    halves_at(target.tiles)[other + k] = halves_at(source.tiles)[row + k]
            if model.forms & WHOLE == 0:
                continue
            for k in range(32):
                int8_at(target.whole)[other + k] = int8_at(source.whole)[row + k]
            floats_at(target.scales)[other // 32] = floats_at(source.scales)[row // 32]
            int32_at(target.sums)[other // 32] = int32_at(source.sums)[row // 32]
            int32_at(target.shifts)[other // 32] = int32_at(source.shifts)[row // 32]
        choice = claim(shared, stage, 1)


@njit(**KERNEL)
def _blocks_at_once(model, buffers, blocks, ranks):
    """How many blocks of an expert to claim at once: a small share of all that there are, even, half an expert at most.

    Few enough for the ranks to end together, and as many as that allows: with each piece the memory's stream begins
    anew. For one token they are few experts' blocks, and for hundreds those of all.
    """
    share = blocks * int64_at(buffers.busy.at)[model.num_experts] // (32 * ranks)
    return max(2, min(share, blocks // 2) // 2 * 2)


@njit(**KERNEL)
def _run_gates(ranks, model, layer, buffers, shared, stage):
    """Gate and up of every expert that has rows."""
    gate, up, starts, busy = (
        layer_field(model, layer, GATE),
        layer_field(model, layer, UP),
        int64_at(buffers.expert_starts.at),
        int64_at(buffers.busy.at),
    )
    blocks = linear_field(model, gate, BLOCKS)
    at_once = _blocks_at_once(model, buffers, blocks, ranks)
    pieces = (blocks + at_once - 1) // at_once
    piece = claim(shared, stage, 1)
    while piece < pieces * busy[model.num_experts]:
        expert, block = busy[piece // pieces], piece % pieces * at_once
        gated_blocks(
            model,
            gate + 3 * expert,
            up + 3 * expert,
            block,
            min(blocks, block + at_once),
            buffers.expert_rows,
            starts[expert],
            starts[expert + 1],
            buffers.expert_gates,
            buffers.expert_values,
            buffers.expert_inner,
        )
        piece = claim(shared, stage, 1)


@njit(**KERNEL)
def _run_down(ranks, model, layer, buffers, shared, stage):
    """Back to D, for every expert that has rows."""
    down, starts, busy = (
        layer_field(model, layer, DOWN),
        int64_at(buffers.expert_starts.at),
        int64_at(buffers.busy.at),
    )
    blocks, out = linear_field(model, down, BLOCKS), buffers.expert_out
    half, at_once = (blocks + 3) // 4 * 2, max(2, _blocks_at_once(model, buffers, blocks, ranks) // 4 * 2)
    pieces = (half + at_once - 1) // at_once
    piece = claim(shared, stage, 1)
    while piece < pieces * busy[model.num_experts]:
        expert, block = busy[piece // pieces], piece % pieces * at_once
        which, stop = down + 3 * expert, min(half, block + at_once)
        run = (which, block, stop, np.int64(0))
        other = (which, min(blocks, half + block), min(blocks, half + stop), np.int64(0))
        linear_runs(model, run, other, buffers.expert_inner, starts[expert], starts[expert + 1], out, out)
        piece = claim(shared, stage, 1)


@njit(**KERNEL)
def _add_up(model, buffers, token):
    """The weighted sum of the token's experts, from the lowest number up, added to the hidden state."""
    hidden, row = floats_at(buffers.hidden.at), token * buffers.hidden.width
    shares, places, out = floats_at(buffers.shares.at), int64_at(buffers.places.at), floats_at(buffers.expert_out.at)
    first, count = token * model.experts_per_token, model.experts_per_token
    for k in range(0, buffers.hidden.width, lanes()):  # what is beyond D is zeros in both
        total = splat(np.float32(0.0))
        for choice in range(first, first + count):
            total = total + splat(shares[choice]) * load(out, places[choice] * buffers.expert_out.width + k)
        store(hidden, row + k, load(hidden, row + k) + total)
