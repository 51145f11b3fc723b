"""What a body of /v1/responses gives the model to read: its items, as messages of a chat, and its tools.

Owns the forms of items and tools in OpenAI's Responses API, and the way from them to those of the chat API, which
text/messages.py checks further. For errors that come from there it keeps where each piece stood in the body. Pure:
knows nothing of HTTP. Used by responses_requests.py.

An assistant's turn is one message of a chat, but several items: its thought, its text, each of its calls. They are put
together again, in the order in which the API gave them out.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from kaishu.errors import InvalidMessagesError, InvalidParameterError
from kaishu.json_fields import shown
from kaishu.openai_fields import Field, UnknownFields, read_object
from kaishu.server.responses_thoughts import unpacked

Json = dict[str, Any]
Fields = Mapping[str, Field]

ROLES = ("user", "assistant", "system", "developer")
TEXT_PARTS = ("input_text", "output_text", "text")
_READ = Field("read")
_LABEL = Field("noted")  # stands in what an API gave out, and says nothing to the model
_LABELS = {"type": _LABEL, "id": _LABEL, "status": _LABEL}
_CALL_LABELS = {  # what the API says of calls that a program of its own made: here the model makes them all
    **_LABELS,
    "caller": Field("neutral", ({"type": "direct"},)),
    "namespace": Field("neutral"),
}
ITEMS: Mapping[str, Fields] = {  # by type
    "message": {**_LABELS, "role": _READ, "content": _READ, "phase": _LABEL},
    "function_call": {
        **_CALL_LABELS,
        "async": Field("neutral", (False,)),
        "call_id": _READ,
        "name": _READ,
        "arguments": _READ,
    },
    "function_call_output": {**_CALL_LABELS, "call_id": _READ, "output": _READ, "name": _LABEL},
    "reasoning": {**_LABELS, "summary": _READ, "content": _READ, "encrypted_content": _READ},
}
PART: Fields = {
    "type": _READ,
    "text": _READ,
    "annotations": _LABEL,
    "logprobs": _LABEL,
    "prompt_cache_breakpoint": _LABEL,
}
_SHOWN_OF_TOOL = ("type", "name", "description", "parameters", "strict")
TOOL: Fields = {
    **dict.fromkeys(_SHOWN_OF_TOOL, _READ),
    "defer_loading": Field("neutral", (False,), instead="Give only the tools that are needed."),
    "async": Field("neutral", (False,), instead="A call is over when its output is in the input."),
    "allowed_callers": Field("neutral", (["direct"],), instead="No code runs here that could call it."),
    "output_schema": Field("neutral", instead="Say in the description what it gives."),
}


@dataclass
class Conversation:
    """Messages, as they come together.

    unknown:  gets the keys that no item has
    messages: in the chat API's form
    names:    places in them → places in the body, for openai_fields.spelt
    """

    unknown: UnknownFields = field(default_factory=UnknownFields)
    messages: list[Json] = field(default_factory=list)
    names: dict[str, str] = field(default_factory=dict)
    _open_calls: dict[str, str] = field(default_factory=dict)  # ids whose outputs are still to come → their places
    _open: Json | None = None  # the assistant's message that further items may belong to

    def add_instructions(self, text: object) -> None:
        """What the body tells the model before everything else.

        raises: InvalidParameterError
        """
        if not isinstance(text, str):
            raise InvalidParameterError("instructions", text, "a string or null")
        self._add({"role": "system", "content": text}, "instructions", {"content": "instructions"})

    def add_input(self, given: object) -> None:
        """The whole input: a text, or a list of items.

        raises: InvalidMessagesError and InvalidParameterError, naming the item
        """
        if isinstance(given, str):
            self._add({"role": "user", "content": given}, "input", {"content": "input"})
            return
        if not isinstance(given, list) or not given:
            raise InvalidParameterError("input", given, "a text, or a list of items, not empty")
        for index, item in enumerate(given):
            self._add_item(item, f"input[{index}]")
        for call_id, path in self._open_calls.items():
            # What a model called but got no answer from would be answered out of thin air.
            hint = "Give a function_call_output item with its call_id."
            raise InvalidMessagesError(
                f"{path} calls a function, but there is no output of {shown(call_id)}.", field=path, hint=hint
            )

    def _add_item(self, item: object, path: str) -> None:
        if not isinstance(item, dict):
            raise InvalidParameterError(path, item, 'an object such as {"role": "user", "content": "..."}')
        kind = item.get("type")
        if kind is None:
            kind = "message" if "role" in item else "item_reference" if "id" in item else None
        if kind == "item_reference":
            raise _refused(path, "is a reference to a stored item, but nothing is stored here", "the item itself")
        if not isinstance(kind, str) or kind not in ITEMS:
            hint = "The model reads text and calls functions."
            raise _refused(f"{path}.type", f"is {shown(kind)}", ", ".join(ITEMS), hint)
        add = {
            "message": self._add_message,
            "reasoning": self._add_thought,
            "function_call": self._add_call,
            "function_call_output": self._add_result,
        }[kind]
        add(read_object(item, path, ITEMS[kind], self.unknown), path)

    def _add_message(self, item: Json, path: str) -> None:
        role = item.get("role")
        if role not in ROLES:
            raise _refused(f"{path}.role", f"is {shown(role)}", ", ".join(ROLES))
        content = self._content(item.get("content"), f"{path}.content")
        if role != "assistant":
            self._add({"role": role, "content": content}, path, {"content": f"{path}.content"})
            return
        self._begin_unless_open(path)
        self._put("content", content, f"{path}.content")

    def _add_thought(self, item: Json, path: str) -> None:
        thought = unpacked(item.get("encrypted_content"))
        if thought is None and "encrypted_content" in item:
            found = "is encrypted by another server, which alone can read it"
            hint = "Leave out what other servers thought, or give it as content."
            raise _refused(f"{path}.encrypted_content", found, "null", hint)
        kinds = {"content": "reasoning_text", "summary": "summary_text"}
        texts = {place: self._texts(item.get(place, []), f"{path}.{place}", (kind,)) for place, kind in kinds.items()}
        texts["encrypted_content"] = [thought or ""]
        place = next((one for one in ("content", "encrypted_content") if any(texts[one])), "summary")
        text = "\n\n".join(texts[place])
        if not text:
            return
        thought_before = self._begin_unless_open(path).get("reasoning_content")
        whole = text if thought_before is None else f"{thought_before}\n\n{text}"
        self._put("reasoning_content", whole, f"{path}.{place}")

    def _add_call(self, item: Json, path: str) -> None:
        call_id = _string(item, "call_id", path)
        if call_id in self._open_calls:
            raise _refused(f"{path}.call_id", f"is {shown(call_id)} again", "an id that no other call has")
        turn = self._open if self._open is not None else self._begin(path)
        calls = turn.setdefault("tool_calls", [])
        calls.append({"id": call_id, "name": item.get("name"), "arguments": item.get("arguments")})
        self._open_calls[call_id] = path
        self.names[f"messages[{len(self.messages) - 1}].tool_calls[{len(calls) - 1}]"] = path

    def _add_result(self, item: Json, path: str) -> None:
        call_id = _string(item, "call_id", path)
        if self._open_calls.pop(call_id, None) is None:
            hint = "Give the function_call item, too: nothing is stored here."
            allowed = "the call_id of a call before it that has no output yet"
            raise _refused(f"{path}.call_id", f"is {shown(call_id)}", allowed, hint)
        output = self._content(item.get("output"), f"{path}.output")
        message = {"role": "tool", "tool_call_id": call_id, "content": output}
        self._add(message, path, {"content": f"{path}.output", "tool_call_id": f"{path}.call_id"})

    def _content(self, content: object, path: str) -> str | list[Json]:
        """A content in the chat API's form: a text, or a list of text parts."""
        if isinstance(content, str):
            return content
        if not isinstance(content, list):
            raise _refused(path, f"is {shown(content)}", "a string or a list of parts")
        return [{"type": "text", "text": text} for text in self._texts(content, path, TEXT_PARTS)]

    def _texts(self, parts: object, path: str, kinds: Collection[str]) -> list[str]:
        if not isinstance(parts, list):
            raise _refused(path, f"is {shown(parts)}", "a list of parts")
        found = []
        for index, part in enumerate(parts):
            here = f"{path}[{index}]"
            if not isinstance(part, dict):
                example = f'an object such as {{"type": "{next(iter(kinds))}", "text": "..."}}'
                raise _refused(here, f"is {shown(part)}", example)
            if part.get("type") not in kinds:
                hint = "The model reads text only."
                raise _refused(f"{here}.type", f"is {shown(part.get('type'))}", ", ".join(kinds), hint)
            found.append(_string(read_object(part, here, PART, self.unknown), "text", here))
        return found

    def _begin(self, path: str) -> Json:
        """A turn of the assistant."""
        turn: Json = {"role": "assistant"}
        self._add(turn, path, {})
        self._open = turn
        return turn

    def _begin_unless_open(self, path: str) -> Json:
        """The turn that a thought or a text belongs to: a new one where there are texts or calls already."""
        turn = self._open
        return self._begin(path) if turn is None or "content" in turn or "tool_calls" in turn else turn

    def _put(self, name: str, value: object, place: str) -> None:
        assert self._open is not None
        self._open[name] = value
        self.names[f"messages[{len(self.messages) - 1}].{name}"] = place

    def _add(self, message: Json, path: str, places: dict[str, str]) -> None:
        self._open = None
        self.messages.append(message)
        here = f"messages[{len(self.messages) - 1}]"
        self.names[here] = path
        self.names |= {f"{here}.{name}": place for name, place in places.items()}


