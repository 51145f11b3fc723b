"""Annotations as schemas: against jsonschema and the grammar engine, over any of them; and what is refused, by name."""

from __future__ import annotations

import datetime
import enum
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, NewType, NotRequired, Optional, Required, TypedDict, Union

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kaishu.engine.grammar_schema import supported_schema
from kaishu.errors import InvalidMessagesError, InvalidRequestError
from kaishu.tool_annotations import MISSING, AnnotationReader, Property


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Size(enum.IntEnum):
    SMALL = 1
    LARGE = 2


class Shape(enum.Enum):
    ROUND = object()
    SQUARE = (4, 4)


@dataclass
class Point:
    """A place on the map.

    x: to the right
    """

    x: float
    y: Annotated[float, "upwards"] = 0.0
    tags: list[str] = field(default_factory=list)
    length: float = field(init=False, default=0.0)


@dataclass
class Node:
    name: str
    children: list[Node] = field(default_factory=list)
    parent: Optional[Node] = None  # noqa: UP045


@dataclass
class OtherNode:
    others: list[OtherNode]


OtherNode.__name__ = "Node"


class Options(TypedDict, total=False):
    verbose: Required[bool]
    level: Literal[1, 2, 3]
    note: NotRequired[Annotated[str, "for people"]]


UserId = NewType("UserId", int)


def read(annotation):
    return AnnotationReader("f").read(annotation, "x")


def schema_of(annotation):
    definitions: dict[str, Any] = {}
    schema = read(annotation).schema(definitions)
    return {**schema, **({"$defs": definitions} if definitions else {})}


@pytest.mark.parametrize(
    "annotation, schema",
    [
        (str, {"type": "string"}),
        (None, {"type": "null"}),
        (Any, {}),
        (UserId, {"type": "integer"}),
        (Annotated[int, "how many"], {"type": "integer"}),
        (list, {"type": "array"}),
        (list[int], {"type": "array", "items": {"type": "integer"}}),
        (Sequence[str], {"type": "array", "items": {"type": "string"}}),
        (set[str], {"type": "array", "items": {"type": "string"}}),
        (tuple[float, ...], {"type": "array", "items": {"type": "number"}}),
        (dict, {"type": "object"}),
        (Mapping[str, bool], {"type": "object", "additionalProperties": {"type": "boolean"}}),
        (int | None, {"type": ["integer", "null"]}),
        (Optional[int], {"type": ["integer", "null"]}),  # noqa: UP045
        (Union[float, int, str], {"type": ["integer", "string", "number"]}),  # noqa: UP007
        (list[int] | str, {"anyOf": [{"type": "array", "items": {"type": "integer"}}, {"type": "string"}]}),
        (Literal["a", "b"], {"type": "string", "enum": ["a", "b"]}),
        (Literal["a", 1, True, None], {"enum": ["a", 1, True, None]}),
        (Literal[Color.RED], {"type": "string", "enum": ["red"]}),
        (Color, {"type": "string", "enum": ["red", "blue"]}),
        (Size, {"enum": [1, 2]}),
        (Shape, {"type": "string", "enum": ["ROUND", "SQUARE"]}),
    ],
    ids=str,
)
def test_an_annotation_has_this_schema(annotation, schema):
    assert schema_of(annotation) == schema


def test_a_dataclass_is_an_object_with_its_fields_described():
    assert schema_of(Point) == {
        "type": "object",
        "description": "A place on the map.",
        "properties": {
            "x": {"type": "number", "description": "to the right"},
            "y": {"type": "number", "description": "upwards", "default": 0.0},
            "tags": {"type": "array", "items": {"type": "string"}},
        },
        "required": ["x"],
        "additionalProperties": False,
    }
    assert read(Point).value({"x": 1, "tags": ["a"]}, "x") == Point(1.0, 0.0, ["a"])


def test_a_typed_dict_knows_which_names_are_required():
    schema = schema_of(Options)
    assert schema["required"] == ["verbose"]
    assert schema["properties"]["note"] == {"type": "string", "description": "for people"}
    assert read(Options).value({"verbose": True}, "x") == {"verbose": True}


