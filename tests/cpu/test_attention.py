"""Attention of one layer against its equation in float64, on the queries, keys and values that the kernels had.

A step leaves the last layer's rotated queries and attended rows in its buffers, and keys and values in its pages; so
what is compared is attention alone, whatever made its inputs.
"""

from __future__ import annotations

import numpy as np
import pytest

from kaishu.batch import SequenceTokens, pack
from kaishu.cpu.pages import SEGMENT
from kaishu.cpu.target import current_target
from tests.cpu.packed_models import PAGE_TOKENS, activations_after, matrix_after, spoil_pages
from tests.cpu.test_page_access import page_as_drawn
from tests.reference.parity import random_ids

# The largest relative rounding of a number that is kept in bfloat16, and of one in float32.
BFLOAT, FLOAT = 2.0**-9, 2.0**-24


def last_layer(model, executor, pages, tokens):
    """return: queries [t, H, d], keys and values [S, K, d], attended [t, H·d], of a single sequence's last step"""
    config, layer = model.config, model.config.num_hidden_layers - 1
    queries = matrix_after(executor, "qkv", tokens)[:, : config.query_size]
    heads = [
        [page_as_drawn(executor, model.layout, PAGE_TOKENS, page, layer, head) for page in pages]
        for head in range(config.num_key_value_heads)
    ]
    keys, values = (
        np.stack([np.concatenate([page[which] for page in head]) for head in heads], axis=1)[..., : config.head_dim]
        for which in range(2)
    )
    attended = activations_after(executor, "attended", tokens, config.query_size)
    return queries.reshape(tokens, config.num_attention_heads, -1), keys, values, attended


def attended_exactly(queries, keys, values, start, window):
    """softmax(q kᵀ / √d) v in float64, and how far roundings may take the kernels from it; [t, H·d] each.

    Where the CPU multiplies bfloat16, queries and weights are rounded to it. A score is then wrong by at most
    e = Σ|q·k|/√d · 2**-9 and the weight of its key by a factor of e**±e, twice over, since they are divided by their
    sum; the weight's own rounding adds 2**-9. float32 sums of S products are wrong by at most S · 2**-24 of Σ|product|.
    """
    tokens, num_heads, head_dim = queries.shape
    group, has_bf16 = num_heads // keys.shape[1], current_target().has_bf16
    rounding, own = BFLOAT if has_bf16 else 0.0, queries.astype(float) / np.sqrt(head_dim)
    positions, places = np.arange(start, start + tokens)[:, None], np.arange(len(keys))
    seen = (places <= positions) & (places > positions - (window or len(keys)))  # [t, S]
    somebody_sees = seen.any(0)[:, None, None]  # what nobody sees may be NaN
    keys = np.where(somebody_sees, np.repeat(keys, group, axis=1), 0).astype(float)  # [S, H, d]
    values = np.where(somebody_sees, np.repeat(values, group, axis=1), 0).astype(float)
    scores = np.where(seen, np.einsum("thd,shd->hts", own, keys), -np.inf)
    shares = np.exp(scores - scores.max(-1, keepdims=True))
    shares /= shares.sum(-1, keepdims=True)
    result = np.einsum("hts,shd->thd", shares, values)
    sizes = np.where(seen, np.einsum("thd,shd->hts", np.abs(own), np.abs(keys)), 0).max(-1)  # [H, t]
    factor = np.expm1(2 * sizes * (rounding + (head_dim + 2) * FLOAT)) + rounding + (2 * seen.sum(-1) + 20) * FLOAT
    allowed = np.einsum("hts,shd->thd", shares, np.abs(values)) * factor.T[:, :, None]
    if has_bf16:  # the attended row itself is rounded for the next linear layer
        allowed += np.abs(result) * BFLOAT
    return result.reshape(tokens, -1), allowed.reshape(tokens, -1)


