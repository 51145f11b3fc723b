"""The executor's contract: the same bits whatever the schedule, the pages and the threads; a failure stays alone.

Another CPU family's form of the kernels is tested, here and in the other files of this folder, by naming it to Numba:

    NUMBA_CPU_NAME=generic NUMBA_CPU_FEATURES= pytest tests/cpu                     portable vectors
    NUMBA_CPU_NAME=haswell NUMBA_CPU_FEATURES=+avx2,+fma,+f16c pytest tests/cpu     AVX2, on a CPU that has more
"""

from __future__ import annotations

import dataclasses
import functools
import gc
import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kaishu.batch import Executor, SequenceTokens, pack
from kaishu.checkpoint import open_checkpoint
from kaishu.cpu.executor import FORWARD, CpuExecutor
from kaishu.reference.executor import ReferenceExecutor
from tests.cpu.packed_models import PackedModel, assert_same_bits, logits_of, spoil_pages
from tests.cpu.schedules import run_schedule
from tests.reference.parity import our_model, random_ids

# KAISHU_LONG_TESTS=1 pytest tests/cpu/test_executor.py -k schedule: 3,900 of them, and other ones every time (three
# minutes on two idle cores).
IS_LONG = bool(os.environ.get("KAISHU_LONG_TESTS"))
EXAMPLES = 300 if IS_LONG else 8
NUM_PAGES = 120

# Lengths around pages of 32 and segments of 256, the last two with a common beginning of ten pages and some tokens.
BEGINNING = random_ids(256, 330, 7)
TEXTS = [
    random_ids(256, 1, 0),
    random_ids(256, 33, 1),
    random_ids(256, 256, 2),
    random_ids(256, 290, 3),
    [*BEGINNING, *random_ids(256, 40, 4)],
    [*BEGINNING, *random_ids(256, 200, 5)],
]
DENSE = {"num_hidden_layers": 2, "max_position_embeddings": 1024}
MODELS = {
    "dense bf16": ("dense_tied", "bf16", None, DENSE),
    "dense int8": ("dense_tied", "int8", None, DENSE),
    "dense int4": ("dense_tied", "int4", "int8", DENSE),
    "dense int4_minimum": ("dense_tied", "int4_minimum", "bf16", DENSE),
    "experts bf16": ("moe", "bf16", None, DENSE),
    "experts int8": ("moe", "int8", None, DENSE),
    "experts int4": ("moe_mixed", "int4", "int8", {}),
    "experts int4_minimum": ("moe_tied", "int4_minimum", None, DENSE),
    "biases bf16": ("qwen2", "bf16", "int4", DENSE),
    "three queries a key int4": ("dense_untied", "int4", None, {**DENSE, "num_attention_heads": 6}),
    "odd sizes int8": ("odd_head_dim", "int8", None, DENSE),
    "short windows int4": ("sliding_window", "int4", None, DENSE),
    "dense bf16, int8 keys": ("dense_tied", "bf16", None, DENSE),
    "experts int4, int8 keys": ("moe_mixed", "int4", "int8", {}),
    "odd sizes int8, int8 keys": ("odd_head_dim", "int8", None, DENSE),
    "long windows bf16": ("sliding_window", "bf16", None, {**DENSE, "sliding_window": 270, "max_window_layers": 0}),
}


def model_of(name: str, packed) -> PackedModel:
    kind, weights, head, options = MODELS[name]
    return packed(kind, weights, head, dtype="bfloat16", **options)


def kv_of(name: str) -> str:
    return "int8" if name.endswith("int8 keys") else "bf16"


@pytest.fixture(scope="module")
def alone(packed):
    """`alone(name)`: each text's logits, all of it in one step of one thread, in pages in order."""
    known: dict[str, list[np.ndarray]] = {}

    def logits(name: str) -> list[np.ndarray]:
        if name not in known:
            executor = model_of(name, packed).executor(num_pages=20, kv=kv_of(name))
            known[name] = [logits_of(executor, ids) for ids in TEXTS]
            executor.close()
        return known[name]

    return logits


@pytest.fixture(scope="module")
def alone_hidden(packed):
    """As `alone`, but each text's hidden states."""

    @functools.cache
    def states(name: str) -> list[np.ndarray]:
        executor = model_of(name, packed).executor(num_pages=20, kv=kv_of(name))
        pieces = [SequenceTokens(ids, 0, range(20), wants_logits=range(len(ids))) for ids in TEXTS]
        found = [executor.hidden(pack([piece])) for piece in pieces]
        executor.close()
        return found

    return states


