"""Schemas are enforced, which the jsonschema package judges, or refused by keyword and path.

KAISHU_LONG_TESTS=1 draws 5,000 random schemas instead of 60.
"""

from __future__ import annotations

import copy
import json
import os

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from kaishu.engine.grammar_schema import FORMATS, MAX_LEVELS, OPTIONS, find_pointer, num_levels, supported_schema
from kaishu.errors import InvalidRequestError
from kaishu.output_format import OutputFormat
from tests.engine.random_model import ids_of, written_ids

NUM_SCHEMAS = 5_000 if os.environ.get("KAISHU_LONG_TESTS") else 60

K = {"type": "object", "required": ["k"], "additionalProperties": False}
TWO_KINDS = {"a": {**K, "properties": {"k": {"const": "a"}}}, "b": {**K, "properties": {"k": {"const": "b"}}}}
CLOSED = {"type": "object", "additionalProperties": False}

ENFORCED = {
    "pattern and maxLength": {"type": "string", "pattern": "^a+b", "maxLength": 5},
    "pattern anywhere": {"type": "string", "pattern": "ab", "maxLength": 6},
    "pattern with classes": {"type": "string", "pattern": r"^\w\d\s.[^a]$"},
    "lengths": {"type": "string", "minLength": 2, "maxLength": 4},
    "items": {"type": "array", "items": {"type": "integer", "maximum": 99}, "minItems": 2, "maxItems": 3},
    "prefixItems": {"type": "array", "prefixItems": [{"type": "null"}, {"type": "boolean"}], "items": False},
    "multipleOf": {"type": "integer", "multipleOf": 7, "minimum": -30, "maximum": 100},
    "multipleOf a fraction": {"type": "number", "multipleOf": 0.25, "minimum": 0, "maximum": 9},
    "bounds": {"type": "number", "minimum": -1.5, "exclusiveMaximum": 2},
    "exclusive bounds of integers": {"type": "integer", "exclusiveMinimum": 3, "exclusiveMaximum": 6},
    "oneOf": {"oneOf": [{"type": "string", "maxLength": 3}, {"type": "null"}]},
    "oneOf of references": {"oneOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}], "$defs": TWO_KINDS},
    "anyOf": {"anyOf": [{"type": "boolean"}, {"type": "string", "maxLength": 1}]},
    "allOf": {"allOf": [{"type": "integer", "minimum": 3}, {"maximum": 7}]},
    "const": {"const": {"a": [1, "x", None, True, 1.5], "é": {}}},
    "enum of all kinds": {"enum": [1, "a", None, True, {"x": 1}, [1, 2], 0.5]},
    "enum and type": {"enum": [1, "a", None], "type": "string"},
    "a list of types": {"type": ["string", "null"], "maxLength": 2},
    "patternProperties": {**CLOSED, "patternProperties": {"^a.?$": {"type": "null"}}},
    "patternProperties and others": {
        "type": "object",
        "properties": {"ab": {"maximum": 9}},
        "required": ["ab"],
        "patternProperties": {"^a.?$": {"type": "integer"}},
        "additionalProperties": {"type": "null"},
    },
    "additionalProperties first": {"additionalProperties": False, "type": "object", "properties": {"a": {"const": 1}}},
    "additionalProperties": {"type": "object", "properties": {"a": {"const": 1}}, "additionalProperties": {"const": 2}},
    "required without properties": {"type": "object", "required": ["b"], "additionalProperties": {"const": 1}},
    "minProperties": {"type": "object", "minProperties": 1, "maxProperties": 2, "additionalProperties": {"const": 1}},
    "recursion": {
        "$ref": "#/$defs/node",
        "$defs": {"node": {**CLOSED, "properties": {"next": {"$ref": "#/$defs/node"}}}},
    },
    "a reference with others beside it": {"$ref": "#/$defs/s", "maxLength": 2, "$defs": {"s": {"type": "string"}}},
    "any": {},
    "no type": {"minLength": 3, "minItems": 1, "required": ["a"]},
    "annotations": {"title": "t", "description": "d", "default": 1, "examples": [1], "const": 1, "deprecated": True},
}


def answers(schema, compiler, tokenizer, *, count=6, limit=300):
    grammar = compiler.compile(OutputFormat.json_schema(schema))
    for seed in range(count):
        rng = np.random.default_rng(seed)
        ids = written_ids(grammar, tokenizer, rng, limit=limit, steps_ahead=False)
        if ids is not None:
            yield tokenizer.decode(ids)


def assert_valid(text, schema):
    validator = Draft202012Validator(schema, format_checker=Draft202012Validator.FORMAT_CHECKER)
    # The validator can't divide infinity, as which Python reads 1e999.
    value = json.loads(text, parse_float=lambda digits: min(max(float(digits), -1e300), 1e300))
    assert [error.message for error in validator.iter_errors(value)] == [], text


@pytest.mark.parametrize("name", ENFORCED)
def test_a_keyword_is_enforced(name, byte_compiler, byte_tokenizer):
    texts = list(answers(ENFORCED[name], byte_compiler, byte_tokenizer, count=12))
    assert len(texts) >= 4
    for text in texts:
        assert_valid(text, ENFORCED[name])


@pytest.mark.parametrize("format_", FORMATS)
def test_a_format_is_enforced(format_, byte_compiler, byte_tokenizer):
    schema = {"type": "string", "format": format_, "maxLength": 60}
    texts = list(answers(schema, byte_compiler, byte_tokenizer, count=40))
    assert len(texts) >= 5
    for text in texts:
        assert_valid(text, schema)


def accepts(compiler, tokenizer, schema, text):
    state = compiler.compile(OutputFormat.json_schema(schema)).start()
    try:
        for token_id in tokenizer.encode(text):
            state.accept(token_id)
    except AssertionError:
        return False
    return tokenizer.control_tokens["<|im_end|>"] in ids_of(state.allowed())


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({"type": "string"}, ['"é"', '"a\\nb"', '"\\\\"', '"\u2028"'], ['"a', "'a'", '"\\u00e9"', '"\\x"', '"\n"']),
        ({"type": "number"}, ["-0.5", "1e5", "1E-2", "0"], ["01", "1.", ".5", "+1", "NaN"]),
        ({"type": "integer"}, ["-3", "12345678901234567890"], ["1.0", "1e5"]),
        ({"type": ["string", "null"]}, ["null", '""'], ["0", "true"]),
        # Days and seconds that there are.
        (
            {"format": "date", "type": "string"},
            ['"2024-02-29"', '"2000-02-29"', '"0004-02-29"', '"2023-12-31"'],
            ['"2023-02-29"', '"1900-02-29"', '"0000-01-01"', '"2024-02-30"', '"2023-04-31"', '"2023-13-01"'],
        ),
        (
            {"format": "date-time", "type": "string"},
            ['"2024-02-29T23:59:59Z"', '"2023-02-28T00:00:00.5+02:00"'],
            ['"2023-02-29T00:00:00Z"', '"2023-02-28T23:59:60Z"', '"2023-02-28"'],
        ),
        # A name in other letters is the same name: it must not pass as one of the additional ones.
        (
            {"type": "object", "properties": {"é": {"const": 1}, "n\nl": {"const": 1}}, "additionalProperties": {}},
            ['{"é":1}', '{"n\\nl":1}', '{"x":{"y":[]}}'],
            ['{"\\u00e9":2}', '{"n\\u000al":2}', '{"é":2}', '{"\\u00E9":1}'],
        ),
        # White space: once at a place, a space or one line break with what moves the next line in.
        (
            {**CLOSED, "properties": {"a": {"type": "array", "items": {"const": 1}}}},
            ['{"a":[1,1]}', '{"a": [1, 1]}', '{\n  "a": [\n    1\n  ]\n}', '{\n\t"a":[]\n}'],
            ['{  "a":[]}', '{\n\n"a":[]}', ' {"a":[]}', '{"a":[]} ', '{"a":[]}\n', "{\n" + " " * 41 + '"a":[]}'],
        ),
    ],
)
def test_what_is_accepted_and_what_is_not(schema, good, bad, byte_compiler, byte_tokenizer):
    assert [text for text in good if not accepts(byte_compiler, byte_tokenizer, schema, text)] == []
    assert [text for text in bad if accepts(byte_compiler, byte_tokenizer, schema, text)] == []