# Every number of query rows that a tile can have: one and two, odd ones, a whole tile, several tiles; positions at the
# edges of pages and of segments of 256.
CHUNKS = [1, 2, 3, 5, 22, 31, 1, 63, 126, 1, 1, 1, 130, 70, 2, 125, 1]


@pytest.mark.parametrize(
    "kind, options",
    [
        ("dense_untied", {}),
        ("multi_query", {}),
        ("odd_head_dim", {}),
        ("qwen2", {"num_attention_heads": 2, "num_key_value_heads": 2}),  # G = 1
        ("dense_untied", {"num_attention_heads": 6, "num_key_value_heads": 2}),  # G = 3: a token's rows split in tiles
        ("sliding_window", {"max_window_layers": 0}),
        ("sliding_window", {"max_window_layers": 0, "sliding_window": 1}),
        ("sliding_window", {"max_window_layers": 0, "sliding_window": 256}),
        ("sliding_window", {"max_window_layers": 0, "sliding_window": 300}),
    ],
    ids=str,
)
@pytest.mark.parametrize("kv", ["bf16", "int8"])
def test_attention_is_the_equation_of_its_own_queries_keys_and_values(kv, kind, options, packed, start):
    model = packed(kind, dtype="bfloat16", num_hidden_layers=1, max_position_embeddings=1024, **options)
    executor, pages = start(model, num_pages=24, kv=kv), np.random.default_rng(3).permutation(24)[:20].tolist()
    spoil_pages(executor)
    ids, position = random_ids(256, sum(CHUNKS)), 0
    assert len(ids) > 2 * SEGMENT
    for count in CHUNKS:
        executor.step(pack([SequenceTokens(ids[position : position + count], position, pages, range(count))]))
        if position + count > 20:  # the earlier ones are short
            queries, keys, values, attended = last_layer(model, executor, pages, count)
            expected, allowed = attended_exactly(queries, keys, values, position, model.config.sliding_window(0))
            assert (np.abs(attended - expected) <= allowed).all(), (position, count)
            far = 5 if current_target().has_bf16 else 50
            assert np.abs(expected).mean() > far * allowed.mean(), "the bound is far below the numbers themselves"
            assert np.abs(expected).mean() > 100 * np.abs(attended - expected).mean(), "the worst is rare"
        position += count


def test_a_query_that_sees_one_key_gets_its_value(packed, start):
    model = packed("dense_untied", dtype="bfloat16", num_hidden_layers=1)
    executor = start(model)
    executor.step(pack([SequenceTokens([5], 0, [2])]))
    _, _, values, attended = last_layer(model, executor, [2], 1)
    group = model.config.queries_per_key
    assert np.array_equal(attended[0], np.repeat(values[0], group, axis=0).ravel())


def test_scores_far_apart_neither_overflow_nor_vanish(packed, start):
    """Queries and keys scaled up to scores of several hundreds: e**x of them would be far beyond float32."""
    from dataclasses import replace

    model = packed("dense_untied", dtype="bfloat16", num_hidden_layers=1)
    memory = model.memory.copy()
    for name in ("q_norm", "k_norm"):
        offset, _ = model.layout.vectors[f"model.layers.0.self_attn.{name}.weight"]
        memory[offset : offset + 4 * model.config.head_dim].view(np.float32)[:] *= 12
    model = replace(model, memory=memory)
    executor, ids, pages = start(model), random_ids(256, 300), list(range(10))
    executor.step(pack([SequenceTokens(ids, 0, pages, range(300))]))
    queries, keys, values, attended = last_layer(model, executor, pages, 300)
    scores = np.einsum("hd,skd->hs", queries[-1], keys) / np.sqrt(32)
    assert np.abs(scores).max() > 200
    assert np.isfinite(attended).all()
    if not current_target().has_bf16:  # with bfloat16 queries such scores are wrong by more than one
        expected, allowed = attended_exactly(queries, keys, values, 0, None)
        assert (np.abs(attended - expected) <= allowed + 1e-3).all()
