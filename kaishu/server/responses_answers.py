"""Answers of /v1/responses: the response object, its items, the usage.

Owns these objects, as plain JSON values, after OpenAI's reference. What they are filled with as an answer grows is in
responses_events.py, for whole answers as for streamed ones. Pure: knows nothing of HTTP.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from kaishu.openai_responses import Json, error_response, error_status, new_id
from kaishu.results import PositionLogprobs, TokenLogprob, Usage
from kaishu.sampling import SamplingParams
from kaishu.server.responses_thoughts import packed

Status = Literal["in_progress", "completed", "incomplete", "failed"]


def new_response(model: str, echo: Mapping[str, Any], params: SamplingParams) -> Json:
    """A response of which nothing is there yet.

    model:  the name that the request used
    echo:   ResponseCall.echo
    params: as the engine uses them, the model's own defaults filled in
    """
    return {
        "id": new_id("resp_"),
        "object": "response",
        "created_at": int(time.time()),
        "status": "in_progress",
        "completed_at": None,
        "background": False,
        "error": None,
        "incomplete_details": None,
        "max_tool_calls": None,
        "model": model,
        "output": [],
        "previous_response_id": None,
        "service_tier": "default",
        "store": False,
        "temperature": params.temperature,
        "top_p": params.top_p,
        "truncation": "disabled",
        "usage": None,
        **echo,
    }


def ended_response(response: Json, status: Status, *, usage: Usage | None = None, error: Json | None = None) -> Json:
    """A response that nothing is added to any more.

    error: of error_object, where it failed
    """
    return {
        **response,
        "status": status,
        "completed_at": int(time.time()) if status == "completed" else None,
        "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
        "usage": None if usage is None else response_usage(usage),
        "error": error,
    }


def thought_item(
    text: str | None, status: Status, item_id: str, *, with_summary: bool = False, is_packed: bool = False
) -> Json:
    """What the model thought, as it thought it.

    text:         None where it only begins
    with_summary: have it as a summary, too, which is what many programs show
    is_packed:    have it as encrypted_content, too, which is what some programs send back
    """
    content = [] if text is None else [thought_part(text)]
    summary = [] if text is None or not with_summary else [summary_part(text)]
    item = {"id": item_id, "type": "reasoning", "status": status, "summary": summary, "content": content}
    return item | ({"encrypted_content": None if text is None else packed(text)} if is_packed else {})


def thought_part(text: str) -> Json:
    """The content of a thought."""
    return {"type": "reasoning_text", "text": text}


def summary_part(text: str) -> Json:
    """A thought as a summary has it."""
    return {"type": "summary_text", "text": text}


def message_item(part: Json | None, status: Status, item_id: str) -> Json:
    """What the model says. part: of text_part; None where it only begins"""
    content = [] if part is None else [part]
    return {"id": item_id, "type": "message", "status": status, "role": "assistant", "content": content}


def text_part(text: str, logprobs: Sequence[Json] = ()) -> Json:
    """The content of a message. logprobs: each of token_logprobs"""
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": list(logprobs)}


def call_item(call_id: str, name: str, arguments: str, status: Status, item_id: str) -> Json:
    """A call of a function. arguments: JSON as the model wrote it"""
    return {
        "id": item_id,
        "type": "function_call",
        "status": status,
        "call_id": call_id,
        "name": name,
        "arguments": arguments,
    }


def token_logprobs(position: PositionLogprobs) -> Json:
    """A token's log probability, and those of the likeliest ones in its place."""
    return {**_token(position.chosen), "top_logprobs": [_token(one) for one in position.top]}


def _token(token: TokenLogprob) -> Json:
    return {"token": token.text, "logprob": token.logprob, "bytes": list(token.bytes)}


def response_usage(usage: Usage) -> Json:
    """How many tokens an answer took. Pages are kept without a fee, so none count as written to the cache."""
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.total_tokens,
    }


def error_object(error: BaseException) -> Json:
    """What went wrong after an answer had begun; the API has few codes for it."""
    codes = {429: "rate_limit_exceeded", 400: "invalid_prompt"}
    code = codes.get(error_status(error), "server_error")
    return {"code": code, "message": error_response(error)["error"]["message"]}
