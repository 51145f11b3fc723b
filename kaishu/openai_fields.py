"""The fields of OpenAI's request bodies, as data: what becomes of each of them.

Owns the tables, after OpenAI's API reference, and the refusals that need nothing but them: unknown fields, and values
of fields that ask for what we don't do. So no field is dropped unread. What the fields that are read mean is in
openai_requests.py and openai_embeddings.py. Null is everywhere what leaving the field out is.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

from kaishu.errors import InvalidParameterError, InvalidRequestError, shortened
from kaishu.json_fields import shown


@dataclass(frozen=True)
class Field:
    """What becomes of a field.

    use:     "read": it does what its documentation says. "noted": its type is checked, and that is all, since nothing
             that it could change is part of an answer. "neutral": accepted at values that ask for nothing
    neutral: those values, beside null
    kind:    the type of what is noted
    instead: what to do where it is refused
    is_ours: OpenAI's API doesn't have it
    inside:  the fields of the object that it is; None where any are free, or nobody looks at them
    each:    the fields of each object in the list that it is
    """

    use: Literal["read", "noted", "neutral"]
    neutral: tuple[Any, ...] = ()
    kind: type | None = None
    instead: str | None = None
    is_ours: bool = False
    inside: Mapping[str, Field] | None = None
    each: Mapping[str, Field] | None = None


_READ, _OURS = Field("read"), Field("read", is_ours=True)
_TEXT, _OBJECT = Field("noted", kind=str), Field("noted", kind=dict)
_KINDS: Mapping[type, str] = {str: "a string", dict: "an object"}
MOST_UNKNOWN = 400  # more than a header of warnings has room for

_CACHING: Mapping[str, Field] = {"mode": _TEXT, "ttl": _TEXT}
STREAM_OPTIONS: Mapping[str, Field] = {
    "include_usage": _READ,
    "include_obfuscation": Field("neutral", (False,), instead="Nothing is padded here."),
}
SCHEMA: Mapping[str, Field] = dict.fromkeys(("name", "description", "schema", "strict"), _READ)
_OWN_FORMATS = dict.fromkeys(("regex", "lark", "choice"), _OURS)
RESPONSE_FORMAT: Mapping[str, Field] = {"type": _READ, "json_schema": Field("read", inside=SCHEMA), **_OWN_FORMATS}
FLAT_RESPONSE_FORMAT: Mapping[str, Field] = {"type": _READ, **SCHEMA, **_OWN_FORMATS}  # of /v1/responses
# What it is that images, refusals and calls of other kinds ask for is in their `type`, which messages.py refuses.
PART: Mapping[str, Field] = {
    **dict.fromkeys(("type", "text", "refusal", "image_url", "input_audio", "file"), _READ),
    "prompt_cache_breakpoint": Field("noted", kind=dict, inside=_CACHING),
}
TOOL_CALL: Mapping[str, Field] = {
    **dict.fromkeys(("id", "type", "custom"), _READ),
    "function": Field("read", inside=dict.fromkeys(("name", "arguments"), _READ)),
    **dict.fromkeys(("name", "arguments", "index"), _OURS),
}
MESSAGE: Mapping[str, Field] = {
    **dict.fromkeys(("role", "name", "tool_call_id"), _READ),
    "content": Field("read", each=PART),
    "tool_calls": Field("read", each=TOOL_CALL),
    **dict.fromkeys(("reasoning_content", "reasoning"), _OURS),
    "refusal": Field("neutral", ("",), instead="Say it as content."),
    "audio": Field("neutral", instead="The model reads text only."),
    "function_call": Field("neutral", instead="Use tool_calls."),
    "annotations": Field("neutral", ([],), instead="Leave them out.", is_ours=True),  # OpenAI's answers have them
}
TOOL: Mapping[str, Field] = {
    "type": _READ,
    "function": Field("read", inside=dict.fromkeys(("name", "description", "parameters", "strict"), _READ)),
    "custom": Field("neutral", instead="Give a function."),
}
TOOL_CHOICE: Mapping[str, Field] = {
    "type": _READ,
    "function": Field("read", inside={"name": _READ}),
    "name": _OURS,
    "allowed_tools": Field("neutral", instead="Give only the tools that may be called, in tools."),
    "custom": Field("neutral", instead="Name a function."),
}

_GENERATION: Mapping[str, Field] = {
    "model": _READ,
    "temperature": _READ,
    "top_p": _READ,
    "n": _READ,
    "stop": _READ,
    "seed": _READ,
    "presence_penalty": _READ,
    "frequency_penalty": _READ,
    "logit_bias": _READ,
    "max_tokens": _READ,
    "logprobs": _READ,
    "stream": _READ,
    "stream_options": Field("read", inside=STREAM_OPTIONS),
    "user": _TEXT,
    "top_k": _OURS,
    "min_p": _OURS,
    "repetition_penalty": _OURS,
    "min_tokens": _OURS,
    "ignore_eos": _OURS,
    "stop_token_ids": _OURS,
    "priority": _OURS,
}

CHAT_FIELDS: Mapping[str, Field] = {
    **_GENERATION,
    "messages": Field("read", each=MESSAGE),
    "max_completion_tokens": _READ,
    "top_logprobs": _READ,
    "response_format": Field("read", inside=RESPONSE_FORMAT),
    "tools": Field("read", each=TOOL),
    "tool_choice": Field("read", inside=TOOL_CHOICE),
    "parallel_tool_calls": _READ,
    "reasoning_effort": _READ,
    "thinking_budget": _OURS,
    "enable_thinking": _OURS,
    "chat_template_kwargs": _OURS,
    "continue_final_message": _OURS,
    "metadata": _OBJECT,
    "safety_identifier": _TEXT,
    "prompt_cache_key": _TEXT,
    "prompt_cache_retention": _TEXT,
    "prompt_cache_options": Field("noted", kind=dict, inside=_CACHING),
    "store": Field("neutral", (False,), instead="Nothing is stored here; keep the answer yourself."),
    "service_tier": Field("neutral", ("auto", "default"), instead="Say what is urgent with priority."),
    "verbosity": Field("neutral", ("medium",), instead="Say in the messages how long the answer should be."),
    "modalities": Field("neutral", (["text"],), instead="The model writes text only."),
    "audio": Field("neutral", instead="The model writes text only."),
    "prediction": Field("neutral", instead="Leave it out: what repeats the prompt is guessed without it."),
    "moderation": Field("neutral", instead="There is no moderation here."),
    "web_search_options": Field("neutral", instead="Give a function that searches, in tools."),
    "functions": Field("neutral", ([],), instead="Use tools."),
    "function_call": Field("neutral", ("auto", "none"), instead="Use tool_choice."),
}

COMPLETION_FIELDS: Mapping[str, Field] = {
    **_GENERATION,
    "prompt": _READ,
    "echo": _READ,
    "best_of": _READ,
    "suffix": Field("neutral", ("",), instead="The model continues a text, and fills no gap."),
    "response_format": Field("read", inside=RESPONSE_FORMAT, is_ours=True),
}

EMBEDDING_FIELDS: Mapping[str, Field] = {
    "model": _READ,
    "input": _READ,
    "dimensions": _READ,
    "encoding_format": _READ,
    "user": _TEXT,
    "instruct": _OURS,
    "truncate": _OURS,
    "priority": _OURS,
}


class UnknownFields:
    """Fields that the API doesn't have, wherever in a body they stand.

    are_allowed: they are left unread and noted, to be warned of; otherwise the first of them is an error
    places:      of those that were noted, the first MOST_UNKNOWN
    """

    def __init__(self, *, are_allowed: bool = False) -> None:
        self.are_allowed, self.places = are_allowed, list[str]()

    def check(self, value: Mapping[str, Any], allowed: Collection[str], path: str = "") -> None:
        """Look at an object's keys. path: where it stands; "" for the body itself

        raises: InvalidRequestError, naming the first that is none of those allowed
        """
        for name in value:
            if name in allowed:
                continue
            place = f"{path}.{shortened(name)}" if path else name
            if not self.are_allowed:
                near = difflib.get_close_matches(name, allowed, n=1)
                where = f"in {path}" if path else "here"
                raise InvalidRequestError(
                    f"There is no field {shown(name)} {where}; allowed: {', '.join(allowed)}.",
                    field=place,
                    hint=f"Did you mean {near[0]}?" if near else None,
                )
            if len(self.places) < MOST_UNKNOWN:
                self.places.append(place)


def read_fields(
    body: object, table: Mapping[str, Field], *, allow_unknown: bool = False
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Take a body apart.

    body:          parsed JSON
    allow_unknown: leave unknown fields to the caller, to be warned of, instead of refusing them
    return:        the fields that are read, as far as they are given and not null; the names of the unknown ones
    raises:        InvalidRequestError and InvalidParameterError, naming the field
    """
    unknown = UnknownFields(are_allowed=allow_unknown)
    return read_object(body, "", table, unknown), tuple(unknown.places)