@pytest.mark.parametrize("name", MODELS)
@settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize=not IS_LONG,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.data_too_large, HealthCheck.too_slow],
)
@given(data=st.data())
def test_a_text_has_the_same_logits_in_every_schedule(name, packed, alone, data):
    """On 1, 2, 3 and 4 threads, in pages that hold NaN before they are used."""
    expected = alone(name)
    executor = model_of(name, packed).executor(
        threads=data.draw(st.integers(1, 4), label="threads"),
        num_pages=NUM_PAGES,
        page_tokens=data.draw(st.sampled_from([32, 64]), label="page tokens"),
        kv=kv_of(name),
    )
    spoil_pages(executor)

    def check(text: int, position: int, logits: np.ndarray) -> None:
        assert_same_bits(logits, expected[text][position], f"text {text}, position {position}:")

    try:
        run_schedule(data, TEXTS, executor.step, num_pages=NUM_PAGES, page_tokens=executor.page_tokens, check=check)
    finally:
        executor.close()


@pytest.mark.parametrize("name", ["dense int8", "biases bf16", "experts int4, int8 keys"])
@settings(
    max_examples=EXAMPLES // 2,
    deadline=None,
    derandomize=not IS_LONG,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.data_too_large, HealthCheck.too_slow],
)
@given(data=st.data())
def test_a_text_has_the_same_hidden_states_in_every_schedule(name, packed, alone_hidden, data):
    expected = alone_hidden(name)
    executor = model_of(name, packed).executor(
        threads=data.draw(st.integers(1, 4), label="threads"), num_pages=NUM_PAGES, kv=kv_of(name)
    )
    spoil_pages(executor)

    def check(text: int, position: int, state: np.ndarray) -> None:
        assert_same_bits(state, expected[text][position], f"text {text}, position {position}:")

    try:
        run_schedule(data, TEXTS, executor.hidden, num_pages=NUM_PAGES, page_tokens=executor.page_tokens, check=check)
    finally:
        executor.close()


@pytest.mark.parametrize("kind", ["dense_untied", "moe", "qwen2", "odd_head_dim"])
def test_hidden_states_are_closer_to_float32_than_torch_s_in_bfloat16(kind, packed, start, tiny_checkpoint):
    model, ids = packed(kind, dtype="bfloat16"), random_ids(320, 120)
    batch = pack([SequenceTokens(ids, 0, range(8), wants_logits=range(len(ids)))])
    exact = ReferenceExecutor(model.reference(), num_pages=8).hidden(batch)
    torch_s = our_model(tiny_checkpoint(kind, dtype="bfloat16"), dtype="bfloat16")
    rounded = ReferenceExecutor(torch_s, num_pages=8).hidden(batch)
    found = start(model).hidden(batch)
    assert found.dtype == np.float32 and found.shape == (120, model.config.hidden_size)
    assert np.abs(found - exact).mean() < 0.8 * np.abs(rounded - exact).mean()


def test_hidden_states_leave_the_next_step_s_logits_alone(packed, alone, start):
    executor = start(model_of("dense int8", packed))
    first = executor.hidden(pack([SequenceTokens(TEXTS[1], 0, (5, 3), (32, 0))]))
    kept = first.copy()
    assert_same_bits(logits_of(executor, TEXTS[1]), alone("dense int8")[1])
    assert_same_bits(first, kept, "what was returned is the caller's:")


@pytest.mark.parametrize("name", MODELS)
def test_one_by_one_is_the_same_as_at_once(name, packed, alone, start):
    """Every position as a decoding step, on two threads, beside a prompt that is computed at the same time."""
    executor, ids = start(model_of(name, packed), threads=2, num_pages=30, kv=kv_of(name)), TEXTS[3]
    for position, token in enumerate(ids):
        pieces = [SequenceTokens([token], position, range(10)), SequenceTokens(TEXTS[1], 0, (20, 21))]
        logits = executor.step(pack(pieces if position % 50 == 7 else pieces[:1]))
        assert_same_bits(logits[0], alone(name)[3][position], f"position {position}:")
        if len(logits) == 2:
            assert_same_bits(logits[1], alone(name)[1][-1])


@pytest.mark.parametrize("threads", [1, 2, 3, 4])
def test_the_number_of_threads_shows_nowhere(threads, packed, alone, start):
    name = "experts int8"
    executor = start(model_of(name, packed), threads=threads, num_pages=40)
    assert executor.threads == threads
    pieces = [
        SequenceTokens(TEXTS[5], 0, range(20)),
        SequenceTokens(TEXTS[1], 0, (30, 25)),
        SequenceTokens([3], 0, (22,)),
    ]
    logits = executor.step(pack(pieces))
    assert_same_bits(logits[:2], np.stack([alone(name)[5][-1], alone(name)[1][-1]]))


