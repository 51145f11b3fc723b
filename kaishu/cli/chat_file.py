"""Conversations as files: readable JSON that `/save` writes and `/load` reads; and the file that `--tools` names.

Owns the format and its checks. A file from elsewhere is read with the same suspicion as a request: whatever isn't as
expected is an error that says where, and leaves the session as it was.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from kaishu.cli.chat_session import Message, Session, check_chat_fields
from kaishu.errors import InvalidRequestError, KaishuError
from kaishu.json_fields import read_json, read_json_object
from kaishu.sampling import SamplingParams
from kaishu.text.messages import clean_tools

FORMAT = "kaishu chat 1"
_FIELDS = {"format", "model", "system", "thinking", "sampling", "tools", "messages"}


def save(session: Session, file: Path) -> None:
    """Write a conversation. Only a saved conversation is ever replaced, and then as a whole.

    raises: KaishuError when the file is something else, or can't be written
    """
    content = {
        "format": FORMAT,
        "model": session.model,
        "system": session.system,
        "thinking": session.thinking,
        "sampling": session.sampling,
        "tools": session.tools,
        "messages": session.turns,
    }
    try:
        if file.exists() and not _is_chat(file):
            raise KaishuError(f"{file} exists and is not a saved chat.", hint="Choose another name.")
        partial = file.with_name(file.name + ".partial")
        try:
            partial.write_text(json.dumps(content, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")
            partial.replace(file)
        except BaseException:
            partial.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise KaishuError(f"{file} can't be written: {error.strerror or error}.") from error
    except ValueError as error:  # a name that no file can have, or half of a surrogate pair in a message
        raise KaishuError(f"{str(file)!r} can't be written: {error}.") from error


def load(file: Path, *, model: str) -> Session:
    """Read a conversation.

    model:  the name of the model that will go on with it
    return: a new session with that model and the file's turns and settings
    raises: KaishuError
    """
    content = read_json_object(file, KaishuError)
    if content.get("format") != FORMAT:
        raise KaishuError(f'{file} is not a saved chat: its "format" is not "{FORMAT}".')
    unknown = sorted(set(content) - _FIELDS)
    if unknown:
        raise KaishuError(f"{file}: unknown field {unknown[0]!r}; allowed: {', '.join(sorted(_FIELDS))}.")
    sampling = _expect(file, content, "sampling", dict, optional=False)
    try:
        check_chat_fields(sampling)
        SamplingParams.from_fields(sampling)
        tools = _expect(file, content, "tools", list)
        return Session(
            model=model,
            system=_expect(file, content, "system", str),
            thinking=_expect(file, content, "thinking", bool),
            sampling=sampling,
            tools=clean_tools(tools),
            turns=[
                _checked_turn(file, i, turn) for i, turn in enumerate(_expect(file, content, "messages", list) or [])
            ],
        )
    except InvalidRequestError as error:
        raise KaishuError(f"{file}: {error.message}", hint=error.hint) from error


def read_tools(file: Path) -> list[Any] | None:
    """Read tools that the model may call.

    file:   JSON, one definition as OpenAI writes them or a list of them
    return: the list; None where it is empty
    raises: KaishuError
    """
    tools = read_json(file, KaishuError)
    try:
        return clean_tools([tools] if isinstance(tools, dict) else tools)
    except InvalidRequestError as error:
        raise KaishuError(f"{file}: {error.message}", hint=error.hint) from error


def _is_chat(file: Path) -> bool:
    try:
        return bool(read_json_object(file, KaishuError).get("format") == FORMAT)
    except KaishuError:
        return False


def _expect(file: Path, content: dict[str, Any], name: str, kind: type, *, optional: bool = True) -> Any:
    value = content.get(name)
    if (value is None and optional) or isinstance(value, kind):
        return value
    raise KaishuError(f"{file}: {name!r} should be a {kind.__name__}, not {type(value).__name__}.")


def _checked_turn(file: Path, index: int, turn: Any) -> Message:
    role = turn.get("role") if isinstance(turn, dict) else None
    if role not in ("user", "assistant", "tool") or not isinstance(turn.get("content"), str):
        raise KaishuError(f"{file}: message {index} needs a role (user, assistant or tool) and a content that is text.")
    calls = turn.get("tool_calls", [])
    if not isinstance(calls, list) or not all(map(_is_call, calls)):
        raise KaishuError(
            f"{file}: each of message {index}'s tool_calls needs an id, and a function with name and arguments."
        )
    if role == "tool" and not isinstance(turn.get("tool_call_id"), str):
        raise KaishuError(f"{file}: message {index} needs a tool_call_id.")
    checked: Message = turn
    return checked


def _is_call(call: Any) -> bool:
    function = call.get("function") if isinstance(call, dict) else None
    texts = [call.get("id"), function.get("name"), function.get("arguments")] if isinstance(function, dict) else [None]
    return all(isinstance(text, str) for text in texts)
