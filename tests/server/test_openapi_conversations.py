"""Conversations in two forms: what the document forbids is refused, what it allows is answered."""

import pytest

from tests.server.conftest import LiveServer
from tests.server.openapi_document import check_answered, check_refused

CHAT = [{"role": "user", "content": "Hi"}]
RIGHT = {
    "/v1/responses": {"model": "tiny", "input": "Hi", "max_output_tokens": 1},
    "/v1/messages": {"model": "tiny", "messages": CHAT, "max_tokens": 1},
    "/v1/messages/count_tokens": {"model": "tiny", "messages": CHAT},
}

CALL = {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"}
RESULT = {"type": "function_call_output", "call_id": "1", "output": "a"}
BAD_NAME = 'a"b'  # the model's own form of a call has names in quotes
USE = {"type": "tool_use", "id": "1", "name": "f", "input": {}}
WRONG = {
    "/v1/responses": {
        "input": [
            [],
            [{}],
            [{"type": "image"}],
            [{"type": "reasoning", "content": {}}],
            [{"role": "robot", "content": "a"}],
            [{**CALL, "name": BAD_NAME}, RESULT],
            1,
        ],
        "max_output_tokens": [0],
        "tools": [1, [{"type": "web_search"}], [{"type": "function"}], [{"type": "function", "name": BAD_NAME}]],
        "tool_choice": ["must", {"type": "function"}],
        "text": [{"format": {"type": "xml"}}, {"verbosity": "low"}, "a"],
        "reasoning": [{"effort": "huge"}, {"summary": "long"}, "high"],
        "store": [True],
        "previous_response_id": ["a"],
        "metadata": [{"a": 1}, {str(i): "" for i in range(17)}],
        "include": [["a"]],
        "top_logprobs": [21],
    },
    "/v1/messages": {
        "messages": [[], [{"role": "robot", "content": "a"}], [{"role": "user", "content": [{"type": "image"}]}]],
        "max_tokens": [0, None],
        "thinking": [{}, {"type": "enabled"}, "on"],
        "stop_sequences": [[""], "a"],
        "tool_choice": ["auto", {"type": "tool"}],
        "system": [1, [{"type": "image"}]],
        "tools": [
            [{"name": "f"}],
            [{"name": BAD_NAME, "input_schema": {"type": "object"}}],
            [{"type": "bash_20250124", "name": "bash"}],
        ],
        "output_config": [{"format": {"type": "xml"}}],
        "metadata": [{"user_id": 1}],
        "service_tier": ["fast"],
    },
    "/v1/messages/count_tokens": {"messages": [[], None], "thinking": [{"type": "enabled"}], "speed": ["fast"]},
}
ALLOWED = {
    "/v1/responses": {
        "input": [
            [{"role": "user", "content": "a"}, CALL, RESULT],
            [{"role": "user", "content": [{"type": "text", "text": "a"}]}],
        ],
        "tools": [[], [{"type": "function", "name": "f", "parameters": {"type": "object"}, "strict": True}]],
        "text": [{"format": {"type": "json_object"}}, {"format": None, "verbosity": "medium", "more": 1}],
        "reasoning": [{"effort": "none", "summary": "auto"}],
        "metadata": [{"a": "b"}],
        "store": [False],
        "include": [["message.output_text.logprobs"]],
    },
    "/v1/messages": {
        "messages": [
            [
                {"role": "user", "content": [{"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}]},
                {"role": "assistant", "content": [{"type": "thinking", "thinking": "b", "signature": ""}, USE]},
                {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "1", "content": "c"}]},
            ]
        ],
        "stop_sequences": [["a"], []],
        "system": ["a", [{"type": "text", "text": "a"}]],
        "tools": [[{"name": "f", "input_schema": {"type": "object"}}]],
        "thinking": [{"type": "disabled"}, {"type": "adaptive"}],
        "metadata": [{"user_id": "a"}],
    },
    "/v1/messages/count_tokens": {"thinking": [{"type": "enabled", "budget_tokens": 1024}], "tool_choice": [None]},
}


@pytest.mark.parametrize("path, name", [(path, name) for path, fields in WRONG.items() for name in fields])
def test_what_the_document_forbids_is_refused(path: str, name: str, tiny: LiveServer) -> None:
    check_refused(tiny.client, path, RIGHT[path], name, WRONG[path][name])


@pytest.mark.parametrize("path, name", [(path, name) for path, fields in ALLOWED.items() for name in fields])
def test_what_the_document_allows_is_answered(path: str, name: str, tiny: LiveServer) -> None:
    check_answered(tiny.client, path, RIGHT[path], name, ALLOWED[path][name])