def read_tools(
    tools: object, unknown: UnknownFields, allowed: Mapping[str, str] | None = None
) -> tuple[list[Json], dict[str, str]]:
    """Functions that may be called, in the chat API's form.

    tools:   of the body, each flat: {"type": "function", "name": ..., "parameters": ...}
    unknown: gets the keys that no function has
    allowed: names of those that tool_choice leaves, with their places in it; None for all
    return:  tools; places in them → places in the body, for openai_fields.spelt
    raises:  InvalidRequestError and its kinds, naming the tool
    """
    if not isinstance(tools, list):
        raise InvalidParameterError("tools", tools, "a list of functions")
    made: list[Json] = []
    names: dict[str, str] = {}
    for index, tool in enumerate(tools):
        path = f"tools[{index}]"
        if not isinstance(tool, dict):
            raise InvalidParameterError(path, tool, 'an object such as {"type": "function", "name": "..."}')
        if tool.get("type") != "function":
            hint = "Give a function, which your program carries out."
            raise InvalidParameterError(f"{path}.type", tool.get("type"), '"function"', hint=hint)
        said = read_object(tool, path, TOOL, unknown)
        if not isinstance(said.pop("strict", None), bool | None):
            raise InvalidParameterError(f"{path}.strict", tool["strict"], "true, false or null")
        del said["type"]
        name = said.get("name")
        if allowed is None or (isinstance(name, str) and name in allowed):
            names[f"tools[{len(made)}].function"] = path
            made.append({"type": "function", "function": said})
    found = {tool["function"].get("name") for tool in made} if allowed else set()
    for name, place in (allowed or {}).items():
        if name not in found:
            raise InvalidParameterError(place, name, "the name of one of the tools")
    return made, names


def shown_tool(tool: Json) -> Json:
    """A function as an answer repeats it: with all that the API says of one."""
    return {key: tool.get(key) for key in _SHOWN_OF_TOOL}


def _string(item: Json, name: str, path: str) -> str:
    value = item.get(name)
    if not isinstance(value, str):
        raise _refused(f"{path}.{name}", "is missing or null" if value is None else f"is {shown(value)}", "a string")
    return value


def _refused(path: str, found: str, allowed: str, hint: str | None = None) -> InvalidMessagesError:
    return InvalidMessagesError(f"{path} {found}; allowed: {allowed}.", field=path, hint=hint)
