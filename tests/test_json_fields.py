"""Bounded JSON, and fields with a type and a range."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kaishu.config import ModelConfig
from kaishu.errors import CheckpointError, ConfigError
from kaishu.json_fields import (
    MAX_BYTES,
    MAX_VALUES,
    JsonFields,
    parse_json,
    parse_json_object,
    read_json,
    read_json_object,
    shown,
)
from tests.test_config import QWEN3_06B

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize(
    "text, words",
    [
        (b"", "not valid JSON"),
        (b"{", "not valid JSON"),
        (b"[1]", "holds a JSON list; allowed: an object"),
        (b'{"a": 1, "a": 2}', "the key 'a' occurs twice"),
        (b'{"a": "\xff"}', "not valid JSON"),
        (b'{"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "nested too deeply"),
        (b'{"a": ' + b"9" * 10_000 + b"}", "not valid JSON"),
        (b'{"a": "' + b"x" * MAX_BYTES + b'"}', "at most 16,777,216 are read"),
        (b'{"a": [' + b"0," * MAX_VALUES + b"0]}", "at most 500,000 are read"),
    ],
)
def test_broken_or_hostile_json_is_a_config_error(tmp_path: Path, text: bytes, words: str) -> None:
    (tmp_path / "config.json").write_bytes(text)
    with pytest.raises(ConfigError, match=words):
        ModelConfig.from_folder(tmp_path)


def test_looking_for_a_repeated_key_takes_time_in_proportion() -> None:
    """400,000 keys, the last one again: comparing each with each takes most of an hour, so a minute is room enough."""
    program = """
from kaishu.errors import ConfigError
from kaishu.json_fields import parse_json_object
keys = [f'"{i}": 0' for i in range(400_000)]
try:
    parse_json_object(("{" + ",".join([*keys, keys[-1]]) + "}").encode(), "x.json", ConfigError)
except ConfigError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, cwd=ROOT)
    assert done.stdout == "x.json is not valid JSON: the key '399999' occurs twice.\n", done.stderr


def test_json_that_is_no_object_is_read_where_any_value_will_do(tmp_path: Path) -> None:
    (tmp_path / "list.json").write_text("[1, {}]")
    assert read_json(tmp_path / "list.json", ConfigError) == parse_json(b"[1, {}]", "", ConfigError) == [1, {}]
    with pytest.raises(ConfigError, match=r"list\.json holds a JSON list; allowed: an object"):
        read_json_object(tmp_path / "list.json", ConfigError)


@pytest.mark.parametrize("name", ["absent.json", "x" * 300, "a\0b", "\ud800", "."])
def test_a_path_that_cannot_be_read_is_an_error(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="can't be read"):
        read_json(tmp_path / name, ConfigError)


def test_json_is_read_as_pythons_own_reader_reads_it(tmp_path: Path) -> None:
    text = json.dumps(QWEN3_06B).encode()
    (tmp_path / "config.json").write_bytes(text)
    assert (
        read_json_object(tmp_path / "config.json", ConfigError) == QWEN3_06B == parse_json_object(text, "", ConfigError)
    )
    with pytest.raises(ConfigError, match="can't be read"):
        read_json_object(tmp_path / "absent.json", ConfigError)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=12,
)


@given(st.dictionaries(st.text(max_size=4), JSON, max_size=4), st.booleans())
def test_any_object_survives(value: dict[str, Any], is_ascii: bool) -> None:
    assert parse_json_object(json.dumps(value, ensure_ascii=is_ascii).encode(), "x", CheckpointError) == value


READERS: list[tuple[Callable[[JsonFields], object], Any, list[Any]]] = [
    (lambda f: f.integer("x", 1, 9), 9, [0, 10, 1.0, True, "1", [1], {}, math.nan]),
    (lambda f: f.number("x", 0.0, 2.0), 0.5, [-1, 2.5, True, "1", math.nan, math.inf, 10**400]),
    (lambda f: f.boolean("x", False), True, [0, 1, "true", []]),
    (lambda f: f.one_of("x", ("a", "b")), "b", ["c", 1, ["a"], {}]),
    (lambda f: f.integers("x", 0, 9), [1, 2], [[10], [True], "1", [[1]], 1.5, {}]),
    (lambda f: f.section("x"), {"y": 1}, [1, [1], "y", True]),
]


@pytest.mark.parametrize("read, right, wrongs", READERS)
def test_a_field_is_what_it_must_be_or_an_error_that_shows_it(
    read: Callable[[JsonFields], object], right: Any, wrongs: list[Any]
) -> None:
    read(JsonFields({"x": right}, "file.json", ConfigError))
    for wrong in wrongs:
        with pytest.raises(ConfigError, match=r"file\.json: x is .*; allowed: "):
            read(JsonFields({"x": wrong}, "file.json", ConfigError))


def test_null_and_absent_are_the_default_or_missing() -> None:
    for values in ({}, {"x": None}):
        fields = JsonFields(values, "file.json", ConfigError)
        assert fields.integer("x", 1, 9, default=5) == 5 and fields.number("x", 0, 1, default=0.5) == 0.5
        assert fields.optional_integer("x", 1, 9) is None and fields.optional_number("x", 0, 1) is None
        assert fields.integers("x", 0, 1) == () and fields.section("x") is None and fields.boolean("x", True)
        for read in (lambda f: f.integer("x", 1, 9), lambda f: f.number("x", 0, 1), lambda f: f.one_of("x", ("a",))):
            with pytest.raises(ConfigError, match=r"x is (missing|null), and has no value that could be assumed"):
                read(fields)


def test_a_value_is_shown_short() -> None:
    assert shown("北京") == '"北京"' and shown(math.nan) == "NaN" and shown(b"x") == "\"b'x'\""
    assert len(shown(["x"] * 1000)) == 80