def with_poisoned_token(model: PackedModel, token: int, bits: int) -> PackedModel:
    """The same model in memory of its own, where one token's embedding is no number. Its head must be its own."""
    assert model.layout.embedding >= 0
    memory, config = model.memory.copy(), model.config
    table = memory[model.layout.embedding :].view(np.uint16)[: config.vocab_size * config.hidden_size]
    table.reshape(config.vocab_size, -1)[token] = bits
    return dataclasses.replace(model, memory=memory)


@pytest.mark.parametrize("poison", [0x7FC0, 0x7F80, 0xFF80], ids=["nan", "inf", "-inf"])
@pytest.mark.parametrize("weights", ["bf16", "int8", "int4"])
@pytest.mark.parametrize("kind", ["dense_untied", "moe", "odd_head_dim"])
@pytest.mark.parametrize("kv", ["bf16", "int8"])
def test_a_row_that_is_no_number_leaves_its_neighbours_and_its_pages_heirs_alone(
    kv, kind, weights, poison, packed, start
):
    model = packed(kind, weights, dtype="bfloat16", num_hidden_layers=2, tie_word_embeddings=False)
    spoilt = with_poisoned_token(model, 300, poison)
    first, second = TEXTS[1], TEXTS[3]
    expected = [logits_of(start(model, kv=kv), ids) for ids in (first, second)]
    bad = [*first[:5], 300, *first[5:]]

    executor = start(spoilt, threads=2, num_pages=20, kv=kv)
    pieces = [SequenceTokens(first, 0, (0, 1)), SequenceTokens(bad, 0, (2, 3)), SequenceTokens(second, 0, range(4, 14))]
    logits = executor.step(pack(pieces))
    assert np.isnan(logits[1]).all()
    assert_same_bits(logits[[0, 2]], np.stack([expected[0][-1], expected[1][-1]]))

    # The broken text's pages go to others: one at once, one cut so that it fills them bit by bit.
    assert_same_bits(logits_of(executor, first, pages=(3, 2)), expected[0])
    for position, token in enumerate(first):
        found = executor.step(pack([SequenceTokens([token], position, (2, 3))]))
        assert_same_bits(found[0], expected[0][position], f"position {position}:")


def test_a_broken_token_in_decoding_leaves_the_step_s_others_alone(packed, start):
    model = packed("dense_untied", "int8", dtype="bfloat16", num_hidden_layers=2)
    executor, expected = start(with_poisoned_token(model, 300, 0x7FC0), threads=2), logits_of(start(model), TEXTS[1])
    ids = TEXTS[1]
    executor.step(pack([SequenceTokens(ids[:20], 0, (0, 1), ()), SequenceTokens(ids[:20], 0, (2, 3), ())]))
    for position in range(20, 33):
        pieces = [
            SequenceTokens([300], position, (0, 1)),
            SequenceTokens(ids[position : position + 1], position, (2, 3)),
        ]
        broken, whole = executor.step(pack(pieces))
        assert np.isnan(broken).all()
        assert_same_bits(whole, expected[position])


def test_positions_may_be_computed_again_from_an_earlier_one(packed, alone, start):
    """As after guesses that were rejected: what was there is overwritten, what lies beyond is not seen."""
    executor, ids = start(model_of("dense int8", packed), num_pages=10), TEXTS[3]
    executor.step(pack([SequenceTokens(ids[:100], 0, range(10), ())]))
    executor.step(pack([SequenceTokens(random_ids(256, 90, 9), 100, range(10), ())]))
    found = executor.step(pack([SequenceTokens(ids[100:130], 100, range(10), range(30))]))
    assert_same_bits(found, alone("dense int8")[3][100:130])
    found = executor.step(pack([SequenceTokens(ids[64:130], 64, range(10), range(66))]))
    assert_same_bits(found, alone("dense int8")[3][64:130])


def test_logits_come_for_the_rows_asked_in_the_order_asked(packed, alone, start):
    executor = start(model_of("dense int4", packed))
    pieces = [
        SequenceTokens(TEXTS[1], 0, (5, 3), (32, 0, 7)),
        SequenceTokens(TEXTS[2], 0, range(8, 16), ()),
        SequenceTokens(TEXTS[0], 0, (1,)),
    ]
    logits = executor.step(pack(pieces))
    assert logits.dtype == np.float32 and logits.shape == (4, 320)
    assert_same_bits(logits, np.stack([*alone("dense int4")[1][[32, 0, 7]], alone("dense int4")[0][0]]))
    kept = logits.copy()
    assert executor.step(pack([SequenceTokens([1, 2], 0, (0,), ())])).shape == (0, 320)
    logits_of(executor, TEXTS[1])
    assert_same_bits(logits, kept, "what was returned is the caller's:")


