"""Callers that wait: one runs the step, all get what is theirs, and whoever leaves gives everything back."""

from __future__ import annotations

import threading
from contextlib import closing

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kaishu.batch import TokenBatch
from kaishu.config import GenerationDefaults
from kaishu.engine.blocking import BlockingEngine
from kaishu.engine.core import EngineCore, EngineSettings
from kaishu.engine.jobs import Generate, Read
from kaishu.engine.output import Limits
from kaishu.engine.scheduler import Budget
from kaishu.engine.stream import ChoiceEnd, RequestEnd, Stream, TextPiece
from kaishu.errors import ContextLengthError, QueueFullError
from kaishu.sampling import SamplingParams
from tests.scripted import Script, ScriptedExecutor, state_of
from tests.tiny_checkpoints import IM_END, VOCAB_SIZE

CONTEXT = 64


class Steps(ScriptedExecutor):
    """After every context comes the byte after its last one; `during` is called in each step."""

    def __init__(self, during=lambda: None):
        super().__init__(lambda context: (context[-1] + 1) % 256, vocab_size=VOCAB_SIZE, num_pages=32)
        self.during = during

    def step(self, batch):
        self.during()
        return super().step(batch)


def engine_of(tokenizer, executor=None, **options) -> BlockingEngine:
    limits = Limits(CONTEXT, frozenset({IM_END}), tokenizer.vocab_size, frozenset())
    chosen = EngineSettings(**{"speculation": False, **options})
    return BlockingEngine(EngineCore(executor or Steps(), tokenizer, limits, chosen))


def job(first: int, tokens: int = 5) -> Generate:
    params = SamplingParams(temperature=0, max_tokens=tokens).with_defaults(GenerationDefaults())
    return Generate([first], params)


def tokens_of(events) -> list[int]:
    events = list(events)
    assert isinstance(events[-1], RequestEnd) and isinstance(events[-2], ChoiceEnd)
    pieces = [token for event in events if isinstance(event, TextPiece) for token in event.token_ids]
    assert tuple(pieces) == events[-2].token_ids
    return pieces


def assert_nothing_is_left(engine: BlockingEngine) -> None:
    engine.core.check_invariants()
    assert not engine.core.is_busy and engine.core.statistics().held_pages == 0


def test_waiting_for_a_request_runs_its_steps(byte_tokenizer):
    engine = engine_of(byte_tokenizer)
    assert tokens_of(engine.events(engine.core.add(job(10)))) == [11, 12, 13, 14, 15]
    assert engine.core.statistics().steps == 5
    assert_nothing_is_left(engine)


def test_events_come_as_soon_as_their_step_has_run(byte_tokenizer):
    executor = Steps()
    engine = engine_of(byte_tokenizer, executor)
    with closing(engine.events(engine.core.add(job(10)))) as events:
        for steps in (1, 2, 3):
            assert next(events).token_ids == (10 + steps,)
            assert len(executor.steps) == steps


def run(tokenizer, answer: list[int], prompt: list[int], context_tokens: int = 4096, **fields):
    """One request to a model that gives this answer. return: its end, and the steps"""
    executor = ScriptedExecutor(Script([answer], IM_END), vocab_size=VOCAB_SIZE)
    limits = Limits(context_tokens, frozenset({IM_END}), tokenizer.vocab_size, frozenset())
    engine = BlockingEngine(EngineCore(executor, tokenizer, limits, EngineSettings(speculation=False)))
    params = SamplingParams(**{"temperature": 0, **fields}).with_defaults(GenerationDefaults())
    *_, end, _ = engine.events(engine.core.add(Generate(prompt, params)))
    assert_nothing_is_left(engine)
    return end, executor.steps


@pytest.mark.parametrize(
    "length", [1, 2, *(Budget().prefill_tokens * n + more for n, more in ((1, 0), (1, 1), (3, -1)))]
)
def test_a_prompt_of_any_length_is_computed_in_chunks_and_answered(byte_tokenizer, length):
    answer = byte_tokenizer.encode("fine")
    end, steps = run(byte_tokenizer, answer, [i % 200 for i in range(length)])
    assert list(end.token_ids) == answer
    new_tokens = [len(step.token_ids) for step in steps]
    assert sum(new_tokens) == length + len(answer) and max(new_tokens) <= Budget().prefill_tokens


@pytest.mark.parametrize("max_tokens", [1, 3])
def test_max_tokens_ends_with_length_and_runs_no_step_more(byte_tokenizer, max_tokens):
    answer = byte_tokenizer.encode("alpha beta")
    end, steps = run(byte_tokenizer, answer, [1, 2, 3], max_tokens=max_tokens)
    assert (list(end.token_ids), end.finish_reason) == (answer[:max_tokens], "length")
    assert len(steps) == max_tokens


