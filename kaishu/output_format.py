"""OutputFormat: the form that an answer must have, as it was asked for.

Owns the kinds of form, and what is too large to be looked at: each check here takes time in proportion to what it was
given, and little of it. Knows no grammar engine and no tokenizer: whether a schema or an expression means anything is
found out by engine/grammar.py, which makes token masks of it.
Made by every surface (Python, command line, HTTP), and goes to the engine with the request.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from kaishu.errors import InvalidParameterError, InvalidRequestError, KaishuError, shown
from kaishu.json_fields import parse_json

Kind = Literal["json_schema", "json_object", "regex", "lark", "choice"]

MAX_SCHEMA_CHARACTERS = 256_000
MAX_EXPRESSION_CHARACTERS = 16_000  # a regex; matching one takes time with its length at every step
MAX_LARK_CHARACTERS = 512_000  # it may hold schemas
MAX_CHOICES = 10_000
MAX_CHOICES_CHARACTERS = 256_000
MAX_DEPTH = 64  # how deep a schema nests; nobody's goes beyond 20
MAX_VALUES = 50_000  # of a schema: strings, numbers, objects and so on


@dataclass(frozen=True)
class OutputFormat:
    """The form that an answer must have. Checked when it is made; equal formats are equal objects.

    kind:       json_schema, json_object (any JSON object), regex (all of the answer matches it), lark (a context-free
                grammar in Lark's notation) or choice (one of a few strings)
    content:    what is asked for. For json_schema a JSON object or its text, kept as text; for regex and lark the text;
                for choice a list of strings, kept as the text of a JSON list; "" for json_object
    field_name: what the caller calls it, for errors: "response_format.json_schema.schema"
    schema_fields: the same for the schemas that a lark text holds, in their order; () where they are part of what the
                caller gave

    raises: InvalidParameterError or InvalidRequestError, naming `field_name`, where the content isn't of the kind or is
            larger or deeper than the limits of this module
    """

    kind: Kind
    content: str = ""
    field_name: str = field(default="output_format", compare=False)
    schema_fields: tuple[str, ...] = field(default=(), compare=False)

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind):
            raise InvalidParameterError(f"{self.field_name}.kind", self.kind, ", ".join(get_args(Kind)))
        content: object = self.content
        if self.kind == "json_schema":
            checked = _schema_text(content, self.field_name)
        elif self.kind == "choice":
            checked = _choices_text(content, self.field_name)
        elif self.kind == "json_object":
            checked = ""
            if content != "":
                raise InvalidParameterError(self.field_name, content, "nothing beside the kind json_object")
        else:
            limit = MAX_EXPRESSION_CHARACTERS if self.kind == "regex" else MAX_LARK_CHARACTERS
            checked = _text(content, self.field_name, f"the text of a {self.kind}", limit)
        object.__setattr__(self, "content", checked)

    @classmethod
    def json_schema(cls, schema: Mapping[str, Any] | str, *, field_name: str = "output_format") -> OutputFormat:
        """An answer that is JSON and valid under a schema, given as an object or as its text."""
        return cls("json_schema", schema, field_name)  # type: ignore[arg-type]  # kept as text

    @classmethod
    def json_object(cls, *, field_name: str = "output_format") -> OutputFormat:
        """An answer that is any JSON object."""
        return cls("json_object", "", field_name)

    @classmethod
    def regex(cls, expression: str, *, field_name: str = "output_format") -> OutputFormat:
        """An answer all of which matches a regular expression: no look-around, no back-references."""
        return cls("regex", expression, field_name)

    @classmethod
    def lark(
        cls, grammar: str, *, field_name: str = "output_format", schema_fields: tuple[str, ...] = ()
    ) -> OutputFormat:
        """An answer that a context-free grammar in Lark's notation derives from its rule `start`."""
        return cls("lark", grammar, field_name, schema_fields)

    @classmethod
    def choice(cls, choices: Sequence[str], *, field_name: str = "output_format") -> OutputFormat:
        """An answer that is one of these strings."""
        return cls("choice", choices, field_name)  # type: ignore[arg-type]  # kept as text


def checked_json(value: object, field_name: str) -> str:
    """The text of JSON data given as Python values, keys in their order.

    raises: InvalidRequestError for other types, NaN, infinity, lone surrogates, and beyond the limits of this module
    """
    _check_values(value, field_name)
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return _text(text, field_name, "JSON", MAX_SCHEMA_CHARACTERS)


def _check_values(value: object, field_name: str) -> None:
    """Walk without recursion, so that depth is an answer and not a crash."""
    waiting: list[tuple[object, int]] = [(value, 0)]
    num_values = 0
    while waiting:
        found, depth = waiting.pop()
        num_values += 1
        if depth > MAX_DEPTH:
            raise _too("nested too deeply", f"at most {MAX_DEPTH} levels", field_name)
        if num_values + len(waiting) > MAX_VALUES:
            raise _too("of too many values", f"at most {MAX_VALUES:,}", field_name)
        if isinstance(found, dict):
            for key in found:
                _check_string(key, field_name)
            waiting += [(item, depth + 1) for item in found.values()]
        elif isinstance(found, list | tuple):
            waiting += [(item, depth + 1) for item in found]
        else:
            _check_plain(found, field_name)


def _check_plain(value: object, field_name: str) -> None:
    if isinstance(value, str):
        _check_string(value, field_name)
    elif isinstance(value, float) and not math.isfinite(value):
        raise _not_json(f"the number {value}", field_name)
    elif isinstance(value, int) and value.bit_length() > 1024:
        raise _not_json(f"an integer of {value.bit_length():,} bits", field_name)
    elif value is not None and not isinstance(value, bool | int | float):
        raise _not_json(f"a {type(value).__name__}", field_name)


def _check_string(value: object, field_name: str) -> None:
    if not isinstance(value, str):
        raise _not_json(f"the key {shown(value)}", field_name)
    try:
        value.encode()
    except UnicodeEncodeError:
        raise _not_json(f"a lone surrogate in {shown(value)}", field_name) from None


def _not_json(found: str, field_name: str) -> InvalidRequestError:
    return InvalidRequestError(
        f"{field_name} has {found}; allowed: objects, lists, strings, finite numbers, booleans and null.",
        field=field_name,
    )


def _too(what: str, allowed: str, field_name: str) -> InvalidRequestError:
    return InvalidRequestError(f"{field_name} is {what}; allowed: {allowed}.", field=field_name)


def _text(value: object, field_name: str, what: str, limit: int) -> str:
    if not isinstance(value, str) or not value:
        raise InvalidParameterError(field_name, value, f"{what}, a string that isn't empty")
    if len(value) > limit:
        raise InvalidRequestError(
            f"{field_name} has {len(value):,} characters; allowed: {limit:,}.",
            field=field_name,
            hint="Ask for less at once, or check the answer after it was written.",
        )
    _check_string(value, field_name)
    return value


def _schema_text(schema: object, field_name: str) -> str:
    if isinstance(schema, str):
        given = _text(schema, field_name, "a JSON schema", MAX_SCHEMA_CHARACTERS)
        try:
            schema = parse_json(given.encode(), field_name, KaishuError)
        except KaishuError as problem:
            raise InvalidRequestError(problem.message, field=field_name) from None
    if isinstance(schema, Mapping) and not isinstance(schema, dict):
        schema = dict(schema)
    if not isinstance(schema, dict):
        raise InvalidParameterError(field_name, schema, "a JSON schema, which is an object: {...}")
    return checked_json(schema, field_name)


def _choices_text(choices: object, field_name: str) -> str:
    if isinstance(choices, str):  # what another OutputFormat holds
        try:
            choices = json.loads(_text(choices, field_name, "a list of strings", MAX_CHOICES_CHARACTERS))
        except (ValueError, RecursionError):
            choices = None
    if not isinstance(choices, Sequence) or isinstance(choices, str | bytes) or len(choices) == 0:
        raise InvalidParameterError(field_name, choices, "a list of at least one string")
    if len(choices) > MAX_CHOICES:
        raise InvalidRequestError(
            f"{field_name} has {len(choices):,} choices; allowed: {MAX_CHOICES:,}.", field=field_name
        )
    for place, choice in enumerate(choices):
        if not isinstance(choice, str) or not choice:
            raise InvalidParameterError(f"{field_name}[{place}]", choice, "a string that isn't empty")
        _check_string(choice, f"{field_name}[{place}]")
    total = sum(len(choice) for choice in choices)
    if total > MAX_CHOICES_CHARACTERS:
        raise _too(f"{total:,} characters of choices", f"{MAX_CHOICES_CHARACTERS:,}", field_name)
    return json.dumps(list(choices), ensure_ascii=False, separators=(",", ":"))