def test_it_satisfies_the_executor_protocol(packed, start):
    executor: Executor = start(model_of("dense bf16", packed), num_pages=7, page_tokens=64)
    assert (executor.num_pages, executor.page_tokens, executor.vocab_size) == (7, 64, 320)


@pytest.mark.parametrize("page_tokens", [8, 96, 512])
def test_pages_are_whole_blocks_and_segments_whole_pages(page_tokens, packed):
    with pytest.raises(AssertionError, match="whole"):
        model_of("dense bf16", packed).executor(page_tokens=page_tokens)


@pytest.mark.parametrize(
    "piece, message",
    [
        (SequenceTokens([1] * 40, 0, (0,)), "covers"),
        (SequenceTokens([1], 64, (0, 1)), "covers"),
        (SequenceTokens([1] * 40, 0, (0, -1)), "exist"),
        (SequenceTokens([1] * 40, 0, (0, 4)), "exist"),
        (SequenceTokens([320], 0, (0,)), "row"),
        (SequenceTokens([-1], 0, (0,)), "row"),
    ],
)
def test_a_batch_that_points_nowhere_is_stopped_before_memory_is_touched(piece, message, packed, start):
    executor = start(model_of("dense bf16", packed), num_pages=4)
    with pytest.raises(AssertionError, match=message):
        executor.step(pack([piece]))


def test_closing_twice_is_harmless_and_a_closed_one_says_so(packed):
    executor = model_of("dense bf16", packed).executor(threads=3)
    executor.close()
    executor.close()
    with pytest.raises(AssertionError, match="ended"):
        executor.step(pack([SequenceTokens([1], 0, (0,))]))


def test_executors_of_different_threads_share_one_packed_file(tiny_checkpoint, tmp_path, kernels):
    from kaishu.cpu.store import KERNELS_FOLDER, cache_folder

    (tmp_path / KERNELS_FOLDER).symlink_to(cache_folder() / KERNELS_FOLDER)
    checkpoint = open_checkpoint(tiny_checkpoint("moe", dtype="bfloat16", num_hidden_layers=2))
    found, said = [], []
    for threads in (1, 3):
        executor = CpuExecutor.from_checkpoint(
            checkpoint, weights="int4", head="int8", threads=threads, num_pages=4, cache=tmp_path, say=said.append
        )
        assert executor.threads == threads
        found.append(logits_of(executor, TEXTS[1]))
        executor.close()
    assert_same_bits(found[1], found[0])
    assert len(list(Path(tmp_path).glob("packed/*"))) == 1
    assert said == []


def test_the_threads_end_with_the_executor(packed):
    def ranks() -> set[threading.Thread]:
        return {thread for thread in threading.enumerate() if thread.name.startswith("kaishu-rank")}

    before = ranks()
    executor = packed("dense_tied").executor(threads=3, num_pages=1)
    own = ranks() - before
    assert len(own) == 2
    del executor
    gc.collect()
    for thread in own:
        thread.join(timeout=10)
    assert not any(thread.is_alive() for thread in own)


@pytest.mark.parametrize("kv", ["bf16", "int8"])
def test_both_kinds_of_pages_find_their_compiled_kernels(kv, tiny_checkpoint, kernels, tmp_path):
    kernels.load(FORWARD[kv])  # compiled, if they weren't yet
    said: list[str] = []
    checkpoint = open_checkpoint(tiny_checkpoint("dense_tied"))
    CpuExecutor.from_checkpoint(
        checkpoint, kv=kv, threads=1, num_pages=1, packed_folder=tmp_path, say=said.append
    ).close()
    assert said == []


def test_a_start_that_finds_everything_imports_neither_numba_nor_torch(tiny_checkpoint, packed, tmp_path):
    """Numba's import, and what it does with the first kernel, would take longer than everything else."""
    folder = tiny_checkpoint("dense_tied")
    program = """
import sys
from pathlib import Path

from kaishu.batch import SequenceTokens, pack
from kaishu.checkpoint import open_checkpoint
from kaishu.cpu.executor import FORWARD, CpuExecutor

executor = CpuExecutor.from_checkpoint(
    open_checkpoint(Path(sys.argv[1])), weights="int4", num_pages=1, packed_folder=Path(sys.argv[2])
)
executor.step(pack([SequenceTokens([1, 2, 3], 0, (0,))]))
executor.close()
print(*sorted({name.split(".")[0] for name in sys.modules} & {"numba", "torch", "llvmlite"}))
"""
    packed("dense_tied", "int4")  # so that the kernels are compiled
    for _ in range(2):  # packed by the first
        run = subprocess.run(
            [sys.executable, "-c", program, folder, tmp_path], capture_output=True, text=True, check=False
        )
        assert (run.returncode, run.stdout) == (0, "llvmlite\n"), run.stderr
