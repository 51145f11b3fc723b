"""`kaishu generate` over a scripted model."""

from __future__ import annotations

import io
import json

import pytest

from kaishu.cli.main import main


@pytest.fixture
def run(scripted_llm, monkeypatch, capsys):
    """`run("answer", arguments…)`: what the command wrote to stdout; its exit code must be 0."""

    def run(answer: str, *arguments: str, stdin: bytes = b"") -> str:
        monkeypatch.setattr("kaishu.cli.options.ModelOptions.load", lambda _options, _model: scripted_llm(answer))
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        with pytest.raises(SystemExit) as ended:
            main(["generate", "tiny", *arguments])
        assert ended.value.code == 0
        return capsys.readouterr().out

    return run


def test_the_continuation_streams_to_stdout_and_ends_its_line(run):
    assert run(" upon a time", "-p", "Once") == " upon a time\n"
    assert run("ends itself\n", "-p", "Once") == "ends itself\n"


def test_the_prompt_may_come_through_a_pipe(run):
    assert run(" upon", stdin=b"Once\n") == " upon\n"


def test_sampling_options_arrive(run):
    assert run("one two three", "-p", "x", "--max-tokens", "3") == "one\n"
    assert run("one two three", "-p", "x", "--stop", " two", "--stop", "zzz") == "one\n"
    assert run("abc", "-p", "x", "--stop-token-id", "99") == run("abc", "-p", "x")


def test_control_sequences_are_shown_not_sent(run):
    assert run("\x1b[2J\x9bx [b]", "-p", "x") == "␛[2J\\x9bx [b]\n"


def test_json_says_everything(run):
    said = json.loads(run("你好\x1b", "-p", "Hi", "--json", "--logprobs", "2", "--seed", "1"))
    assert said["text"] == "你好\x1b"
    assert len(said["token_ids"]) == 7
    assert said["finish_reason"] == "stop"
    counts = {"prompt_tokens": 2, "completion_tokens": 8, "total_tokens": 10, "cached_tokens": 0, "reasoning_tokens": 0}
    assert said["usage"] == counts
    assert set(said["timing"]) == {"first_token_seconds", "decode_seconds", "decoded_tokens", "tokens_per_second"}
    assert bytes(byte for entry in said["logprobs"] for byte in entry["bytes"]).decode() == "你好\x1b"
    assert all(len(entry["top"]) == 2 and entry["logprob"] <= 0 for entry in said["logprobs"])


def test_json_without_log_probabilities_says_null(run):
    assert json.loads(run("a", "-p", "x", "--json"))["logprobs"] is None
