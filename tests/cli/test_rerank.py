"""`kaishu rerank`: a line of JSON for each document, the best first."""

from __future__ import annotations

import io
import json

import pytest

from kaishu.cli.main import main
from kaishu.results import RerankResult


class Judge:
    """Finds a document the better, the longer it is; remembers what it was asked."""

    notes = ("a note",)

    def __init__(self) -> None:
        self.asked: list[object] = []

    def rerank(self, query: str, documents: list[str], **options: object) -> list[RerankResult]:
        self.asked += [query, documents, options]
        best = sorted(range(len(documents)), key=lambda index: -len(documents[index]))
        return [RerankResult(index, len(documents[index]) / 100) for index in best]


@pytest.fixture
def judge() -> Judge:
    return Judge()


@pytest.fixture
def run(judge, monkeypatch, capsys):
    def run(*arguments: str, stdin: bytes = b"") -> list[str]:
        monkeypatch.setattr("kaishu.cli.options.ModelOptions.load", lambda _options, _model: judge)
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        with pytest.raises(SystemExit) as ended:
            main(["rerank", "tiny", *arguments])
        captured = capsys.readouterr()
        assert (ended.value.code, captured.err) == (0, "a note\n")
        return captured.out.splitlines()

    return run


def test_documents_come_in_order_with_their_place_score_and_text(run, judge):
    lines = run("q", "short", "longer\x9b", "--instruct", "find", "--truncate")
    assert [json.loads(line) for line in lines] == [
        {"index": 1, "score": 0.07, "document": "longer\x9b"},
        {"index": 0, "score": 0.05, "document": "short"},
    ]
    assert "\x9b" not in "".join(lines)
    assert judge.asked == ["q", ["short", "longer\x9b"], {"instruct": "find", "truncate": True}]


def test_documents_may_come_through_a_pipe_one_a_line(run, judge):
    run("q", stdin=b"a\n\nbc\n")
    assert judge.asked == ["q", ["a", "", "bc"], {"instruct": None, "truncate": False}]


def test_a_model_that_is_no_reranker_is_said_in_one_line(loaded_llm, monkeypatch, capsys):
    monkeypatch.setattr("kaishu.cli.options.ModelOptions.load", lambda _options, _model: loaded_llm)
    with pytest.raises(SystemExit) as ended:
        main(["rerank", "tiny", "q", "d"])
    error = capsys.readouterr().err
    assert ended.value.code == 2 and error.startswith("kaishu: error: This model is no reranker: its tokenizer cuts")