REFUSED = [
    ({"not": {}}, "#/not"),
    ({"properties": {"a": {"not": {"type": "string"}}}}, "#/properties/a/not"),
    ({"items": {"anyOf": [{}, {"uniqueItems": True}]}}, "#/items/anyOf/1/uniqueItems"),
    ({"properties": {"a/b~": {"contains": {}}}}, "#/properties/a~1b~0/contains"),
    ({"if": {}, "then": {}}, "#/if"),
    ({"dependentRequired": {"a": ["b"]}}, "#/dependentRequired"),
    ({"dependentSchemas": {}}, "#/dependentSchemas"),
    ({"propertyNames": {}}, "#/propertyNames"),
    ({"unevaluatedProperties": False}, "#/unevaluatedProperties"),
    ({"minContains": 0}, "#/minContains"),
    ({"$dynamicRef": "#a"}, "#/$dynamicRef"),
    ({"type": "string", "nullable": True}, "#/nullable"),
    ({"contentEncoding": "base64"}, "#/contentEncoding"),
    ({"minLenght": 3}, "#/minLenght"),
    ({"x-guidance": {"lenient": True}, "not": {}}, "#/x-guidance"),
    ({"items": {"x-guidance": {"coerce_one_of": True}}}, "#/items/x-guidance"),
    ({"items": [{}]}, "#/items"),
    ({"$defs": {"unused": {"not": {}}}}, "#/$defs/unused/not"),
    ({"type": "strin"}, "#/type"),
    ({"type": []}, "#/type"),
    ({"minItems": "3"}, "#/minItems"),
    ({"minItems": True}, "#/minItems"),
    ({"maxLength": 10**9}, "#/maxLength"),
    ({"minimum": "3"}, "#/minimum"),
    ({"exclusiveMinimum": True}, "#/exclusiveMinimum"),
    ({"type": "integer", "minimum": 2**53 + 1}, "#/minimum"),
    ({"multipleOf": 0}, "#/multipleOf"),
    ({"multipleOf": 999_983}, "#/multipleOf"),
    ({"enum": []}, "#/enum"),
    ({"enum": [1, 2**60]}, "#/enum/1"),
    ({"const": {"a": ["x\u0001"]}}, "#/const/a/0"),
    ({"const": 1e-7}, "#/const"),
    ({"required": "a"}, "#/required"),
    ({"format": "iri"}, "#/format"),
    ({"type": "integer", "format": "int32"}, "#/format"),
    ({"pattern": 5}, "#/pattern"),
    ({"type": "string", "pattern": "(?=a)b"}, "#/pattern"),
    ({"type": "string", "pattern": r"^(a)\1$"}, "#/pattern"),
    ({"type": "string", "pattern": r"^a\x01$"}, "#/pattern"),
    ({"patternProperties": {"^a\\x01": {}}}, "#/patternProperties/^a\\x01"),
    ({"patternProperties": {"^a": {}, "b$": {"type": "null"}}}, "#/patternProperties"),
    ({"$ref": "other.json"}, "#/$ref"),
    ({"$ref": "#/$defs/x"}, "#/$ref"),
    ({"$ref": "#anchor"}, "#/$ref"),
    ({"properties": {"a": {"$id": "x"}}}, "#/properties/a/$id"),
    ({"items": {"oneOf": [{"type": "number"}, {"type": "integer"}]}}, "#/items/oneOf"),
    ({"$ref": "#/$defs/x", "$defs": {"x": {"oneOf": [{}, {"type": "null"}]}}}, "#/$defs/x/oneOf"),
    ({"type": "object", "minProperties": 2}, "#/minProperties"),
    ({"anyOf": []}, "#/anyOf"),
    ({"properties": []}, "#/properties"),
    ({"items": 5}, "#/items"),
    ({"type": "string", "format": "date", "maxLength": 4}, "#/"),
]


