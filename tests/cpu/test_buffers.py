"""The memory between stages: it grows, it stays valid, and what was in it never shows."""

from __future__ import annotations

import numpy as np
import pytest

from kaishu.batch import SequenceTokens, pack
from kaishu.cpu.buffers import StepBuffers
from kaishu.cpu.records import BUFFERS
from kaishu.cpu.target import TILE, current_target
from tests.cpu.packed_models import assert_same_bits, logits_of
from tests.reference.parity import random_ids


def sizes_of(buffers: StepBuffers) -> dict[int, int]:
    """Where each array begins → its bytes."""
    return {array.ctypes.data: array.nbytes for array in buffers._arrays}


def addresses_in(record) -> list[int]:
    found = []
    for name in BUFFERS.names:
        fields = record[name].dtype.names
        found += [int(record[name][field]) for field in fields if field != "width"]
    return found


@pytest.mark.parametrize("kind", ["dense_untied", "moe_mixed", "odd_head_dim"])
def test_every_address_is_that_of_an_array_that_is_kept(kind, packed):
    buffers = StepBuffers(packed(kind).layout, 3, current_target().tokens)
    for room in [(1, 1, 1), (100, 1, 1), (7, 50, 2), (100, 50, 900)]:
        buffers.make_room(*room)
        kept = sizes_of(buffers)
        assert sorted(addresses_in(buffers.record)) == sorted(kept)


def test_arrays_begin_with_a_cache_line_and_what_ranks_write_often_shares_none(packed):
    buffers = StepBuffers(packed("moe_mixed").layout, 3, current_target().tokens)
    buffers.make_room(7, 3, 5)
    assert all(place % 64 == 0 for place in addresses_in(buffers.record))
    for name in ("heads", "queries", "scores", "gathered", "joined"):
        rows = 1 if name == "heads" else current_target().tokens
        assert int(buffers.record[name]["width"]) * rows * 4 % 64 == 0
    for name in ("own_largest", "own_sums", "joined_largest", "joined_sums"):
        assert int(buffers.record[name]["width"]) == 16


@pytest.mark.parametrize("rows", [1, 5, 16, 33])
def test_activations_have_room_for_whole_tiles(rows, packed):
    buffers = StepBuffers(packed("moe_mixed").layout, 1, current_target().query_rows)
    buffers.make_room(rows, 1, 1)
    sizes, together = sizes_of(buffers), TILE if current_target().has_tiles else 1
    each = {"whole": 32, "scales": 4, "sums": 4, "shifts": 4} | ({"tiles": 64} if current_target().has_tiles else {})
    for name in ("normed", "attended", "inner", "expert_rows", "expert_inner"):
        groups = int(buffers.record[name]["width"]) // 32
        for field, group_bytes in each.items():
            assert sizes[int(buffers.record[name][field])] >= -(-rows // together) * together * groups * group_bytes


def test_room_only_grows_and_is_made_only_when_it_is_needed(packed):
    buffers = StepBuffers(packed("moe_mixed").layout, 2, current_target().tokens)
    buffers.make_room(10, 4, 6)
    record = buffers.record
    buffers.make_room(3, 4, 1)
    assert buffers.record is record, "a smaller step finds room"
    buffers.make_room(3, 5, 1)
    assert buffers.record is not record
    width = int(buffers.record["hidden"]["width"])
    assert sizes_of(buffers)[int(buffers.record["hidden"]["at"])] == 10 * width * 4, "room for rows is kept"


def test_a_step_that_finds_no_memory_leaves_the_buffers_usable(packed, start, monkeypatch):
    executor = start(packed("dense_untied", dtype="bfloat16"))
    ids = random_ids(256, 40)
    expected = logits_of(executor, ids)
    with monkeypatch.context() as without_memory:
        without_memory.setattr(StepBuffers, "_attention", lambda *_: (_ for _ in ()).throw(MemoryError()))
        with pytest.raises(MemoryError):
            logits_of(executor, random_ids(256, 200))
    kept = sizes_of(executor._buffers)
    logits_of(executor, ids[:3])
    assert set(addresses_in(executor._buffers.record)) <= set(sizes_of(executor._buffers)), kept
    assert_same_bits(logits_of(executor, ids), expected)


@pytest.mark.parametrize("weights", ["bf16", "int8", "int4"])
@pytest.mark.parametrize("kind", ["dense_untied", "odd_head_dim", "qwen2", "moe_mixed"])
def test_what_a_broken_step_left_behind_does_not_show(kind, weights, packed, start):
    """Every buffer is filled with NaN where a kernel writes, by a token whose embedding is NaN; then others come."""
    model = packed(kind, weights, dtype="bfloat16", tie_word_embeddings=False)
    ids = random_ids(256, 40)
    executor = start(model, num_pages=4)
    expected = logits_of(executor, ids, pages=[0, 1])
    broken = start(with_nan_rows(model, [300]), num_pages=4)
    assert np.isnan(logits_of(broken, [300] * 60, pages=[2, 3])).all()
    assert_same_bits(logits_of(broken, ids, pages=[0, 1]), expected)
    assert_same_bits(logits_of(broken, ids, pages=[3, 2]), expected, "in the broken one's pages")


def with_nan_rows(model, token_ids):
    from dataclasses import replace

    memory = model.memory.copy()
    rows = memory[model.layout.embedding :].view(np.uint16)[: model.config.vocab_size * model.config.hidden_size]
    rows.reshape(model.config.vocab_size, -1)[token_ids] = 0x7FC0
    return replace(model, memory=memory)


def test_a_step_larger_than_any_before_is_safe_and_changes_nothing(packed, start):
    model = packed("moe_mixed", dtype="bfloat16")
    executor, ids = start(model, threads=2, num_pages=64), random_ids(256, 700)
    small = logits_of(executor, ids[:5], pages=range(8))
    large = executor.step(
        pack([SequenceTokens(ids[:n], 0, range(first, first + 22), (0, -1)) for n, first in ((5, 0), (700, 22))])
    )
    assert_same_bits(large[:2], small[[0, -1]])
    assert_same_bits(logits_of(executor, ids[:5], pages=range(8)), small)
