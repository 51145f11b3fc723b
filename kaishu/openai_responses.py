"""Answers in the form of OpenAI's API: completions, chats and errors.

Owns these objects, as plain JSON values. Knows nothing of HTTP or files: batch_run.py writes them into a file, the
server sends them. Embeddings are in openai_embeddings.py.
"""

from __future__ import annotations

import codecs
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from kaishu.errors import (
    ContextLengthError,
    EngineClosedError,
    GrammarsBusyError,
    InvalidParameterError,
    InvalidRequestError,
    KaishuError,
    ModelNotFoundError,
    NumericalError,
    QueueFullError,
    QueueTimeoutError,
    TemplateError,
)
from kaishu.results import ChatCompletion, Completion, PositionLogprobs, TokenLogprob, Usage
from kaishu.text.channels import ToolCall
from kaishu.text.tokenizer import Tokenizer

Json = dict[str, Any]


def new_id(prefix: str) -> str:
    """An id that no other answer has, such as chatcmpl-0f3c…"""
    return f"{prefix}{uuid4().hex}"


def chat_response(
    answer: ChatCompletion, model: str, *, only_first_call: bool = False, created: float | None = None
) -> Json:
    """A chat.completion object.

    answer:          with its alternatives, which become further choices
    model:           the name that the request used
    only_first_call: ChatCall.only_first_call
    created:         Unix time; None for now
    """
    return {
        "id": new_id("chatcmpl-"),
        "object": "chat.completion",
        "created": int(time.time() if created is None else created),
        "model": model,
        "choices": [
            {
                "index": index,
                "message": chat_message(choice, only_first_call=only_first_call),
                "logprobs": None if choice.logprobs is None else chat_logprobs(choice.logprobs),
                "finish_reason": choice.finish_reason,
            }
            for index, choice in enumerate((answer, *answer.alternatives))
        ],
        "usage": usage_object(answer.usage),
    }


def chat_message(answer: ChatCompletion, *, only_first_call: bool = False) -> Json:
    """The assistant's message. Thought is in reasoning_content, and in reasoning, which some clients read instead."""
    calls = answer.tool_calls[:1] if only_first_call else answer.tool_calls
    message: Json = {
        "role": "assistant",
        "content": None if calls and not answer.content else answer.content,
        "refusal": None,
    }
    if answer.reasoning:
        message |= {"reasoning_content": answer.reasoning, "reasoning": answer.reasoning}
    if calls:
        message["tool_calls"] = [tool_call(call) for call in calls]
    return message


def tool_call(call: ToolCall) -> Json:
    """One call of a message."""
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def chat_logprobs(positions: Sequence[PositionLogprobs]) -> Json:
    """Log probabilities of a chat choice: of every token that was generated, thought and call included."""
    return {
        "content": [
            {**_chat_token(position.chosen), "top_logprobs": [_chat_token(one) for one in position.top]}
            for position in positions
        ],
        "refusal": None,
    }


def _chat_token(token: TokenLogprob) -> Json:
    return {"token": token.text, "logprob": token.logprob, "bytes": list(token.bytes)}


@dataclass(frozen=True)
class Echo:
    """A prompt that stands before its completion.

    text:  all of it
    first: its first token, which nothing predicts
    """

    text: str
    first: TokenLogprob


def echo_of(prompt: str | Sequence[int], prompt_ids: Sequence[int], tokenizer: Tokenizer) -> Echo:
    """What a completion with `echo` begins with.

    prompt:     as the request has it
    prompt_ids: as the model reads it, at least one
    """
    raw = tokenizer.token_bytes(prompt_ids[0])
    text = prompt if isinstance(prompt, str) else tokenizer.decode(prompt)
    return Echo(text, TokenLogprob(prompt_ids[0], raw.decode("utf-8", errors="replace"), raw, 0.0))


def completion_response(
    answers: Sequence[Completion],
    model: str,
    *,
    echoes: Sequence[Echo] | None = None,
    created: float | None = None,
) -> Json:
    """A text_completion object.

    answers: one for each prompt of the request, with its alternatives, which become further choices
    model:   the name that the request used
    echoes:  of each prompt, where they were asked for
    """
    choices = [
        (choice, None if echoes is None else echoes[place])
        for place, answer in enumerate(answers)
        for choice in (answer, *answer.alternatives)
    ]
    return {
        "id": new_id("cmpl-"),
        "object": "text_completion",
        "created": int(time.time() if created is None else created),
        "model": model,
        "choices": [
            {
                "index": index,
                "text": choice.text if echo is None else echo.text + choice.text,
                "logprobs": None if choice.logprobs is None else completion_logprobs(choice, echo),
                "finish_reason": choice.finish_reason,
            }
            for index, (choice, echo) in enumerate(choices)
        ],
        "usage": usage_object(total_usage([answer.usage for answer in answers])),
    }


