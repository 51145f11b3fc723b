"""The engine over many random requests with the bundled model: nothing leaks, nothing differs from a run alone.

By default 60 requests. In full, about ten minutes:

    KAISHU_LONG_TESTS=1 pytest tests/engine/test_soak.py -n 0 -s
"""

from __future__ import annotations

import os
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kaishu
from kaishu.checkpoint import open_checkpoint
from kaishu.engine.core import EngineCore, EngineSettings
from kaishu.engine.jobs import Generate
from kaishu.engine.output import Limits
from kaishu.engine.stream import Stream
from kaishu.text.tokenizer import Tokenizer
from tests.engine.engine_runs import Outcome, job

IS_LONG = bool(os.environ.get("KAISHU_LONG_TESTS"))
NUM_REQUESTS, NUM_WARM = (5_000, 1_000) if IS_LONG else (60, 20)
AT_ONCE = 40
CONTEXT_TOKENS = 512
FOLDER = Path(kaishu.__file__ or "").parent / "models" / "tiny"


@dataclass
class Engine:
    """The bundled model in a core, with pages for a few requests only."""

    core: EngineCore
    tokenizer: Tokenizer


def engine(num_pages: int, *, speculation: bool = True) -> Engine:
    from kaishu.cpu.executor import CpuExecutor

    checkpoint, tokenizer = open_checkpoint(FOLDER), Tokenizer.from_folder(FOLDER)
    executor = CpuExecutor.from_checkpoint(checkpoint, weights="int4", head="int8", threads=1, num_pages=num_pages)
    count = min(tokenizer.vocab_size, checkpoint.config.vocab_size)
    ends = tokenizer.eos_token_ids | frozenset(checkpoint.config.eos_token_ids)
    limits = Limits(CONTEXT_TOKENS, ends, count, frozenset(tokenizer.ids_without_token(count)))
    return Engine(EngineCore(executor, tokenizer, limits, EngineSettings(speculation=speculation)), tokenizer)


def random_job(rng: np.random.Generator, tokenizer: Tokenizer) -> Generate:
    """Half of them begin with one of three texts, as chats do."""
    system = f"<|im_start|>system\nYou are assistant {rng.integers(3)}, and answer in a few words.<|im_end|>\n"
    numbers = " + ".join(str(rng.integers(100)) for _ in range(rng.integers(1, 30)))
    question = f"<|im_start|>user\n{numbers}<|im_end|>\n<|im_start|>assistant\n"
    text = (system if rng.random() < 0.5 else "") + question
    fields: dict[str, Any] = {"max_tokens": int(rng.integers(1, 64)), "priority": int(rng.integers(0, 3))}
    if rng.random() < 0.5:
        fields |= {"temperature": float(rng.choice([0.5, 1.0])), "seed": int(rng.integers(1000))}
    if rng.random() < 0.1:
        fields |= {"n": int(rng.integers(2, 4)), "seed": 1}
    if rng.random() < 0.1:
        fields["logprobs"] = 2
    if rng.random() < 0.05:
        fields["prompt_logprobs"] = 0
    if rng.random() < 0.3:
        fields |= {"thinking": "none", "thinking_budget": int(rng.integers(0, 20))}
    return job(tokenizer.encode(text, allow_control=True), **fields)


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def alone(one: Generate, own: Engine) -> Outcome:
    own.core.pool.forget_all()  # cold
    stream, outcome = own.core.add(one), Outcome()
    while own.core.is_busy:
        own.core.step()
        outcome.add(stream)
    return outcome


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="memory is read from /proc")
def test_thousands_of_requests_leave_nothing_behind_and_get_what_they_get_alone() -> None:
    rng = np.random.default_rng(20250427)
    busy, quiet = engine(64), engine(64, speculation=False)
    core = busy.core
    running: dict[int, tuple[Generate, Stream, Outcome, bool]] = {}
    checked: deque[tuple[Generate, Outcome]] = deque()
    added = aborted = compared = 0
    memory: list[int] = []
    while added < NUM_REQUESTS or core.is_busy:
        while added < NUM_REQUESTS and len(running) < AT_ONCE and rng.random() < 0.5:
            one = random_job(rng, busy.tokenizer)
            stream = core.add(one)
            running[stream.number] = one, stream, Outcome(), rng.random() < 0.1
            added += 1
        for number, (_, _, _, is_left) in running.items():
            if is_left and rng.random() < 0.1:
                core.abort(number)
        core.step()
        core.check_invariants()
        for number, (one, stream, outcome, _) in list(running.items()):
            outcome.add(stream)
            if stream.is_over:
                del running[number]
                assert outcome.error is None
                outcome.check()
                aborted += outcome.end is None
                if outcome.end is not None and number % 10 == 0:
                    checked.append((one, outcome))
        while checked:
            one, outcome = checked.popleft()
            assert outcome.comparable() == alone(one, quiet).comparable()
            compared += 1
        if added >= NUM_WARM and (not memory or added >= NUM_WARM + len(memory) * NUM_REQUESTS // 20):
            memory.append(resident_bytes())
    statistics = core.statistics()
    assert not running and core.pool.num_held == 0 == statistics.running == statistics.waiting
    assert statistics.finished == NUM_REQUESTS - aborted and statistics.aborted == aborted > 0
    print(f"\n{added:,} requests, {aborted:,} aborted, {compared:,} compared; {statistics.preemptions:,} pre-emptions")
    print(
        f"hit rate {statistics.hit_rate:.2f}, acceptance {statistics.acceptance or 0:.2f}, {statistics.steps:,} steps"
    )
    print("resident MiB:", *(size >> 20 for size in memory))
    if IS_LONG:
        assert max(memory) < 1.02 * memory[0] and min(memory) > 0.98 * memory[0]
