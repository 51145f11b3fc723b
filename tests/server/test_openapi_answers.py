"""Answers of a live server, beside the forms that the document has for them."""

import pytest

from tests.server.conftest import LiveServer
from tests.server.openapi_document import check_answer, is_valid

CHAT = [{"role": "user", "content": "Hi"}]
BODIES = {
    "/v1/chat/completions": {"model": "tiny", "messages": CHAT, "max_tokens": 2, "logprobs": True, "n": 2},
    "/v1/completions": {"model": "tiny", "prompt": ["Hi", "you"], "max_tokens": 2, "logprobs": 1, "echo": True},
    "/v1/responses": {"model": "tiny", "input": "Hi", "max_output_tokens": 2},
    "/v1/messages": {"model": "tiny", "messages": CHAT, "max_tokens": 2},
    "/v1/messages/count_tokens": {"model": "tiny", "messages": CHAT},
    "/v1/embeddings": {"model": "tiny", "input": ["Hi", "you"]},
    "/tokenize": {"prompt": "Hi", "return_token_strs": True},
    "/detokenize": {"tokens": [1, 2]},
}


@pytest.mark.parametrize("path", BODIES)
def test_answers_have_the_form_that_the_document_gives_them(path: str, tiny: LiveServer) -> None:
    assert is_valid(BODIES[path], path)
    answer = tiny.client.post(path, json=BODIES[path])
    assert answer.status_code == 200, answer.text
    check_answer(answer, path)


@pytest.mark.parametrize("path", ["/v1/models", "/v1/models/tiny", "/health", "/ready"])
def test_what_is_got_has_the_form_that_the_document_gives_it(path: str, tiny: LiveServer) -> None:
    answer = tiny.client.get(path)
    assert answer.status_code == 200
    check_answer(answer, path.replace("/tiny", "/{name}"), "get")


@pytest.mark.parametrize("path", BODIES)
def test_refusals_have_the_form_that_the_document_gives_them(path: str, tiny: LiveServer) -> None:
    for answer in (
        tiny.client.post(path, content=b"{", headers={"Content-Type": "application/json"}),
        tiny.client.post(path, content=b"{}", headers={"Content-Type": "text/plain"}),
        tiny.client.post(path, json={**BODIES[path], "model": "other"}),
        tiny.client.post(path, json=BODIES[path], headers={"Host": "elsewhere.example"}),
    ):
        assert answer.status_code >= 400
        check_answer(answer, path)
