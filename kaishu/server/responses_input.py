"""What a body of /v1/responses gives the model to read: its items, as messages of a chat, and its tools.

Owns the forms of items and tools in OpenAI's Responses API, and the way from them to those of the chat API, which
text/messages.py checks further. For errors that come from there it keeps where each piece stood in the body. Pure:
knows nothing of HTTP. Used by responses_requests.py.

An assistant's turn is one message of a chat, but several items: its thought, its text, each of its calls. They are put
together again, in the order in which the API gave them out.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from kaishu.errors import InvalidMessagesError, InvalidParameterError, shortened
from kaishu.json_fields import shown

Json = dict[str, Any]

ROLES = ("user", "assistant", "system", "developer")
ITEMS = ("message", "function_call", "function_call_output", "reasoning")
TEXT_PARTS = ("input_text", "output_text", "text")
# What stands in items that an API gave out and that says nothing to the model.
_LABELS = ("type", "id", "status")
_TOOL_KEYS = ("type", "name", "description", "parameters", "strict")


@dataclass
class Conversation:
    """Messages, as they come together.

    messages: in the chat API's form
    names:    places in them → places in the body, for openai_fields.spelt
    """

    messages: list[Json] = field(default_factory=list)
    names: dict[str, str] = field(default_factory=dict)
    _calls: set[str] = field(default_factory=set)
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

    def _add_item(self, item: object, path: str) -> None:
        if not isinstance(item, dict):
            raise InvalidParameterError(path, item, 'an object such as {"role": "user", "content": "..."}')
        kind = item.get("type")
        if kind is None:
            kind = "message" if "role" in item else "item_reference" if "id" in item else None
        match kind:
            case "message":
                self._add_message(item, path)
            case "reasoning":
                self._add_thought(item, path)
            case "function_call":
                self._add_call(item, path)
            case "function_call_output":
                self._add_result(item, path)
            case "item_reference":
                raise _refused(path, "is a reference to a stored item, but nothing is stored here", "the item itself")
            case _:
                hint = "The model reads text and calls functions."
                raise _refused(f"{path}.type", f"is {shown(kind)}", ", ".join(ITEMS), hint)

    def _add_message(self, item: Json, path: str) -> None:
        _check_keys(item, path, (*_LABELS, "role", "content", "phase"))
        role = item.get("role")
        if role not in ROLES:
            raise _refused(f"{path}.role", f"is {shown(role)}", ", ".join(ROLES))
        content = _content(item.get("content"), f"{path}.content")
        if role != "assistant":
            self._add({"role": role, "content": content}, path, {"content": f"{path}.content"})
            return
        self._begin_unless_open(path)
        self._put("content", content, f"{path}.content")

    def _add_thought(self, item: Json, path: str) -> None:
        _check_keys(item, path, (*_LABELS, "summary", "content", "encrypted_content"))
        if item.get("encrypted_content") is not None:
            found = "is encrypted by another server, which alone can read it"
            hint = "Leave out what other servers thought, or give it as content."
            raise _refused(f"{path}.encrypted_content", found, "null", hint)
        kinds = {"content": "reasoning_text", "summary": "summary_text"}
        given = {place: [] if item.get(place) is None else item[place] for place in kinds}
        texts = {place: _texts(given[place], f"{path}.{place}", (kind,)) for place, kind in kinds.items()}
        place = "content" if texts["content"] else "summary"
        text = "\n\n".join(texts[place])
        if not text:
            return
        thought_before = self._begin_unless_open(path).get("reasoning_content")
        whole = text if thought_before is None else f"{thought_before}\n\n{text}"
        self._put("reasoning_content", whole, f"{path}.{place}")

    def _add_call(self, item: Json, path: str) -> None:
        _check_keys(item, path, (*_LABELS, "call_id", "name", "arguments"), ignored=_DIRECT)
        call_id = _string(item, "call_id", path)
        turn = self._open if self._open is not None else self._begin(path)
        calls = turn.setdefault("tool_calls", [])
        calls.append({"id": call_id, "name": item.get("name"), "arguments": item.get("arguments")})
        self._calls.add(call_id)
        self.names[f"messages[{len(self.messages) - 1}].tool_calls[{len(calls) - 1}]"] = path

    def _add_result(self, item: Json, path: str) -> None:
        _check_keys(item, path, (*_LABELS, "call_id", "output", "name"), ignored=_DIRECT)
        call_id = _string(item, "call_id", path)
        if call_id not in self._calls:
            hint = "Give the function_call item, too: nothing is stored here."
            raise _refused(f"{path}.call_id", f"is {shown(call_id)}", "the call_id of a call before it", hint)
        output = _content(item.get("output"), f"{path}.output")
        message = {"role": "tool", "tool_call_id": call_id, "content": output}
        self._add(message, path, {"content": f"{path}.output", "tool_call_id": f"{path}.call_id"})

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


# What the API says of calls that a program of its own made: here the model makes them all.
_DIRECT: Json = {"caller": ({"type": "direct"},), "namespace": (), "async": (False,)}


def read_tools(tools: object) -> tuple[list[Json], dict[str, str]]:
    """Functions, in the chat API's form.

    tools:  of the body, each flat: {"type": "function", "name": ..., "parameters": ...}
    return: tools; places in them → places in the body, for openai_fields.spelt
    raises: InvalidMessagesError and InvalidParameterError, naming the tool
    """
    if not isinstance(tools, list):
        raise InvalidParameterError("tools", tools, "a list of functions")
    made, names = [], {}
    for index, tool in enumerate(tools):
        path = f"tools[{index}]"
        if not isinstance(tool, dict):
            raise InvalidParameterError(path, tool, 'an object such as {"type": "function", "name": "..."}')
        if tool.get("type") != "function":
            hint = "Give a function, which your program carries out."
            raise InvalidParameterError(f"{path}.type", tool.get("type"), '"function"', hint=hint)
        ignored = {"defer_loading": (False,), "async": (False,), "allowed_callers": (["direct"],)}
        _check_keys(tool, path, _TOOL_KEYS, ignored=ignored)
        if not isinstance(tool.get("strict"), bool | None):
            raise InvalidParameterError(f"{path}.strict", tool["strict"], "true, false or null")
        said = {key: tool[key] for key in ("name", "description", "parameters") if tool.get(key) is not None}
        made.append({"type": "function", "function": said})
        names[f"{path}.function"] = path
    return made, names


def shown_tool(tool: Json) -> Json:
    """A function as an answer repeats it: with all that the API says of one."""
    return {key: tool.get(key) for key in _TOOL_KEYS}


def _content(content: object, path: str) -> str | list[Json]:
    """A content in the chat API's form: a text, or a list of text parts."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise _refused(path, f"is {shown(content)}", "a string or a list of parts")
    return [{"type": "text", "text": text} for text in _texts(content, path, TEXT_PARTS)]