@pytest.mark.parametrize(("schema", "path"), REFUSED, ids=lambda value: value if isinstance(value, str) else "")
def test_what_is_not_enforced_is_refused_by_keyword_and_path(schema, path):
    before = copy.deepcopy(schema)
    with pytest.raises(InvalidRequestError) as raised:
        supported_schema(schema, field="response_format")
    found = raised.value.message.removeprefix("response_format: ").split(" ")[0]
    assert found == path if not path.endswith("/") else found.startswith(path)
    assert raised.value.field == "response_format"
    assert schema == before


def test_every_keyword_of_the_vocabularies_is_enforced_or_refused():
    """The names are those of the draft's own metaschema, as the jsonschema package carries it."""
    from jsonschema_specifications import REGISTRY

    names = set()
    for vocabulary in ("core", "applicator", "validation", "unevaluated", "format-annotation", "content", "meta-data"):
        uri = f"https://json-schema.org/draft/2020-12/meta/{vocabulary}"
        names |= set(REGISTRY.contents(uri)["properties"])
    assert len(names) > 50
    annotations = {"title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly"}
    for name in names - annotations - {"$comment", "$schema", "$id", "const"}:  # const takes any value
        with pytest.raises(InvalidRequestError, match=f"#/{name.replace('$', '.')}"):
            supported_schema({name: object()}, field="f")  # a value that no enforced keyword takes


