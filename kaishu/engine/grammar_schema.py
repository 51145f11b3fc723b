"""JSON schemas (draft 2020-12) as the grammar engine may see them: every keyword enforced, or refused by name and path.

Owns the table of keywords. llguidance passes over keywords that it doesn't know, takes switches from inside a schema
that make it lenient, and has a few corners where what it lets through isn't valid; so it is given a schema made here,
in which only what it enforces is left: annotations are dropped, corners are cut off with keywords that it enforces.
Knows no tokens. Used by grammar_texts.py and grammar_tools.py.

What is narrower than the schema: an object's properties come in the order in which they are listed; strings have no
control characters but those with an escape of their own (\\n, \\t, ...); numbers with bounds have no exponent.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from kaishu.engine.deep_stack import deeply
from kaishu.engine.grammar_refusals import name_refused
from kaishu.errors import InvalidRequestError, shown

Json = dict[str, Any]

ANNOTATIONS = frozenset(
    ("title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly", "$comment", "$schema")
)
SCHEMA = frozenset(("items", "additionalProperties"))
SCHEMA_LISTS = frozenset(("anyOf", "oneOf", "allOf", "prefixItems"))
SCHEMA_MAPS = frozenset(("properties", "patternProperties", "$defs", "definitions"))
COUNTS = frozenset(("minItems", "maxItems", "minLength", "maxLength", "minProperties", "maxProperties"))
NUMBERS = frozenset(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"))
OTHERS = frozenset(("type", "enum", "const", "$ref", "required", "pattern", "format"))
KEYWORDS = SCHEMA | SCHEMA_LISTS | SCHEMA_MAPS | COUNTS | NUMBERS | OTHERS

TYPES = ("null", "boolean", "integer", "number", "string", "array", "object")
FORMATS = ("date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri")
MAX_COUNT = 1_000_000
MAX_IN_PLACE = 5_000  # schemas that references in oneOf are replaced with
MAX_LEVELS = 10_000  # of a schema and all that it refers to; deep_stack.py has room for them
MAX_EXACT = 2**53  # beyond it, llguidance's float64 would move a bound or a constant
MAX_MULTIPLE = 10_000  # multipleOf without its point: its automaton has a state for each remainder

# What a string can't say without \\u escapes. Those are off: a name written with them would pass as another one's.
CONTROL = re.compile(r"[\x00-\x07\x0b\x0e-\x1f\x7f]")
NO_CONTROL = {"pattern": r"^[^\x00-\x07\x0b\x0e-\x1f\x7f]*$"}
# RFC 3339 has leap seconds at moments that no pattern knows, and days that only leap years have.
NO_LEAP_SECOND = {"pattern": r"^[^:]*:[^:]*:[0-5]"}
LEAP_YEAR = "(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)"
REAL_DAY = {"pattern": "^(?:[0-9]{4}-(?:02-(?:[01][0-9]|2[0-8])|(?:0[13-9]|1[0-2])-[0-9]{2})|" + LEAP_YEAR + "-02-29)"}
REAL_YEAR = {"pattern": "^0*[1-9]"}  # there was none before the year 1
ALSO = {
    "date-time": (REAL_YEAR, REAL_DAY, NO_LEAP_SECOND),
    "date": (REAL_YEAR, REAL_DAY),
    "time": (NO_LEAP_SECOND,),
}
NAMES_A_CONTROL = re.compile(r"[\x00-\x1f\x7f]|\\[xuUcav0-9]|\\p\{C")

# White space where JSON allows it, once: a space, or a line break and how far the next line is moved in.
OPTIONS = {"whitespace_pattern": r" |\n {0,40}|\n\t{1,10}", "json_allowed_escapes": 'nrbtf\\"'}

HINTS = {
    "nullable": 'Write "type": ["string", "null"] instead.',
    "additionalItems": "Draft 2020-12 writes prefixItems, and items for the rest.",
    "not": "Say what is allowed, not what isn't.",
    "if": "Write anyOf with one schema for each case.",
    "$dynamicRef": "Write $ref.",
    "uniqueItems": "Leave it out, and check the list once it is there.",
}


def supported_schema(schema: Json, *, field: str, path: str = "#") -> Json:
    """The same schema for llguidance, which enforces all of it.

    schema: a JSON schema, plain values of a size that OutputFormat accepts; not changed
    field:  what the caller calls it, for errors
    path:   where in it the schema stands, for errors; "#" for all of it
    return: a new schema
    raises: InvalidRequestError naming the keyword and its path, such as #/properties/a/not, where something can't be
            enforced or has no meaning; also where llguidance refuses what is left
    """
    made = _SchemaReader(schema, field, path).read(schema, path)
    assert isinstance(made, dict)
    if num_levels(made) > MAX_LEVELS:
        hint = "Refer to fewer schemas, or write the small ones in place."
        raise _refused(field, path, f"nests too deep with its references: beyond {MAX_LEVELS:,} levels", hint)
    problem = schema_problem(made)
    if problem is not None:
        where = name_refused(made, lambda part: schema_problem(part) is None)
        raise _refused(field, path + where[1:], f"can't be enforced ({problem})")
    return made


def num_levels(schema: Json) -> int:
    """A bound for how deep a reader gets that follows each reference once: of the schema's own levels and those of all
    that it refers to, the sum."""
    levels, references = _levels_of(schema)
    for reference in references:
        levels += _levels_of(find_pointer(schema, reference[1:]))[0]
    return levels


def _levels_of(value: object) -> tuple[int, set[str]]:
    """How deep objects and lists nest, and the references in them."""
    levels, references = 0, set()
    level = [value]
    while level := [one for one in level if isinstance(one, dict | list)]:
        levels += 1
        maps = [one for one in level if isinstance(one, dict)]
        references |= {one["$ref"] for one in maps if isinstance(one.get("$ref"), str)}
        level = [inner for one in level for inner in (one.values() if isinstance(one, dict) else one)]
    return levels, references


def schema_problem(schema: Json) -> str | None:
    """What llguidance has against a schema, in its words; None if nothing."""
    from llguidance import LLMatcher

    text = LLMatcher.grammar_from_json_schema(with_options(schema))
    is_error, messages = deeply(lambda: LLMatcher.validate_grammar_with_warnings(text))
    return first_line(messages[0]) if is_error or messages else None


def with_options(schema: Json) -> str:
    """A schema's text for llguidance, with our switches in it: bounded white space, and nothing lenient."""
    return json.dumps({**schema, "x-guidance": OPTIONS}, ensure_ascii=False)


