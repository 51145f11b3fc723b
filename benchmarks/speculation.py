"""What speculation gains: the same answers with guesses and without, at the same cost of a step.

    python -m benchmarks.speculation --json speculation.json

The model has a real shape and random weights, whose own answers would repeat nothing. So the kernels compute every
step, guessed rows and all, and then the logits that a model with the answers of speculation_texts.py would have had
take the place of theirs. README.md says what exactly is measured.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.checkpoints import FOLDER, prepare
from benchmarks.machine import machine, versions
from benchmarks.speculation_texts import Case, cases

if TYPE_CHECKING:
    from kaishu.batch import Executor, TokenBatch
    from kaishu.engine.core import EngineCore
    from kaishu.loading import LoadedModel

CERTAIN = 1e4  # a logit above all of random weights'
CONTEXT_TOKENS = 2048
SEQUENCE_TOKENS = 600  # of the sequence that rows are added to


class SayingExecutor:
    """An executor that computes, and then says what it was told to. One sequence at a time.

    token_ids: of the whole text, prompt and answer; row by row the next of them becomes certain
    """

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self.token_ids: Sequence[int] = ()
        self.page_tokens, self.num_pages, self.vocab_size = (
            executor.page_tokens,
            executor.num_pages,
            executor.vocab_size,
        )

    def step(self, batch: TokenBatch) -> NDArray[np.float32]:
        """As the executor's, in its time; return: [R, V] float32"""
        rows = self._executor.step(batch)
        for row, position in enumerate(batch.positions[batch.logit_rows].tolist()):
            if position + 1 < len(self.token_ids):
                rows[row, self.token_ids[position + 1]] = CERTAIN
        return rows

    def hidden(self, batch: TokenBatch) -> NDArray[np.float32]:
        """As the executor's; return: [R, D] float32"""
        return self._executor.hidden(batch)


@dataclass(frozen=True)
class Answered:
    """One run of one case: decoding, from the first token of the answer to the last."""

    tokens_per_second: float
    steps: int
    guessed: int
    accepted: int


def answer(core: EngineCore, executor: SayingExecutor, prompt: Sequence[int], said: Sequence[int]) -> Answered:
    """Have an answer said, from a cold cache."""
    from kaishu.config import GenerationDefaults
    from kaishu.engine.jobs import Generate
    from kaishu.engine.stream import TextPiece
    from kaishu.sampling import SamplingParams

    core.pool.forget_all()
    executor.token_ids = [*prompt, *said]
    params = SamplingParams(temperature=0.0, max_tokens=len(said), ignore_eos=True)
    before = core.statistics()
    stream = core.add(Generate(prompt, params.with_defaults(GenerationDefaults())))
    token_ids: list[int] = []
    first_end = 0.0
    steps = -1  # the step that makes the first token isn't timed
    while core.is_busy:
        core.step()
        new = [token_id for event in stream.take() if isinstance(event, TextPiece) for token_id in event.token_ids]
        if new:
            end = time.perf_counter()
            first_end = first_end or end
            steps += 1
        token_ids += new
    assert token_ids == list(said), "whatever was guessed, this is what it had to say"
    after = core.statistics()
    return Answered(
        (len(said) - 1) / (end - first_end), steps, after.guessed - before.guessed, after.accepted - before.accepted
    )


