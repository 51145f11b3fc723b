"""One chat as data: the messages, the settings, and what it has cost so far.

Owns what a command or an answer does to a conversation. Knows nothing of terminals, files or models: chat.py sends
`messages` to a model and gives back what came; chat_commands.py changes settings; chat_file.py writes and reads it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Protocol

from kaishu.agent import said_call
from kaishu.errors import InvalidMessagesError, InvalidRequestError
from kaishu.results import ChatCompletion, ChatEnd
from kaishu.sampling import SamplingParams
from kaishu.text.channels import ChannelDelta

Message = dict[str, Any]

# Fields of SamplingParams that a chat has no use for, and why.
_NOT_IN_A_CHAT = {
    "n": "a chat goes on from one answer",
    "prompt_logprobs": "a chat doesn't show them",
    "output_format": "an answer in a chat is free text",
}


class ChatModel(Protocol):
    """What a session talks to: LLM, which runs here, or RemoteModel, which asks a server."""

    def stream_chat(
        self,
        messages: Sequence[Message],
        *,
        params: SamplingParams,
        tools: Sequence[Any] | None = None,
        thinking: bool | None = None,
    ) -> Iterator[ChannelDelta | ChatEnd]:
        """Answer a conversation, delta by delta; the last one is ChatEnd. Leaving the iterator ends the work."""
        ...


def said_fields(params: SamplingParams) -> dict[str, Any]:
    """The fields that someone set, by name; the rest is left to the model's recommendations."""
    return {f.name: getattr(params, f.name) for f in fields(params) if getattr(params, f.name) != f.default}


def chat_fields() -> list[str]:
    """The names of the sampling fields that a chat can set."""
    return [f.name for f in fields(SamplingParams) if f.name not in _NOT_IN_A_CHAT]


def check_chat_fields(names: Iterable[str]) -> None:
    """Refuse fields that a chat has no use for; whether others exist is for SamplingParams to say.

    raises: InvalidRequestError that says why
    """
    for name in names:
        if name in _NOT_IN_A_CHAT:
            raise InvalidRequestError(f"{name} can't be set in a chat: {_NOT_IN_A_CHAT[name]}.", field=name)


@dataclass
class Totals:
    """What all answers of a session took together, whether or not they are still part of the conversation."""

    answers: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    decoded_tokens: int = 0
    decode_seconds: float = 0.0

    def add(self, completion: ChatCompletion) -> None:
        """Count one more answer."""
        self.answers += 1
        self.prompt_tokens += completion.usage.prompt_tokens
        self.completion_tokens += completion.usage.completion_tokens
        self.decoded_tokens += completion.timing.decoded_tokens
        self.decode_seconds += completion.timing.decode_seconds


@dataclass
class Session:
    """A conversation with one model.

    model:        the name it was opened by
    system:       the system message, if any
    thinking:     True, False, or None for the template's own default
    sampling:     SamplingParams fields that were set, by name
    tools:        OpenAI tool definitions that the model may call
    turns:        user, assistant and tool messages, oldest first
    last_answer:  the newest answer, for /thoughts and /stats
    """

    model: str
    system: str | None = None
    thinking: bool | None = None
    sampling: dict[str, Any] = field(default_factory=dict)
    tools: list[Any] | None = None
    turns: list[Message] = field(default_factory=list)
    totals: Totals = field(default_factory=Totals)
    last_answer: ChatCompletion | None = None

    @property
    def messages(self) -> list[Message]:
        """What the model is to see: the system message, then the turns."""
        head: list[Message] = [] if self.system is None else [{"role": "system", "content": self.system}]
        return head + self.turns

    @property
    def params(self) -> SamplingParams:
        """The settings as SamplingParams; they were checked when they were set."""
        return SamplingParams.from_fields(self.sampling)

    def ask(self, text: str) -> None:
        """Add a user's turn."""
        self.turns.append({"role": "user", "content": text})

    def keep(self, completion: ChatCompletion) -> None:
        """Add the model's answer as an assistant's turn."""
        turn: Message = {"role": "assistant", "content": completion.content}
        if completion.reasoning:
            turn["reasoning_content"] = completion.reasoning
        # A call that broke off can't be answered, and its arguments wouldn't parse in the next prompt.
        calls = [
            {"id": call.id, "type": "function", "function": said_call(call)}
            for call in completion.tool_calls
            if call.is_whole
        ]
        if calls:
            turn["tool_calls"] = calls
        self.turns.append(turn)
        self.totals.add(completion)
        self.last_answer = completion

    def keep_partial(self, content: str) -> bool:
        """After an answer that was stopped: keep what there is of it, or take the question back if there is nothing.

        return: whether something was kept
        """
        if content:
            self.turns.append({"role": "assistant", "content": content})
        else:
            self.take_back()
        return bool(content)

    def take_back(self, start: int = -1) -> None:
        """Remove the last turn, which got no answer; or all turns from `start` on."""
        del self.turns[start:]

    def reset(self) -> None:
        """Forget the turns; the system message and the settings stay."""
        self.turns.clear()
        self.last_answer = None

    def pending_calls(self) -> list[Message]:
        """Tool calls of the newest assistant's turn that have no result yet, in order."""
        answered: set[str] = set()
        for turn in reversed(self.turns):
            if turn["role"] == "assistant":
                return [call for call in turn.get("tool_calls", []) if call["id"] not in answered]
            if turn["role"] != "tool":
                break
            answered.add(turn["tool_call_id"])
        return []

    def add_tool_result(self, result: str) -> Message:
        """Answer the first pending tool call.

        return: the call that was answered
        raises: InvalidMessagesError when no call waits for a result
        """
        pending = self.pending_calls()
        if not pending:
            raise InvalidMessagesError("No tool call waits for a result.", field="tool")
        self.turns.append({"role": "tool", "tool_call_id": pending[0]["id"], "content": result})
        return pending[0]

    def set_field(self, name: str, value: str | None) -> None:
        """Set one sampling field, or None to leave it to the model again. Nothing changes when it is refused.

        value:  as typed: a JSON value, or plain text for `stop`
        raises: InvalidRequestError
        """
        check_chat_fields([name])
        changed = {key: old for key, old in self.sampling.items() if key != name}
        SamplingParams.from_fields({**changed, name: _default_of(name) if value is None else _typed(name, value)})
        if value is not None:
            changed[name] = _typed(name, value)
        self.sampling = changed


def _default_of(name: str) -> Any:
    """A field's default; for an unknown name None, so that from_fields can say what names there are."""
    defaults: Mapping[str, Any] = {f.name: f.default for f in fields(SamplingParams)}
    return defaults.get(name)


def _typed(name: str, text: str) -> Any:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    if name == "stop" and not isinstance(value, str | list):
        return text  # "/set stop 42" means the text 42
    return value
