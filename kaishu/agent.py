"""The agent loop: ask the model, run the calls of its answer, give it the results, until it answers without calls.

Owns the order of that, what a conversation looks like while it goes on, and where it ends. Knows the model only as
something to call, so it works over LLM.chat, over the engine, and over a script in a test. How a function becomes a
tool and how a call is carried out is in tool_functions.py. LLM.run is this loop; `kaishu chat` shares its parts, and
has the terminal in between.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from kaishu.errors import (
    ContextLengthError,
    InvalidMessagesError,
    InvalidParameterError,
    KaishuError,
    and_more,
    shown,
)
from kaishu.results import ChatCompletion, Usage
from kaishu.text.channels import ToolCall
from kaishu.text.messages import clean_tools
from kaishu.tool_functions import ToolFunction, as_definitions, as_error, on_one_line, read_arguments, read_tools

Message = Mapping[str, Any]
Functions = Mapping[str, ToolFunction]

DEFAULT_LIMIT = 10
NOT_ALLOWED = "refused: the user did not allow this call, so it was not run."


class Chat(Protocol):
    """What answers a conversation: LLM.chat, or anything like it."""

    def __call__(self, messages: Sequence[Message], *, tools: Sequence[Mapping[str, Any]]) -> ChatCompletion:
        """Answer the last message."""
        ...


@dataclass(frozen=True)
class Answered:
    """The model has answered; the calls of the answer come next, if there are any."""

    completion: ChatCompletion


@dataclass(frozen=True)
class CallStarted:
    """A call is about to be carried out. It has been approved, where that was asked for."""

    call: ToolCall


@dataclass(frozen=True)
class CallEnded:
    """What the model is told about a call: the result, an error, or that it was refused."""

    call: ToolCall
    result: str


AgentEvent = Answered | CallStarted | CallEnded
Approve = Callable[[ToolCall], bool]


@dataclass(frozen=True)
class AgentResult:
    """How a run ended.

    messages:      the conversation: the caller's messages, then all that was said and called. To go on, add a message,
                   or after "limit" run it as it is
    completion:    the model's last answer
    finish_reason: "stop": it answered without calls. "limit": it was still calling after as many answers as allowed;
                   its last calls have been run. "length": an answer was cut short by max_tokens or by the context, or
                   the results no longer fit it. "tool_calls": it called a tool that was given as a definition, without
                   a function; none of that answer's calls has been run
    num_rounds:    answers of the model
    num_calls:     calls that were answered, with whatever result
    usage:         the tokens of all answers together
    """

    messages: list[Message]
    completion: ChatCompletion
    finish_reason: Literal["stop", "limit", "length", "tool_calls"]
    num_rounds: int
    num_calls: int
    usage: Usage

    @property
    def content(self) -> str:
        """The text of the last answer."""
        return self.completion.content


def run(
    chat: Chat,
    messages: Sequence[Message],
    tools: object,
    *,
    limit: int = DEFAULT_LIMIT,
    approve: Approve | None = None,
    on_event: Callable[[AgentEvent], None] | None = None,
) -> AgentResult:
    """Answer a conversation, running the functions that the model calls.

    chat:     answers once: LLM.chat, or functools.partial(llm.chat, temperature=0)
    messages: as for LLM.chat; not changed
    tools:    Python functions; also OpenAI's definitions, whose calls end the run, for the caller to answer
    limit:    how many answers the model may give
    approve:  asked before each call of a function whether it may run; a refusal is told to the model. None: all may
    on_event: told what happens, as it happens
    raises:   InvalidRequestError and its kinds for tools or messages that can't be used, and whatever `chat` raises,
              but a ContextLengthError after the first answer ends the run as "length". What a function raises is told
              to the model
    """
    if isinstance(limit, bool) or not isinstance(limit, int) or limit < 1:
        raise InvalidParameterError("limit", limit, "a whole number of at least 1")
    if isinstance(messages, str | bytes | Mapping):
        raise InvalidMessagesError(f"messages is {shown(messages)}; allowed: a list of messages.", field="messages")
    given = read_tools(tools)
    definitions = as_definitions(given)
    clean_tools(definitions)
    functions = {tool.name: tool for tool in given if isinstance(tool, ToolFunction)}
    others = {tool["function"]["name"] for tool in given if not isinstance(tool, ToolFunction)}
    tell = on_event or (lambda _: None)
    said: list[Message] = list(messages)
    usage, num_calls, completion = Usage(0, 0), 0, None
    for num_rounds in range(1, limit + 1):
        try:
            completion = chat(said, tools=definitions)
        except ContextLengthError:
            if completion is None:
                raise
            return AgentResult(said, completion, "length", num_rounds - 1, num_calls, usage)
        usage = _sum(usage, completion.usage)
        tell(Answered(completion))
        said.append(assistant_message(completion))
        calls = completion.tool_calls
        if completion.finish_reason == "length" or not calls or others & {call.name for call in calls}:
            is_cut = completion.finish_reason == "length"
            reason: Literal["stop", "length", "tool_calls"] = "length" if is_cut else "tool_calls" if calls else "stop"
            return AgentResult(said, completion, reason, num_rounds, num_calls, usage)
        for call in calls:
            result = answer_call(functions, call, approve, on_start=lambda call: tell(CallStarted(call)))
            tell(CallEnded(call, result))
            said.append({"role": "tool", "tool_call_id": call.id, "name": said_call(call)["name"], "content": result})
            num_calls += 1
    assert completion is not None
    return AgentResult(said, completion, "limit", limit, num_calls, usage)


def assistant_message(completion: ChatCompletion) -> Message:
    """An answer as the message that the next prompt has in its place.

    The calls of an answer that was cut short are left out: they won't be answered.
    """
    message: dict[str, Any] = {"role": "assistant", "content": completion.content}
    if completion.reasoning:
        message["reasoning_content"] = completion.reasoning
    if completion.tool_calls and completion.finish_reason != "length":
        message["tool_calls"] = [
            {"id": call.id, "type": "function", "function": said_call(call)} for call in completion.tool_calls
        ]
    return message


def said_call(call: ToolCall) -> dict[str, str]:
    """The name and arguments of a call as a prompt can repeat them.

    Of what can't be repeated, since it isn't JSON or has characters that no prompt may have, nothing is left here;
    answer_call tells the model what it wrote.
    """
    name = re.sub(r'["\\\x00-\x1f\ud800-\udfff]', "", call.name) or "none"
    return {"name": name, "arguments": call.arguments if _problem(call) is None else "{}"}


def answer_call(
    functions: Functions,
    call: ToolCall,
    approve: Approve | None = None,
    *,
    on_start: Callable[[ToolCall], None] | None = None,
) -> str:
    """Carry out one call of the model, as far as it can be and may be.

    approve:  asked only about what would really run: not about unknown names, or arguments that aren't valid
    on_start: told just before it runs
    return:   what the model is to read: the result, `error: …` or `refused: …`
    """
    function = functions.get(call.name)
    if function is None:
        known = and_more([shown(name) for name in functions]) if functions else "none"
        return as_error(f"there is no function {shown(call.name)}; allowed: {known}.")
    problem = _problem(call) or (None if call.is_whole else "The call broke off before its end.")
    if problem is not None:
        return as_error(f"{problem} The call was {call.name}({call.arguments}).")
    try:
        prepared = function.prepare(call.arguments)
    except KaishuError as error:
        return as_error(on_one_line(error))
    if approve is not None and not approve(call):
        return NOT_ALLOWED
    if on_start is not None:
        on_start(call)
    return prepared()


def _problem(call: ToolCall) -> str | None:
    """Why the arguments of a call can't be read; None where they can."""
    try:
        read_arguments(call.arguments)
    except KaishuError as error:
        return on_one_line(error)
    return None


def _sum(usage: Usage, more: Usage) -> Usage:
    return Usage(
        usage.prompt_tokens + more.prompt_tokens,
        usage.completion_tokens + more.completion_tokens,
        usage.cached_tokens + more.cached_tokens,
        usage.reasoning_tokens + more.reasoning_tokens,
    )