def read_object(value: object, path: str, table: Mapping[str, Field], unknown: UnknownFields) -> dict[str, Any]:
    """Take an object inside a body apart.

    path:   where it stands; "" for the body itself
    return: the fields that are read, as far as they are given and not null, in the order of the object; without what
            is unknown in objects inside them
    raises: InvalidRequestError and InvalidParameterError, naming the field's place
    """
    if not isinstance(value, Mapping):
        raise InvalidParameterError(path or "body", value, f"{'an' if path else 'a JSON'} object, {{...}}")
    unknown.check(value, table, path)
    found: dict[str, Any] = {}
    for name, given in value.items():
        field, place = table.get(name), f"{path}.{name}" if path else name
        if field is None or given is None:
            continue
        if field.use == "noted" and not isinstance(given, field.kind or object):
            raise InvalidParameterError(place, given, _KINDS[field.kind or str])
        if field.use != "neutral":
            known = _known(given, place, field, unknown)
            if field.use == "read":
                found[name] = known
        elif not any(_is_same(given, neutral) for neutral in field.neutral):
            allowed = ", ".join([*(shown(neutral) for neutral in field.neutral), "null"])
            raise InvalidParameterError(place, given, allowed, hint=field.instead)
    return found


def _known(value: object, place: str, field: Field, unknown: UnknownFields) -> object:
    """A field's value without what is unknown in its objects; what should be one and isn't stays, for its reader."""
    if field.inside is not None and isinstance(value, dict):
        return read_object(value, place, field.inside, unknown)
    if field.each is not None and isinstance(value, list):
        return [
            read_object(one, f"{place}[{index}]", field.each, unknown) if isinstance(one, dict) else one
            for index, one in enumerate(value)
        ]
    return value


