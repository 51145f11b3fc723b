"""`kaishu embed`: a line of JSON for each text, with the numbers that the API gives."""

from __future__ import annotations

import io
import json

import numpy as np
import pytest

from kaishu.cli.main import main


@pytest.fixture
def run(loaded_llm, monkeypatch, capsys):
    """`run(arguments…, stdin=…, code=0)`: the lines of stdout, or stderr where the code isn't 0."""

    def run(*arguments: str, stdin: bytes = b"", code: int = 0) -> list[str]:
        monkeypatch.setattr("kaishu.cli.options.ModelOptions.load", lambda _options, _model: loaded_llm)
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        with pytest.raises(SystemExit) as ended:
            main(["embed", "tiny", *arguments])
        captured = capsys.readouterr()
        assert ended.value.code == code, captured.err
        return (captured.err if code else captured.out).splitlines()

    return run


def test_each_text_is_a_line_with_exactly_the_numbers_of_the_api(run, loaded_llm):
    lines = [json.loads(line) for line in run("one", "楷书", "--instruct", "find", "--dimensions", "7")]
    assert [line["index"] for line in lines] == [0, 1]
    expected = loaded_llm.embed(["one", "楷书"], instruct="find", dimensions=7)
    np.testing.assert_array_equal(np.array([line["embedding"] for line in lines], np.float32), expected)


def test_texts_may_come_through_a_pipe_one_a_line(run):
    assert run(stdin="one\r\n楷书\n".encode()) == run("one", "楷书")


def test_an_empty_line_is_an_error_that_says_which(run):
    assert run(stdin=b"one\n\ntwo\n", code=2)[0] == (
        "kaishu: error: texts[1] is empty; allowed: a text of at least one character."
    )


def test_a_text_that_is_too_long_is_cut_only_when_asked(run):
    assert "texts[0] has 601 tokens, but the context holds 512" in run("x" * 600, code=2)[0]
    assert len(run("x" * 600, "--truncate")) == 1
