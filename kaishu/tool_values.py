"""Python's annotations as JSON schemas, and JSON values as what the annotations promise.

Owns the kinds of annotation that a tool's parameter may have. Each kind is a small object with two faces: `schema` is
what the model and the grammar engine see (only keywords that engine/grammar_schema.py enforces), `value` makes of a
JSON value the Python one, or says where it is wrong. So the schema and the check can't differ.
Knows nothing of functions, messages or models. Used by tool_functions.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from kaishu.errors import InvalidRequestError, and_more
from kaishu.json_fields import shown

Json = dict[str, Any]


class Kind(Protocol):
    """What one annotation allows."""

    @property
    def allowed(self) -> str:
        """What a value may be, in words for an error."""
        ...

    def schema(self, definitions: Json) -> Json:
        """The JSON schema.

        definitions: name → schema of those that are referred to, which are added here
        """
        ...

    def value(self, given: Any, path: str) -> Any:
        """The Python value for a JSON value.

        given:  as json.loads makes it
        path:   where it stands, for errors: "query.words[2]"
        raises: InvalidRequestError
        """
        ...


@dataclass(frozen=True)
class Scalar:
    """str, int, float, bool or None. As in JSON schema, 3.0 is an integer, and no boolean is a number."""

    type: str
    allowed: str

    def schema(self, definitions: Json) -> Json:
        """One type."""
        return {"type": self.type}

    def value(self, given: Any, path: str) -> Any:
        """The same value; numbers become int or float as was asked for."""
        is_number = isinstance(given, int | float) and not isinstance(given, bool)
        match self.type:
            case "integer" if is_number and (isinstance(given, int) or given.is_integer()):
                return int(given)
            case "number" if is_number and abs(given) <= _LARGEST:
                return float(given)
            case "string" if isinstance(given, str):
                return given
            case "boolean" if isinstance(given, bool):
                return given
            case "null" if given is None:
                return None
        raise _wrong(path, given, self.allowed)


_LARGEST = math.nextafter(math.inf, 0)  # of a float: neither infinity nor a longer int


@dataclass(frozen=True)
class Anything:
    """Any JSON value: the annotations Any and object."""

    allowed: str = "any JSON value"

    def schema(self, definitions: Json) -> Json:
        """Nothing is demanded."""
        return {}

    def value(self, given: Any, path: str) -> Any:
        """As it is."""
        return given


@dataclass(frozen=True)
class Choice:
    """A Literal or an Enum. options: each JSON value, and what the function is to get for it"""

    options: tuple[tuple[Any, Any], ...]

    @property
    def allowed(self) -> str:
        """All of them, or the first few."""
        return and_more([shown(option) for option, _ in self.options])

    def schema(self, definitions: Json) -> Json:
        """An enumeration."""
        values = [option for option, _ in self.options]
        typed: Json = {"type": "string"} if all(isinstance(option, str) for option in values) else {}
        return {**typed, "enum": values}

    def value(self, given: Any, path: str) -> Any:
        """The option's own value; 1 is not true."""
        for option, value in self.options:
            if isinstance(option, bool) == isinstance(given, bool) and option == given:
                return value
        raise _wrong(path, given, self.allowed)


@dataclass(frozen=True)
class Items:
    """Any number of values of one kind. make: list, tuple, set or frozenset"""

    item: Kind
    make: Callable[[list[Any]], Any] = list
    allowed: str = "a list"

    def schema(self, definitions: Json) -> Json:
        """An array."""
        inner = self.item.schema(definitions)
        return {"type": "array", **({"items": inner} if inner else {})}

    def value(self, given: Any, path: str) -> Any:
        """The collection, with each item made."""
        if not isinstance(given, list):
            raise _wrong(path, given, self.allowed)
        return self.make([self.item.value(item, f"{path}[{i}]") for i, item in enumerate(given)])


@dataclass(frozen=True)
class Places:
    """A tuple of a certain length, with a kind for each place."""

    places: tuple[Kind, ...]

    @property
    def allowed(self) -> str:
        """The length."""
        return f"a list of {len(self.places)}"

    def schema(self, definitions: Json) -> Json:
        """An array of that length."""
        count = len(self.places)
        return {
            "type": "array",
            "prefixItems": [place.schema(definitions) for place in self.places],
            "items": False,
            "minItems": count,
            "maxItems": count,
        }

    def value(self, given: Any, path: str) -> Any:
        """The tuple."""
        if not isinstance(given, list) or len(given) != len(self.places):
            raise _wrong(path, given, self.allowed)
        pairs = zip(self.places, given, strict=True)
        return tuple(place.value(item, f"{path}[{i}]") for i, (place, item) in enumerate(pairs))


@dataclass(frozen=True)
class Entries:
    """dict[str, …]: any names, values of one kind."""

    entry: Kind
    allowed: str = "an object"

    def schema(self, definitions: Json) -> Json:
        """An object with any names."""
        inner = self.entry.schema(definitions)
        return {"type": "object", **({"additionalProperties": inner} if inner else {})}

    def value(self, given: Any, path: str) -> Any:
        """The dict."""
        if not isinstance(given, dict):
            raise _wrong(path, given, self.allowed)
        return {name: self.entry.value(item, f"{path}.{name}") for name, item in given.items()}


