"""Keys and values lie where pages.py draws them, rounded as it says, and a page is cleared before it is used."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from kaishu.batch import SequenceTokens, pack
from kaishu.cpu import page_access
from kaishu.cpu.layout import GROUP, padded
from kaishu.cpu.records import INT8_PAGES, address, record
from kaishu.cpu.target import current_target
from kaishu.reference.caches import RecomputeCache
from tests.cpu.from_python import from_python
from tests.cpu.packed_models import from_bfloat16, logits_of, spoil_pages, to_bfloat16
from tests.cpu.rounded_reference import rounding_model
from tests.reference.parity import random_ids

scaled = from_python(page_access._scaled)


def page_as_drawn(executor, layout, page_tokens, page, layer, head):
    """One page's keys and values of one layer and head, each element from where the docstring says that it is.

    return: [p, d] and [p, d] float32, d with its padding
    """
    lanes, head_dim = layout.lanes, padded(layout.config.head_dim, GROUP)
    size, heads = head_dim * page_tokens, layout.config.num_key_value_heads
    page_size = 2 * size * (heads * layout.config.num_hidden_layers + 1)
    start = page * page_size + (layer * heads + head) * 2 * size
    slot, channel = np.indices((page_tokens, head_dim))
    memory = executor._page_memory
    if executor._page_scales:
        scales = executor._page_scales[0][(start + np.array([0, size])[:, None]) // head_dim + np.arange(page_tokens)]
        keys = ((slot // lanes * (head_dim // 2) + channel // 2) * 2 + channel % 2) * lanes + slot % lanes
        values = ((channel // lanes * (page_tokens // 2) + slot // 2) * 2 + slot % 2) * lanes + channel % lanes
        return memory[start + keys] * scales[0][:, None], memory[start + size + values] * scales[1][:, None]
    keys = ((slot // lanes * (head_dim // 2) + channel // 2) * lanes + slot % lanes) * 2 + channel % 2
    values = ((channel // lanes * (page_tokens // 2) + slot // 2) * lanes + channel % lanes) * 2 + slot % 2
    return from_bfloat16(memory[start + keys]), from_bfloat16(memory[start + size + values])


class ListeningCache(RecomputeCache):
    """Remembers what the reference model stored: (keys, values) of each layer."""

    def __init__(self):
        self.stored = []

    def append(self, layer, batch, keys, values):
        self.stored.append(tuple(rows.as_subclass(torch.Tensor).numpy().copy() for rows in (keys, values)))
        return super().append(layer, batch, keys, values)


@torch.inference_mode()
def stored_by_reference(model, ids):
    """What the reference stores, whose linear layers round their inputs where the kernels do."""
    cache = ListeningCache()
    rounding_model(model.reference(), model.kinds).forward(pack([SequenceTokens(ids, 0)]), cache)
    return cache


@pytest.mark.parametrize("page_tokens", [32, 64, 256])
@pytest.mark.parametrize("kind", ["dense_untied", "odd_head_dim", "qwen2"])
def test_pages_hold_the_reference_s_keys_and_values_where_the_docstring_says(kind, page_tokens, packed, start):
    model = packed(kind, dtype="bfloat16", num_hidden_layers=2)
    config, ids, pages = model.config, random_ids(256, 70), [4, 1, 3]
    executor = start(model, num_pages=5, page_tokens=page_tokens)
    logits_of(executor, ids, pages=pages)

    cache = stored_by_reference(model, ids)
    for layer, stored in enumerate(cache.stored):
        for head in range(config.num_key_value_heads):
            read = [page_as_drawn(executor, model.layout, page_tokens, page, layer, head) for page in pages]
            for found, expected in zip(zip(*read, strict=True), stored, strict=True):
                rows = np.concatenate(found)[: len(ids)]
                assert not rows[:, config.head_dim :].any(), "the padding is zeros"
                # bfloat16 keeps 8 bits: half a step is 2**-9 of a number. Activations of later layers differ more.
                later = 0.2 if current_target().has_bf16 else 0.05
                close = {"rtol": 2**-8, "atol": 1e-5 if layer == 0 else later}
                np.testing.assert_allclose(rows[:, : config.head_dim], expected[:, head], **close)


@pytest.mark.parametrize("kind", ["dense_untied", "odd_head_dim"])
def test_int8_pages_hold_the_reference_s_keys_and_values_to_half_a_step(kind, packed, start):
    model = packed(kind, dtype="bfloat16", num_hidden_layers=1)
    config, ids, pages = model.config, random_ids(256, 70), [4, 1, 3]
    executor = start(model, num_pages=5, kv="int8")
    spoil_pages(executor)
    logits_of(executor, ids, pages=pages)
    cache = stored_by_reference(model, ids)
    for head in range(config.num_key_value_heads):
        read = [page_as_drawn(executor, model.layout, 32, page, 0, head) for page in pages]
        for found, stored in zip(zip(*read, strict=True), cache.stored[0], strict=True):
            rows, expected = np.concatenate(found)[: len(ids)], stored[:, head]
            assert not rows[:, config.head_dim :].any(), "the padding is zeros"
            steps = np.abs(expected).max(-1, keepdims=True) / 127
            assert (np.abs(rows[:, : config.head_dim] - expected) <= steps * 0.501 + 1e-5).all()


@pytest.mark.parametrize("channel", [0, 7, 40, 63])
def test_a_head_of_int8_with_a_nan_has_a_scale_of_nan(channel, rng):
    values, scales = rng.normal(size=64).astype(np.float32), np.zeros(32, np.float32)
    values[channel] = np.nan
    fields = dict.fromkeys(INT8_PAGES.names, 0) | {"scales": address(scales), "head_dim": 64}
    scaled(record(INT8_PAGES, fields), 0, 3, address(values), 0)
    assert np.isnan(scales[3]) and not np.delete(scales, 3).any()


def test_keys_and_values_are_rounded_to_nearest_even(packed, start):
    model = packed("llama", dtype="bfloat16", num_hidden_layers=1)
    ids = random_ids(256, 32)
    executor = start(model, num_pages=1)
    logits_of(executor, ids)
    cache = stored_by_reference(model, ids)
    for head in range(model.config.num_key_value_heads):
        found = page_as_drawn(executor, model.layout, 32, 0, 0, head)
        for rows, stored in zip(found, cache.stored[0], strict=True):
            expected = to_bfloat16(stored[:, head])
            same = rows[:, : model.config.head_dim] == expected
            assert same.mean() > 0.97, "only what float rounding pushes over a half may differ"


@pytest.mark.parametrize("kv", ["bf16", "int8"])
def test_values_of_a_page_are_cleared_when_its_first_position_comes(kv, packed, start):
    model = packed("dense_untied", dtype="bfloat16", num_hidden_layers=2)
    executor = start(model, num_pages=2, kv=kv)
    spoil_pages(executor)
    logits_of(executor, random_ids(256, 40), pages=[1, 0])
    for layer in range(2):
        for head in range(model.config.num_key_value_heads):
            _, values = page_as_drawn(executor, model.layout, 32, 0, layer, head)
            assert np.isfinite(values[:8]).all() and not values[8:].any()
