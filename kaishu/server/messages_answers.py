"""What Anthropic's Messages API says about an answer: how it ended, and how many tokens it took.

Owns these objects, as plain JSON values. The content itself is in messages_events.py, where whole answers come from the
same state machine as streamed ones. Knows nothing of HTTP.
"""

from __future__ import annotations

from typing import Any, Literal

from kaishu.openai_responses import new_id
from kaishu.results import ChatCompletion, Usage

Json = dict[str, Any]
StopReason = Literal["end_turn", "max_tokens", "model_context_window_exceeded", "stop_sequence", "tool_use"]


def message_object(model: str) -> Json:
    """A message of which nothing is said yet, but for its usage. model: the name that the request used"""
    return {
        "id": new_id("msg_"),
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
    }


def usage_object(usage: Usage) -> Json:
    """How many tokens an answer took. Those of the prompt are told apart by whether they were computed before."""
    return {
        "input_tokens": usage.prompt_tokens - usage.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached_tokens,
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"thinking_tokens": usage.reasoning_tokens},
    }


def stop_of(answer: ChatCompletion, *, max_tokens: int, has_called: bool) -> Json:
    """Why an answer ended.

    max_tokens: that the request allowed; an answer that was cut off before had no more room in the context
    has_called: it has a call whose input is whole
    """
    sequence: str | None = None
    reason: StopReason = "end_turn"
    if answer.finish_reason == "length":
        is_all = answer.usage.completion_tokens >= max_tokens
        reason = "max_tokens" if is_all else "model_context_window_exceeded"
    elif has_called and answer.finish_reason == "tool_calls":
        reason = "tool_use"
    elif answer.stop_string is not None:
        reason, sequence = "stop_sequence", answer.stop_string
    return {"stop_reason": reason, "stop_sequence": sequence}


def count_object(input_tokens: int) -> Json:
    """How many tokens a prompt has."""
    return {"input_tokens": input_tokens}
