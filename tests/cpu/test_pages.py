"""Pages of keys and values take as much memory as their layout says, and only for what is used; and can be carried."""

from __future__ import annotations

import numpy as np
import pytest

from kaishu.batch import KeepsPages
from kaishu.cpu.pages import allocate_pages, page_contents
from tests.cpu.packed_models import assert_same_bits, logits_of
from tests.memory import run_measured


def test_int8_takes_half_the_memory_and_the_scales(packed, start):
    model = packed("dense_untied", dtype="bfloat16", num_hidden_layers=2)
    config = model.config
    heads = 2 * config.num_hidden_layers * config.num_key_value_heads
    assert start(model).kv_bytes_per_token == heads * 2 * config.head_dim == config.kv_bytes_per_token()
    assert start(model, kv="int8").kv_bytes_per_token == heads * (config.head_dim + 4)


def test_reserving_a_million_positions_takes_no_memory_until_they_are_used(tmp_path):
    from tests.tiny_checkpoints import write_tiny_checkpoint

    folder = write_tiny_checkpoint(tmp_path / "model", "dense_untied")
    words = run_measured(f"""
from pathlib import Path
from kaishu.config import ModelConfig
from kaishu.cpu.pages import allocate_pages
config = ModelConfig.from_folder(Path({str(folder)!r}))
before = peak_mb()
record, (memory,) = allocate_pages(config, 1_000_000 // 32, 32)
reserved = peak_mb()
memory[: 1_000 * int(record["page_size"])] = 1
print(memory.nbytes / 2**20, reserved - before, peak_mb() - before)
""")
    address_space, reserved, used = map(float, words)
    assert address_space > 700
    assert reserved < 2
    assert used < 0.05 * address_space


def test_a_model_of_no_pages_can_be_made(packed, start):
    start(packed("dense_untied", dtype="bfloat16", num_hidden_layers=2), num_pages=0)


TEXT = [*range(3, 99), 7, 7, 9]  # three pages of 32, and a little


@pytest.mark.parametrize("kv", ["bf16", "int8"])
@pytest.mark.parametrize("head_dim", [64, 20])  # 20 is padded
def test_pages_carried_to_another_executor_go_on_there_bit_for_bit(packed, start, kv, head_dim):
    model = packed("dense_untied", dtype="bfloat16", num_hidden_layers=2, head_dim=head_dim)
    here, there = start(model, kv=kv), start(model, kv=kv, threads=2)
    assert isinstance(here, KeepsPages)
    assert (here.page_form, here.page_bytes) == (there.page_form, there.page_bytes)
    whole = logits_of(here, TEXT, pages=[9, 2, 30, 4])
    contents = here.read_pages([9, 2, 30])
    assert contents.dtype == np.uint8
    assert contents.shape == (3, here.page_bytes)
    assert here.page_bytes == 32 * here.kv_bytes_per_token
    spoiled = logits_of(there, [1] * 99, pages=[0, 31, 5, 6])  # pages that were used before
    assert not np.array_equal(spoiled[96:], whole[96:])
    there.write_pages([31, 5, 0], contents)
    np.testing.assert_array_equal(there.read_pages([31, 5, 0]), contents)
    assert_same_bits(logits_of(there, TEXT[96:], start=96, pages=[31, 5, 0, 7]), whole[96:])
    assert_same_bits(logits_of(here, TEXT[96:], start=96, pages=[9, 2, 30, 11]), whole[96:])


def test_writing_pages_touches_no_other_page(packed, start):
    executor = start(packed("dense_untied", dtype="bfloat16", num_hidden_layers=2), kv="int8", num_pages=4)
    logits_of(executor, [5] * 128)
    before = executor.read_pages([0, 1, 2, 3])
    other = np.random.default_rng(0).integers(0, 256, (2, executor.page_bytes)).astype(np.uint8)
    executor.write_pages([3, 1], other)
    expected = np.stack([before[0], other[0], before[2], other[1]])
    np.testing.assert_array_equal(executor.read_pages([0, 3, 2, 1]), expected)
    executor.write_pages([], other[:0])
    assert executor.read_pages([]).shape == (0, executor.page_bytes)


def test_the_form_says_how_keys_and_values_are_kept_and_which_code_wrote_them(packed, start, monkeypatch):
    model = packed("dense_untied", dtype="bfloat16", num_hidden_layers=2)
    executor = start(model)
    form = executor.page_form
    assert form != start(model, kv="int8").page_form
    monkeypatch.setenv("NUMBA_CPU_FEATURES", "")  # as on another CPU
    assert executor.page_form != form


@pytest.mark.parametrize("kind", ["bf16", "int8"])
def test_the_contents_are_all_but_the_unused_head(packed, kind):
    config = packed("dense_untied", dtype="bfloat16", num_hidden_layers=2).config
    pages, memories = allocate_pages(config, 3, 32, kind)
    views = page_contents(config, 3, 32, memories)
    for memory, view in zip(memories, views, strict=True):
        memory[:] = 1
        view[:] = 0
        left = int(np.count_nonzero(memory))
        unused = 2 * int(pages["head_size"]) // (1 if memory.dtype != np.float32 else int(pages["head_dim"]))
        assert left == 3 * unused + len(memory) - 3 * (view.shape[1] // memory.itemsize + unused)
