"""From an annotation to its kind: what `list[int] | None` or a dataclass means for a tool's parameter.

Owns which annotations there are, and the refusal of all others by name and place. The kinds themselves, with their
schemas and checks, are in tool_values.py. Knows nothing of messages or models. Used by tool_functions.py.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import inspect
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from typing import Annotated, Any, Literal, NotRequired, Required, Union, get_args, get_origin

from kaishu.errors import InvalidMessagesError
from kaishu.tool_docstrings import read_docstring
from kaishu.tool_values import (
    SCALARS,
    Anything,
    Choice,
    Entries,
    Fields,
    Items,
    Kind,
    NamedValue,
    OneOf,
    Places,
    Scalar,
)

ALLOWED = (
    "str, int, float, bool, None, Any, list[...], tuple[...], set[...], dict[str, ...], Literal, Enum, unions, "
    "dataclasses, TypedDict, and Annotated[..., 'description'] of them"
)
COLLECTIONS: Mapping[Any, Callable[[list[Any]], Any]] = {
    list: list,
    set: set,
    frozenset: frozenset,
    collections.abc.Sequence: list,
    collections.abc.Iterable: list,
    collections.abc.Collection: list,
    collections.abc.MutableSequence: list,
    collections.abc.Set: frozenset,
}
OBJECTS = (dict, collections.abc.Mapping, collections.abc.MutableMapping)
JSON_SCALARS = (str, int, float, bool, type(None))


class Property(typing.NamedTuple):
    """A parameter of a function or a field of a class, before its annotation is read. default: MISSING if required"""

    name: str
    annotation: Any
    default: Any


MISSING = dataclasses.MISSING


class AnnotationReader:
    """Reads the annotations of one function.

    owner: how errors call it
    """

    def __init__(self, owner: str) -> None:
        self._owner = owner
        self._made: dict[type, Fields] = {}
        self._open: set[type] = set()  # classes whose fields are being read
        self._shared_names: set[str] = set()

    def read_properties(
        self, properties: Iterable[Property], described: Mapping[str, str], path: str
    ) -> dict[str, NamedValue]:
        """The kinds of parameters or fields.

        described: name → description; one in Annotated comes first
        path:      where they stand, ending in "." if not empty
        raises:    InvalidMessagesError
        """
        return {
            item.name: NamedValue(
                kind=self.read(item.annotation, path + item.name),
                is_required=item.default is MISSING,
                description=_description(item.annotation) or described.get(item.name, ""),
                default=_shown_default(item.default),
            )
            for item in properties
        }

    def read(self, annotation: Any, path: str) -> Kind:
        """The kind of an annotation that has been evaluated.

        raises: InvalidMessagesError
        """
        annotation = _bare(annotation)
        if _is_hashable(annotation) and annotation in SCALARS:
            return SCALARS[annotation]
        origin, arguments = get_origin(annotation) or annotation, get_args(annotation)
        if origin in (Union, types.UnionType):
            kinds = [self.read(argument, path) for argument in arguments]
            # float takes whole numbers, too, so it comes last: 3 stays 3 for `float | int`.
            return OneOf(tuple(sorted(kinds, key=lambda kind: kind is SCALARS[float])))
        if origin is Literal:
            return Choice(tuple(self._literal(value, annotation, path) for value in arguments))
        if origin is tuple:
            return self._tuple(arguments, path)
        if origin in COLLECTIONS:
            item = self.read(arguments[0], path) if arguments else Anything()
            if COLLECTIONS[origin] in (set, frozenset) and not _makes_hashable(item):
                raise self._refused(
                    path, annotation, hint="A set holds strings or numbers, as in set[str]; or use list."
                )
            return Items(item, COLLECTIONS[origin])
        if origin in OBJECTS:
            if arguments and _bare(arguments[0]) is not str:
                raise self._refused(path, annotation, hint="JSON's names are strings: dict[str, ...].")
            return Entries(self.read(arguments[1], path) if arguments else Anything())
        if isinstance(annotation, type):
            return self._class(annotation, path)
        raise self._refused(path, annotation)

    def _tuple(self, arguments: tuple[Any, ...], path: str) -> Kind:
        if not arguments:
            return Items(Anything(), tuple)
        if len(arguments) == 2 and arguments[1] is Ellipsis:
            return Items(self.read(arguments[0], path), tuple)
        return Places(tuple(self.read(argument, f"{path}[{i}]") for i, argument in enumerate(arguments)))

    def _literal(self, value: Any, annotation: Any, path: str) -> tuple[Any, Any]:
        if isinstance(value, Enum):
            return _option(value), value
        if not isinstance(value, JSON_SCALARS):
            raise self._refused(path, annotation)
        return value, value

    def _class(self, annotation: type, path: str) -> Kind:
        if issubclass(annotation, Enum):
            members = tuple((_option(member), member) for member in annotation)
            if not members:
                raise self._refused(path, annotation, hint="This Enum has no members.")
            return Choice(members)
        if not dataclasses.is_dataclass(annotation) and not typing.is_typeddict(annotation):
            raise self._refused(path, annotation)
        if annotation in self._made:
            known = self._made[annotation]
            if annotation in self._open and not known.is_shared:
                known.is_shared, known.name = True, self._shared_name(annotation.__name__)
            return known
        properties = _dataclass_fields if dataclasses.is_dataclass(annotation) else _typed_dict_items
        docstring = annotation.__doc__ or ""
        if docstring.startswith(f"{annotation.__name__}("):  # the one that dataclasses make
            docstring = ""
        found = list(properties(annotation, self.hints(annotation, path)))
        described = read_docstring(docstring, [item.name for item in found])
        fields = self._made[annotation] = Fields(annotation.__name__, annotation, description=described.summary)
        self._open.add(annotation)
        fields.properties = self.read_properties(found, described.parameters, f"{path}.")
        self._open.remove(annotation)
        return fields

    def _shared_name(self, name: str) -> str:
        """A name for a definition that no other has."""
        free = name
        number = 2
        while free in self._shared_names:
            free, number = f"{name}_{number}", number + 1
        self._shared_names.add(free)
        return free

    def hints(self, annotated: Any, path: str) -> dict[str, Any]:
        """The annotations of a function or class, evaluated.

        raises: InvalidMessagesError where one names what can't be found
        """
        try:
            return typing.get_type_hints(annotated, include_extras=True)
        except Exception as error:
            where = f"{self._owner}: {path}" if path else self._owner
            raise InvalidMessagesError(
                f"{where} has an annotation that can't be evaluated: {type(error).__name__}: {error}.",
                field=self._owner,
                hint="Define what annotations name at the top level of the module.",
            ) from error

    def _refused(self, path: str, annotation: Any, *, hint: str | None = None) -> InvalidMessagesError:
        found = inspect.formatannotation(annotation)
        return InvalidMessagesError(
            f"{self._owner}: {path} is annotated {found}, for which a model can't give a value; allowed: {ALLOWED}.",
            field=f"{self._owner}.{path}",
            hint=hint,
        )


def _bare(annotation: Any) -> Any:
    """An annotation without the wrappers that say nothing about its values."""
    while True:
        if get_origin(annotation) in (Annotated, Required, NotRequired):
            annotation = get_args(annotation)[0]
        elif hasattr(annotation, "__supertype__"):  # NewType
            annotation = annotation.__supertype__
        elif type(annotation).__name__ == "TypeAliasType":  # `type Name = ...`, since Python 3.12
            annotation = annotation.__value__
        else:
            return annotation


def _is_hashable(annotation: Any) -> bool:
    return isinstance(annotation, collections.abc.Hashable) and get_origin(annotation) is None


def _makes_hashable(kind: Kind) -> bool:
    """Whether every value that a kind makes can be in a set."""
    if isinstance(kind, OneOf):
        return all(map(_makes_hashable, kind.kinds))
    return isinstance(kind, Scalar | Choice)


def _description(annotation: Any) -> str:
    """The text in Annotated[..., "text"]; "" where there is none."""
    while get_origin(annotation) in (Required, NotRequired):
        annotation = get_args(annotation)[0]
    extras = get_args(annotation)[1:] if get_origin(annotation) is Annotated else ()
    return " ".join(next((extra for extra in extras if isinstance(extra, str)), "").split())


def _option(member: Enum) -> Any:
    """What stands for an Enum's member: its value where all of them are JSON's, else its name."""
    values = [other.value for other in type(member)]
    return member.value if all(type(value) in JSON_SCALARS for value in values) else member.name


def _shown_default(default: Any) -> Any:
    """A default as the schema shows it; None where JSON has no such value."""
    if isinstance(default, Enum):
        return _option(default)
    if isinstance(default, float) and not abs(default) < float("inf"):
        return None
    if isinstance(default, list | tuple):
        shown = [_shown_default(item) for item in default]
        return None if None in shown else shown
    return default if isinstance(default, JSON_SCALARS) else None


def _dataclass_fields(annotation: Any, hints: Mapping[str, Any]) -> Iterable[Property]:
    for item in dataclasses.fields(annotation):
        if item.init:
            has_factory = item.default is MISSING and item.default_factory is not MISSING
            yield Property(item.name, hints[item.name], None if has_factory else item.default)


def _typed_dict_items(annotation: Any, hints: Mapping[str, Any]) -> Iterable[Property]:
    for name, hint in hints.items():
        origin = get_origin(hint)
        # __required_keys__ takes an annotation that is still a string for a required one.
        is_required = origin is Required or (origin is not NotRequired and name in annotation.__required_keys__)
        yield Property(name, hint, MISSING if is_required else None)
