"""Pages of keys and values take as much memory as their layout says, and only for what is used."""

from __future__ import annotations

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
