"""The part that is refused is found, with any function that refuses."""

from __future__ import annotations

import json

import pytest

from kaishu.engine.grammar_refusals import name_refused


def without(word: str):
    return lambda schema: word not in json.dumps(schema)


@pytest.mark.parametrize(
    ("schema", "path"),
    [
        ({"bad": 1}, "#/bad"),
        ({"type": "object", "properties": {"a": {}, "b/c": {"items": {"bad": 1}}}}, "#/properties/b~1c/items/bad"),
        ({"anyOf": [{}, {"allOf": [{"x": 1, "bad": 2}]}]}, "#/anyOf/1/allOf/0/bad"),
        ({"x": "bad", "y": "bad"}, "#"),
        ({"properties": {"a": {"x": "bad", "y": "bad"}}}, "#/properties/a"),
    ],
)
def test_the_smallest_part_is_named(schema, path):
    assert name_refused(schema, without("bad")) == path


def test_a_reference_is_followed():
    def is_accepted(schema):
        return schema.get("$ref") != "#/$defs/n" and "bad" not in schema

    schema = {"items": {"$ref": "#/$defs/n"}, "$defs": {"n": {"bad": 1}}}
    assert name_refused(schema, lambda part: is_accepted(part.get("items", part))) == "#/$defs/n/bad"


def test_the_search_ends():
    schema = {"$ref": "#/$defs/n", "$defs": {"n": {"$ref": "#/$defs/n"}}}
    assert name_refused(schema, lambda schema: False).startswith("#")
