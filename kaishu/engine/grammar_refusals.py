"""Which part of a schema it is that the grammar engine refuses.

Owns the search: llguidance says what it can't do, seldom where. Its answer for parts of the schema, and for parts
without one of their keywords, tells. Knows neither llguidance nor keywords' meanings; asks the function it is given.
Used by grammar_schema.py, once a schema was refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

Json = dict[str, Any]

MAX_QUESTIONS = 200  # each takes about a millisecond
SELDOM_AT_FAULT = ("type", "properties")  # without them almost anything is accepted
DEFINITIONS = ("$defs", "definitions")


def name_refused(schema: Json, is_accepted: Callable[[Json], bool]) -> str:
    """The path of the smallest part that is refused, and where one keyword is at fault, that keyword.

    schema:      a schema that is refused as a whole
    is_accepted: says so of a schema, with its definitions
    return:      a path such as "#/properties/a/oneOf"; "#" if nothing smaller is found
    """
    definitions = {name: schema[name] for name in DEFINITIONS if name in schema}
    left = MAX_QUESTIONS

    def is_refused(part: Json) -> bool:
        nonlocal left
        left -= 1
        return left >= 0 and not is_accepted({**part, **definitions})

    path, part = "#", {name: value for name, value in schema.items() if name not in DEFINITIONS}
    smaller: tuple[str, Json] | None = (path, part)
    while smaller is not None:
        path, part = smaller
        reference = part.get("$ref")
        candidates = list(_parts_of(part, path))
        if isinstance(reference, str) and reference.startswith(("#/$defs/", "#/definitions/")):
            section, _, name = reference[2:].partition("/")
            target = definitions.get(section, {}).get(name)
            if isinstance(target, dict) and reference != path:
                candidates.append((reference, target))
        smaller = next(((where, found) for where, found in candidates if is_refused(found)), None)
    for keyword in sorted(part, key=lambda name: name in SELDOM_AT_FAULT):
        if is_refused(part) and not is_refused({name: part[name] for name in part if name != keyword}) and left >= 0:
            return f"{path}/{keyword}"
    return path


def _parts_of(schema: Json, path: str) -> Iterator[tuple[str, Json]]:
    """The schemas right inside a schema."""
    for keyword, value in schema.items():
        if keyword in ("properties", "patternProperties") and isinstance(value, dict):
            inside = [(name.replace("~", "~0").replace("/", "~1"), part) for name, part in value.items()]
        elif keyword in ("anyOf", "oneOf", "allOf", "prefixItems") and isinstance(value, list):
            inside = [(str(i), part) for i, part in enumerate(value)]
        elif keyword in ("items", "additionalProperties"):
            inside = [("", value)]
        else:
            continue
        for name, part in inside:
            if isinstance(part, dict):
                yield f"{path}/{keyword}/{name}".rstrip("/"), part
