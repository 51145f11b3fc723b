"""A conversation in Anthropic's form, as the chat messages that templates know.

Owns that translation: blocks of content into texts, thoughts, calls and the results of calls. What it can't translate
it refuses with its place in the body. Knows nothing of templates; called by messages_requests.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from kaishu.errors import InvalidMessagesError, InvalidParameterError, InvalidRequestError, and_more, shortened
from kaishu.openai_fields import UnknownFields
from kaishu.server.messages_fields import BLOCKS, MESSAGE, kind_of, members
from kaishu.text.messages import clean_json
from kaishu.tool_functions import as_error

Json = dict[str, Any]
MAX_BLOCKS = 10_000  # of one body; each takes some microseconds
_TEXT_ONLY = "The model reads text only."


def system_text(system: object, unknown: UnknownFields, path: str = "system") -> str:
    """Instructions, a string or text blocks. unknown: as for `members`; raises: InvalidRequestError and its kinds"""
    return "\n\n".join(_texts(system, path, unknown))


class History:
    """The messages of one body.

    messages: in OpenAI's form
    places:   of each, where in the body it came from
    """

    def __init__(self, messages: object, unknown: UnknownFields) -> None:
        """unknown: as for `members`; raises: InvalidRequestError and its kinds"""
        self._unknown = unknown
        self.messages: list[Json] = []
        self.places: list[str] = []
        self._open_calls: dict[str, int] = {}  # ids whose results are still to come, numbered in their order
        self._num_blocks = 0
        self._called_at = ""
        self._last_role = ""
        if not isinstance(messages, list) or not messages:
            raise InvalidParameterError("messages", messages, "a list of at least one message")
        for place, message in enumerate(messages):
            self._add(message, f"messages[{place}]")
        if self._last_role == "user":
            self._check_results()

    @property
    def ends_with_assistant(self) -> bool:
        """Whether the answer goes on with what the last message begins."""
        return self._last_role == "assistant"

    def _add(self, message: object, path: str) -> None:
        fields = members(message, path, MESSAGE, self._unknown)
        role, content = fields.get("role"), fields.get("content")
        if role == "user":
            self._add_user(content, f"{path}.content", path)
        elif role == "assistant":
            if self._last_role == "user":
                self._check_results()
            self._append(self._assistant(content, f"{path}.content", path), path)
        elif role == "system":
            self._append({"role": "system", "content": system_text(content, self._unknown, f"{path}.content")}, path)
        else:
            hint = "Instructions are in system." if role in ("developer", "tool") else None
            raise InvalidParameterError(f"{path}.role", role, "user, assistant, system", hint=hint)
        if role != "system":
            self._last_role = str(role)

    def _append(self, message: Json, path: str) -> None:
        self.messages.append(message)
        self.places.append(path)

    def _add_user(self, content: object, path: str, place: str) -> None:
        """Results come before the texts, in the order of the calls, since templates know them by nothing else."""
        texts: list[str] = []
        results: dict[str, Json] = {}
        for where, block in self._counted(content, path, ("text", "tool_result")):
            if block["type"] == "text":
                texts.append(_string(block.get("text"), f"{where}.text"))
                continue
            call_id = _string(block.get("tool_use_id"), f"{where}.tool_use_id")
            if call_id not in self._open_calls or call_id in results:
                allowed = f"ids of calls before it without a result ({self._missing() or 'there are none'})"
                raise InvalidParameterError(f"{where}.tool_use_id", call_id, allowed)
            results[call_id] = {
                "role": "tool",
                "content": _result(block, where, self._unknown),
                "tool_call_id": call_id,
            }
        if not texts and not results:
            raise InvalidParameterError(path, content, "a string, or at least one block")
        for call_id in sorted(results, key=self._open_calls.__getitem__):
            del self._open_calls[call_id]
            self._append(results[call_id], place)
        if texts:
            self._append({"role": "user", "content": "\n\n".join(texts)}, place)

    def _assistant(self, content: object, path: str, place: str) -> Json:
        texts: list[str] = []
        thoughts: list[str] = []
        calls: list[Json] = []
        for where, block in self._counted(content, path, ("text", "thinking", "redacted_thinking", "tool_use")):
            if block["type"] == "text":
                texts.append(_string(block.get("text"), f"{where}.text"))
            elif block["type"] == "thinking":
                thoughts.append(_string(block.get("thinking"), f"{where}.thinking"))  # "" where it was left out
            elif block["type"] == "tool_use":
                calls.append(self._call(block, where))
                self._called_at = place
        made: Json = {"role": "assistant", "content": "".join(texts)}
        if any(thoughts):
            made["reasoning_content"] = "\n\n".join(thoughts)
        if calls:
            made["tool_calls"] = calls
        return made

    def _call(self, block: Mapping[str, Any], where: str) -> Json:
        call_id = _string(block.get("id"), f"{where}.id")
        if call_id in self._open_calls:
            raise InvalidParameterError(f"{where}.id", call_id, "an id that no other call has")
        arguments = block.get("input")
        if not isinstance(arguments, Mapping):
            raise InvalidParameterError(f"{where}.input", arguments, "an object, {...}")
        self._open_calls[call_id] = self._num_blocks
        function = {
            "name": _string(block.get("name"), f"{where}.name"),
            "arguments": clean_json(arguments, f"{where}.input"),
        }
        return {"id": call_id, "type": "function", "function": function}

    def _check_results(self) -> None:
        """What a model called but got no answer from would be answered out of thin air."""
        if self._open_calls:
            raise InvalidMessagesError(
                f"{self._called_at} calls tools, but there is no result of {self._missing()}.",
                field=self._called_at,
                hint="Put a tool_result block for each call into the user message that follows.",
            )

    def _missing(self) -> str:
        return and_more([shortened(call_id) for call_id in self._open_calls])

    def _counted(self, content: object, path: str, allowed: tuple[str, ...]) -> Iterator[tuple[str, Json]]:
        for found in _blocks(content, path, allowed, self._unknown):
            self._num_blocks += 1
            if self._num_blocks > MAX_BLOCKS:
                raise InvalidRequestError(f"messages has more than {MAX_BLOCKS:,} blocks of content.", field="messages")
            yield found


def _blocks(content: object, path: str, allowed: tuple[str, ...], unknown: UnknownFields) -> Iterator[tuple[str, Json]]:
    """Each block with its place; a string is one text block."""
    if isinstance(content, str):
        yield path, {"type": "text", "text": _string(content, path)}
        return
    if not isinstance(content, list):
        raise InvalidParameterError(path, content, "a string or a list of blocks")
    if len(content) > MAX_BLOCKS:
        raise InvalidRequestError(f"{path} has {len(content):,} blocks; allowed: {MAX_BLOCKS:,}.", field=path)
    for place, block in enumerate(content):
        where = f"{path}[{place}]"
        yield where, members(block, where, BLOCKS[kind_of(block, where, allowed, hint=_TEXT_ONLY)], unknown)


def _texts(content: object, path: str, unknown: UnknownFields) -> list[str]:
    return [_string(block.get("text"), f"{where}.text") for where, block in _blocks(content, path, ("text",), unknown)]


def _result(block: Mapping[str, Any], where: str, unknown: UnknownFields) -> str:
    """What a call gave: text, of which a failure is told as one."""
    is_error = block.get("is_error", False)
    if not isinstance(is_error, bool):
        raise InvalidParameterError(f"{where}.is_error", is_error, "true or false")
    text = "\n\n".join(_texts(block.get("content", ""), f"{where}.content", unknown))
    return as_error(text) if is_error else text


def _string(value: object, path: str) -> str:
    if not isinstance(value, str):
        raise InvalidParameterError(path, value, "a string")
    return str(clean_json(value, path))