def test_a_class_that_holds_itself_stands_among_the_definitions_once():
    schema = schema_of(tuple[Node, Node])
    assert list(schema["$defs"]) == ["Node"]
    assert schema["prefixItems"] == [{"$ref": "#/$defs/Node"}] * 2
    tree = {"name": "a", "children": [{"name": "b", "children": [{"name": "c"}]}]}
    assert read(Node).value(tree, "x") == Node("a", [Node("b", [Node("c")])])
    supported_schema(schema, field="parameters")


def test_definitions_of_two_classes_of_one_name_are_two():
    assert list(schema_of(tuple[Node, OtherNode])["$defs"]) == ["Node", "Node_2"]


@pytest.mark.parametrize(
    "annotation, found",
    [
        (datetime.date, "datetime.date"),
        (list[Path], "pathlib.Path"),
        (dict[int, str], "dict[int, str]"),
        (dict[str, bytes], "bytes"),
        (set[list[int]], "set[list[int]]"),
        (set, "set"),
        (complex | None, "complex"),
        (type[int], "type[int]"),
        (enum.Enum("Empty", {}), f"{__name__}.Empty"),
        (Literal[b"a"], "Literal[b'a']"),
        (3, "3"),
    ],
    ids=str,
)
def test_what_json_has_no_form_for_is_refused_by_name_and_place(annotation, found):
    with pytest.raises(InvalidMessagesError) as caught:
        read(annotation)
    assert f"f: x is annotated {found}, for which" in str(caught.value) and "dict[str, ...]" in str(caught.value)
    assert caught.value.field == "f.x"


def test_a_refusal_inside_a_class_names_the_field():
    @dataclass
    class Meeting:
        when: datetime.datetime

    with pytest.raises(InvalidMessagesError, match=r"f: x\.when is annotated datetime.datetime"):
        AnnotationReader("f").read(Meeting, "x")


def test_an_annotation_that_names_nothing_is_an_error():
    def function(x: Nowhere): ...  # noqa: F821

    with pytest.raises(InvalidMessagesError, match="f has an annotation that can't be evaluated: NameError: name 'No"):
        AnnotationReader("f").hints(function, "")


def test_defaults_are_shown_where_json_has_them():
    def default(value):
        return AnnotationReader("f").read_properties([Property("x", Any, value)], {}, "")["x"]

    shown = {
        3: 3,
        "a": "a",
        False: False,
        Color.RED: "red",
        (1, 2): [1, 2],
        float("inf"): None,
        Point: None,
        None: None,
    }
    assert {value: default(value).default for value in shown} == shown
    assert not default(None).is_required and default(MISSING).is_required


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-3, 4)
    | st.sampled_from([0.5, 1.0, 3.0])
    | st.sampled_from(["a", "red", ""]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["a", "x", "name", "children", "verbose", "level"]), inner, max_size=3)
    ),
    max_leaves=6,
)
LEAVES = [
    str,
    int,
    float,
    bool,
    None,
    Any,
    Color,
    Size,
    Point,
    Node,
    Options,
    Literal["a", 1, True],
    set[int],
    list,
    dict,
]
ANNOTATIONS = st.recursive(
    st.sampled_from(LEAVES),
    lambda inner: st.one_of(
        inner.map(lambda a: list[a]),
        inner.map(lambda a: dict[str, a]),
        inner.map(lambda a: tuple[a, ...]),
        st.tuples(inner, inner).map(lambda pair: tuple[pair]),
        st.tuples(inner, inner).map(lambda pair: Union[pair]),  # noqa: UP007
    ),
    max_leaves=4,
)


@settings(deadline=None, max_examples=300)
@given(annotation=ANNOTATIONS, data=st.data())
def test_what_the_schema_allows_is_what_can_be_made_and_the_grammar_engine_takes_it(annotation, data):
    schema = schema_of(annotation)
    jsonschema.Draft202012Validator.check_schema(schema)
    supported_schema(json.loads(json.dumps(schema)), field="parameters")
    validator, kind = jsonschema.Draft202012Validator(schema), read(annotation)
    for value in data.draw(st.lists(JSON, min_size=10, max_size=20)):
        try:
            kind.value(value, "x")
            is_made = True
        except InvalidRequestError:
            is_made = False
        assert is_made == validator.is_valid(value), (schema, value)
