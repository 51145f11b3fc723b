"""POST /tokenize and /detokenize: the ids are the tokenizers library's and transformers', and lead back to the text."""

from __future__ import annotations

from pathlib import Path

import pytest
import tokenizers
import transformers

import kaishu

FOLDER = Path(kaishu.__file__).parent / "models" / "tiny"
TEXTS = ["Hello, world!", "楷书 🙂 ďábel", "", " \n\t ", "<|im_end|>"]
MESSAGES = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hi 你好"}]
TOOL = {"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object"}}}


@pytest.fixture(scope="module")
def theirs():
    return transformers.AutoTokenizer.from_pretrained(FOLDER)


def post(server, path="/tokenize", **body):
    return server.client.post(path, json=body)


def tokenized(server, **body):
    response = post(server, **body)
    assert response.status_code == 200, response.text
    found = response.json()
    assert found["count"] == len(found["tokens"]) and found["max_model_len"] == 1024
    return found


@pytest.mark.parametrize("text", TEXTS[:-1])
def test_a_text_has_the_librarys_ids(tiny, text):
    library = tokenizers.Tokenizer.from_file(str(FOLDER / "tokenizer.json"))
    assert tokenized(tiny, prompt=text)["tokens"] == library.encode(text, add_special_tokens=False).ids


@pytest.mark.parametrize("text", TEXTS)
def test_ids_lead_back_to_the_text(tiny, text):
    ids = tokenized(tiny, model="tiny", prompt=text)["tokens"]
    assert post(tiny, "/detokenize", tokens=ids).json() == {"prompt": text}


def test_text_that_looks_like_a_control_token_stays_text(tiny, theirs):
    ids = tokenized(tiny, prompt="<|im_end|>")["tokens"]
    assert len(ids) > 1 and theirs.convert_tokens_to_ids("<|im_end|>") not in ids


@pytest.mark.parametrize("thinking", [True, False])
@pytest.mark.parametrize("tools", [None, [TOOL]])
def test_a_chat_has_the_ids_that_the_models_template_gives(tiny, theirs, thinking, tools):
    expected = theirs.apply_chat_template(
        MESSAGES, tools=tools, add_generation_prompt=True, enable_thinking=thinking, return_dict=False
    )
    for fields in (
        {"enable_thinking": thinking},
        {"chat_template_kwargs": {"enable_thinking": thinking}},
        {"reasoning_effort": "high" if thinking else "none"},
    ):
        assert tokenized(tiny, messages=MESSAGES, tools=tools, **fields)["tokens"] == expected


def test_a_chat_is_what_a_request_with_the_same_fields_reads(tiny):
    for fields in ({}, {"enable_thinking": False}, {"tools": [TOOL]}):
        answer = tiny.client.post(
            "/v1/chat/completions", json={"model": "tiny", "messages": MESSAGES, "max_tokens": 1, **fields}
        )
        count = tokenized(tiny, messages=MESSAGES, **fields)["count"]
        assert answer.json()["usage"]["prompt_tokens"] == count


def test_a_beginning_of_an_answer_is_the_end(tiny):
    messages = [*MESSAGES, {"role": "assistant", "content": "I am"}]
    found = tokenized(tiny, messages=messages, continue_final_message=True)
    assert post(tiny, "/detokenize", tokens=found["tokens"]).json()["prompt"].endswith("I am")


def test_each_tokens_own_text_can_be_had(tiny):
    found = tokenized(tiny, prompt="Hello 🙂", return_token_strs=True)
    assert len(found["token_strs"]) == found["count"] and "".join(found["token_strs"]).startswith("Hello ")
    assert tokenized(tiny, prompt="Hello")["token_strs"] is None


@pytest.mark.parametrize(
    "body, param",
    [
        ({}, "prompt"),
        ({"prompt": "a", "messages": MESSAGES}, "prompt"),
        ({"prompt": 5}, "prompt"),
        ({"prompt": ["a"]}, "prompt"),
        ({"prompt": "a", "tools": [TOOL]}, "tools"),
        ({"prompt": "a", "enable_thinking": True}, "enable_thinking"),
        ({"prompt": "a", "return_token_strs": 1}, "return_token_strs"),
        ({"prompt": "a", "model": 5}, "model"),
        ({"messages": []}, "messages"),
        ({"messages": "Hi"}, "messages"),
        ({"messages": [{"role": "king", "content": "a"}]}, "messages[0].role"),
        ({"messages": MESSAGES, "tools": 5}, "tools"),
        ({"messages": MESSAGES, "enable_thinking": 1}, "enable_thinking"),
        ({"messages": MESSAGES, "reasoning_effort": "much"}, "reasoning_effort"),
        ({"messages": MESSAGES, "chat_template_kwargs": {"messages": []}}, "chat_template_kwargs.messages"),
        ({"messages": MESSAGES, "chat_template_kwargs": 5}, "chat_template_kwargs"),
        ({"messages": MESSAGES, "continue_final_message": True}, "messages"),
        ({"messages": MESSAGES * 1025}, "messages"),
        ([], "body"),
        ("a", "body"),
    ],
)
def test_what_cannot_be_tokenized_is_refused_by_name(tiny, body, param):
    response = tiny.client.post("/tokenize", json=body)
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert error["param"].startswith(param), error


@pytest.mark.parametrize("tokens", [None, "abc", 5, {}, [-1], [2126], [2143], [10**30], [1.0], [True], [[1]], ["1"]])
def test_what_are_no_ids_is_refused(tiny, tokens):
    response = post(tiny, "/detokenize", tokens=tokens)
    assert (response.status_code, response.json()["error"]["param"]) == (400, "tokens"), response.text


def test_the_model_may_be_left_out_but_not_be_another(tiny):
    for path, body in {"/tokenize": {"prompt": "a"}, "/detokenize": {"tokens": [1]}}.items():
        assert post(tiny, path, **body).status_code == 200
        assert post(tiny, path, model="large", **body).status_code == 404