def completion_logprobs(choice: Completion, echo: Echo | None = None) -> Json:
    """All log probabilities of a choice in the older form, the prompt's too with `echo`."""
    positions = [*(choice.prompt_logprobs or () if echo else ()), *(choice.logprobs or ())]
    return LogprobLists().of(positions, echo)


class LogprobLists:
    """Log probabilities in the older form: four lists, a place in each for every token.

    Tokens that are no whole characters are spelt as their bytes: "bytes:\\xe5\\x8c". An offset counts the characters
    before the one that the token begins or goes on with, over all calls of `of`.
    """

    def __init__(self) -> None:
        self._reader, self._num_characters = codecs.getincrementaldecoder("utf-8")("replace"), 0

    def of(self, positions: Sequence[PositionLogprobs], echo: Echo | None = None) -> Json:
        """The next tokens. echo: whose first token stands before them"""
        chosen = [position.chosen for position in positions]
        tokens = [echo.first, *chosen] if echo else chosen
        unpredicted: list[None] = [None] if echo else []
        offsets = []
        for token in tokens:
            offsets.append(self._num_characters)
            self._num_characters += len(self._reader.decode(token.bytes))
        return {
            "tokens": [_spelt(token) for token in tokens],
            "token_logprobs": [*unpredicted, *(token.logprob for token in chosen)],
            "top_logprobs": [*unpredicted, *(_top(position) for position in positions)],
            "text_offset": offsets,
        }


def _top(position: PositionLogprobs) -> Json:
    """The likeliest tokens, and the chosen one. Of two that are spelt alike, the likelier."""
    found: Json = {}
    for token in (*position.top, position.chosen):
        found.setdefault(_spelt(token), token.logprob)
    return found


def _spelt(token: TokenLogprob) -> str:
    try:
        return token.bytes.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in token.bytes)


def total_usage(usages: Sequence[Usage]) -> Usage:
    """The usage of several prompts together."""
    return Usage(
        sum(usage.prompt_tokens for usage in usages),
        sum(usage.completion_tokens for usage in usages),
        sum(usage.cached_tokens for usage in usages),
        sum(usage.reasoning_tokens for usage in usages),
    )


def usage_object(usage: Usage) -> Json:
    """How many tokens an answer took."""
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.total_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
    }


_STATUS: Mapping[type[KaishuError], tuple[int, str, str | None]] = {  # the first that fits
    ContextLengthError: (400, "invalid_request_error", "context_length_exceeded"),
    InvalidParameterError: (400, "invalid_request_error", "invalid_value"),
    InvalidRequestError: (400, "invalid_request_error", None),
    TemplateError: (400, "invalid_request_error", "chat_template"),
    ModelNotFoundError: (404, "invalid_request_error", "model_not_found"),
    QueueFullError: (429, "rate_limit_error", "queue_full"),
    GrammarsBusyError: (429, "rate_limit_error", "grammars_busy"),
    QueueTimeoutError: (503, "server_error", "queue_timeout"),
    EngineClosedError: (503, "server_error", "engine_closed"),  # the server is on its way out
    NumericalError: (500, "server_error", "numerical_error"),
}


def error_status(error: BaseException) -> int:
    """The HTTP status that says of what kind an error is."""
    return _described(error)[0]


def error_response(error: BaseException) -> Json:
    """An error object. What isn't the caller's to know is left out: an error of ours has no details."""
    _, kind, code = _described(error)
    message = "The server failed; this is no fault of the request."
    if isinstance(error, KaishuError):
        message = error.message if error.hint is None else f"{error.message} {error.hint}"
    field = error.field if isinstance(error, InvalidRequestError) else None
    if isinstance(error, ModelNotFoundError):
        field = "model"
    return {"error": {"message": message, "type": kind, "param": field, "code": code}}


def _described(error: BaseException) -> tuple[int, str, str | None]:
    found = (said for kind, said in _STATUS.items() if isinstance(error, kind))
    return next(found, (500, "server_error", None))