def _texts(parts: object, path: str, kinds: Collection[str]) -> list[str]:
    if not isinstance(parts, list):
        raise _refused(path, f"is {shown(parts)}", "a list of parts")
    found = []
    for index, part in enumerate(parts):
        here = f"{path}[{index}]"
        if not isinstance(part, dict):
            raise _refused(
                here, f"is {shown(part)}", f'an object such as {{"type": "{next(iter(kinds))}", "text": "..."}}'
            )
        if part.get("type") not in kinds:
            hint = "The model reads text only."
            raise _refused(f"{here}.type", f"is {shown(part.get('type'))}", ", ".join(kinds), hint)
        _check_keys(part, here, ("type", "text", "annotations", "logprobs", "prompt_cache_breakpoint"))
        found.append(_string(part, "text", here))
    return found


def _string(item: Json, name: str, path: str) -> str:
    value = item.get(name)
    if not isinstance(value, str):
        raise _refused(f"{path}.{name}", "is missing or null" if value is None else f"is {shown(value)}", "a string")
    return value


def _check_keys(item: Json, path: str, allowed: Collection[str], *, ignored: Json | None = None) -> None:
    """Refuse keys that mean nothing. ignored: keys that may be there with one of these values, or null"""
    for key, value in item.items():
        if key in allowed or value in (None, "", [], {}):
            continue
        if ignored and key in ignored:
            if value not in ignored[key]:
                few = ", ".join([*map(shown, ignored[key]), "null"])
                raise _refused(f"{path}.{key}", f"is {shown(value)}", few)
            continue
        raise _refused(f"{path}.{shortened(key)}", "is not a field here", ", ".join(allowed))


def _refused(path: str, found: str, allowed: str, hint: str | None = None) -> InvalidMessagesError:
    return InvalidMessagesError(f"{path} {found}; allowed: {allowed}.", field=path, hint=hint)