@pytest.mark.parametrize("fields", [{}, {"max_tokens": 4096}])
def test_the_context_ends_an_answer_with_length(byte_tokenizer, fields):
    answer = byte_tokenizer.encode("one two three")
    end, _ = run(byte_tokenizer, answer, [1, 2, 3], context_tokens=8, **fields)
    assert (list(end.token_ids), end.finish_reason) == (answer[:5], "length")


@pytest.mark.parametrize("stop", ["b,c", ["zzz", "b,c"], [",c"]])
def test_a_stop_string_ends_the_steps_too(byte_tokenizer, stop):
    answer = byte_tokenizer.encode("alpha, b,c tail")
    end, steps = run(byte_tokenizer, answer, [1], stop=stop)
    assert end.text == ("alpha, b" if stop == [",c"] else "alpha, ") and end.finish_reason == "stop"
    assert len(steps) == len("alpha, b,c")


def test_before_min_tokens_neither_end_tokens_nor_stop_strings_end_the_text(byte_tokenizer):
    answer = [*byte_tokenizer.encode("ab"), IM_END]
    end, _ = run(byte_tokenizer, answer, [1], stop="ab", min_tokens=3, max_tokens=6)
    assert end.text.startswith("ab") and len(end.token_ids) == 3 and IM_END not in end.token_ids
    assert end.finish_reason == "stop"  # after the third token, the script's end may come


def test_leaving_early_runs_no_further_step(byte_tokenizer):
    executor = Steps()
    engine = engine_of(byte_tokenizer, executor)
    for _ in engine.events(engine.core.add(job(10, tokens=50))):
        break
    assert len(executor.steps) == 1
    assert_nothing_is_left(engine)


def test_a_step_for_one_serves_all_who_wait(byte_tokenizer):
    engine = engine_of(byte_tokenizer)
    streams = [engine.core.add(job(first)) for first in (10, 20, 30)]
    assert tokens_of(engine.events(streams[1])) == [21, 22, 23, 24, 25]
    steps = engine.core.statistics().steps
    assert tokens_of(engine.events(streams[0])) == [11, 12, 13, 14, 15]
    assert tokens_of(engine.events(streams[2])) == [31, 32, 33, 34, 35]
    assert engine.core.statistics().steps == steps, "the others' tokens came with the first one's"


def test_leaving_early_ends_the_request_and_gives_its_pages_back(byte_tokenizer):
    engine = engine_of(byte_tokenizer)
    events = engine.events(engine.core.add(job(10, tokens=60)))
    next(events)
    assert engine.core.statistics().held_pages > 0
    events.close()
    assert engine.core.statistics().aborted == 1
    assert_nothing_is_left(engine)


def test_ctrl_c_in_a_step_comes_up_and_ends_this_request_alone(byte_tokenizer):
    executor = Steps()
    engine = engine_of(byte_tokenizer, executor)
    other = engine.core.add(job(100))
    events = engine.events(engine.core.add(job(10)))
    next(events)

    def interrupt():
        raise KeyboardInterrupt

    executor.during = interrupt
    with pytest.raises(KeyboardInterrupt):
        next(events)
    executor.during = lambda: None
    assert tokens_of(engine.events(other)) == [101, 102, 103, 104, 105]
    assert_nothing_is_left(engine)


def test_what_makes_a_step_fail_comes_up_where_each_request_was_made(byte_tokenizer):
    def fail():
        raise MemoryError("no room")

    executor = Steps(fail)
    engine = engine_of(byte_tokenizer, executor)
    streams = [engine.core.add(job(first)) for first in (10, 20)]
    for stream in streams:
        with pytest.raises(MemoryError, match="no room"):
            list(engine.events(stream))
    executor.during = lambda: None
    assert tokens_of(engine.events(engine.core.add(job(30, 2)))) == [31, 32]
    assert_nothing_is_left(engine)


