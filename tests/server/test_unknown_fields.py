"""The header that warns of fields that the API doesn't have: legal whatever they are called, and short."""

from __future__ import annotations

import re
from urllib.parse import unquote

from hypothesis import given
from hypothesis import strategies as st

from kaishu.server.unknown_fields import HEADER, warning_headers

# RFC 9110, section 5.5: visible characters, of these without quotes and commas; and percent-encoding.
LEGAL = re.compile(r"([A-Za-z0-9_.~%\[\]-]+|\"\")(, ([A-Za-z0-9_.~%\[\]-]+|\"\"))*")


def test_no_unknown_field_is_no_header():
    assert warning_headers(()) == {}


def test_names_are_said():
    assert warning_headers(("top_a", "名前", "a, b")) == {HEADER: "top_a, %E5%90%8D%E5%89%8D, a%2C%20b"}
    assert warning_headers(("input[0].content[12].colour",)) == {HEADER: "input[0].content[12].colour"}


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"])), min_size=1, max_size=50))
def test_any_names_are_a_legal_and_short_header(names):
    value = warning_headers(names)[HEADER]
    assert LEGAL.fullmatch(value) and len(value) <= 1100
    said = [unquote(name.strip('"')) for name in value.split(", ")]
    cut = [name[:100] for name in names]
    assert said == cut or (said[-1] == "..." and said[:-1] == cut[: len(said) - 1])


def test_a_hundred_fields_are_cut_short():
    value = warning_headers([f"field_{i}" for i in range(1000)])[HEADER]
    assert value.startswith("field_0, field_1, ") and value.endswith(", ...") and len(value) < 1100


def test_the_header_comes_with_answers_and_streams_and_strict_servers_refuse(scripted):
    body = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}], "tempreature": 0.5}
    server = scripted("a", "b")
    for streams in (False, True):
        response = server.client.post("/v1/chat/completions", json={**body, "stream": streams})
        assert response.status_code == 200 and response.headers[HEADER] == "tempreature"
    strict = scripted("a", strict=True)
    for path, more in {
        "/v1/chat/completions": body,
        "/v1/completions": {"model": "tiny", "prompt": "a"},
        "/v1/embeddings": {"model": "tiny", "input": "a"},
        "/v1/rerank": {"model": "tiny", "query": "a", "documents": ["b"]},
        "/tokenize": {"prompt": "a"},
        "/detokenize": {"tokens": [1]},
    }.items():
        response = strict.client.post(path, json={**more, "tempreature": 0.5})
        assert (response.status_code, response.json()["error"]["param"]) == (400, "tempreature"), path


def test_places_inside_a_field_are_said_by_all_routes_that_have_some(tiny):
    chat = [{"role": "user", "content": [{"type": "text", "text": "Hi", "foo": 1}]}]
    response = tiny.client.post("/tokenize", json={"messages": chat})
    assert response.status_code == 200 and response.headers[HEADER] == "messages[0].content[0].foo"
    assert (
        response.json() == tiny.client.post("/tokenize", json={"messages": [{"role": "user", "content": "Hi"}]}).json()
    )
    body = {"model": "tiny", "input": "Hi", "max_output_tokens": 1, "text": {"format": {"type": "text", "foo": 1}}}
    response = tiny.client.post("/v1/responses", json=body)
    assert response.status_code == 200 and response.headers[HEADER] == "text.format.foo"