def test_references_in_one_of_that_grow_without_end_are_refused():
    definitions = {
        f"a{i}": {
            "oneOf": [
                {"$ref": f"#/$defs/a{i + 1}"},
                {"type": "array", "items": {"oneOf": [{"$ref": f"#/$defs/a{i + 1}"}, {"type": "null"}]}},
            ]
        }
        for i in range(60)
    }
    with pytest.raises(InvalidRequestError, match="oneOf"):
        supported_schema({"$ref": "#/$defs/a0", "$defs": {**definitions, "a60": {"type": "null"}}}, field="f")


@pytest.mark.parametrize(
    ("pointer", "found"),
    [("", {"a/b": [{"~": 1}]}), ("/a~1b/0/~0", 1), ("/a%2Fb", None), ("/a~1b/1", None), ("/x", None)],
)
def test_pointers_are_followed_as_rfc_6901_says(pointer, found):
    assert find_pointer({"a/b": [{"~": 1}]}, pointer) == found


NAMES = st.sampled_from(["a", "b", "é", "a b", 'q"', "名前", "n\nl", "a/b"])
SCALARS = st.none() | st.booleans() | st.integers(-99, 99) | st.sampled_from([0.5, "", "a", "é", "北京", "a\nb", '"\\'])
JSON_VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(NAMES, inner, max_size=2), max_leaves=4
)


def some_of(keywords):
    """An object with any of these keywords, in any order."""
    return st.lists(st.sampled_from(sorted(keywords)), unique=True).flatmap(
        lambda names: st.tuples(*(keywords[name] for name in names)).map(
            lambda values: dict(zip(names, values, strict=True))
        )
    )


