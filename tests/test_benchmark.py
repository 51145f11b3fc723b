"""The bytes, operations and steps of `kaishu bench`, counted again the long way; no real clock."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kaishu.benchmark import (
    ROUND_SECONDS,
    Cost,
    Sequences,
    Work,
    measure,
    pages_needed,
    peak_memory_bytes,
    plan,
    step_cost,
)
from kaishu.benchmark_limits import Limits
from kaishu.checkpoint.random_weights import shape_config
from kaishu.config import config_from_json
from kaishu.cpu.layout import plan_layout

HIDDEN, INNER, HEADS, KEY_HEADS, HEAD_DIM, VOCABULARY = 128, 384, 4, 2, 64, 151_936  # of the shape tiny-test
LAYER_WEIGHTS = HIDDEN * HEAD_DIM * (2 * HEADS + 2 * KEY_HEADS) + 3 * HIDDEN * INNER
BYTES_A_WEIGHT = {"bf16": 2, "int8": 1 + 2 / 32, "int4": 1 / 2 + 2 / 32, "int4_minimum": 1 / 2 + 4 / 32}
KV_BYTES = 2 * 2 * 2 * KEY_HEADS * HEAD_DIM  # keys and values, of two layers, in bf16


def layout_of(shape: str, weights: str, head: str, **overrides):
    return plan_layout(config_from_json({**shape_config(shape), **overrides}), weights, head, 16)


class Clock:
    """Every reading is one second after the last."""

    def __init__(self, ticks=None) -> None:
        self.now, self.ticks = 0.0, ticks or itertools.repeat(1.0)

    def __call__(self) -> float:
        self.now += next(self.ticks)
        return self.now


class RecordingExecutor:
    """Checks that every key a token sees was computed before, in a page that is its sequence's alone."""

    page_tokens, vocab_size = 16, 50

    def __init__(self, num_pages: int) -> None:
        self.num_pages = num_pages
        self.written: dict[tuple[int, int], int] = {}  # page and slot → position
        self.steps = []

    def step(self, batch):
        used = batch.page_table[batch.page_table >= 0]
        assert len(set(used)) == len(used), "a page is one sequence's"
        for b in range(batch.num_sequences):
            pages = batch.page_table[b]
            positions = batch.positions[batch.rows(b)]
            for position in positions:
                page = int(pages[position // 16])
                assert 0 <= page < self.num_pages
                self.written[page, position % 16] = int(position)
            for position in range(int(positions[-1]) + 1):
                assert self.written[int(pages[position // 16]), position % 16] == position
        self.steps.append(batch)
        return np.zeros((len(batch.logit_rows), self.vocab_size), np.float32)


@pytest.mark.parametrize("weights", BYTES_A_WEIGHT)
@pytest.mark.parametrize("head", ["bf16", "int8"])
@pytest.mark.parametrize("work", [Work("decode", 1, 1, 1), Work("decode", 100, 3, 1), Work("prefill", 41, 2, 20)])
def test_a_dense_step_reads_each_weight_once_and_multiplies_it_with_each_token(weights, head, work):
    cost = step_cost(layout_of("tiny-test", weights, head), KV_BYTES, work)
    weight_bytes = 2 * LAYER_WEIGHTS * BYTES_A_WEIGHT[weights] + VOCABULARY * HIDDEN * BYTES_A_WEIGHT[head]
    assert cost.read_bytes == weight_bytes + work.sequences * work.end * KV_BYTES
    seen = sum(len(range(position + 1)) for position in range(work.start, work.end))
    seen += work.end  # in the last of two layers by the last token alone, as is all that follows keys and values there
    expected = {"bf16": work.sequences * seen * HEADS * HEAD_DIM * 2 * 2}  # two products; two operations each
    before = HIDDEN * HEAD_DIM * (HEADS + 2 * KEY_HEADS)
    products = (LAYER_WEIGHTS + before) * work.tokens + (LAYER_WEIGHTS - before) * work.sequences
    for form, operations in (
        (weights.removesuffix("_minimum"), 2 * products),
        (head, 2 * VOCABULARY * HIDDEN * work.sequences),
    ):
        expected[form] = expected.get(form, 0) + operations
    assert cost.operations == expected
    assert cost.all_operations == sum(expected.values())


def test_a_sliding_window_bounds_what_a_layer_looks_at():
    windows = {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1}  # the second of two layers
    free = step_cost(layout_of("tiny-test", "int4", "int4"), KV_BYTES, Work("prefill", 11, 1, 5))
    bound = step_cost(layout_of("tiny-test", "int4", "int4", **windows), KV_BYTES, Work("prefill", 11, 1, 5))
    assert free.read_bytes - bound.read_bytes == (15 - 8) * KV_BYTES / 2
    assert free.operations["bf16"] - bound.operations["bf16"] == (15 - 8) * HEADS * HEAD_DIM * 4  # the last token's
    windows = {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 0}  # both
    both = step_cost(layout_of("tiny-test", "int4", "int4", **windows), KV_BYTES, Work("prefill", 11, 1, 5))
    looked_at = {key for query in range(10, 15) for key in range(query - 7, query + 1)}
    assert bound.read_bytes - both.read_bytes == (15 - len(looked_at)) * KV_BYTES / 2
    fewer = sum(query + 1 - 8 for query in range(10, 15))
    assert bound.operations["bf16"] - both.operations["bf16"] == fewer * HEADS * HEAD_DIM * 4


def test_biases_are_read_too():
    plain = step_cost(layout_of("tiny-test", "int4", "int4"), KV_BYTES, Work("decode", 1, 1, 1))
    biased = step_cost(layout_of("tiny-test", "int4", "int4", attention_bias=True), KV_BYTES, Work("decode", 1, 1, 1))
    rows = (HEADS + 2 * KEY_HEADS) * HEAD_DIM + HIDDEN
    assert biased.read_bytes - plain.read_bytes == 2 * 4 * rows


@pytest.mark.parametrize("sequences, new_tokens", [(1, 1), (2, 1), (3, 1), (1, 3), (2, 2)])
def test_of_experts_those_are_read_that_tokens_are_expected_to_choose(sequences, new_tokens):
    """Every choice of two of four experts by each token is tried, and the experts that any has chosen are counted."""
    layout = layout_of("tiny-moe-test", "int8", "bf16", num_experts=4, num_experts_per_tok=2)
    choices = list(itertools.combinations(range(4), 2))
    tokens = (sequences * new_tokens, sequences)  # of the first layer, and of the last
    chosen = sum(
        np.mean([len(set().union(*together)) for together in itertools.product(choices, repeat=count)])
        for count in tokens
    )
    expert, router = 3 * HIDDEN * 96, 32 * HIDDEN  # its four rows are packed as 32
    before, after = HIDDEN * HEAD_DIM * (HEADS + 2 * KEY_HEADS), HIDDEN * HEAD_DIM * HEADS
    cost = step_cost(layout, KV_BYTES, Work("prefill", 1, sequences, new_tokens))
    int8_bytes = (2 * (before + after) + chosen * expert) * BYTES_A_WEIGHT["int8"]
    kept = sequences * new_tokens * KV_BYTES
    assert cost.read_bytes == pytest.approx(int8_bytes + 2 * 2 * router + VOCABULARY * HIDDEN * 2 + kept)
    assert cost.operations["int8"] == 2 * (2 * before * tokens[0] + (after + 2 * expert) * sum(tokens))


def test_the_floor_is_the_longer_of_reading_and_computing():
    limits = Limits(100.0, {"int4": 10.0, "bf16": 5.0, "float32": 1.0})
    assert Cost(400.0, {"int4": 20.0, "bf16": 5.0}).floor_seconds(limits) == 4.0
    assert Cost(200.0, {"int4": 20.0, "bf16": 5.0}).floor_seconds(limits) == 3.0


def test_the_plan_has_all_combinations_but_those_that_take_too_much():
    kept, left_out = plan([1, 100, 1000], [1, 4], 50, longest=1024, most_tokens=500)
    assert kept == [
        Work("decode", 1, 1, 1),
        Work("decode", 1, 4, 1),
        Work("decode", 100, 1, 1),
        Work("decode", 100, 4, 1),
        Work("decode", 1000, 1, 1),
        Work("prefill", 1, 1, 16),
        Work("prefill", 1, 1, 50),
        Work("prefill", 100, 1, 50),
    ]
    assert left_out == [Work("decode", 1000, 4, 1), Work("prefill", 1000, 1, 50)]
    assert plan([1], [1], 16, longest=16, most_tokens=1)[0] == [Work("decode", 1, 1, 1), Work("prefill", 1, 1, 16)]


works_in_any_order = st.lists(
    st.builds(Work, st.just("prefill"), st.integers(1, 70), st.integers(1, 3), st.integers(1, 40)),
    min_size=1,
    max_size=6,
)


@settings(max_examples=60, deadline=None)
@given(works_in_any_order)
def test_whatever_the_order_a_step_finds_its_context_in_its_own_pages(works):
    executor = RecordingExecutor(pages_needed(works, 16))
    sequences = Sequences(executor, works, np.random.default_rng(0))
    for work in works:
        before = len(executor.steps)
        assert list(sequences.rounds(work, seconds=1.0, clock=Clock())) == [[1.0]] * 3
        timed = [batch for batch in executor.steps[before:] if len(batch.logit_rows)]
        assert len(timed) == 4, "one warms up, three are timed"
        for batch in timed:
            assert batch.num_sequences == work.sequences == len(batch.logit_rows)
            for b in range(work.sequences):
                assert batch.positions[batch.rows(b)].tolist() == list(range(work.context - 1, work.end))
    used = {page for page, _ in executor.written}
    assert used == set(range(executor.num_pages)), "no more pages than needed"


def ticks_of(spent):
    """The clock's readings around steps that take so long."""
    return itertools.chain.from_iterable((0.0, seconds) for seconds in spent)


def measured(spent, seconds, limits):
    """One work on a clock by which steps take so long. return: its measurement, its cost"""
    work, layout = Work("decode", 1, 2, 1), layout_of("tiny-test", "int4", "int4")
    clock = Clock(ticks_of(spent))
    (found,) = measure(RecordingExecutor(2), layout, KV_BYTES, [work], seconds=seconds, clock=clock, limits=limits)
    return found, step_cost(layout, KV_BYTES, work)


def test_a_measurement_is_the_median_of_as_many_steps_as_the_time_allows():
    spent = [9.0, 1.0, 5.0, 2.0, 2.0, 4.0]  # the first warms up; the others are 14 s together
    found, cost = measured(spent, 14.0, lambda forms: Limits(1e9, dict.fromkeys(forms, 1e9)))
    assert found.seconds == 2.0
    assert found.tokens_per_second == 1.0
    assert found.cost == cost


def test_a_step_is_compared_with_the_limits_of_its_own_moment():
    """A machine that becomes half as fast after every round: so do its steps, which are always at 40 % of the floor."""
    cost = step_cost(layout_of("tiny-test", "int4", "int4"), KV_BYTES, Work("decode", 1, 2, 1))
    rates, asked = iter([1.0, 0.5, 0.25]), []

    def limits(forms):
        asked.append(set(forms))
        return Limits(next(rates) * cost.read_bytes / 0.4, dict.fromkeys(forms, 1e18))

    found, _ = measured([7.0, 1.0, 2.0, 4.0], 7.0, limits)
    assert found.share_of_floor == pytest.approx(0.4) and found.seconds == 2.0
    assert asked == [{"int4", "bf16"}] * 3, "once a round, and no instructions that the step doesn't use"


def test_a_round_has_as_many_steps_as_fit_so_that_most_of_the_time_is_for_them():
    work, executor = Work("decode", 1, 1, 1), RecordingExecutor(1)
    sequences, step = Sequences(executor, [work], np.random.default_rng(0)), ROUND_SECONDS / 4
    times = list(sequences.rounds(work, seconds=2.6 * ROUND_SECONDS, clock=Clock(ticks_of(itertools.repeat(step)))))
    assert [len(own) for own in times] == [4, 4, 3]
    assert times[0] == [step] * 4


def test_the_peak_of_memory_grows_with_what_is_touched_and_stays():
    before = peak_memory_bytes()
    block = np.ones(max(before, 64 << 20) // 8)
    during = peak_memory_bytes()
    assert during >= 0.99 * block.nbytes, "Linux counts pages a few dozen at a time"
    del block
    assert peak_memory_bytes() >= 0.99 * during
