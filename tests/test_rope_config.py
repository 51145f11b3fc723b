"""RoPE in all its spellings: equal meanings are equal, and make equal tables in transformers."""

from __future__ import annotations

import math
from typing import Any

import pytest

from kaishu.config import config_from_json
from kaishu.errors import ConfigError
from tests.test_config import FAMILIES, SMALL, theirs, without

YARN = {"factor": 4.0, "original_max_position_embeddings": 128, "beta_fast": 16}
LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}
SAME_MEANINGS = [
    [
        {"rope_theta": 5e5},
        {"rope_theta": 500_000, "rope_scaling": None},
        {"rope_theta": 5e5, "rope_scaling": {"rope_type": "default"}},
        {"rope_theta": 5e5, "rope_scaling": {"type": "default"}},
        {"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}},
        {"rope_parameters": {"rope_theta": 500_000}},
        {"rope_theta": 5e5, "rope_parameters": None},
        {"rope_theta": 5e5, "rope_scaling": {}, "rope_parameters": {}},
        {"rope_theta": 5e5, "rope_parameters": {"rope_type": "default", "rope_theta": 5e5}},
    ],
    [
        {"rope_theta": 1e4, "rope_scaling": {"type": "linear", "factor": 2}},
        {"rope_theta": 1e4, "rope_scaling": {"rope_type": "linear", "factor": 2.0}},
        {"rope_theta": 1e4, "rope_scaling": {"type": "linear", "rope_type": "linear", "factor": 2.0}},
        {"rope_parameters": {"rope_type": "linear", "rope_theta": 10_000, "factor": 2}},
    ],
    [
        {"rope_theta": 1e6, "rope_scaling": {"type": "yarn", **YARN}},
        {"rope_theta": 1e6, "rope_scaling": {"rope_type": "yarn", **YARN, "attention_factor": None}},
        {"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e6, **YARN, "beta_slow": 1, "truncate": True}},
        {"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e6, **YARN, "mscale": 0.7}},  # alone it says nothing
    ],
    [
        {"rope_theta": 1e6, "rope_scaling": {"type": "yarn", "factor": 4.0}},  # the context as it is
        {
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 1e6,
                "factor": 4,
                "original_max_position_embeddings": 40960,
            }
        },
    ],
    [
        {"rope_theta": 5e5, "rope_scaling": {"rope_type": "llama3", **LLAMA3}},
        {"rope_parameters": {"rope_type": "llama3", "rope_theta": 5e5, **LLAMA3}},
    ],
]


@pytest.mark.parametrize("spellings", SAME_MEANINGS)
def test_spellings_of_one_rope_are_one_rope_here_and_in_transformers(spellings: list[dict[str, Any]]) -> None:
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    base = without(FAMILIES["llama"], "rope_theta", "rope_scaling")
    ropes = [config_from_json({**base, **spelling}).rope for spelling in spellings]
    assert all(rope == ropes[0] for rope in ropes)
    tables = [LlamaRotaryEmbedding(theirs({**base, **spelling})) for spelling in spellings]
    assert all(t.inv_freq.equal(tables[0].inv_freq) for t in tables)
    assert all(t.attention_scaling == tables[0].attention_scaling for t in tables)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    "rope",
    [
        {},
        {"rope_theta": None},
        {"rope_scaling": {"type": "linear", "factor": 2.0}},
        {"rope_parameters": {"rope_type": "default"}},
        {"rope_parameters": {"rope_type": "default", "rope_theta": None}},
    ],
)
def test_a_missing_theta_is_never_assumed(family: str, rope: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"rope_theta is (missing|null), and has no value that could be assumed"):
        config_from_json({**without(FAMILIES[family], "rope_theta", "rope_scaling"), **rope})


INFINITY = math.inf
WRONG = [
    ({"rope_theta": 0}, "rope_theta is 0"),
    ({"rope_theta": INFINITY}, "rope_theta is Infinity"),
    ({"rope_theta": True}, "rope_theta is true"),
    ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, 'type is "dynamic"; allowed: default, linear, yarn, llama3'),
    ({"rope_scaling": {"type": "longrope"}}, "longrope"),
    ({"rope_scaling": {"type": "linear"}}, "factor is missing"),
    ({"rope_scaling": {"type": "linear", "factor": 0.5}}, r"factor is 0\.5"),
    ({"rope_scaling": {"factor": 4.0}}, "has factor, which RoPE of type 'default' doesn't use"),
    ({"rope_scaling": {"type": "default", "mrope_section": [16, 24, 24]}}, "mrope_section"),
    ({"rope_scaling": {"type": "yarn", "rope_type": "linear", "factor": 2.0}}, "the same as rope_type"),
    ({"rope_scaling": {"type": "yarn", "factor": 2.0, "beta_fast": 1, "beta_slow": 2}}, "beta_fast"),
    ({"rope_scaling": {"rope_type": "llama3", **LLAMA3, "high_freq_factor": 1.0}}, "more than low_freq_factor"),
    ({"rope_scaling": "yarn"}, "rope_scaling"),
    ({"rope_parameters": {"full_attention": {"rope_theta": 1e4}}}, "full_attention"),
    ({"rope_parameters": {"rope_theta": 5.0}}, "the same as rope_theta outside"),
    (
        {"rope_parameters": {"rope_type": "default"}, "rope_scaling": {"type": "linear", "factor": 2.0}},
        "the same meaning as rope_parameters",
    ),
    ({"rope_parameters": {"rope_theta": 1e6, "partial_rotary_factor": 0.5}}, "partial_rotary_factor"),
]


@pytest.mark.parametrize("changes, words", WRONG)
def test_a_wrong_rope_is_named_with_what_is_allowed(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        config_from_json({**SMALL, **changes})
    assert "config.json" in str(caught.value)


@pytest.mark.parametrize("kind, fields", [("yarn", YARN), ("llama3", LLAMA3), ("linear", {"factor": 4.0})])
def test_each_kind_keeps_its_fields(kind: str, fields: dict[str, float]) -> None:
    rope = config_from_json({**SMALL, "rope_scaling": {"rope_type": kind, **fields}}).rope
    assert (rope.kind, rope.theta, rope.factor) == (kind, 1e6, fields["factor"])
    assert rope.original_positions == fields.get("original_max_position_embeddings")
    assert rope.beta_fast == fields.get("beta_fast", 32.0)
    assert rope.high_freq_factor == fields.get("high_freq_factor", 4.0)
