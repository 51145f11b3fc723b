"""The benchmark of speculation: an answer comes out as it was written, whatever is guessed; not how fast."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks import speculation
from benchmarks.speculation import SayingExecutor, measure, report, step_milliseconds
from benchmarks.speculation_texts import Case, cases
from kaishu.batch import SequenceTokens, pack
from kaishu.loading import LoadedModel, load_model


@pytest.fixture(scope="module")
def loaded() -> LoadedModel:
    return load_model("tiny", threads=1, context_tokens=1024)


def test_what_was_written_is_said_and_everything_else_is_the_model_s(loaded: LoadedModel) -> None:
    text = [5, 6, 7, 8, 9, 10]
    saying = SayingExecutor(loaded.executor)
    saying.token_ids = text
    batch = pack([SequenceTokens(text, 0, [0], (0, 2, 5))])
    own, said = loaded.executor.step(batch).copy(), saying.step(batch)
    assert said[:2].argmax(axis=1).tolist() == [6, 8], "nothing is known of what follows the end"
    changed = np.argwhere(own != said).tolist()
    assert changed == [[0, 6], [1, 8]]
    assert np.array_equal(saying.hidden(batch), loaded.executor.hidden(batch))


def test_every_case_is_said_with_and_without_guesses(loaded: LoadedModel) -> None:
    repeated = Case(
        "copy", "one two three four five six seven eight nine ten. Again: one", " two three four five six", True
    )
    fresh = Case("new", "one two", " seven apples and a fish", False)
    copied, new = measure(loaded, [repeated, fresh], rounds=2)
    assert copied["accepted"] > 0 and copied["steps"] == copied["answer_tokens"] - 1 - copied["accepted"]
    assert new["steps"] + new["accepted"] == new["answer_tokens"] - 1
    assert all(run["guessed"] == 0 for line in (copied, new) for run in line["runs"]["without"])
    assert len(copied["runs"]["with"]) == 2
    shown = report([copied, new], {1: 10.0, 4: 15.0})
    assert "a step with  4 rows    15.00 ms   1.50 times one row's" in shown and "copy" in shown


def test_a_step_is_timed_for_each_number_of_rows(loaded: LoadedModel) -> None:
    found = step_milliseconds(loaded.executor, (1, 3), repeats=2, seed=0)
    assert set(found) == {1, 3} and min(found.values()) > 0


def test_answers_repeat_their_prompts_where_they_are_said_to(loaded: LoadedModel) -> None:
    for case in cases():
        assert case.prompt.endswith("\n\n") and case.answer == case.answer.strip(" ")
        words = [" ".join(case.answer.split()[i : i + 4]) for i in range(len(case.answer.split()) - 3)]
        known = " ".join(case.prompt.split())
        share = sum(run in known for run in words) / len(words)
        assert share > 0.5 if case.repeats else share == 0, (case.name, share)


def test_the_command_measures_and_writes_what_it_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "found.json"
    tiny = str(Path(speculation.__file__).parents[1] / "kaishu" / "models" / "tiny")
    arguments = ["--model", tiny, "--weights", "auto", "--threads", "1", "--rounds", "1", "--repeats", "1"]
    speculation.main([*arguments, "--case", "retrieval", "--json", str(file)])
    assert "retrieval" in capsys.readouterr().out and '"cases"' in file.read_text()
