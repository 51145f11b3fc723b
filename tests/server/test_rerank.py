"""POST /v1/rerank over a live server: LLM.rerank's scores and order, the form of the API, and every refusal."""

from __future__ import annotations

import pytest

from kaishu import LLM
from kaishu.loading import load_model
from kaishu.server.rerank import MAX_DOCUMENTS, RERANK_FIELDS
from kaishu.server.settings import ServerSettings
from tests.embedding_models import VOCAB_SIZE, write_reranker
from tests.server.conftest import live, service_on

QUERY = "What is the capital of China?"
DOCUMENTS = [
    "The capital of China is Beijing.",
    "Gravity is a force.",
    "北京是中华人民共和国的首都。\n",
    "x",
    "long " * 250,
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_reranker(
        tmp_path_factory.mktemp("reranker"), "dense_tied", vocab_size=VOCAB_SIZE, dtype="bfloat16", num_hidden_layers=2
    )


@pytest.fixture(scope="module")
def server(folder):
    loaded = load_model(folder, threads=1, context_tokens=512, say=lambda _: None)
    with live(service_on(loaded, "judge"), ServerSettings(port=0)) as started:
        yield started


@pytest.fixture(scope="module")
def llm(folder) -> LLM:
    return LLM(folder, threads=1, context_tokens=512)


def post(server, **fields):
    return server.client.post("/v1/rerank", json={"model": "judge", "query": QUERY, "documents": DOCUMENTS, **fields})


def results(server, **fields):
    response = post(server, **fields)
    assert response.status_code == 200, response.text
    return response.json()["results"]


def test_scores_and_order_are_those_of_the_python_api(server, llm):
    found = results(server)
    expected = llm.rerank(QUERY, DOCUMENTS)
    assert [one["index"] for one in found] == [one.index for one in expected]
    assert [one["relevance_score"] for one in found] == pytest.approx([one.score for one in expected], abs=1e-6)
    assert all(set(one) == {"index", "relevance_score"} for one in found)
    body = post(server).json()
    assert body["model"] == "judge" and body["id"].startswith("rerank-")
    assert body["usage"]["total_tokens"] > 5 * 50


def test_an_instruction_of_ones_own_is_heard(server, llm):
    found = results(server, instruct="Find what is about physics.")
    expected = llm.rerank(QUERY, DOCUMENTS, instruct="Find what is about physics.")
    assert [one["relevance_score"] for one in found] == pytest.approx([one.score for one in expected], abs=1e-6)
    assert found != results(server)


@pytest.mark.parametrize("top_n", [1, 3, 5, 100])
def test_only_the_best_are_given_if_asked(server, top_n):
    assert results(server, top_n=top_n) == results(server)[:top_n]


def test_documents_come_back_if_asked(server):
    for one in results(server, return_documents=True, top_n=3):
        assert one["document"] == {"text": DOCUMENTS[one["index"]]}


def test_documents_may_be_objects_with_a_text(server):
    assert results(server, documents=[{"text": text} for text in DOCUMENTS]) == results(server)


def test_more_documents_than_are_read_at_once_keep_their_order(server):
    documents = [f"Number {i}." for i in range(70)]
    found = results(server, documents=documents)
    alone = {i: results(server, documents=[documents[i]])[0]["relevance_score"] for i in (0, 33, 69)}
    assert sorted(one["index"] for one in found) == list(range(70))
    assert {one["index"]: one["relevance_score"] for one in found if one["index"] in alone} == pytest.approx(alone)


def test_a_document_that_is_too_long_is_refused_by_name_or_cut_if_asked(server, llm):
    documents = ["short", "long " * 2000]
    response = post(server, documents=documents)
    error = response.json()["error"]
    assert (response.status_code, error["code"]) == (400, "context_length_exceeded")
    assert error["param"] == "documents[1]" and "truncate" in error["message"]
    cut = results(server, documents=documents, truncate=True)
    expected = llm.rerank(QUERY, documents, truncate=True)
    assert [one["index"] for one in cut] == [one.index for one in expected]


def test_a_field_that_documents_do_not_have_is_warned_of(server):
    response = post(server, documents=["a", {"text": "b", "title": "c"}])
    assert response.status_code == 200 and response.headers["X-Kaishu-Ignored-Fields"] == "documents[1].title"
    assert response.json()["results"] == results(server, documents=["a", "b"])


@pytest.mark.parametrize(
    "fields, param",
    [
        ({"query": None}, "query"),
        ({"query": ""}, "query"),
        ({"query": 5}, "query"),
        ({"documents": None}, "documents"),
        ({"documents": []}, "documents"),
        ({"documents": "a"}, "documents"),
        ({"documents": ["a", ""]}, "documents[1]"),
        ({"documents": ["a", {"text": 5}]}, "documents[1]"),
        ({"documents": ["a", {"title": "b"}]}, "documents[1].text"),
        ({"query": "long " * 2000}, "query"),
        ({"query": "long " * 2000, "truncate": True}, "query"),
        ({"query": "q" * 2000, "documents": ["a"] * 2001, "truncate": True}, "query"),
        ({"documents": ["a", None]}, "documents[1]"),
        ({"documents": ["a"] * (MAX_DOCUMENTS + 1)}, "documents"),
        ({"top_n": 0}, "top_n"),
        ({"top_n": 1.5}, "top_n"),
        ({"top_n": True}, "top_n"),
        ({"return_documents": 1}, "return_documents"),
        ({"instruct": ""}, "instruct"),
        ({"truncate": "yes"}, "truncate"),
        ({"priority": "high"}, "priority"),
        ({"max_tokens_per_doc": 100}, "max_tokens_per_doc"),
        ({"user": 5}, "user"),
        ({"model": 5}, "model"),
    ],
    ids=lambda value: str(value)[:60],
)
def test_what_cannot_be_done_is_refused_by_name(server, fields, param):
    response = post(server, **fields)
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"] == param
    assert set(RERANK_FIELDS) >= set(fields)


def test_a_model_that_is_no_reranker_says_so(tiny):
    response = tiny.client.post("/v1/rerank", json={"model": "tiny", "query": "a", "documents": ["b"]})
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, "model") and "is no reranker" in error["message"]


def test_another_model_is_404(server):
    assert post(server, model="rerank-v3.5").status_code == 404


def test_a_row_of_logits_is_not_kept_for_each_document(server, monkeypatch):
    """They would be a gigabyte for two thousand documents."""
    kept = []
    from kaishu.server import rerank

    rows_of = rerank.rows_of

    async def noted(*arguments):
        kept.extend(await rows_of(*arguments))
        return kept

    monkeypatch.setattr(rerank, "rows_of", noted)
    assert len(results(server)) == len(kept) == 5
    assert all(row.base is None and row.nbytes == 8 for row in kept)
