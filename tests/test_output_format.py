"""Formats are checked when they are made, and what is too large is refused at once."""

from __future__ import annotations

import json
from collections import OrderedDict
from dataclasses import FrozenInstanceError

import pytest

from kaishu.errors import InvalidParameterError, InvalidRequestError
from kaishu.output_format import MAX_CHOICES, OutputFormat


def nested(depth: int, key: str = "items") -> dict:
    schema: dict = {"type": "integer"}
    for _ in range(depth):
        schema = {"type": "array", key: schema}
    return schema


def test_a_schema_is_the_same_as_an_object_and_as_text():
    schema = {"type": "object", "properties": {"名前": {"enum": ["北京", 1.5, None]}}}
    given = [OutputFormat.json_schema(s) for s in (schema, json.dumps(schema), OrderedDict(schema))]
    assert len(set(given)) == 1
    assert json.loads(given[0].content) == schema


def test_the_order_of_properties_is_kept():
    assert OutputFormat.json_schema({"b": 1, "a": 2}) != OutputFormat.json_schema({"a": 2, "b": 1})


def test_equal_formats_are_equal_whatever_the_caller_calls_them():
    assert OutputFormat.regex("a+", field_name="guided_regex") == OutputFormat.regex("a+")
    assert OutputFormat.regex("a+") != OutputFormat.lark("a+")
    with pytest.raises(FrozenInstanceError):
        OutputFormat.regex("a").content = "b"


def test_what_a_format_holds_makes_the_same_format():
    for made in (
        OutputFormat.choice(["a", "é"]),
        OutputFormat.json_schema({"type": "null"}),
        OutputFormat.json_object(),
    ):
        assert OutputFormat(made.kind, made.content) == made


@pytest.mark.parametrize(
    "make",
    [
        lambda: OutputFormat("yaml", ""),
        lambda: OutputFormat("json_object", "x"),
        lambda: OutputFormat.json_schema([]),
        lambda: OutputFormat.json_schema("[]"),
        lambda: OutputFormat.json_schema(None),
        lambda: OutputFormat.json_schema("{"),
        lambda: OutputFormat.json_schema('{"type":"string","type":"null"}'),
        lambda: OutputFormat.json_schema({"const": float("nan")}),
        lambda: OutputFormat.json_schema('{"const": Infinity}'),
        lambda: OutputFormat.json_schema({"const": {1, 2}}),
        lambda: OutputFormat.json_schema({1: 2}),
        lambda: OutputFormat.json_schema({"const": "\ud800"}),
        lambda: OutputFormat.json_schema({"const": 10**400}),
        lambda: OutputFormat.regex(""),
        lambda: OutputFormat.regex(None),
        lambda: OutputFormat.regex(b"a"),
        lambda: OutputFormat.regex("\udfff"),
        lambda: OutputFormat.lark(""),
        lambda: OutputFormat.choice([]),
        lambda: OutputFormat.choice("abc"),
        lambda: OutputFormat.choice(["a", ""]),
        lambda: OutputFormat.choice(["a", 1]),
        lambda: OutputFormat.choice(None),
    ],
)
def test_content_that_is_not_of_its_kind_is_an_error_that_names_the_field(make):
    with pytest.raises(InvalidRequestError) as raised:
        make()
    assert raised.value.field.startswith("output_format")


def test_an_error_has_the_field_as_the_caller_spells_it():
    with pytest.raises(InvalidParameterError, match=r"guided_choice\[1\] is 5; allowed: a string") as raised:
        OutputFormat.choice(["a", 5], field_name="guided_choice")
    assert raised.value.field == "guided_choice[1]"


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: OutputFormat.json_schema(nested(10_000)), "nested too deeply"),
        (lambda: OutputFormat.json_schema("[" * 100_000), "nested too deeply|not valid JSON"),
        (lambda: OutputFormat.json_schema('{"a":' * 10_000 + "1" + "}" * 10_000), "nested too deeply"),
        (lambda: OutputFormat.json_schema({"enum": list(range(100_000))}), "too many values"),
        (lambda: OutputFormat.json_schema({"const": "x" * 10_000_000}), "10,000,.* characters"),
        (lambda: OutputFormat.json_schema(" " * 10_000_000), "10,000,000 characters"),
        (lambda: OutputFormat.regex("a" * 10_000_000), "10,000,000 characters"),
        (lambda: OutputFormat.lark("a" * 10_000_000), "10,000,000 characters"),
        (lambda: OutputFormat.choice(["a"] * (MAX_CHOICES + 1)), "choices"),
        (lambda: OutputFormat.choice(["a" * 10_000_000]), "10,000,000 characters"),
    ],
)
def test_what_is_too_large_is_refused_with_its_limit(make, says):
    with pytest.raises(InvalidRequestError, match=says) as raised:
        make()
    assert len(str(raised.value)) < 500


def test_a_schema_that_holds_itself_is_refused():
    schema: dict = {"type": "array"}
    schema["items"] = schema
    with pytest.raises(InvalidRequestError, match="nested too deeply"):
        OutputFormat.json_schema(schema)