def _is_same(value: object, neutral: object) -> bool:
    """Equal and of one type: neither is 0 false, nor is 1 true."""
    return type(value) is type(neutral) and value == neutral


@contextmanager
def spelt(names: Mapping[str, str]) -> Iterator[None]:
    """Within this context errors name fields the way the body spelt them.

    names: our name → the body's, of fields or of places in them, as messages[2].content; the longest that fits counts,
           and what follows it, as in texts[3], stays
    """
    try:
        yield
    except InvalidRequestError as error:
        fitting = (name for name in names if _begins_with(error.field, name))
        name = max(fitting, key=len, default=None)
        if name is not None:
            rest = error.field[len(name) :]
            if _begins_with(error.message, name):
                error.message = names[name] + error.message[len(name) :]
            error.field = names[name] + rest
            error.args = (error.message if error.hint is None else f"{error.message}\n  {error.hint}",)
        raise


def _begins_with(text: str, name: str) -> bool:
    """Whether a name of a field, whole, is what a text begins with."""
    return text.startswith(name) and text[len(name) : len(name) + 1] in ("", ".", "[", ":", " ")


def boolean(fields: Mapping[str, Any], name: str, default: bool) -> bool:
    """A field that is true or false. raises: InvalidParameterError"""
    value = fields.get(name, default)
    if not isinstance(value, bool):
        raise InvalidParameterError(name, value, "true or false")
    return value


def integer(fields: Mapping[str, Any], name: str, low: int, high: int) -> int | None:
    """A field that is a whole number; None where it isn't given. raises: InvalidParameterError"""
    value = fields.get(name)
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise InvalidParameterError(name, value, f"a whole number from {low} to {high}")
    return value


def model_name(fields: Mapping[str, Any]) -> str:
    """The model that a body names. raises: InvalidParameterError"""
    model = fields.get("model")
    if not isinstance(model, str) or not model:
        raise InvalidParameterError("model", model, "the name of a model")
    return model


def priority(fields: Mapping[str, Any]) -> int:
    """The priority that a body asks for. raises: InvalidParameterError"""
    return integer(fields, "priority", -(2**31), 2**31 - 1) or 0
