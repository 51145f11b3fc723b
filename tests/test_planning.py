"""What a model is said to take is what it takes: against real executors, and against processes that were measured."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kaishu import LLM
from kaishu.batch import SequenceTokens, pack
from kaishu.checkpoint import Checkpoint, open_checkpoint
from kaishu.checkpoint.described import describe
from kaishu.checkpoint.random_weights import write_random_checkpoint
from kaishu.cpu.executor import CpuExecutor
from kaishu.errors import InvalidParameterError, OutOfMemoryError
from kaishu.executors import Choice, choose, quantised_formats
from kaishu.planning import FEWEST_TOKENS, PROCESS_BYTES_PER_TOKEN_ID, Plan, context_within, plan_model
from tests.memory import run_measured

FORMS = [("bf16", "auto", "auto"), ("int8", "bf16", "int8"), ("int4", "auto", "int8"), ("int4", "int4", "bf16")]
KINDS = ["dense_tied", "dense_untied", "moe", "odd_head_dim", "sliding_window"]


def choice_of(checkpoint: Checkpoint, weights: str = "auto", head: str = "auto", kv: str = "auto") -> Choice:
    formats = quantised_formats(checkpoint)
    return choose(checkpoint.config, "cpu", weights, head, "cpu", kv=kv, formats=formats)


def planned(checkpoint: Checkpoint, form: tuple[str, str, str] = ("auto", "auto", "auto"), **options: Any) -> Plan:
    return plan_model(checkpoint, choice_of(checkpoint, *form), **{"threads": 1, **options})


@pytest.mark.parametrize("form", FORMS, ids=" ".join)
@pytest.mark.parametrize("kind", KINDS)
def test_weights_pages_and_buffers_are_what_an_executor_has(kind, form, tiny_checkpoint, tmp_path):
    checkpoint = open_checkpoint(tiny_checkpoint(kind, dtype="bfloat16"))
    plan = planned(checkpoint, form, context_tokens=300)
    choice = plan.choice
    executor = CpuExecutor.from_checkpoint(
        checkpoint,
        weights=choice.weights,
        head=choice.head,
        kv=choice.kv,
        threads=1,
        context_tokens=300,
        packed_folder=tmp_path,
    )
    assert plan.packed_bytes == executor.layout.num_bytes
    assert plan.page_tokens == executor.page_tokens
    pages = executor._page_memory.nbytes + sum(array.nbytes for array in executor._page_scales)
    assert plan.kv_bytes == pages == executor.num_pages * plan.page_bytes
    unused = 1 + 1 / (checkpoint.config.num_hidden_layers * checkpoint.config.num_key_value_heads)
    assert plan.kv_bytes_per_token == pytest.approx(executor.kv_bytes_per_token * unused)
    for start, count in ((0, 299), (299, 1)):
        batch = pack([SequenceTokens([7] * count, start, range(executor.num_pages), (-1,))])
        executor.step(batch)
    # A step for which there is more room than it needs is what a plan is for; a tenth more is not much more.
    assert 0.9 * plan.buffer_bytes < executor._buffers.num_bytes <= plan.buffer_bytes
    executor.close()


@pytest.mark.parametrize("kind, untied", [("dense_tied", 0), ("dense_untied", 2 * 320 * 64)])
def test_the_embedding_counts_beside_the_head_only_where_it_is_another_matrix(kind, untied, tiny_checkpoint):
    checkpoint = open_checkpoint(tiny_checkpoint(kind, dtype="bfloat16"))
    assert planned(checkpoint).embedding_bytes == 2 * 320 * 64 + untied
    int8 = planned(checkpoint, ("int4", "int8", "auto"))
    assert int8.embedding_bytes == 320 * (64 + 2 * 64 // 32) + untied


def test_a_model_that_is_only_described_takes_the_same(tiny_checkpoint, monkeypatch):
    checkpoint = open_checkpoint(tiny_checkpoint("moe", dtype="bfloat16"))
    import json

    config = json.loads((checkpoint.folder / "config.json").read_text())
    monkeypatch.setattr("kaishu.checkpoint.described.resolve_without_weights", lambda _: config)
    assert _numbers(planned(describe("Qwen/NotHere"))) == _numbers(planned(checkpoint))


def _numbers(plan: Plan) -> tuple[int, ...]:
    return plan.packed_bytes, plan.kv_bytes, plan.buffer_bytes, plan.peak_bytes


PROGRAM = """
from kaishu import LLM
llm = LLM("tiny", threads=2, {options})
ids = [i * 7 % 2000 for i in range(llm.context_tokens - 8)]
llm.generate(ids, max_tokens=8, ignore_eos=True, temperature=0.7)
print(round(peak_mb() * 2**20), llm.context_tokens)
"""


@pytest.mark.parametrize("weights", ["auto", "int4"])
def test_the_peak_of_the_bundled_model_is_what_was_planned(weights):
    LLM("tiny", weights=weights).executor.close()  # so that no kernel is compiled while memory is measured
    (peak, _) = map(int, run_measured(PROGRAM.format(options=f"weights={weights!r}")))
    plan = planned(describe("tiny"), (weights, "auto", "auto"), threads=2)
    assert 0.6 * plan.peak_bytes < peak < plan.peak_bytes


if os.environ.get("KAISHU_LONG_TESTS"):  # every kernel is compiled, half a minute on both cores

    def test_the_first_start_of_all_takes_the_compiler_too(tmp_path, monkeypatch):
        monkeypatch.setenv("KAISHU_CACHE", str(tmp_path))
        first = planned(describe("tiny"), threads=2)
        (peak, _) = map(int, run_measured(PROGRAM.format(options="")))
        again = planned(describe("tiny"), threads=2)
        assert first.compiling_bytes > 100e6 and again.compiling_bytes == 0
        assert first.peak_bytes == again.peak_bytes + first.compiling_bytes
        assert again.peak_bytes < 0.6 * first.peak_bytes < peak < first.peak_bytes


def test_what_compiling_takes_is_said_where_it_is_too_much(tmp_path, monkeypatch):
    bound = planned(describe("tiny")).peak_bytes
    monkeypatch.setenv("KAISHU_CACHE", str(tmp_path))
    with pytest.raises(OutOfMemoryError, match=r"of it to compile the kernels.*\n.*kernels that are compiled already"):
        within(min(bound, 150_000_000))


def compile_kernels(checkpoint: Checkpoint, weights: str, folder: Path) -> None:
    """Compile what a measured process will need: compiling takes more memory than a small model."""
    CpuExecutor.from_checkpoint(
        checkpoint, weights=weights, head="int8", threads=2, context_tokens=64, packed_folder=folder
    ).close()


EXECUTOR_PROGRAM = """
from pathlib import Path
from kaishu.batch import SequenceTokens, pack
from kaishu.checkpoint import open_checkpoint
from kaishu.cpu.executor import CpuExecutor
executor = CpuExecutor.from_checkpoint(
    open_checkpoint(Path({folder!r})), weights={weights!r}, head="int8", threads=2, context_tokens=2048,
    packed_folder=Path({packed!r}))