def step_milliseconds(executor: Executor, rows: Sequence[int], repeats: int, seed: int) -> dict[int, float]:
    """How long a step takes with so many new tokens of one sequence, the logits of each included: medians."""
    from kaishu.batch import SequenceTokens, pack

    rng = np.random.default_rng(seed)
    pages = range(-(-(SEQUENCE_TOKENS + max(rows)) // executor.page_tokens))
    text = rng.integers(0, 1000, SEQUENCE_TOKENS).tolist()
    executor.step(pack([SequenceTokens(text, 0, pages)]))
    times: dict[int, list[float]] = {count: [] for count in rows}
    for _ in range(repeats):
        for count in rows:
            token_ids = rng.integers(0, 1000, count).tolist()
            batch = pack([SequenceTokens(token_ids, SEQUENCE_TOKENS, pages, tuple(range(count)))])
            start = time.perf_counter()
            executor.step(batch)
            times[count].append(1000 * (time.perf_counter() - start))
    return {count: statistics.median(found) for count, found in times.items()}


def measure(loaded: LoadedModel, wanted: Sequence[Case], rounds: int) -> list[dict[str, Any]]:
    """Each case with speculation and without, in turn. return: a line of the table for each case"""
    from kaishu.engine.core import EngineCore, EngineSettings

    executor = SayingExecutor(loaded.executor)
    cores = {
        speculation: EngineCore(executor, loaded.tokenizer, loaded.limits, EngineSettings(speculation=speculation))
        for speculation in (False, True)
    }
    lines = []
    for case in wanted:
        prompt, said = loaded.tokenizer.encode(case.prompt), loaded.tokenizer.encode(case.answer)
        runs: dict[bool, list[Answered]] = {False: [], True: []}
        for number in range(rounds):
            for speculation in (False, True) if number % 2 == 0 else (True, False):
                runs[speculation].append(answer(cores[speculation], executor, prompt, said))
        speeds = {name: statistics.median(run.tokens_per_second for run in found) for name, found in runs.items()}
        gains = [b.tokens_per_second / a.tokens_per_second for a, b in zip(runs[False], runs[True], strict=True)]
        own = runs[True][0]
        lines.append(
            {
                "case": case.name,
                "prompt_tokens": len(prompt),
                "answer_tokens": len(said),
                "tokens_per_second": speeds[False],
                "with_speculation": speeds[True],
                "gain": statistics.median(gains),  # of runs that came one after the other
                "runs": {"without": [asdict(run) for run in runs[False]], "with": [asdict(run) for run in runs[True]]},
                "guessed": own.guessed,
                "accepted": own.accepted,
                "steps": own.steps,
            }
        )
    return lines


def report(lines: Sequence[dict[str, Any]], steps: dict[int, float]) -> str:
    """All as text."""
    shown = [
        f"a step with {rows:>2} rows  {ms:7.2f} ms  {ms / steps[1]:5.2f} times one row's" for rows, ms in steps.items()
    ]
    shown.append("")
    shown.append(
        f"{'answer':<16}{'tokens':>7}{'without':>9}{'with':>9}{'gain':>7}{'accepted':>14}{'tokens a step':>15}"
    )
    for line in lines:
        accepted = f"{line['accepted']} of {line['guessed']}"
        per_step = (line["answer_tokens"] - 1) / line["steps"]
        shown.append(
            f"{line['case']:<16}{line['answer_tokens']:>7}{line['tokens_per_second']:>9.1f}"
            f"{line['with_speculation']:>9.1f}{line['gain']:>7.2f}{accepted:>14}{per_step:>15.2f}"
        )
    return "\n".join(shown)


def main(arguments: Sequence[str] | None = None) -> None:
    """The command."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.speculation", description=(__doc__ or "").split("\n\n")[0]
    )
    parser.add_argument("--work", type=Path, default=Path(".cache/benchmarks"), help="where the model is kept")
    parser.add_argument("--shape", default="qwen3-0.6b")
    parser.add_argument("--model", type=Path, help="a folder with weights and tokenizer, instead of --shape")
    parser.add_argument("--tokenizer", type=Path, help="a folder with Qwen3's tokenizer files")
    parser.add_argument("--weights", default="int4")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=9, help="of each step that is timed by itself")
    parser.add_argument("--case", action="append", help="only this one, by its name; may be repeated")
    parser.add_argument("--json", type=Path, help="write all there")
    options = parser.parse_args(arguments)
    wanted = [case for case in cases() if not options.case or case.name in options.case]
    from kaishu.loading import load_model

    folder = options.model or prepare(options.work, options.shape, None, 0, options.tokenizer, [FOLDER]).paths[FOLDER]
    loaded = load_model(folder, weights=options.weights, threads=options.threads, context_tokens=CONTEXT_TOKENS)
    steps = step_milliseconds(loaded.executor, (1, 2, 3, 4, 5, 6, 7, 8), options.repeats, seed=0)
    lines = measure(loaded, wanted, options.rounds)
    print(report(lines, steps))
    if options.json:
        found = {"machine": machine(), "versions": versions(), "steps_ms": steps, "cases": lines}
        options.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
