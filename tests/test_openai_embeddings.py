"""Embeddings in OpenAI's form: what is read for each kind of input, and vectors that LLM.embed gives, too."""

from __future__ import annotations

import base64
import struct

import numpy as np
import pytest

import kaishu
from kaishu.errors import ContextLengthError, InvalidRequestError
from kaishu.openai_embeddings import embedding_jobs, embedding_response, read_embedding
from kaishu.openai_fields import EMBEDDING_FIELDS, spelt

BODY = {"model": "m", "input": "Once"}
REFUSED = {
    "model": 5,
    "input": "",
    "dimensions": 0,
    "encoding_format": "int8",
    "instruct": "",
    "truncate": 1,
    "priority": "high",
}


@pytest.fixture(scope="module")
def llm() -> kaishu.LLM:
    return kaishu.LLM("tiny", threads=1)


def jobs_of(llm, **fields):
    call = read_embedding({**BODY, **fields})
    with spelt(call.names):
        return call, embedding_jobs(call, llm.loaded, llm.prompting)


def test_every_field_that_is_read_has_a_refusal_that_names_it(llm):
    assert {name for name, field in EMBEDDING_FIELDS.items() if field.use == "read"} == set(REFUSED)
    for name, value in REFUSED.items():
        with pytest.raises(InvalidRequestError) as caught:
            jobs_of(llm, **{name: value})
        assert caught.value.field.split("[")[0] == name and name in caught.value.message


@pytest.mark.parametrize("given", ["Once", ["Once", "从前"]])
@pytest.mark.parametrize("instruct", [None, "Find it."])
def test_vectors_are_those_of_llm_embed(llm, given, instruct):
    call, jobs = jobs_of(llm, input=given, dimensions=5, instruct=instruct)
    rows = np.array([llm._read(job)[0] for job in jobs])
    body = embedding_response(call, rows, jobs)
    expected = llm.embed(given, dimensions=5, instruct=instruct)
    found = np.array([entry["embedding"] for entry in body["data"]], np.float32)
    np.testing.assert_array_equal(found, expected)
    assert [entry["index"] for entry in body["data"]] == list(range(len(expected)))
    num_tokens = sum(len(job.token_ids) for job in jobs)
    assert body["usage"] == {"prompt_tokens": num_tokens, "total_tokens": num_tokens} and body["object"] == "list"


def test_base64_is_little_endian_float32(llm):
    call, jobs = jobs_of(llm, encoding_format="base64", dimensions=3)
    rows = np.array([llm._read(job)[0] for job in jobs])
    (entry,) = embedding_response(call, rows, jobs)["data"]
    assert struct.unpack("<3f", base64.b64decode(entry["embedding"])) == tuple(llm.embed("Once", dimensions=3)[0])


def test_ids_get_the_end_token_that_texts_get_unless_they_have_it(llm):
    (text,) = jobs_of(llm)[1]
    ids = llm.tokenizer.encode("Once")
    assert list(text.token_ids[: len(ids)]) == ids and len(text.token_ids) > len(ids)
    for given in (ids, [ids], list(text.token_ids)):
        assert [list(job.token_ids) for job in jobs_of(llm, input=given)[1]] == [list(text.token_ids)]


@pytest.mark.parametrize(
    "fields, field",
    [
        ({"input": [-1]}, "input"),
        ({"input": ["a", ""]}, "input[1]"),
        ({"input": ""}, "input"),
        ({"input": [[1], [999_999]]}, "input[1]"),
        ({"input": [[1], []]}, "input[1]"),
        ({"input": ["a", ""]}, "input[1]"),
        ({"input": [1, 2], "instruct": "Find it."}, "instruct"),
        ({"dimensions": 10**9}, "dimensions"),
    ],
)
def test_what_only_the_model_can_refuse_is_refused_in_the_bodys_words(llm, fields, field):
    with pytest.raises(InvalidRequestError) as caught:
        jobs_of(llm, **fields)
    assert caught.value.field == field and caught.value.message.startswith(field)


def test_what_is_too_long_is_cut_only_if_asked(llm):
    ids = [65] * (llm.context_tokens + 1)
    with pytest.raises(ContextLengthError) as caught:
        jobs_of(llm, input=ids)
    assert caught.value.field == "input"
    (job,) = jobs_of(llm, input=ids, truncate=True)[1]
    assert len(job.token_ids) == llm.context_tokens and job.token_ids[-1] != 65