packing = peak_mb()
for start in range(0, 2048, 512):
    executor.step(pack([SequenceTokens([5] * 512, start, range(executor.num_pages), (-1,))]))
print(round(packing * 2**20), round(peak_mb() * 2**20))
"""


@pytest.fixture(scope="module")
def larger(tmp_path_factory) -> Checkpoint:
    """Qwen3-0.6B's shape with two layers: 400 MB of weights, most of them the embedding."""
    return open_checkpoint(write_random_checkpoint(tmp_path_factory.mktemp("larger") / "model", "0.6b", layers=2))


@pytest.mark.parametrize("weights", ["bf16", "int4"])
def test_the_peak_of_a_larger_shape_is_what_was_planned(weights, larger, tmp_path):
    checkpoint, folder = larger, larger.folder
    plan = planned(checkpoint, (weights, "int8", "auto"), threads=2, context_tokens=2048)
    no_tokenizer = PROCESS_BYTES_PER_TOKEN_ID * checkpoint.config.vocab_size
    packed = tmp_path / "packed"
    compile_kernels(describe("tiny"), weights, tmp_path / "compiled")
    program = EXECUTOR_PROGRAM.format(folder=str(folder), weights=weights, packed=str(packed))
    packing, peak = map(int, run_measured(program))
    assert 0.8 * (plan.loading_peak_bytes - no_tokenizer) < packing <= plan.loading_peak_bytes
    assert 0.8 * (plan.peak_bytes - no_tokenizer) < peak <= plan.peak_bytes
    _, again = map(int, run_measured(program))  # nothing is packed any more
    assert 0.75 * (plan.serving_peak_bytes - no_tokenizer) < again <= plan.serving_peak_bytes


def test_the_peak_of_a_quantised_file_is_what_was_planned(smollm2_file, tmp_path):
    checkpoint = open_checkpoint(smollm2_file)
    plan = planned(checkpoint, threads=2, context_tokens=2048)
    no_tokenizer = PROCESS_BYTES_PER_TOKEN_ID * checkpoint.config.vocab_size
    compile_kernels(checkpoint, "stored", tmp_path / "compiled")
    program = EXECUTOR_PROGRAM.format(folder=str(smollm2_file), weights="stored", packed=str(tmp_path / "packed"))
    packing, peak = map(int, run_measured(program))
    assert 0.6 * (plan.loading_peak_bytes - no_tokenizer) < packing <= plan.loading_peak_bytes
    assert 0.6 * (plan.peak_bytes - no_tokenizer) < peak <= plan.peak_bytes


