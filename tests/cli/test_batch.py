"""`kaishu batch`, as a process that is killed, interrupted and started again."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import kaishu
from kaishu.cli.main import main

ROOT = Path(__file__).parents[2]
NUM_REQUESTS = 60


def request_of(place: int) -> dict[str, Any]:
    """Of lengths that differ, so that answers come one by one."""
    body = {"model": "tiny", "messages": [{"role": "user", "content": f"Tell me about {place}."}]}
    sampling = {"temperature": 1, "seed": place, "max_tokens": 1 + 3 * place, "ignore_eos": True}
    return {"custom_id": f"q{place}", "method": "POST", "url": "/v1/chat/completions", "body": {**body, **sampling}}


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    requests, answers = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    lines = [json.dumps(request_of(place)) for place in range(NUM_REQUESTS)]
    lines.insert(17, "no JSON")
    requests.write_text("\n".join(lines) + "\n")
    return requests, answers


def start(files: tuple[Path, Path]) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "kaishu", "batch", *map(str, files), "--threads", "1"]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def wait_for(process: subprocess.Popen[str], path: Path, num_lines: int) -> None:
    """Until so many answers are written, or it is over."""
    while process.poll() is None and (not path.exists() or path.read_bytes().count(b"\n") < num_lines):
        time.sleep(0.002)


def check(answers: Path) -> None:
    """Each request is answered once, as it would be alone."""
    found = [json.loads(line) for line in answers.read_text().splitlines()]
    assert sorted(str(one["custom_id"]) for one in found) == sorted(
        ["None", *(f"q{place}" for place in range(NUM_REQUESTS))]
    )
    llm = kaishu.LLM("tiny", threads=1)
    for one in found:
        if one["custom_id"] is None:
            assert one["error"]["line"] == 18
            continue
        body = request_of(int(one["custom_id"][1:]))["body"]
        del body["model"]
        alone = llm.chat(**body)
        message = one["response"]["body"]["choices"][0]["message"]
        assert (message["content"], message.get("reasoning_content", "")) == (alone.content, alone.reasoning)


def test_a_batch_that_is_killed_at_any_moment_is_completed_by_the_same_command(files):
    chance = random.Random(20250427)
    answers, done, kills = files[1], 0, 0
    while kills < 4:
        process = start(files)
        wait_for(process, answers, done + chance.randint(1, 8))
        time.sleep(chance.random() * 0.03)
        process.kill()
        process.communicate()
        assert process.returncode == -signal.SIGKILL, "it was killed before it was done"
        kills += 1
        done = answers.read_bytes().count(b"\n")
        if kills % 2:
            with answers.open("ab") as file:  # half a line more, as a kill within a write leaves it
                file.write(b'{"id": "batch_req_00", "custom_id": "q5", "respo')
    process = start(files)
    said, _ = process.communicate()
    assert process.returncode == 0 and f"{done:,} from earlier runs" in said
    check(answers)
    again = start(files)
    assert "Nothing to do" in again.communicate()[0] and again.returncode == 0


def test_ctrl_c_ends_it_cleanly_and_says_how_to_go_on(files):
    process = start(files)
    wait_for(process, files[1], 2)
    process.send_signal(signal.SIGINT)
    said, _ = process.communicate()
    num_done = files[1].read_bytes().count(b"\n")
    assert process.returncode == 130 and "Traceback" not in said
    assert f"Stopped with {NUM_REQUESTS + 1 - num_done} to go; the same command goes on with them." in said
    assert files[1].read_bytes().endswith(b"\n")


@pytest.fixture
def run(monkeypatch, capsys):
    """`run(arguments…)`: exit code, stdout, stderr; the model is loaded once."""
    llm = kaishu.LLM("tiny", threads=1)
    loaded: list[str] = []

    def load(_options: Any, model: str) -> kaishu.LLM:
        loaded.append(model)
        return llm

    monkeypatch.setattr("kaishu.cli.options.ModelOptions.load", load)

    def run(*arguments: Any) -> tuple[Any, str, str]:
        with pytest.raises(SystemExit) as ended:
            main(["batch", *map(str, arguments)])
        captured = capsys.readouterr()
        return ended.value.code, captured.out, captured.err

    run.loaded = loaded  # type: ignore[attr-defined]
    return run


def line(custom_id: str, model: str) -> str:
    body = {"model": model, "prompt": "Once", "max_tokens": 1}
    return json.dumps({"custom_id": custom_id, "method": "POST", "url": "/v1/completions", "body": body})


def test_the_model_is_what_the_first_request_names(run, tmp_path):
    requests, answers = tmp_path / "in", tmp_path / "out"
    requests.write_text("oops\n" + line("a", "tiny") + "\n" + line("b", "other"))
    code, said, _ = run(requests, answers)
    assert code == 0 and run.loaded == ["tiny"]
    assert said.startswith("1 answer, 2 errors; 1 prompt tokens, 1 completion tokens; ")
    found = {one["custom_id"]: one["response"] for one in map(json.loads, answers.read_text().splitlines())}
    assert found["b"]["status_code"] == 404 and found["a"]["status_code"] == 200


def test_another_model_can_be_said_to_answer_all(run, tmp_path):
    requests, answers = tmp_path / "in", tmp_path / "out"
    requests.write_text(line("a", "gpt") + "\n" + line("b", "other"))
    assert run(requests, answers, "--model", "tiny", "--any-model")[1].startswith("2 answers, 0 errors")
    assert run.loaded == ["tiny"]


def test_wrong_files_are_told_before_a_model_is_loaded(run, tmp_path):
    requests, answers, empty = tmp_path / "in", tmp_path / "out", tmp_path / "empty"
    requests.write_text(line("a", "tiny"))
    answers.write_text("my notes\n")
    empty.write_text("\n")
    for arguments, message in [
        ((tmp_path / "none", answers), "No such file"),
        ((empty, tmp_path / "new"), "has no requests"),
        ((requests, requests), "can't go into the file of the requests"),
        ((requests, answers), "its line 1 is no answer of an earlier run"),
        ((requests, tmp_path), "Is a directory"),
    ]:
        code, _, said = run(*arguments)
        assert code == 2 and message in said, said
    requests.write_text("{}")
    assert "names a model" in run(requests, tmp_path / "new")[2]
    assert not run.loaded and answers.read_text() == "my notes\n"
