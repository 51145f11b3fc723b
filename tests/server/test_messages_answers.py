"""How an answer ended and what it took, in the words of Anthropic's API; the client's own types read it."""

from __future__ import annotations

from typing import Any

import pytest
from anthropic.types import Message, MessageTokensCount

from kaishu.results import ChatCompletion, Timing, Usage
from kaishu.server.messages_answers import count_object, message_object, stop_of, usage_object


def answer(finish_reason: Any, stop_string: str | None = None) -> ChatCompletion:
    return ChatCompletion("x", "", (), finish_reason, (1,), Usage(9, 7), Timing(0, 0, 0), stop_string=stop_string)


@pytest.mark.parametrize(
    ("given", "max_tokens", "has_called", "stop"),
    [
        (answer("stop"), 99, False, ("end_turn", None)),
        (answer("stop", "END"), 99, False, ("stop_sequence", "END")),
        (answer("length"), 7, False, ("max_tokens", None)),
        (answer("length"), 8, False, ("model_context_window_exceeded", None)),
        (answer("length"), 7, True, ("max_tokens", None)),
        (answer("tool_calls"), 99, True, ("tool_use", None)),
        (answer("tool_calls", "END"), 99, True, ("tool_use", None)),
        (answer("tool_calls"), 99, False, ("end_turn", None)),
    ],
)
def test_why_an_answer_ended(given: ChatCompletion, max_tokens: int, has_called: bool, stop: Any) -> None:
    found = stop_of(given, max_tokens=max_tokens, has_called=has_called)
    assert (found["stop_reason"], found["stop_sequence"]) == stop


def test_input_tokens_and_those_read_from_the_cache_are_together_the_prompt() -> None:
    usage = usage_object(Usage(100, 20, cached_tokens=64, reasoning_tokens=5))
    assert usage["input_tokens"] + usage["cache_read_input_tokens"] + usage["cache_creation_input_tokens"] == 100
    assert (usage["cache_read_input_tokens"], usage["output_tokens"]) == (64, 20)
    assert usage["output_tokens_details"] == {"thinking_tokens": 5}


def test_the_clients_types_read_them() -> None:
    message = Message.model_validate({**message_object("tiny"), "usage": usage_object(Usage(12, 0))}, strict=True)
    assert (message.usage.input_tokens, message.content, message.stop_reason) == (12, [], None)
    assert message.id.startswith("msg_") and message.id != message_object("tiny")["id"]
    assert MessageTokensCount.model_validate(count_object(5)).input_tokens == 5
