"""Values at the edges of what fields may be: what the document forbids is refused, what it allows is answered."""

import pytest

from tests.server.conftest import LiveServer
from tests.server.openapi_document import check_answered, check_refused

CHAT = [{"role": "user", "content": "Hi"}]
RIGHT = {
    "/v1/chat/completions": {"model": "tiny", "messages": CHAT, "max_tokens": 1, "logprobs": True},
    "/v1/completions": {"model": "tiny", "prompt": "Hi", "max_tokens": 1},
    "/v1/embeddings": {"model": "tiny", "input": "Hi"},
    "/v1/rerank": {"model": "tiny", "query": "Hi", "documents": ["you"]},
    "/tokenize": {"messages": CHAT},
    "/detokenize": {"tokens": [1]},
}

CALL = {"type": "function", "function": {"name": "f", "arguments": "{}"}}
TOOL = {"type": "function", "function": {"name": "f"}}
WRONG = {
    "/v1/chat/completions": {
        "model": [None, "", 1, "other"],
        "messages": [
            [],
            None,
            [{}],
            [{"role": "robot", "content": ""}],
            [{"role": "user", "content": [{"type": "x"}]}],
        ],
        "temperature": [-0.1, "1", True],
        "top_p": [1.1, -0.1],
        "top_k": [-2, 1.5],
        "min_p": [1.1],
        "n": [0, 129],
        "top_logprobs": [21, -1],
        "logit_bias": [{"a": 1}, {"1": 101}, []],
        "max_tokens": [0, "1"],
        "max_completion_tokens": [0],
        "repetition_penalty": [0.001, 101],
        "presence_penalty": [2.1],
        "seed": [-1, 2**63],
        "stop": ["", [""], ["a"] * 65],
        "stop_token_ids": [[-1], "a"],
        "priority": [2**31],
        "tools": [[{}], [{"type": "function", "function": {"name": ""}}], "f"],
        "tool_choice": ["must", {"type": "function"}],
        "response_format": [{"type": "xml"}, {"type": "json_schema"}, {"type": "regex", "regex": ""}],
        "reasoning_effort": ["huge"],
        "thinking_budget": [-1],
        "stream_options": [{"include_usage": 1}, {"include_obfuscation": True}, []],
        "store": [True],
        "functions": [[{}]],
        "user": [1],
        "metadata": ["a"],
    },
    "/v1/completions": {
        "prompt": [[], 1, [""] * 2049, [[1], ""]],
        "logprobs": [21, True],
        "echo": ["yes"],
        "suffix": ["end"],
        "best_of": [0],
    },
    "/v1/embeddings": {"input": ["", [], [[]], 1], "dimensions": [0], "encoding_format": ["hex"], "instruct": [""]},
    "/v1/rerank": {"query": ["", 1], "documents": [[], [""], [{"b": 1}], "a"], "top_n": [0]},
    "/tokenize": {"messages": [[]], "return_token_strs": [1]},
    "/detokenize": {"tokens": [[-1], "a", None]},
}
ALLOWED = {
    "/v1/chat/completions": {
        "messages": [
            [
                {"role": "developer", "content": "a"},
                *CHAT,
                {"role": "assistant", "content": None, "tool_calls": [CALL]},
            ],
            [{"role": "user", "content": [{"type": "text", "text": "a"}]}],
            [{"role": "user", "content": [{"type": "text", "text": "a", "more": 1}], "further": None}],
            [*CHAT, {"role": "assistant", "reasoning_content": "a"}, {"role": "tool", "content": {"a": 1}}],
        ],
        "temperature": [0, 5.5],
        "top_k": [-1, 10**6],
        "n": [2],
        "top_logprobs": [20, None],
        "logit_bias": [{"1": -100, "2": 100}],
        "repetition_penalty": [0.01, 100],
        "seed": [2**63 - 1],
        "stop": ["a", ["a"] * 64, []],
        "stop_token_ids": [[1]],
        "priority": [-(2**31)],
        "tools": [[TOOL], []],
        "response_format": [{"type": "text"}, {"type": "json_object"}, {"type": "regex", "regex": "a+"}],
        "reasoning_effort": ["none"],
        "store": [False, None],
        "metadata": [{"a": 1}],
        "nobody_knows_this": [1],
    },
    "/v1/completions": {"prompt": [[1, 2], [[1], [2]], ["a", "b"]], "logprobs": [20], "echo": [True], "best_of": [1]},
    "/v1/embeddings": {"input": [[1], [[1], [2]], ["a", "b"]], "dimensions": [1], "encoding_format": ["base64"]},
}


@pytest.mark.parametrize("path, name", [(path, name) for path, fields in WRONG.items() for name in fields])
def test_what_the_document_forbids_is_refused(path: str, name: str, tiny: LiveServer) -> None:
    check_refused(tiny.client, path, RIGHT[path], name, WRONG[path][name])


@pytest.mark.parametrize("path, name", [(path, name) for path, fields in ALLOWED.items() for name in fields])
def test_what_the_document_allows_is_answered(path: str, name: str, tiny: LiveServer) -> None:
    check_answered(tiny.client, path, RIGHT[path], name, ALLOWED[path][name])