def first_line(message: str) -> str:
    """The part of one of llguidance's messages that a user may want to see."""
    lines = message.strip().splitlines() or ["no reason given"]
    reasons = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    line = f"{lines[0].rstrip(':')}: {reasons[0]}" if reasons and reasons[0] != lines[0] else lines[0]
    return line if len(line) <= 200 else line[:197] + "..."


def _refused(field: str, path: str, why: str, hint: str | None = None) -> InvalidRequestError:
    return InvalidRequestError(f"{field}: {path} {why}.", field=field, hint=hint)


class _SchemaReader:
    """One walk over a schema. `num_in_place` bounds what putting references in place can blow it up to."""

    def __init__(self, root: Json, field: str, root_path: str) -> None:
        self.root = root
        self.field = field
        self.root_path = root_path
        self.num_in_place = 0
        self.open_refs: list[str] = []

    def read(self, schema: object, path: str) -> Json | bool:
        """One schema and all within it. Recursion is bounded by OutputFormat's depth, times references put in place."""
        self.num_in_place += bool(self.open_refs)
        if self.num_in_place > MAX_IN_PLACE or len(self.open_refs) > 16:
            raise self.refused(path, "holds too much once the references in its oneOf are put in place")
        if isinstance(schema, bool):
            return schema
        if not isinstance(schema, dict):
            raise self.wrong(path, schema, "a schema: an object, true or false")
        made: Json = {}
        for keyword, value in schema.items():
            if not self.is_dropped(keyword, value, path, schema):
                made[keyword] = self.read_keyword(keyword, value, f"{path}/{_escaped(keyword)}")
        self.check_min_properties(made, path)
        also = [NO_CONTROL] if "pattern" in made or "format" in made else []
        also += ALSO.get(made.get("format", ""), ())
        if also:
            made["allOf"] = [*made.get("allOf", ()), *also]
        return made

    def refused(self, path: str, why: str, hint: str | None = None) -> InvalidRequestError:
        return _refused(self.field, path, why, hint)

    def wrong(self, path: str, value: object, allowed: str) -> InvalidRequestError:
        return self.refused(path, f"is {shown(value)}; allowed: {allowed}")

    def is_dropped(self, keyword: str, value: object, path: str, schema: Json) -> bool:
        """Whether a keyword says nothing about what is valid. Raises for those that do and aren't enforced."""
        if keyword in KEYWORDS:
            return False
        if keyword in ANNOTATIONS or (keyword == "$id" and path == self.root_path):
            return True
        if keyword in ("uniqueItems", "nullable") and value is False:
            return True
        if keyword == "discriminator" and ("oneOf" in schema or "anyOf" in schema):
            return True  # OpenAPI's: it says where to look, the schemas beside it say what is valid
        raise self.refused(
            f"{path}/{_escaped(keyword)}",
            "is a keyword that isn't enforced, so it can't be accepted",
            HINTS.get(keyword),
        )

    def read_keyword(self, keyword: str, value: Any, path: str) -> Any:
        if keyword in SCHEMA:
            return self.read(value, path)
        if keyword in SCHEMA_LISTS:
            if not isinstance(value, list) or not value:
                raise self.wrong(path, value, "a list of at least one schema")
            return [self.read_branch(keyword, part, f"{path}/{i}") for i, part in enumerate(value)]
        if keyword in SCHEMA_MAPS:
            return self.read_map(keyword, value, path)
        if keyword in COUNTS:
            if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MAX_COUNT:
                raise self.wrong(path, value, f"an integer from 0 to {MAX_COUNT:,}")
        elif keyword in NUMBERS:
            self.check_number(keyword, value, path)
        elif keyword in ("const", "enum"):
            if keyword == "enum" and (not isinstance(value, list) or not value):
                raise self.wrong(path, value, "a list of at least one value")
            self.check_constant(value, path)
        else:
            self.check_other(keyword, value, path)
        return value

    def read_map(self, keyword: str, value: object, path: str) -> Json:
        if not isinstance(value, dict):
            raise self.wrong(path, value, "an object with a schema for each name")
        for name in value if keyword == "patternProperties" else ():
            if NAMES_A_CONTROL.search(name):
                raise self.refused(f"{path}/{_escaped(name)}", "may ask for control characters, which names can't have")
        return {name: self.read(part, f"{path}/{_escaped(name)}") for name, part in value.items()}

    def read_branch(self, keyword: str, part: object, path: str) -> Json | bool:
        """One schema of a list. In oneOf, a reference is put in place: llguidance compares only what it sees."""
        rest = set(part) - ANNOTATIONS if isinstance(part, dict) else set()
        if keyword != "oneOf" or rest != {"$ref"}:
            return self.read(part, path)
        assert isinstance(part, dict)
        reference = part["$ref"]
        self.check_reference(reference, f"{path}/$ref")
        if reference in self.open_refs:
            return self.read(part, path)
        self.open_refs.append(reference)
        made = self.read_branch(keyword, self.find(reference), path)
        self.open_refs.pop()
        return {k: v for k, v in made.items() if k not in ("$defs", "definitions")} if isinstance(made, dict) else made

    def check_number(self, keyword: str, value: object, path: str) -> None:
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise self.wrong(path, value, "a number")
        if keyword != "multipleOf":
            if abs(value) > MAX_EXACT:
                raise self.wrong(path, value, f"a number from {-MAX_EXACT:,} to {MAX_EXACT:,}")
            return
        scaled = Decimal(repr(value)).normalize().as_tuple() if value > 0 else None
        places = int(scaled.exponent) if scaled else 0
        digits = int("".join(map(str, scaled.digits))) if scaled else 0
        if not 0 < digits * 10 ** min(max(places, 0), 9) <= MAX_MULTIPLE or places < -9:
            raise self.wrong(path, value, f"a number above 0, at most {MAX_MULTIPLE:,} when its point is left out")

    def check_constant(self, value: object, path: str) -> None:
        """What an answer must be equal to, down to its last string and number."""
        if isinstance(value, str):
            if CONTROL.search(value):
                raise self.refused(path, f"has {shown(value)}, with a control character, which strings can't have")
        elif isinstance(value, list):
            for i, item in enumerate(value):
                self.check_constant(item, f"{path}/{i}")
        elif isinstance(value, dict):
            for name, item in value.items():
                self.check_constant(item, f"{path}/{_escaped(name)}")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            is_plain = abs(value) <= MAX_EXACT and "e" not in repr(value)
            if not is_plain:
                raise self.wrong(path, value, f"a number from {-MAX_EXACT:,} to {MAX_EXACT:,}, no smaller than 0.0001")

    def check_other(self, keyword: str, value: object, path: str) -> None:
        if keyword == "type":
            names = value if isinstance(value, list) and value else [value]
            if not all(isinstance(name, str) and name in TYPES for name in names):
                raise self.wrong(path, value, f"{', '.join(TYPES)}, or a list of them")
        elif keyword == "required":
            if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
                raise self.wrong(path, value, "a list of names")
        elif keyword == "format":
            if value not in FORMATS:
                raise self.wrong(path, value, f"{', '.join(FORMATS)}")
        elif keyword == "$ref":
            self.check_reference(value, path)
        elif not isinstance(value, str):
            raise self.wrong(path, value, "a string")

    def check_reference(self, reference: object, path: str) -> None:
        if not isinstance(reference, str) or not re.fullmatch(r"#(/.*)?", reference, re.DOTALL):
            raise self.wrong(path, reference, "a place in the same schema: #, or #/$defs/name")
        self.find(reference, path)

    def find(self, reference: str, path: str = "") -> object:
        """What a reference refers to: a schema, or an error."""
        found = find_pointer(self.root, reference[1:])
        if not isinstance(found, dict | bool):
            raise self.refused(path, f"refers to {shown(reference)}, where no schema is")
        return found

    def check_min_properties(self, made: Json, path: str) -> None:
        """Names that only a pattern or additionalProperties allows may come twice, so they count as one name here."""
        certain = len(set(made.get("required", ()))) + 1
        if made.get("minProperties", 0) > certain:
            raise self.refused(
                f"{path}/minProperties",
                f"is {made['minProperties']}, of which only {certain} can be made certain of",
                "Name the properties in required.",
            )


def find_pointer(root: object, pointer: str) -> object:
    """The value at a JSON pointer (RFC 6901) in the form of a URI fragment; None where nothing is."""
    from urllib.parse import unquote

    found = root
    for part in unquote(pointer).split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        if isinstance(found, Mapping) and name in found:
            found = found[name]
        elif isinstance(found, list) and name.isdecimal() and int(name) < len(found):
            found = found[int(name)]
        else:
            return None
    return found


def _escaped(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")
