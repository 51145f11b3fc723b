"""POST /v1/embeddings over a live server: LLM.embed's vectors, in both encodings, one or many, and every refusal."""

from __future__ import annotations

import base64
import time

import httpx
import numpy as np
import pytest

from kaishu import LLM

TEXTS = ["Once upon a time", "从前", "x", "long " * 100, *(f"number {i}" for i in range(60))]


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM("tiny", threads=1, context_tokens=1024)


def post(server, **fields):
    return server.client.post("/v1/embeddings", json={"model": "tiny", "input": "Once", **fields})


def vectors(server, **fields) -> np.ndarray:
    response = post(server, **fields)
    assert response.status_code == 200, response.text
    body = response.json()
    assert body["object"] == "list" and [one["index"] for one in body["data"]] == list(range(len(body["data"])))
    return np.array([one["embedding"] for one in body["data"]], np.float32)


def test_many_texts_have_the_vectors_of_the_python_api(tiny, llm):
    np.testing.assert_allclose(vectors(tiny, input=TEXTS), llm.embed(TEXTS), atol=1e-6)


def test_a_batch_equals_each_alone(tiny):
    many = vectors(tiny, input=TEXTS[:5])
    for text, expected in zip(TEXTS[:5], many, strict=True):
        np.testing.assert_array_equal(vectors(tiny, input=text)[0], expected)


def test_the_last_token_is_the_end_token_also_after_truncation(tiny, llm):
    """What decides is the state at the end token: a text and its ids without it are the same."""
    long = "word " * 3000
    cut = vectors(tiny, input=long, truncate=True)[0]
    ids = llm.tokenizer.encode(long)[: 1024 - 1]
    np.testing.assert_allclose(vectors(tiny, input=ids)[0], cut, atol=1e-6)
    assert post(tiny, input=long, truncate=True).json()["usage"]["prompt_tokens"] == 1024


@pytest.mark.parametrize("dimensions", [1, 7, None])
def test_vectors_have_unit_length_also_when_they_are_cut(tiny, dimensions):
    found = vectors(tiny, input=TEXTS[:4], dimensions=dimensions)
    np.testing.assert_allclose(np.linalg.norm(found.astype(np.float64), axis=1), 1, atol=1e-6)
    if dimensions:
        whole = vectors(tiny, input=TEXTS[:4])[:, :dimensions]
        assert found.shape == (4, dimensions)
        np.testing.assert_allclose(found, whole / np.linalg.norm(whole, axis=1, keepdims=True), atol=1e-6)


def test_base64_is_little_endian_float32_of_the_same_numbers(tiny):
    said = [one["embedding"] for one in post(tiny, input=TEXTS[:3], encoding_format="base64").json()["data"]]
    found = np.stack([np.frombuffer(base64.b64decode(text), "<f4") for text in said])
    np.testing.assert_array_equal(found, vectors(tiny, input=TEXTS[:3]))


def test_usage_counts_what_was_read(tiny, llm):
    usage = post(tiny, input=TEXTS[:2]).json()["usage"]
    expected = sum(len(llm.tokenizer.encode(text)) + 1 for text in TEXTS[:2])
    assert usage == {"prompt_tokens": expected, "total_tokens": expected}


@pytest.mark.parametrize(
    "fields, param",
    [
        ({"input": None}, "input"),
        ({"input": ""}, "input"),
        ({"input": ["a", ""]}, "input[1]"),
        ({"input": []}, "input"),
        ({"input": [[1], [99999]]}, "input[1]"),
        ({"input": [[2130]]}, "input[0]"),
        ({"input": "word " * 3000}, "input"),
        ({"input": ["a", "word " * 3000]}, "input[1]"),
        ({"dimensions": 0}, "dimensions"),
        ({"dimensions": 10**6}, "dimensions"),
        ({"encoding_format": "int8"}, "encoding_format"),
        ({"model": ""}, "model"),
        ({"user": 5}, "user"),
    ],
    ids=str,
)
def test_what_cannot_be_done_is_refused_by_name(tiny, fields, param):
    response = post(tiny, **fields)
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"].removesuffix("[0]") == param.removesuffix("[0]")


def test_another_model_is_404_and_the_server_goes_on(tiny):
    assert post(tiny, model="text-embedding-3-small").status_code == 404
    assert post(tiny).status_code == 200


def test_a_client_that_leaves_ends_the_reading(steady, monkeypatch):
    server, executor = steady(max_running=2)
    hidden = executor.hidden
    monkeypatch.setattr(executor, "hidden", lambda batch: time.sleep(0.05) or hidden(batch))
    with pytest.raises(httpx.ReadTimeout):
        server.client.post("/v1/embeddings", json={"model": "tiny", "input": ["word"] * 500}, timeout=0.3)
    server.wait_until_idle()
    assert len(executor.steps) < 100, "it isn't read to the end for nobody"
