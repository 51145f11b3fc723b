"""Keys that name modules, read as PEFT reads them, in bounded time."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kaishu.checkpoint.module_patterns import ModulePatterns
from kaishu.errors import CheckpointError

Q0, Q11 = "model.layers.0.self_attn.q_proj", "model.layers.11.self_attn.q_proj"


def patterns(**values: float) -> ModulePatterns:
    return ModulePatterns.from_mapping("here", values)


def value_by_peft(keys: dict[str, float], module: str) -> float | None:
    """The rule as PEFT has it: the first key that matches the whole name, or its end after a dot."""
    return next((v for key, v in keys.items() if re.match(rf"(.*\.)?({key})$", module)), None)


@pytest.mark.parametrize(
    "keys, module, expected",
    [
        ({"q_proj": 4.0}, Q0, 4.0),
        ({"proj": 4.0}, Q0, None),
        ({"self_attn.q_proj": 4.0}, Q0, 4.0),
        ({Q0: 4.0}, Q0, 4.0),
        ({Q0: 4.0}, Q11, None),
        ({"layers.1.self_attn.q_proj": 4.0}, Q11, None),
        ({"^model.layers.0.self_attn.q_proj": 4.0}, Q0, 4.0),
        ({"^self_attn.q_proj": 4.0}, Q0, None),
        ({"^layers.0.self_attn.q_proj$": 4.0}, Q0, None),
        ({r"model\.layers\.0\.self_attn\.q_proj": 4.0}, Q0, 4.0),
        ({"q_proj": 1.0, Q0: 2.0}, Q0, 1.0),
        ({Q0: 2.0, "q_proj": 1.0}, Q0, 2.0),
        ({r".*\.(0|11)\..*_proj": 3.0, "q_proj": 1.0}, Q0, 3.0),
        ({"q_proj": 1.0, r"layers.\d+.self_attn.q_proj": 3.0}, Q11, 1.0),
        ({r"layers\.1\d\.self_attn\.[qk]_proj": 3.0}, Q11, 3.0),
        ({r"layers\.1\d\.self_attn\.[qk]_proj": 3.0}, Q0, None),
        ({}, Q0, None),
    ],
)
def test_the_first_key_that_matches_wins_as_in_peft(keys, module, expected):
    assert patterns(**keys).value(module) == expected == value_by_peft(keys, module)


@given(
    st.dictionaries(
        st.sampled_from(["q_proj", "^a.q_proj", "a.q_proj", "b.a.q_proj", r"[ab]\.q_proj", r"a.*", ".*", r"\w_proj$"]),
        st.integers(1, 9),
        max_size=5,
    ),
    st.sampled_from(["q_proj", "a.q_proj", "b.a.q_proj", "b.q_proj", "a.b", "aq_proj"]),
)
def test_any_order_of_keys_gives_what_peft_gives(keys, module):
    assert patterns(**keys).value(module) == value_by_peft(keys, module)


@pytest.mark.parametrize("key", ["(a+)+$", "(.*)*b", ".*.*.*q", "(a|aa){1,90}b", "x" * 201 + "*"])
def test_a_key_that_might_take_forever_is_refused_at_once(key):
    with pytest.raises(CheckpointError, match=r"here has the key .*; allowed: names of modules, or at most 16"):
        patterns(**{key: 1.0})


def test_too_many_expressions_are_refused_but_any_number_of_names_is_not():
    assert patterns(**{f"layers.{n}.q_proj": float(n) for n in range(20_000)}).value("layers.19999.q_proj") == 19_999
    with pytest.raises(CheckpointError, match="here has 17 regular expressions"):
        patterns(**{f"[q{n}]_proj": 1.0 for n in range(17)})


@pytest.mark.parametrize("key", ["(", "[a", "a**", "*"])
def test_what_is_no_expression_is_an_error(key):
    with pytest.raises(CheckpointError, match="is no regular expression"):
        patterns(**{key: 1.0})
