"""The core: every job gets, bit for bit, what it gets alone, whatever else runs, waits, is aborted or fails."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from kaishu.batch import TokenBatch
from kaishu.engine.core import EngineCore, EngineSettings
from kaishu.engine.grammar import GrammarCompiler
from kaishu.engine.jobs import Generate, Read
from kaishu.engine.scheduler import Budget
from kaishu.errors import ContextLengthError, InvalidRequestError, NumericalError, QueueFullError
from kaishu.output_format import OutputFormat
from kaishu.text.tokenizer import Tokenizer
from tests.engine.engine_runs import CONTEXT_TOKENS, LivelyExecutor, alone, core_of, job, limits_of, lively, outcomes

# KAISHU_LONG_TESTS=1 draws 4,000 sets of jobs.
NUM_EXAMPLES = 4_000 if os.environ.get("KAISHU_LONG_TESTS") else 120
PHASES = [Phase.explicit, Phase.reuse, Phase.generate]  # a failure is shown as it was found: each try takes long
COMMON = "You are a model that says a, b, c and d; "
FORMATS = [
    OutputFormat.choice(["alpha", "alphabet", "beta"]),
    OutputFormat.regex(r"(a|b){2,4}\{"),
    OutputFormat.json_schema({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}),
]


@st.composite
def fields(draw: Any) -> dict[str, Any]:
    """Fields of a job: prompt text, where it thinks, the number of a format, and SamplingParams."""
    wanted: dict[str, Any] = {
        "prompt": COMMON[: draw(st.integers(0, 40))] + draw(st.text("abcd ", min_size=1, max_size=12)),
        "priority": draw(st.integers(-1, 1)),
        "salt": draw(st.sampled_from(["", "", "mine"])),
        "max_tokens": draw(st.integers(1, 24)),
        "thinking": draw(st.sampled_from(["closed", "closed", "none", "open"])),
    }
    if draw(st.booleans()):
        wanted |= {"temperature": draw(st.sampled_from([0.3, 1.0, 2.0])), "seed": draw(st.integers(0, 5))}
        wanted |= draw(st.sampled_from([{}, {"top_k": 3}, {"top_p": 0.8}, {"min_p": 0.05}]))
    wanted |= draw(
        st.sampled_from([{}, {}, {"repetition_penalty": 1.3}, {"frequency_penalty": 0.5}, {"ignore_eos": True}])
    )
    wanted |= draw(
        st.sampled_from([{}, {}, {"stop": "ba"}, {"stop": ["cd", "a\n"], "min_tokens": 1}, {"stop_token_ids": [99]}])
    )
    if draw(st.integers(0, 3)) == 0:
        wanted["logprobs"] = draw(st.integers(0, 3))
    if draw(st.integers(0, 4)) == 0:
        wanted["prompt_logprobs"] = draw(st.integers(0, 2))
    if draw(st.integers(0, 4)) == 0:
        wanted["n"] = draw(st.integers(2, 4))
    if wanted["thinking"] != "closed" and draw(st.booleans()):
        wanted["thinking_budget"] = draw(st.integers(0, 9))
    if draw(st.integers(0, 2)) == 0:
        wanted["format"] = draw(st.integers(0, len(FORMATS) - 1))
    return wanted


def made(wanted: dict[str, Any], tokenizer: Tokenizer, compiler: GrammarCompiler) -> Generate | Read:
    left = dict(wanted)
    ids = tokenizer.encode(left.pop("prompt"))
    if "wants" in left:
        return Read(ids, left["wants"], left["priority"], left["salt"])
    format_ = left.pop("format", None)
    grammar = None if format_ is None else compiler.compile(FORMATS[format_])
    return job(ids, grammar=grammar, **left)


READS = st.fixed_dictionaries(
    {
        "prompt": st.integers(1, 41).map(lambda length: COMMON[:length]),
        "wants": st.sampled_from(["last_hidden", "last_logits", "all_logits"]),
        "priority": st.integers(-1, 1),
        "salt": st.sampled_from(["", "mine"]),
    }
)
BUDGETS = st.builds(Budget, st.integers(1, 40), st.integers(1, 12), st.integers(1, 12), st.integers(1, 8))


@settings(max_examples=NUM_EXAMPLES, deadline=None, phases=PHASES)
@given(
    wanted=st.lists(st.one_of(fields(), fields(), fields(), READS), min_size=1, max_size=7),
    arrivals=st.lists(st.integers(0, 25), min_size=7, max_size=7),
    aborts=st.dictionaries(st.integers(0, 6), st.integers(0, 25), max_size=2),
    num_pages=st.integers(24, 48),
    budget=BUDGETS,
    speculation=st.booleans(),
    strength=st.sampled_from([3.0, 9.0]),
)
def test_any_jobs_together_get_what_each_gets_alone(
    byte_tokenizer: Tokenizer,
    byte_compiler: GrammarCompiler,
    wanted: list[dict[str, Any]],
    arrivals: list[int],
    aborts: dict[int, int],
    num_pages: int,
    budget: Budget,
    speculation: bool,
    strength: float,
) -> None:
    jobs = [made(one, byte_tokenizer, byte_compiler) for one in wanted]
    executor = lively(byte_tokenizer, strength=strength, num_pages=num_pages)
    core = core_of(executor, byte_tokenizer, budget=budget, speculation=speculation)
    aborts = {index: after for index, after in aborts.items() if index < len(jobs)}
    found = outcomes(core, jobs, arrivals=arrivals[: len(jobs)], aborts=aborts)
    for index, one in enumerate(jobs):
        cold = lively(byte_tokenizer, strength=strength, num_pages=num_pages)
        expected = alone(one, cold, byte_tokenizer)
        is_whole = found[index].end is not None or found[index].error is not None or found[index].rows is not None
        if is_whole:
            assert found[index].comparable() == expected.comparable()
        else:
            assert index in aborts, "only an aborted job has no end"
            for choice, pieces in found[index].streamed.items():
                text = "".join(piece.text for piece in pieces)
                assert expected.choices[choice].text.startswith(text)
    statistics = core.statistics()
    assert statistics.running == statistics.waiting == statistics.held_pages == 0
    assert statistics.finished + statistics.failed + statistics.aborted == len(jobs)


def core_and_executor(tokenizer: Tokenizer, num_pages: int = 24, **options: Any) -> tuple[EngineCore, LivelyExecutor]:
    executor = lively(tokenizer, num_pages=num_pages)
    return core_of(executor, tokenizer, **options), executor


def test_64_requests_with_a_common_beginning_in_a_pool_that_is_always_too_small(byte_tokenizer: Tokenizer) -> None:
    common = byte_tokenizer.encode(COMMON)[:40]
    jobs = [job([*common, i], temperature=1, seed=i, max_tokens=40, ignore_eos=True) for i in range(64)]
    core, _ = core_and_executor(byte_tokenizer, num_pages=40, budget=Budget(beside_tokens=16))
    found = outcomes(core, jobs)
    assert core.statistics().preemptions > 30
    assert [len(outcome.choices[0].token_ids) for outcome in found] == [40] * 64
    for one, outcome in list(zip(jobs, found, strict=True))[::7]:
        assert outcome.comparable() == alone(one, lively(byte_tokenizer), byte_tokenizer).comparable()
    usages = [outcome.end.usage.cached_tokens for outcome in found if outcome.end]
    assert usages[0] == 0 and set(usages[1:]) == {40}


def test_who_waits_is_told_what_was_cached_with_the_first_of_several_steps_that_read_a_prompt(
    byte_tokenizer: Tokenizer,
) -> None:
    core, _ = core_and_executor(byte_tokenizer, budget=Budget(prefill_tokens=16, beside_tokens=16))
    for cached, num_steps in ((0, 3), (40, 1)):
        stream = core.add(job(byte_tokenizer.encode(COMMON)[:41], max_tokens=1))
        touched = [core.step()]
        assert (touched, stream.cached_tokens) == ([[stream]], cached)
        while not stream.is_over:
            touched.append(core.step())
        assert len(touched) == num_steps


def test_a_shared_prompt_of_a_thousand_tokens_is_computed_once(byte_tokenizer: Tokenizer) -> None:
    shared = [i * 7 % 250 for i in range(1000)]
    executor = lively(byte_tokenizer, num_pages=1200)
    core = core_of(executor, byte_tokenizer, context_tokens=1100, speculation=False)
    found = outcomes(core, [job([*shared, i, i + 1], max_tokens=4, ignore_eos=True) for i in range(32)])
    assert executor.num_tokens == 1000 + 32 * (2 + 3)  # each its own two, and three that it chose
    assert [outcome.end.usage.cached_tokens for outcome in found if outcome.end] == [0] + [1000] * 31
    statistics = core.statistics()
    assert (statistics.prompt_tokens, statistics.cached_tokens) == (32 * 1002, 31 * 1000)
    assert statistics.hit_rate == 31_000 / 32_064


@pytest.mark.parametrize("length", [1, 4, 9, 12])
def test_a_text_that_is_all_cached_computes_the_rest_of_its_last_page_and_says_so(
    byte_tokenizer: Tokenizer, length: int
) -> None:
    core, executor = core_and_executor(byte_tokenizer)
    one = job(range(length), max_tokens=1)
    cold, again = outcomes(core, [one])[0], outcomes(core, [one])[0]
    assert cold.comparable() == again.comparable() and cold.end and again.end
    cached = (length - 1) // 4 * 4
    assert (cold.end.usage.cached_tokens, again.end.usage.cached_tokens) == (0, cached)
    assert executor.num_tokens == length + length - cached


def test_a_second_turn_finds_the_first_ones_answer(byte_tokenizer: Tokenizer) -> None:
    core, _ = core_and_executor(byte_tokenizer)
    prompt = byte_tokenizer.encode("abcd abc")
    first = outcomes(core, [job(prompt, max_tokens=9, ignore_eos=True)])[0].choices[0]
    second = [*prompt, *first.token_ids, 5, 6]
    found = outcomes(core, [job(second, max_tokens=3)])[0]
    assert found.end is not None and found.end.usage.cached_tokens == 16  # 8 + 8: the newest token isn't computed


def test_choices_share_their_prompts_pages_and_differ_and_repeat(byte_tokenizer: Tokenizer) -> None:
    prompt = byte_tokenizer.encode(COMMON)[:36]
    fields: dict[str, Any] = {"temperature": 2.0, "max_tokens": 8, "ignore_eos": True}
    core, executor = core_and_executor(byte_tokenizer, num_pages=64, speculation=False)
    found = outcomes(core, [job(prompt, n=4, seed=0, **fields)])[0]
    texts = [found.choices[index].token_ids for index in range(4)]
    assert len(set(texts)) == 4 and found.end is not None
    assert (found.end.usage.prompt_tokens, found.end.usage.completion_tokens) == (36, 32)
    assert executor.num_tokens == 36 + 3 * 4 + 4 * 7  # the last page of the prompt is each one's own
    assert outcomes(core, [job(prompt, seed=0, **fields)])[0].choices[0].token_ids == texts[0]
    assert [outcomes(core, [job(prompt, seed=0, n=4, **fields)])[0].choices[i].token_ids for i in range(4)] == texts


def test_unseeded_requests_differ(byte_tokenizer: Tokenizer) -> None:
    core, _ = core_and_executor(byte_tokenizer)
    same = job([1, 2], temperature=2.0, max_tokens=8, ignore_eos=True)
    assert len({outcome.choices[0].token_ids for outcome in outcomes(core, [same] * 4)}) == 4


class Sick(LivelyExecutor):
    """Contexts with this token have no numbers as logits."""

    BAD = 7

    def row(self, context: Any) -> Any:
        row = super().row(context)
        return row * np.float32(np.nan) if self.BAD in context else row


def test_a_row_that_is_not_a_number_ends_its_own_request_alone(byte_tokenizer: Tokenizer) -> None:
    jobs = [job([1, 2, i], temperature=1, seed=1, max_tokens=12, ignore_eos=True, n=1 + i % 2) for i in (5, 7, 6, 8)]
    found = outcomes(core_of(Sick([1, 2, 3]), byte_tokenizer), jobs)
    assert isinstance(found[1].error, NumericalError) and not found[1].choices
    for index in (0, 2, 3):
        assert found[index].comparable() == alone(jobs[index], Sick([1, 2, 3]), byte_tokenizer).comparable()


class Failing(LivelyExecutor):
    """Raises in the steps that are told."""

    fails_at: frozenset[int] = frozenset()
    num_calls = 0

    def step(self, batch: TokenBatch) -> Any:
        self.num_calls += 1
        if self.num_calls in self.fails_at:
            raise MemoryError("no memory for this step")
        return super().step(batch)


def test_an_executor_that_raises_fails_only_who_was_in_the_step(byte_tokenizer: Tokenizer) -> None:
    executor = Failing([1, 2, 3], num_pages=64)
    executor.fails_at = frozenset({3})
    core = core_of(executor, byte_tokenizer, budget=Budget(running=4))
    jobs = [job([i, 1, 2], max_tokens=9, ignore_eos=True, n=3 if i == 0 else 1) for i in range(5)]
    found = outcomes(core, jobs, arrivals=[0, 0, 1, 4, 5])
    assert [type(outcome.error) for outcome in found] == [MemoryError] * 2 + [type(None)] * 3  # the third waited
    for index in (2, 3, 4):
        expected = alone(jobs[index], LivelyExecutor([1, 2, 3]), byte_tokenizer)
        assert found[index].comparable() == expected.comparable()
    assert core.statistics().failed == 2


def test_a_queue_that_is_full_refuses_and_takes_again_when_there_is_room(byte_tokenizer: Tokenizer) -> None:
    core, _ = core_and_executor(byte_tokenizer, max_waiting=2, budget=Budget(running=1))
    one = job([1, 2], max_tokens=1)
    for _ in range(3):
        streams = [core.add(one), core.add(one)]
        with pytest.raises(QueueFullError, match="2 requests are waiting already; allowed: 2"):
            core.add(one)
        core.step()
        streams.append(core.add(one))
        while core.is_busy:
            core.step()
        assert all(stream.is_over for stream in streams)


@pytest.mark.parametrize("after", [0, 1, 2, 5])
def test_an_aborted_request_frees_its_pages_before_the_next_step_and_changes_nobody(
    byte_tokenizer: Tokenizer, after: int
) -> None:
    core, _ = core_and_executor(byte_tokenizer, num_pages=64)
    jobs = [job([i, 2, 3, 4, 5], temperature=1, seed=3, max_tokens=20, ignore_eos=True, n=3 - i) for i in range(3)]
    found = outcomes(core, jobs, aborts={0: after})
    assert found[0].end is None and found[0].error is None
    for index in (1, 2):
        assert found[index].comparable() == alone(jobs[index], lively(byte_tokenizer), byte_tokenizer).comparable()
    assert core.statistics().aborted == 1
    core.abort(0)
    core.abort(999)
    core.step()
    core.check_invariants()


def test_the_work_of_a_step_is_bounded_beside_streams(byte_tokenizer: Tokenizer) -> None:
    core, executor = core_and_executor(byte_tokenizer, speculation=False, budget=Budget(beside_tokens=8))
    outcomes(core, [job([1], max_tokens=30, ignore_eos=True), job([2] * 60, max_tokens=2)], arrivals=[0, 2])
    sizes = [len(step.token_ids) for step in executor.steps]
    assert max(sizes) <= 9 and sizes.count(9) == 7


def test_a_request_that_can_never_fit_is_refused_with_both_numbers(byte_tokenizer: Tokenizer) -> None:
    core, _ = core_and_executor(byte_tokenizer)
    for tokens in (96, 97, 5000):
        with pytest.raises(ContextLengthError, match=f"{tokens:,} tokens.*holds 96"):
            core.add(job([1] * tokens))
    assert not core.is_busy
    found = outcomes(core, [job([1] * 95), Read([1] * 96, "last_logits")])
    assert found[0].choices[0].completion_tokens == 1 and found[1].rows is not None


def test_the_longest_request_runs_alone_and_to_the_end_of_the_context(byte_tokenizer: Tokenizer) -> None:
    core, _ = core_and_executor(byte_tokenizer)
    jobs = [job([i] * 3, ignore_eos=True, temperature=1, seed=1) for i in range(3)]
    found = outcomes(core, jobs)
    assert [outcome.choices[0].completion_tokens for outcome in found] == [93] * 3
    assert {outcome.choices[0].finish_reason for outcome in found} == {"length"}


def test_rows_of_a_text_that_is_read_are_those_of_the_model(byte_tokenizer: Tokenizer) -> None:
    core, executor = core_and_executor(byte_tokenizer, budget=Budget(prefill_tokens=7, every_row_tokens=5))
    ids = list(range(30))
    for _ in range(2):  # cold, then with all pages cached
        every, last, hidden = outcomes(
            core, [Read(ids, "all_logits"), Read(ids, "last_logits"), Read(ids, "last_hidden")]
        )
        expected = np.stack([executor.row(ids[: i + 1]) for i in range(30)])
        assert every.rows is not None and last.rows is not None and hidden.rows is not None
        np.testing.assert_array_equal(every.rows, expected)
        np.testing.assert_array_equal(last.rows, expected[-1:])
        assert hidden.rows.shape == (1, 8)


def test_prompt_log_probabilities_are_the_models(byte_tokenizer: Tokenizer) -> None:
    core, executor = core_and_executor(byte_tokenizer, num_pages=24, budget=Budget(every_row_tokens=5))
    ids = byte_tokenizer.encode("abcd abcd abcd")
    outcomes(core, [job(ids)])
    for n in (1, 2):
        end = outcomes(core, [job(ids, prompt_logprobs=2, n=n, max_tokens=3)])[0].end
        assert end is not None and end.prompt_logprobs is not None and len(end.prompt_logprobs) == len(ids) - 1
        for place, entry in enumerate(end.prompt_logprobs):
            row = executor.row(ids[: place + 1])[: limits_of(byte_tokenizer).num_token_ids].astype(np.float64)
            expected = row - row.max() - np.log(np.exp(row - row.max()).sum())
            assert entry.chosen.token_id == ids[place + 1]
            assert abs(entry.chosen.logprob - expected[ids[place + 1]]) < 1e-6
            assert [one.token_id for one in entry.top] == np.argsort(-expected, kind="stable")[:2].tolist()


def test_a_thought_can_be_stopped_while_it_runs(byte_tokenizer: Tokenizer) -> None:
    executor = LivelyExecutor(byte_tokenizer.encode("abcd"), num_pages=64)
    core = core_of(executor, byte_tokenizer)
    stream = core.add(job([1, 2], thinking="open", max_tokens=40, ignore_eos=True))
    for _ in range(4):
        core.step()
    core.stop_thinking(stream.number)
    core.stop_thinking(999)
    while core.is_busy:
        core.step()
    text = stream.take()[-2].text  # type: ignore[union-attr]
    thought, answer = text.split("\n</think>\n\n")
    assert 3 <= len(thought) <= 20 and len(answer) > 10


def test_statistics_say_how_it_stands(byte_tokenizer: Tokenizer) -> None:
    core, _ = core_and_executor(byte_tokenizer, budget=Budget(running=1), speculation=False)
    for i in range(3):
        core.add(job([i] * 9, max_tokens=3, ignore_eos=True))
    core.step()
    now = core.statistics()
    assert (now.running, now.waiting, now.pages, now.held_pages) == (1, 2, 24, 3)
    while core.is_busy:
        core.step()
    end = core.statistics()
    assert (end.prompt_tokens, end.output_tokens, end.finished, end.steps) == (27, 9, 3, 9)
    assert end.cached_pages > 0 and sum(end.step_histogram) == 9 and end.step_seconds > 0


def test_an_error_of_the_grammar_ends_its_own_job_and_is_told(
    byte_tokenizer: Tokenizer, byte_compiler: GrammarCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kaishu.engine.grammar import GrammarState

    core, _ = core_and_executor(byte_tokenizer, num_pages=64)
    grammar = byte_compiler.compile(OutputFormat.regex("(a|b)+c"))
    streams = [core.add(job([1, i], grammar=grammar if i == 0 else None, max_tokens=9, n=3)) for i in range(2)]
    for _ in range(3):
        core.step()

    def refuse(self: Any, limit: int) -> list[int]:
        raise InvalidRequestError("It became too complex.", field="output_format")

    monkeypatch.setattr(GrammarState, "forced", refuse)
    assert streams[0] in core.step()
    core.check_invariants()
    while core.is_busy:
        core.step()
    with pytest.raises(InvalidRequestError, match="too complex"):
        while True:
            streams[0].take()
    assert len([event for event in streams[1].take() if type(event).__name__ == "ChoiceEnd"]) == 3


def test_the_settings_of_an_engine_have_defaults(byte_tokenizer: Tokenizer) -> None:
    core = EngineCore(lively(byte_tokenizer), byte_tokenizer, limits_of(byte_tokenizer, CONTEXT_TOKENS))
    assert core.settings == EngineSettings() and core.step() == [] and not core.is_busy


def test_with_the_kernels_any_jobs_together_get_the_bits_that_each_gets_alone(
    byte_tokenizer: Tokenizer, byte_compiler: GrammarCompiler, tiny_checkpoint: Any
) -> None:
    from kaishu.checkpoint import open_checkpoint
    from kaishu.cpu.executor import CpuExecutor
    from kaishu.cpu.target import current_target

    checkpoint = open_checkpoint(tiny_checkpoint("dense_tied", with_tokenizer=True))
    for weights, room_tokens in (("int4", 96), ("bf16", 192)):
        num_pages = room_tokens // (2 * current_target().lanes)  # a page is larger where vectors are
        executor = CpuExecutor.from_checkpoint(checkpoint, weights=weights, head="int8", threads=1, num_pages=num_pages)  # type: ignore[arg-type]
        rng, jobs = np.random.default_rng(7), list[Generate | Read]()
        for number in range(24):
            prompt = byte_tokenizer.encode(COMMON[: rng.integers(0, 41)] + "ab" * rng.integers(1, 6))
            fields: dict[str, Any] = {"max_tokens": int(rng.integers(1, 30)), "ignore_eos": bool(rng.integers(2))}
            fields |= {"temperature": float(rng.choice([0.0, 0.2, 1.0])), "seed": number}
            fields |= [{}, {"logprobs": 2}, {"n": 2}, {"prompt_logprobs": 1}][number % 4]
            if number % 5 == 0:
                fields["grammar"] = byte_compiler.compile(FORMATS[number % 3])
            jobs.append(job(prompt, **fields) if number % 6 else Read(prompt, "all_logits"))
        core = core_of(executor, byte_tokenizer, budget=Budget(beside_tokens=8, every_row_tokens=8, running=8))
        found = outcomes(core, jobs, arrivals=rng.integers(0, 12, 24).tolist(), aborts={3: 4, 7: 9})
        assert core.statistics().preemptions > 0
        for index, one in enumerate(jobs):
            if index not in (3, 7):
                assert found[index].comparable() == alone(one, executor, byte_tokenizer).comparable()