def test_threads_share_steps_and_each_gets_its_own(byte_tokenizer):
    executor, threads = Steps(), 8
    engine = engine_of(byte_tokenizer, executor)
    barrier, found = threading.Barrier(threads), {}

    def ask(number):
        barrier.wait()
        for again in range(5):
            found[number, again] = tokens_of(engine.events(engine.core.add(job(10 * number + again))))

    running = [threading.Thread(target=ask, args=(number,)) for number in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    expected = {(n, a): [10 * n + a + 1 + k for k in range(5)] for n in range(threads) for a in range(5)}
    assert found == expected
    assert_nothing_is_left(engine)


def test_one_thread_waits_while_anothers_step_runs_and_gets_what_that_brought(byte_tokenizer):
    in_step, may_go_on = threading.Event(), threading.Event()

    def during():
        in_step.set()
        assert may_go_on.wait(60)

    executor = Steps(during)
    engine = engine_of(byte_tokenizer, executor)
    first, second = engine.core.add(job(10, 1)), engine.core.add(job(20, 1))
    found = {}
    one = threading.Thread(target=lambda: found.update(one=tokens_of(engine.events(first))))
    one.start()
    assert in_step.wait(60)
    other = threading.Thread(target=lambda: found.update(other=tokens_of(engine.events(second))))
    other.start()
    may_go_on.set()
    one.join()
    other.join()
    assert found == {"one": [11], "other": [21]} and len(executor.steps) == 1


def test_an_end_that_another_thread_brings_between_two_looks_is_not_lost(byte_tokenizer):
    class EndsBehindOnesBack(Stream):
        """Its events come after it was found empty and before anything else is asked."""

        def take(self):
            found = super().take()
            if not found and not self.is_over:
                self.add(TextPiece(0, "x", (1,)))
                self.end()
            return found

    assert list(engine_of(byte_tokenizer).events(EndsBehindOnesBack(0))) == [TextPiece(0, "x", (1,))]


def test_pages_come_back_also_when_somebody_leaves_during_anothers_last_step(byte_tokenizer):
    in_step, may_go_on = threading.Event(), threading.Event()

    def during() -> None:
        in_step.set()
        assert may_go_on.wait(60)

    executor = Steps()
    engine = engine_of(byte_tokenizer, executor)
    leaving = engine.events(engine.core.add(job(1, tokens=20)))
    next(leaving)
    executor.during = during
    runner = threading.Thread(target=lambda: list(engine.events(engine.core.add(job(9, tokens=1)))))
    runner.start()
    assert in_step.wait(60)
    leaving.close()
    may_go_on.set()
    runner.join(60)
    assert_nothing_is_left(engine)


def test_a_job_can_be_ended_by_whoever_lets_another_in(byte_tokenizer):
    """The garbage collector closes abandoned streams at any moment, also in a thread that has the core's lock."""
    engine = engine_of(byte_tokenizer)
    abandoned, made = engine.core.add(job(1)), engine.core._admission.checked(job(2))

    def while_it_is_made(number: int):
        engine.core.abort(abandoned.number)
        return made(number)

    found: list[Stream] = []
    caller = threading.Thread(target=lambda: found.append(engine.core._enter(while_it_is_made)), daemon=True)
    caller.start()
    caller.join(10)
    assert found, "nobody waits for a lock that it has itself"
    assert tokens_of(engine.events(found[0])) == [3, 4, 5, 6, 7] and abandoned.is_over


# Many jobs


@pytest.mark.parametrize("at_once", [1, 2, 3, 100])
def test_many_jobs_come_in_their_order_and_so_many_run_at_once(byte_tokenizer, at_once):
    engine, most = engine_of(byte_tokenizer), 0
    firsts = [10, 50, 30, 40, 20, 60]
    found = []
    for stream in engine.many(
        map(engine.core.prepare, [job(first, tokens=1 + first % 7) for first in firsts]), at_once
    ):
        found.append(tokens_of(engine.events(stream))[0])
        most = max(most, max(len(step.query_starts) - 1 for step in engine.core.executor.steps))
    assert found == [first + 1 for first in firsts]
    assert most == min(at_once, len(firsts))
    assert_nothing_is_left(engine)


def test_no_jobs_give_nothing(byte_tokenizer):
    assert list(engine_of(byte_tokenizer).many([], 5)) == []


def test_rows_of_many_texts_are_each_texts_own(byte_tokenizer):
    engine = engine_of(byte_tokenizer)
    texts = [[(7 * i + k) % 256 for k in range(length)] for i, length in enumerate((1, 40, 16, 17, 64, 3))]
    rows = []
    for stream in engine.many(map(engine.core.prepare, [Read(text, "last_hidden") for text in texts]), 4):
        assert list(engine.events(stream)) == []
        rows.append(stream.rows)
    np.testing.assert_array_equal(np.concatenate(rows), np.stack([state_of(text) for text in texts]))


PREFILL = Budget().prefill_tokens
LONG = 1300
LENGTHS = st.one_of(st.integers(1, 40), st.sampled_from([PREFILL - 1, PREFILL, PREFILL + 1, 1024, LONG]))


def read_all(tokenizer, texts, *, context_tokens=LONG, **sizes) -> tuple[list[np.ndarray], list[TokenBatch]]:
    """return: each text's last hidden state, and the steps that computed them"""
    executor = ScriptedExecutor(lambda _: 0, vocab_size=VOCAB_SIZE, **sizes)
    limits = Limits(context_tokens, frozenset({IM_END}), tokenizer.vocab_size, frozenset())
    engine = BlockingEngine(EngineCore(executor, tokenizer, limits))
    rows = []
    for stream in engine.many(map(engine.core.prepare, [Read(text, "last_hidden") for text in texts]), 256):
        assert list(engine.events(stream)) == []
        rows.append(stream.rows[0])
    assert_nothing_is_left(engine)
    return rows, executor.steps


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    lengths=st.lists(LENGTHS, max_size=9),
    page_tokens=st.sampled_from([1, 16, 32, 2000]),
    spare_pages=st.integers(0, 40),
)
def test_each_row_is_that_of_its_whole_text_and_steps_are_bounded(byte_tokenizer, lengths, page_tokens, spare_pages):
    """The scripted executor notices wrong pages, positions, and what was never computed."""
    texts = [[(7 * i + k) % 100 for k in range(length)] for i, length in enumerate(lengths)]
    num_pages = -(-LONG // page_tokens) + spare_pages
    found, steps = read_all(byte_tokenizer, texts, page_tokens=page_tokens, num_pages=num_pages)
    assert len(found) == len(texts)
    for text, row in zip(texts, found, strict=True):
        np.testing.assert_array_equal(row, state_of(text))
    assert all(len(step.token_ids) <= PREFILL for step in steps)
    for step in steps:  # its texts are computed at the same time, so none may write into another's pages
        pages = step.page_table[step.page_table >= 0]
        assert len(np.unique(pages)) == len(pages)
    if spare_pages * page_tokens >= 9 * LONG:  # pages are no limit, so every step but the last is full
        assert all(len(step.token_ids) == PREFILL for step in steps[:-1])


def test_short_texts_share_a_step(byte_tokenizer):
    _, steps = read_all(byte_tokenizer, [[1, 2], [3], [4] * 700, [5, 6]], num_pages=200)
    assert [np.diff(step.query_starts).tolist() for step in steps] == [[2, 1, 509], [191, 2]]
    assert [len(step.logit_rows) for step in steps] == [2, 2]


def test_pages_for_one_text_alone_are_enough(byte_tokenizer):
    texts = [[1] * 30, [2] * 30, [3] * 10, [4] * 10]
    found, steps = read_all(byte_tokenizer, texts, context_tokens=32, num_pages=2)
    assert [step.num_sequences for step in steps] == [1, 1, 2]
    for text, row in zip(texts, found, strict=True):
        np.testing.assert_array_equal(row, state_of(text))


def test_leaving_many_jobs_ends_all_that_are_in(byte_tokenizer):
    engine = engine_of(byte_tokenizer)
    with closing(engine.many(map(engine.core.prepare, [job(first, 20) for first in range(10)]), 4)) as streams:
        with closing(engine.events(next(streams))) as events:
            next(events)
        assert engine.core.statistics().running == 3  # the first was ended by leaving it
    assert_nothing_is_left(engine)


def test_a_job_that_is_refused_ends_those_before_it(byte_tokenizer):
    engine = engine_of(byte_tokenizer)
    with pytest.raises(ContextLengthError):
        list(engine.many(map(engine.core.prepare, [job(1), job(2), Read([0] * (CONTEXT + 1), "last_hidden")]), 4))
    assert_nothing_is_left(engine)


def test_where_the_queue_is_full_jobs_wait_for_those_before_them(byte_tokenizer):
    engine = engine_of(byte_tokenizer, max_waiting=2)
    found = [
        tokens_of(engine.events(stream))
        for stream in engine.many(map(engine.core.prepare, [job(first) for first in range(9)]), 100)
    ]
    assert [tokens[0] for tokens in found] == list(range(1, 10))


def test_where_others_have_filled_the_queue_it_is_an_error(byte_tokenizer):
    engine = engine_of(byte_tokenizer, max_waiting=1)
    engine.core.add(job(1))
    with pytest.raises(QueueFullError):
        next(engine.many(map(engine.core.prepare, [job(2)]), 100))


def test_what_is_done_between_steps_waits_for_the_step_and_has_the_core_to_itself(byte_tokenizer):
    in_step, may_go_on, seen = threading.Event(), threading.Event(), []

    def during() -> None:
        in_step.set()
        assert may_go_on.wait(60)
        seen.append("step")

    engine = engine_of(byte_tokenizer, Steps(during))
    runner = threading.Thread(target=lambda: list(engine.events(engine.core.add(job(1, tokens=1)))))
    caller = threading.Thread(target=lambda: engine.between_steps(lambda core: seen.append(core)))
    runner.start()
    assert in_step.wait(60)
    caller.start()
    caller.join(0.05)
    assert caller.is_alive() and not seen
    may_go_on.set()
    runner.join()
    caller.join()
    assert seen == ["step", engine.core]
    assert engine.between_steps(lambda core: core.pool.num_pages) == 32
