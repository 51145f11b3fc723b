"""RoPE in a GGUF's keys, and llama3's stretching found again from the divisors that it was stored as."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kaishu.checkpoint.gguf_rope import llama3_json, rope_json
from kaishu.config import config_from_json
from kaishu.errors import ConfigError
from kaishu.json_fields import JsonFields
from tests.checkpoint.gguf_files import llama3_divisors
from tests.test_config import QWEN3_06B


def rope(divisors: Any = None, head_dim: int = 128, **keys: Any) -> dict[str, Any]:
    values = {"llama.rope.freq_base": 500_000.0} | {f"llama.rope.{k.replace('__', '.')}": v for k, v in keys.items()}
    return rope_json(JsonFields(values, "the metadata", ConfigError), "llama", head_dim, divisors)


LLAMA31 = {"factor": 8.0, "original_max_position_embeddings": 8192, "rope_theta": 500_000.0}
LLAMA32 = LLAMA31 | {"factor": 32.0}
BOUNDS = {"low_freq_factor": 1.0, "high_freq_factor": 4.0}


@pytest.mark.parametrize(
    "said, head_dim",
    [
        (LLAMA31, 128),
        (LLAMA32, 128),
        (LLAMA32, 64),
        ({"factor": 8.0, "original_max_position_embeddings": 64, "rope_theta": 10_000.0}, 16),
        ({"factor": 2.5, "original_max_position_embeddings": 1000, "rope_theta": 10_000.0}, 96),
    ],
)
def test_the_stretching_is_found_again(said: dict[str, Any], head_dim: int) -> None:
    divisors = llama3_divisors(said | BOUNDS, head_dim)
    found = llama3_json(divisors, said["rope_theta"], head_dim, None)
    assert found.pop("rope_type") == "llama3"
    assert found == pytest.approx({k: v for k, v in (said | BOUNDS).items() if k != "rope_theta"})
    assert np.allclose(llama3_divisors(found | {"rope_theta": said["rope_theta"]}, head_dim), divisors, rtol=1e-6)


@pytest.mark.parametrize("original", [32, 777, 5000])
def test_without_a_wave_between_the_bounds_the_same_divisors_come_out(original: int) -> None:
    """Two frequencies, far apart: many contexts are the same model."""
    said = {"factor": 4.0, "original_max_position_embeddings": original, "rope_theta": 1e8} | BOUNDS
    divisors = llama3_divisors(said, 4)
    assert set(divisors) == {1.0, 4.0}
    found = llama3_json(divisors, 1e8, 4, None)
    assert np.array_equal(llama3_divisors(found | {"rope_theta": 1e8}, 4), divisors)


@pytest.mark.parametrize(
    "divisors",
    [
        np.linspace(1, 8, 64, dtype=np.float32),
        np.full(64, np.nan, np.float32),
        np.zeros(64, np.float32),
        np.full(64, -1.0, np.float32),
        np.ones(63, np.float32) * 2,
    ],
)
def test_divisors_of_no_known_stretching_are_refused(divisors: np.ndarray) -> None:
    with pytest.raises(ConfigError, match=r"rope_freqs\.weight"):
        llama3_json(divisors, 500_000.0, 128, None)


def test_nothing_said_is_plain_rope_and_ones_are_too() -> None:
    assert rope() == rope(np.ones(64, np.float32)) == rope(scaling__type="none") == {"rope_theta": 500_000.0}


def test_a_factor_without_a_type_is_linear_as_llama_cpp_has_it() -> None:
    assert rope(scaling__factor=4.0)["rope_scaling"] == {"rope_type": "linear", "factor": 4.0}
    assert rope(scaling__type="linear", scaling__factor=4.0) == rope(scaling__factor=4.0)
    assert "rope_scaling" not in rope(scaling__factor=0.0)


def test_yarn_is_read_with_its_bounds_and_makes_a_config() -> None:
    keys = {"scaling__type": "yarn", "scaling__factor": 4.0, "scaling__original_context_length": 32_768}
    found = rope(**keys, scaling__yarn_beta_fast=16.0, scaling__attn_factor=1.0, scaling__finetuned=True)
    assert found["rope_scaling"] == {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 32_768,
        "beta_fast": 16.0,
    }
    config = config_from_json(QWEN3_06B | found)
    assert (config.rope.kind, config.rope.factor, config.rope.beta_fast) == ("yarn", 4.0, 16.0)


@pytest.mark.parametrize(
    "keys, words",
    [
        ({"scaling__type": "longrope"}, "allowed: none, linear, yarn"),
        ({"scaling__type": "yarn", "scaling__factor": 2.0, "scaling__attn_factor": 0.5}, "attn_factor is 0.5"),
        ({"scaling__type": "yarn", "scaling__factor": 2.0, "scaling__yarn_ext_factor": 0.0}, "ext_factor is 0.0"),
        ({"scaling__alpha": 2.0}, r"llama\.rope\.scaling\.alpha, which isn't run"),
        ({"dimension_count": 64}, "dimension_count is 64; allowed: 128, the whole head"),
        ({"freq_base": None}, "freq_base is null"),
        ({"divisors": np.full(64, 2.0, np.float32), "scaling__factor": 2.0}, "as there is a tensor rope_freqs"),
    ],
)
def test_what_isnt_run_is_refused(keys: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        rope(**keys)