def schemas_of(inner):
    small = st.integers(0, 3)
    strings = {
        "minLength": small, "maxLength": st.integers(2, 6), "pattern": st.sampled_from(["^a*$", r"^\w+$", "^[^x]{2}"]),
        "format": st.sampled_from(["date", "ipv4", "uuid", "time"]),
    }  # fmt: skip
    numbers = {
        "minimum": st.sampled_from([-10, 0, 1.5]), "maximum": st.sampled_from([9, 20.25]), "multipleOf":
        st.sampled_from([1, 3, 0.5]), "exclusiveMinimum": st.just(-4), "exclusiveMaximum": st.just(12),
    }  # fmt: skip
    arrays = {
        "items": inner | st.booleans(), "prefixItems": st.lists(inner, min_size=1, max_size=2), "minItems": small,
        "maxItems": st.integers(1, 4), "uniqueItems": st.just(False),
    }  # fmt: skip
    objects = {
        "properties": st.dictionaries(NAMES, inner, max_size=3), "required": st.lists(NAMES, max_size=2, unique=True),
        "additionalProperties": inner | st.booleans(), "minProperties": small, "maxProperties": st.integers(1, 4),
        "patternProperties": st.dictionaries(st.sampled_from(["^a", "^b"]), inner, max_size=2),
    }  # fmt: skip
    both = st.lists(inner, min_size=1, max_size=2)
    any_of = {"anyOf": both, "oneOf": both, "allOf": both, "$ref": st.just("#/$defs/d")}
    kinds = st.sampled_from(["null", "boolean", "integer", "number", "string", "array", "object"])
    types = {"type": kinds | st.lists(kinds, min_size=1, max_size=2, unique=True)}
    values = {"const": JSON_VALUES, "enum": st.lists(JSON_VALUES, min_size=1, max_size=3)}
    typed = [some_of(group | types) for group in (strings, numbers, arrays, objects)]
    return st.one_of(*typed, some_of(any_of | types), some_of(any_of | objects), some_of(values | strings | types))


SCHEMAS = st.recursive(st.just({"type": "integer", "maximum": 99}) | st.just({}), schemas_of, max_leaves=6)


@settings(max_examples=NUM_SCHEMAS, deadline=None, suppress_health_check=list(HealthCheck))
@given(schema=SCHEMAS, definition=SCHEMAS, seed=st.integers(0, 2**32))
def test_any_schema_is_refused_or_every_answer_is_valid(schema, definition, seed, byte_compiler, byte_tokenizer):
    schema = {**schema, "$defs": {"d": definition}}
    try:
        grammar = byte_compiler.compile(OutputFormat.json_schema(schema))
    except InvalidRequestError as refused:
        assert "#" in refused.message or "admits no answer" in refused.message
        return
    rng = np.random.default_rng(seed)
    for _ in range(3):
        try:
            ids = written_ids(grammar, byte_tokenizer, rng, limit=200, steps_ahead=False)
        except InvalidRequestError as stuck:
            raise AssertionError(f"no way on: {stuck} {schema}") from None
        if ids is not None:
            assert_valid(byte_tokenizer.decode(ids), schema)


def test_the_switches_are_strict():
    assert set(OPTIONS) == {"whitespace_pattern", "json_allowed_escapes"}


def test_levels_are_those_of_the_schema_and_of_all_that_it_refers_to():
    assert num_levels({}) == 1
    assert num_levels({"items": {"items": {}}}) == 3
    ring = {"$ref": "#/$defs/a", "$defs": {"a": {"items": {"$ref": "#/$defs/b"}}, "b": {"$ref": "#/$defs/a"}}}
    assert num_levels(ring) == 4 + 2 + 1, "itself with its definitions, and each of these once"


def test_a_schema_that_is_deep_by_its_references_is_refused():
    chain = {f"a{i}": {"items": {"items": {"items": {"$ref": f"#/$defs/a{i + 1}"}}}} for i in range(MAX_LEVELS // 4)}
    with pytest.raises(InvalidRequestError, match="here: # nests too deep with its references: beyond 10,000 levels"):
        supported_schema({"$ref": "#/$defs/a0", "$defs": {**chain, f"a{len(chain)}": {}}}, field="here")


def test_references_in_place_that_double_at_each_step_are_refused():
    doubling = {f"a{i}": {"oneOf": [{"$ref": f"#/$defs/a{i - 1}"}] * 2} for i in range(1, 15)}
    with pytest.raises(InvalidRequestError, match="holds too much once the references in its oneOf are put in place"):
        supported_schema({"$ref": "#/$defs/a14", "$defs": {"a0": {"type": "null"}, **doubling}}, field="here")