@dataclass(frozen=True)
class OneOf:
    """A union. A value becomes what the first kind that takes it makes of it."""

    kinds: tuple[Kind, ...]

    @property
    def allowed(self) -> str:
        """Each of them."""
        return ", or ".join(kind.allowed for kind in self.kinds)

    def schema(self, definitions: Json) -> Json:
        """Several types where that says it all, else anyOf."""
        schemas = [kind.schema(definitions) for kind in self.kinds]
        if all(set(schema) == {"type"} for schema in schemas):
            return {"type": [schema["type"] for schema in schemas]}
        return {"anyOf": schemas}

    def value(self, given: Any, path: str) -> Any:
        """The value, as one of the kinds."""
        others = [kind for kind in self.kinds if kind != NULL]
        if len(others) == 1 and given is not None:
            return others[0].value(given, path)  # an optional one: its own error says more
        for kind in self.kinds:
            try:
                return kind.value(given, path)
            except InvalidRequestError:
                continue
        raise _wrong(path, given, self.allowed)


@dataclass(frozen=True)
class NamedValue:
    """One property of an object.

    default: what it is when left out, if JSON can say it and it isn't None; shown to the model
    """

    kind: Kind
    is_required: bool
    description: str = ""
    default: Any = None

    def schema(self, definitions: Json) -> Json:
        """The kind's schema with what is known beside it."""
        made = self.kind.schema(definitions)
        if self.description:
            made = {**made, "description": self.description}
        if self.default is not None:
            made = {**made, "default": self.default}
        return made


@dataclass(eq=False)
class Fields:
    """An object with certain properties: a dataclass, a TypedDict, or the parameters of a function.

    name:       how a schema that refers to it calls it
    make:       called with the values by name
    properties: filled in after it is made, since a class may hold itself
    is_shared:  something in it refers to it, so that its schema stands among the definitions
    is_closed:  whether the schema says that there are no other properties, which holds in any case
    """

    name: str
    make: Callable[..., Any]
    properties: dict[str, NamedValue] = field(default_factory=dict)
    description: str = ""
    is_shared: bool = False
    is_closed: bool = True
    allowed: str = "an object"

    def schema(self, definitions: Json) -> Json:
        """An object, or a reference to its definition."""
        if not self.is_shared:
            return self._own_schema(definitions)
        if self.name not in definitions:
            definitions[self.name] = {}  # it is being made: what is inside refers to it
            definitions[self.name] = self._own_schema(definitions)
        return {"$ref": f"#/$defs/{self.name}"}

    def _own_schema(self, definitions: Json) -> Json:
        made: Json = {"type": "object"}
        if self.description:
            made["description"] = self.description
        made["properties"] = {name: item.schema(definitions) for name, item in self.properties.items()}
        required = [name for name, item in self.properties.items() if item.is_required]
        if required:
            made["required"] = required
        if self.is_closed:
            made["additionalProperties"] = False
        return made

    def value(self, given: Any, path: str) -> Any:
        """The object. What the class itself refuses is an error at `path`, too."""
        values = self.values(given, path)
        try:
            return self.make(**values)
        except Exception as error:
            raise InvalidRequestError(f"{path}: {type(error).__name__}: {error}", field=path) from error

    def values(self, given: Any, path: str) -> dict[str, Any]:
        """The properties that are given, each made, by name."""
        if not isinstance(given, Mapping):
            raise _wrong(path or "arguments", given, self.allowed)
        before = f"{path}." if path else ""
        for name in given:
            if name not in self.properties:
                known = and_more(list(self.properties)) if self.properties else "none"
                found = f"{before}{name}"
                raise InvalidRequestError(f"{found} doesn't exist; allowed: {known}.", field=found)
        missing = [name for name, item in self.properties.items() if item.is_required and name not in given]
        if missing:
            found = f"{before}{missing[0]}"
            allowed = self.properties[missing[0]].kind.allowed
            raise InvalidRequestError(f"{found} is missing; allowed: {allowed}.", field=found)
        return {name: self.properties[name].kind.value(item, f"{before}{name}") for name, item in given.items()}


def _wrong(path: str, given: Any, allowed: str) -> InvalidRequestError:
    """The error for a value, which the model is to read as it wrote it: as JSON."""
    return InvalidRequestError(f"{path} is {shown(given)}; allowed: {allowed}.", field=path)


NULL = Scalar("null", "null")
SCALARS: Mapping[Any, Kind] = {
    str: Scalar("string", "a string"),
    int: Scalar("integer", "a whole number"),
    float: Scalar("number", "a number"),
    bool: Scalar("boolean", "true or false"),
    None: NULL,
    type(None): NULL,
    Any: Anything(),
    object: Anything(),
}
