"""Each kind of value: what it takes, what it makes of it, and the place in the error for everything else."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from kaishu.errors import InvalidRequestError
from kaishu.tool_values import NULL, SCALARS, Anything, Choice, Entries, Fields, Items, NamedValue, OneOf, Places

TEXT, WHOLE, NUMBER, TRUTH = (SCALARS[kind] for kind in (str, int, float, bool))


def error(kind, given, path="x"):
    with pytest.raises(InvalidRequestError) as caught:
        kind.value(given, path)
    return caught.value


@pytest.mark.parametrize(
    "kind, given, made",
    [(TEXT, "a", "a"), (WHOLE, 3, 3), (WHOLE, 3.0, 3), (NUMBER, 3, 3.0), (TRUTH, False, False), (NULL, None, None)],
)
def test_scalars_become_what_was_asked_for(kind, given, made):
    value = kind.value(given, "x")
    assert value == made and type(value) is type(made)


@pytest.mark.parametrize(
    "kind, given",
    [
        (TEXT, 3),
        (WHOLE, 3.5),
        (WHOLE, True),
        (WHOLE, "3"),
        (WHOLE, float("inf")),
        (NUMBER, False),
        (NUMBER, float("nan")),
        (NUMBER, float("inf")),
        (NUMBER, 10**400),
        (TRUTH, 1),
        (TRUTH, "true"),
        (NULL, 0),
    ],
)
def test_scalars_of_another_type_are_refused(kind, given):
    assert error(kind, given).field == "x"


def test_errors_show_values_as_the_model_wrote_them():
    assert str(error(WHOLE, True)) == "x is true; allowed: a whole number."
    assert str(error(TEXT, None)) == "x is null; allowed: a string."
    assert str(error(Choice((("a", 1), (None, 2))), "b")) == 'x is "b"; allowed: "a", null.'


def test_one_is_not_true_in_a_choice():
    kind = Choice(((1, "one"), (True, "yes"), ("a", "A")))
    assert [kind.value(given, "x") for given in (1, 1.0, True, "a")] == ["one", "one", "yes", "A"]
    assert error(Choice(((1, "one"),)), True)


def test_places_inside_are_named():
    kind = Entries(Items(Places((TEXT, OneOf((WHOLE, NULL))))))
    assert kind.value({"a": [["b", 1], ["c", None]]}, "x") == {"a": [("b", 1), ("c", None)]}
    assert str(error(kind, {"a": [["b", 1], ["c", "d"]]})) == 'x.a[1][1] is "d"; allowed: a whole number.'
    assert str(error(kind, {"a": [["b"]]})) == 'x.a[0] is ["b"]; allowed: a list of 2.'
    assert str(error(kind, [])) == "x is []; allowed: an object."
    assert str(error(Items(TEXT), "abc")) == 'x is "abc"; allowed: a list.'


def test_a_union_takes_the_first_that_fits():
    kind = OneOf((Items(WHOLE, tuple), TEXT, Anything()))
    assert kind.value([1], "x") == (1,)
    assert kind.value(["a"], "x") == ["a"]
    assert str(error(OneOf((WHOLE, TEXT)), [])) == "x is []; allowed: a whole number, or a string."


def test_objects_are_made_of_their_properties():
    @dataclass
    class Range:
        low: int
        high: int = 9

        def __post_init__(self):
            if self.low > self.high:
                raise ValueError("low is above high")

    kind = Fields("Range", Range, {"low": NamedValue(WHOLE, True), "high": NamedValue(WHOLE, False)})
    assert kind.value({"low": 1}, "x") == Range(1)
    assert str(error(kind, {"high": 1})) == "x.low is missing; allowed: a whole number."
    assert str(error(kind, {"low": 1, "lo": 2})) == "x.lo doesn't exist; allowed: low, high."
    assert str(error(kind, {"low": 10})) == "x: ValueError: low is above high"


def test_what_a_schema_says_beside_the_type():
    definitions = {}
    assert NamedValue(TEXT, True, "where", "Paris").schema(definitions) == {
        "type": "string",
        "description": "where",
        "default": "Paris",
    }
    node = Fields("Node", dict, is_shared=True)
    node.properties = {"next": NamedValue(OneOf((node, NULL)), False)}
    assert node.schema(definitions) == {"$ref": "#/$defs/Node"}
    assert definitions["Node"]["properties"]["next"] == {"anyOf": [{"$ref": "#/$defs/Node"}, {"type": "null"}]}