def test_the_largest_context_fits_and_one_page_more_does_not(tiny_checkpoint):
    checkpoint = open_checkpoint(tiny_checkpoint("dense_untied", max_position_embeddings=40_000))
    plan = planned(checkpoint)
    for available in range(plan.loading_peak_bytes, plan.peak_bytes, 3_999_999):
        context = plan.largest_context(available)
        at, beyond = (replace(plan, context_tokens=context + more) for more in (0, 1))
        if context:
            assert at.peak_bytes <= available < beyond.peak_bytes and context % plan.page_tokens == 0
    assert plan.largest_context(plan.peak_bytes) == 40_000
    assert plan.largest_context(plan.loading_peak_bytes - 1) == 0
    four = planned(checkpoint, sequences=4)
    assert four.largest_context(four.peak_bytes) == 40_000
    assert four.kv_bytes == 4 * plan.kv_bytes and 9_000 < four.largest_context(plan.peak_bytes) <= 10_000


def test_speed_is_bandwidth_over_the_bytes_that_a_step_reads(tiny_checkpoint):
    config_bytes = open_checkpoint(tiny_checkpoint("dense_untied", dtype="bfloat16"))
    plan = planned(config_bytes, ("bf16", "bf16", "bf16"))
    linear = sum(t.nbytes for n, t in config_bytes.tensors.items() if len(t.shape) == 2 and "embed" not in n)
    keys = 2 * 2 * 3 * 2 * 32  # bytes, of keys and values, layers, heads, channels
    assert plan.most_tokens_per_second(1e9, 1) == pytest.approx(1e9 / (linear + keys), rel=0.01)
    many = replace(plan, sequences=8)
    assert many.most_tokens_per_second(1e9, 500) == pytest.approx(8e9 / (linear + 8 * 500 * keys), rel=0.2)


def test_of_experts_only_those_that_a_token_chooses_are_read(tiny_checkpoint):
    all_of_them = planned(open_checkpoint(tiny_checkpoint("moe", num_experts_per_tok=6)))
    some = planned(open_checkpoint(tiny_checkpoint("moe", num_experts_per_tok=1)))
    assert some.packed_bytes == all_of_them.packed_bytes
    assert some.most_tokens_per_second(1e9, 1) > 1.5 * all_of_them.most_tokens_per_second(1e9, 1)


# A bound on memory.


def within(bound: object, asked: int | None = None, **form: str) -> tuple[int, tuple[str, ...]]:
    checkpoint = describe("tiny")
    return context_within(bound, checkpoint, choice_of(checkpoint, **form), asked=asked, threads=1)


def test_what_fits_is_left_alone():
    assert within("8GB") == (2048, ()) and within(8 << 30, asked=100) == (100, ())


def test_the_context_is_cut_to_what_fits_and_it_is_said():
    full, least = planned(describe("tiny")), planned(describe("tiny"), context_tokens=512)
    bound = (full.peak_bytes + least.peak_bytes) // 2
    context, (note,) = within(bound)
    assert FEWEST_TOKENS <= context < 2048
    assert note.startswith(f"The context was cut from 2,048 to {context:,} tokens, so that all takes at most ")
    assert within(bound, kv="int8")[0] > context


@pytest.mark.parametrize("bound, asked", [("50MB", None), ("50MB", 64), (1, None)])
def test_weights_that_do_not_fit_are_an_error_that_says_what_takes_how_much(bound, asked):
    with pytest.raises(OutOfMemoryError, match=r"packed weights 5\.\d MB") as caught:
        within(bound, asked=asked)
    assert "Python and libraries" in str(caught.value) and "but max_memory is" in str(caught.value)
    assert "Take weights of fewer bits (--weights int4)" in str(caught.value)


def test_a_context_that_was_asked_for_is_not_cut_but_refused():
    full = planned(describe("tiny"))
    largest = full.largest_context(full.serving_peak_bytes - 500_000)
    with pytest.raises(OutOfMemoryError, match=f"With a context of 2,048 .*\n  Take a context of at most {largest:,}"):
        within(full.serving_peak_bytes - 500_000, asked=2048)


@pytest.mark.parametrize("bound", ["4 gigs", 0, 1.5, True, None, "-1GB"])
def test_a_bound_that_is_no_size_is_an_error(bound):
    with pytest.raises(InvalidParameterError, match="max_memory is"):
        within(bound)


def test_the_reference_model_is_not_held_to_a_bound_and_says_so():
    with pytest.raises(InvalidParameterError, match="max_memory is '4GB'; allowed: only with executor='cpu'"):
        LLM("tiny", executor="reference", max_memory="4GB")


def test_an_engine_that_is_held_to_a_bound_stays_within_it():
    LLM("tiny").executor.close()  # so that no kernel is compiled any more
    least = planned(describe("tiny"), context_tokens=512, threads=2)
    peak, context = map(int, run_measured(PROGRAM.format(options=f"max_memory={least.peak_bytes}")))
    assert 512 <= context < 2048 and peak <= least.peak_bytes
    with pytest.warns(UserWarning, match="The context was cut"):
        llm = LLM("tiny", threads=2, max_memory=least.peak_bytes)
    assert llm.context_tokens == context
    assert any(f"The context was cut from 2,048 to {context:,} tokens" in note for note in llm.notes)
    with pytest.raises(OutOfMemoryError):
        LLM("tiny", threads=2, max_memory=least.peak_bytes, context_tokens=2048)
