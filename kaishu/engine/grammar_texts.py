"""From an OutputFormat to the text that llguidance compiles.

Owns how each kind of format is written for it, and what is refused by looking at the text alone: expressions that
repeat themselves into millions of characters, and schemas inside Lark, which go through the same check as any other.
Knows no tokens. Used by grammar.py.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from kaishu.engine.grammar_schema import supported_schema, with_options
from kaishu.errors import InvalidRequestError, KaishuError
from kaishu.json_fields import parse_json_object
from kaishu.output_format import MAX_SCHEMA_CHARACTERS, OutputFormat, checked_json

MAX_UNROLLED = 20_000  # characters of a regex with its repetitions written out
MAX_RULES = 3_000  # of a Lark text; a rule of a rule of a rule is as deep as there are rules
REPEAT = re.compile(r"\{(\d+)(,?)(\d*)\}")
# The parts of a Lark text that are strings, comments or expressions, and what is looked for outside of those.
LARK_TEXT = r'"(?:\\.|[^"\\\n])*"|//[^\n]*|\#[^\n]*|/(?:\\.|[^/\\\n])+/'
LARK_OPTION = r"%llguidance\b|\b(?:stop|max_tokens|temperature)\s*="
LARK_PART = re.compile(f"(?P<text>{LARK_TEXT})|(?P<json>%json\\b)|(?P<option>{LARK_OPTION})")


def grammar_text(format_: OutputFormat) -> str:
    """The grammar of a format, in the form that llguidance's matcher takes.

    raises: InvalidRequestError where the format asks for what can't be enforced, is too large once repetitions are
            written out, or is no valid schema
    """
    from llguidance import LLMatcher

    field = format_.field_name
    if format_.kind == "json_object":
        return LLMatcher.grammar_from_json_schema(with_options({"type": "object"}))
    if format_.kind == "json_schema":
        return LLMatcher.grammar_from_json_schema(
            with_options(supported_schema(json.loads(format_.content), field=field))
        )
    if format_.kind == "choice":
        return LLMatcher.grammar_from_regex("|".join(map(literal_regex, json.loads(format_.content))))
    if format_.kind == "regex":
        check_unrolled(format_.content, field)
        return LLMatcher.grammar_from_regex(format_.content)
    return LLMatcher.grammar_from_lark(lark_with_checked_schemas(format_.content, field, format_.schema_fields))


def literal_regex(text: str) -> str:
    """A regular expression that matches this text alone."""
    return "".join(c if c.isalnum() or ord(c) > 127 else f"\\x{ord(c):02X}" for c in text)


def check_unrolled(expression: str, field: str) -> None:
    """Refuse an expression whose repetitions, written out one in another, make it too long.

    raises: InvalidRequestError. Expressions with brackets that don't match are left to the parser to refuse.
    """
    if unrolled_length(expression) > MAX_UNROLLED:
        raise InvalidRequestError(
            f"{field} is a regex that with its repetitions written out has more than {MAX_UNROLLED:,} characters.",
            field=field,
            hint="Repeat less: {0,100} rather than {0,10000}; or use * and +, which cost nothing.",
        )


def unrolled_length(expression: str) -> int:
    """How many characters an expression has once x{3} is written as xxx; each class or escape counts as one."""
    lengths, last, place = [0], 0, 0  # of each open group so far, and of the last piece
    while place < len(expression):
        character = expression[place]
        repeat = REPEAT.match(expression, place) if character == "{" else None
        if repeat is not None:
            times = max(int(repeat[1][:9]), int(repeat[3][:9] or 0), 1)
            lengths[-1] += last * (times - 1)
            last *= times
            place = repeat.end()
            continue
        if character == "(":
            lengths.append(0)
        elif character == ")" and len(lengths) > 1:
            last = lengths.pop()
            lengths[-1] += last
        elif character not in "*+?":
            last = 1
            lengths[-1] += 1
            place = _end_of_piece(expression, place) - 1
        place += 1
        if lengths[-1] > MAX_UNROLLED:
            break
    return max(lengths)


def _end_of_piece(expression: str, place: int) -> int:
    """Where one class or escape ends that begins here; any other character is a piece of its own."""
    piece = re.compile(r"\\[pPxuU]\{[^}]*\}|\\.|\[\^?\]?(?:\\.|\[:[^\]]*:\]|[^\]\\])*\]", re.DOTALL).match(
        expression, place
    )
    return piece.end() if piece else place + 1


def lark_with_checked_schemas(lark: str, field: str, schema_fields: Sequence[str] = ()) -> str:
    """A Lark grammar in which each `%json {...}` was checked as a schema of its own.

    schema_fields: see OutputFormat
    raises: InvalidRequestError where one can't be enforced, or is no JSON; for options, which could switch checks off;
            and for a regex in it that check_unrolled refuses
    """
    made: list[str] = []
    num_rules = done = place = 0
    names = iter(schema_fields)
    while part := LARK_PART.search(lark, place):
        num_rules += lark.count(":", place, part.start())
        place = part.end()
        if part["option"]:
            option = part[0].rstrip(" =")
            raise InvalidRequestError(f"{field} uses {option}, which isn't taken from a grammar.", field=field)
        if part[0].startswith("/") and not part[0].startswith("//"):
            check_unrolled(part[0][1:-1], field)
        if part["json"]:
            schema, place = _schema_at(lark, place, field)
            name = next(names, None)
            path = "#" if name else f"%json at character {part.start():,}: #"
            checked = supported_schema(schema, field=name or field, path=path)
            made += [lark[done : part.end()], " ", with_options(checked)]
            done = place
    if num_rules + lark.count(":", place) > MAX_RULES:
        raise InvalidRequestError(f"{field} has too many rules; allowed: {MAX_RULES:,}.", field=field)
    return "".join(made) + lark[done:]


def names_in_lark(lark: str) -> str:
    """A Lark grammar's text without its strings, comments and expressions: what is left are names."""
    return LARK_PART.sub(lambda part: " " if part["text"] else part[0], lark)


def _schema_at(lark: str, place: int, field: str) -> tuple[dict[str, Any], int]:
    """The JSON object at a place in a Lark text, and where it ends."""
    start = place + len(lark[place:]) - len(lark[place:].lstrip())
    try:
        _, end = json.JSONDecoder().raw_decode(lark, start)
        if end - start > MAX_SCHEMA_CHARACTERS:
            raise ValueError(f"it has {end - start:,} characters; allowed: {MAX_SCHEMA_CHARACTERS:,}")
        schema = parse_json_object(lark[start:end].encode(), field, KaishuError)
    except (ValueError, RecursionError, KaishuError) as problem:
        raise InvalidRequestError(f"{field} has a %json that can't be read: {problem}.", field=field) from None
    checked_json(schema, field)
    return schema, end
