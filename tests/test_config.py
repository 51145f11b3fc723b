"""config.json in all its spellings, against what transformers makes of the same file."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kaishu.config import ModelConfig, RopeConfig, config_from_json
from kaishu.errors import ConfigError
from tests.tiny_checkpoints import KINDS

# config.json of Qwen3-0.6B, as published.
QWEN3_06B: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 151643,
    "eos_token_id": 151645,
    "head_dim": 128,
    "hidden_act": "silu",
    "hidden_size": 1024,
    "initializer_range": 0.02,
    "intermediate_size": 3072,
    "max_position_embeddings": 40960,
    "max_window_layers": 28,
    "model_type": "qwen3",
    "num_attention_heads": 16,
    "num_hidden_layers": 28,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-06,
    "rope_scaling": None,
    "rope_theta": 1000000,
    "sliding_window": None,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.51.0",
    "use_cache": True,
    "use_sliding_window": False,
    "vocab_size": 151936,
}
# A few layers and plain sizes, so that transformers can build the model.
SMALL = {
    **QWEN3_06B,
    "hidden_size": 64,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "vocab_size": 96,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
SMALL_MOE = {
    **SMALL,
    "model_type": "qwen3_moe",
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 24,
}
FAMILIES: Mapping[str, dict[str, Any]] = {
    "qwen3": SMALL,
    "qwen3_moe": SMALL_MOE,
    "qwen2": {**SMALL, "model_type": "qwen2"},
    "llama": {**SMALL, "model_type": "llama"},
}


def without(config: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {key: value for key, value in config.items() if key not in names}


def theirs(config: Mapping[str, Any]) -> Any:
    from transformers import AutoConfig

    return AutoConfig.for_model(**json.loads(json.dumps(config)))


def their_model(config: Mapping[str, Any]) -> Any:
    """Transformers' model of that config, with shapes but without numbers."""
    import torch
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(theirs(config))


def test_qwen3_06b_as_published() -> None:
    config = config_from_json(QWEN3_06B, {"eos_token_id": [151645, 151643], "do_sample": True, "temperature": 0.6})
    assert config == ModelConfig(
        model_type="qwen3",
        vocab_size=151936,
        hidden_size=1024,
        intermediate_size=3072,
        num_hidden_layers=28,
        num_attention_heads=16,
        num_key_value_heads=8,
        head_dim=128,
        max_position_embeddings=40960,
        rms_norm_eps=1e-6,
        rope=RopeConfig(theta=1_000_000.0),
        qk_norm=True,
        attention_bias=False,
        output_bias=False,
        mlp_bias=False,
        tie_word_embeddings=True,
        dtype="bfloat16",
        eos_token_ids=(151645, 151643),
        bos_token_id=151643,
        sliding_windows=(None,) * 28,
        generation=config.generation,
    )
    assert config.generation.temperature == 0.6
    assert (config.query_size, config.key_value_size, config.queries_per_key) == (2048, 1024, 2)
    assert config.kv_bytes_per_token() == 114_688  # 2 · 28 layers · 8 heads · 128 · 2 bytes


@pytest.mark.parametrize("kind", KINDS)
def test_a_folder_that_transformers_wrote_reads_as_transformers_reads_it(kind: str, tiny_checkpoint: Any) -> None:
    from transformers import AutoConfig

    folder = tiny_checkpoint(kind)
    expected, config = AutoConfig.from_pretrained(folder), ModelConfig.from_folder(folder)
    for name in ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"):
        assert getattr(config, name) == getattr(expected, name)
    for name in ("num_key_value_heads", "max_position_embeddings", "rms_norm_eps", "tie_word_embeddings"):
        assert getattr(config, name) == getattr(expected, name)
    assert config.rope.theta == expected.rope_parameters["rope_theta"]
    assert config.rope.kind == expected.rope_parameters["rope_type"]
    assert config.rope.factor == expected.rope_parameters.get("factor", 1.0)
    assert config.rope.original_positions == expected.rope_parameters.get("original_max_position_embeddings")
    assert config.eos_token_ids == (258, 256) and config.bos_token_id == 256 and config.pad_token_id == 256
    assert (config.generation.temperature, config.generation.top_k, config.generation.top_p) == (0.6, 20, 0.95)


ARCHITECTURES = [
    *[(family, {}) for family in FAMILIES],
    *[(family, {"attention_bias": True}) for family in FAMILIES],
    *[(family, {"mlp_bias": True}) for family in FAMILIES],
    *[(family, {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1}) for family in FAMILIES],
    *[(family, {"use_sliding_window": False, "sliding_window": 8, "max_window_layers": 1}) for family in FAMILIES],
    *[(family, {"use_sliding_window": True, "sliding_window": None, "max_window_layers": 1}) for family in FAMILIES],
    (
        "qwen3",
        {"use_sliding_window": True, "sliding_window": 8, "layer_types": ["full_attention", "sliding_attention"] * 2},
    ),
    ("qwen2", {"layer_types": ["full_attention"] * 4}),
    ("qwen3_moe", {"decoder_sparse_step": 2}),
    ("qwen3_moe", {"decoder_sparse_step": 3, "mlp_only_layers": [0, 2]}),
    ("qwen3_moe", {"mlp_only_layers": [0, 1, 2, 3]}),
    ("qwen3_moe", {"norm_topk_prob": True}),
    ("qwen3", {"num_key_value_heads": None}),
    ("llama", {"num_key_value_heads": None, "head_dim": None}),
    ("qwen3", {"head_dim": 24, "hidden_size": 40}),
]


@pytest.mark.parametrize("family, changes", ARCHITECTURES)
def test_the_switches_build_what_transformers_builds(family: str, changes: dict[str, Any]) -> None:
    raw = {**FAMILIES[family], **changes}
    model, config = their_model(raw), config_from_json(raw)
    parameters = dict(model.named_parameters())
    for layer, block in enumerate(model.model.layers):
        prefix = f"model.layers.{layer}."
        assert config.qk_norm == (prefix + "self_attn.q_norm.weight" in parameters)
        for projection in ("q_proj", "k_proj", "v_proj"):
            assert config.attention_bias == (f"{prefix}self_attn.{projection}.bias" in parameters)
        assert config.output_bias == (prefix + "self_attn.o_proj.bias" in parameters)
        assert config.mlp_bias == (prefix + "mlp.gate_proj.bias" in parameters)
        assert config.is_sparse(layer) == (prefix + "mlp.gate.weight" in parameters)
        assert config.sliding_window(layer) == getattr(block.self_attn, "sliding_window", None)
        assert (config.query_size, config.hidden_size) == parameters[prefix + "self_attn.q_proj.weight"].shape
        assert (config.key_value_size, config.hidden_size) == parameters[prefix + "self_attn.k_proj.weight"].shape
        if config.experts and config.is_sparse(layer):
            assert config.experts.norm_topk_prob == block.mlp.gate.norm_topk_prob
            assert config.experts.num_experts_per_tok == block.mlp.gate.top_k


@pytest.mark.parametrize("family", FAMILIES)
def test_a_missing_head_dim_means_what_the_family_means(family: str) -> None:
    raw = without(FAMILIES[family], "head_dim")
    shape = dict(their_model(raw).named_parameters())["model.layers.0.self_attn.q_proj.weight"].shape
    assert config_from_json(raw).query_size == shape[0]
    assert config_from_json(raw).head_dim == (128 if family == "qwen3" else 16)


NAN, INFINITY = math.nan, math.inf
WRONG = [
    ({"model_type": "mistral"}, r'model_type is "mistral"; allowed: qwen3, qwen3_moe, qwen2, llama'),
    ({"model_type": ["qwen3"]}, "model_type"),
    ({"hidden_act": "gelu"}, r'hidden_act is "gelu"; allowed: silu'),
    ({"vocab_size": 0}, "vocab_size is 0; allowed: an integer from 1"),
    ({"vocab_size": -5}, "vocab_size is -5"),
    ({"vocab_size": 10**30}, "vocab_size"),
    ({"vocab_size": True}, "vocab_size is true"),
    ({"vocab_size": "96"}, 'vocab_size is "96"'),
    ({"hidden_size": 64.0}, r"hidden_size is 64\.0"),
    ({"hidden_size": None}, "hidden_size is null"),
    ({"num_hidden_layers": 10**9}, "num_hidden_layers"),
    ({"num_key_value_heads": 3}, "num_key_value_heads is 3; allowed: a divisor of num_attention_heads, 4"),
    ({"head_dim": 33}, "33 dimensions; allowed: an even number"),
    ({"rms_norm_eps": NAN}, "rms_norm_eps is NaN"),
    ({"rms_norm_eps": "1e-6"}, "rms_norm_eps"),
    ({"rms_norm_eps": -1e-6}, "rms_norm_eps"),
    ({"tie_word_embeddings": 1}, "tie_word_embeddings is 1; allowed: true or false"),
    ({"torch_dtype": "float64"}, "float32, float16, bfloat16"),
    ({"dtype": "float16"}, "the same as torch_dtype, bfloat16"),
    ({"eos_token_id": 96}, "eos_token_id is 96; allowed: an integer from -1 to 95"),
    ({"eos_token_id": [2, True]}, "eos_token_id"),
    ({"eos_token_id": "2"}, "eos_token_id"),
    ({"partial_rotary_factor": 0.5}, r"partial_rotary_factor is 0\.5; allowed: 1"),
    ({"quantization_config": {"quant_method": "hqq"}}, 'quant_method is "hqq"; allowed: awq, gptq, fp8'),
    ({"pretraining_tp": 2}, "pretraining_tp is 2; allowed: 1"),
    ({"use_sliding_window": True, "sliding_window": 0}, "sliding_window is 0"),
    ({"use_sliding_window": 1}, "use_sliding_window is 1; allowed: true or false"),
    ({"layer_types": ["sliding_attention"] * 4}, "Sliding windows need use_sliding_window: true"),
    ({"layer_types": ["full_attention"] * 3}, "4 times full_attention"),
    ({"layer_types": [{}] * 4}, "layer_types"),
    ({"is_causal": False}, "is_causal is false; allowed: true"),
]


@pytest.mark.parametrize("changes, words", WRONG)
def test_a_wrong_value_is_named_with_what_is_allowed(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        config_from_json({**SMALL, **changes})
    assert "config.json" in str(caught.value)


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"num_experts": None}, "num_experts is null"),
        ({"num_experts_per_tok": 5}, "num_experts_per_tok is 5; allowed: an integer from 1 to 4"),
        ({"num_local_experts": 8}, "the same as num_experts, 4"),
        ({"decoder_sparse_step": 0}, "decoder_sparse_step is 0"),
        ({"mlp_only_layers": [4]}, "mlp_only_layers"),
        ({"norm_topk_prob": "yes"}, "norm_topk_prob"),
    ],
)
def test_a_wrong_mixture_of_experts_is_named(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        config_from_json({**SMALL_MOE, **changes})


@pytest.mark.parametrize("name", sorted(set(QWEN3_06B) & {f"{n}" for n in SMALL if isinstance(SMALL[n], int)}))
def test_a_missing_field_is_an_error_or_means_what_transformers_means(name: str) -> None:
    raw = without({**SMALL, "head_dim": 128}, name)
    try:
        config = config_from_json(raw)
    except ConfigError as error:
        assert f"{name} is missing" in str(error)
        return
    model = their_model(raw) if name != "num_key_value_heads" else their_model({**raw, name: None})
    assert config.tie_word_embeddings == bool(model.config.tie_word_embeddings)
    assert config.query_size == model.model.layers[0].self_attn.q_proj.weight.shape[0]
    assert config.key_value_size == model.model.layers[0].self_attn.k_proj.weight.shape[0]


@pytest.mark.parametrize(
    "config, generation, expected",
    [
        (2, None, (2,)),
        (2, [3, 2], (2, 3)),
        ([5, 4], 4, (5, 4)),
        (None, [7], (7,)),
        (None, None, ()),
        (-1, [], ()),
    ],
)
def test_end_tokens_are_the_union_of_both_files(config: Any, generation: Any, expected: tuple[int, ...]) -> None:
    assert config_from_json({**SMALL, "eos_token_id": config}, {"eos_token_id": generation}).eos_token_ids == expected


def test_the_generation_config_gives_defaults_and_greedy_is_temperature_zero() -> None:
    assert config_from_json(SMALL).generation.temperature is None
    assert config_from_json(SMALL, {"do_sample": False, "temperature": 0.7}).generation.temperature == 0.0
    recommended = config_from_json(
        SMALL, {"do_sample": True, "temperature": 0.6, "top_k": 20, "top_p": 0.95}
    ).generation
    assert (recommended.temperature, recommended.top_k, recommended.top_p) == (0.6, 20, 0.95)
    for wrong in ({"temperature": NAN}, {"top_p": 1.5}, {"top_k": 2.5}, {"repetition_penalty": 0}, {"do_sample": "no"}):
        with pytest.raises(ConfigError, match=r"generation_config\.json"):
            config_from_json(SMALL, wrong)


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(sorted(SMALL)), inner, max_size=3),
    max_leaves=6,
)
FIELDS = sorted({*SMALL_MOE, "rope_parameters", "layer_types", "mlp_only_layers", "decoder_sparse_step", "dtype"})


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(sorted(FAMILIES)), st.dictionaries(st.sampled_from(FIELDS), JUNK, min_size=1, max_size=3))
def test_no_value_whatever_causes_anything_but_a_config_error(family: str, junk: dict[str, Any]) -> None:
    try:
        config = config_from_json({**FAMILIES[family], "model_type": family, **junk}, junk)
    except ConfigError as error:
        assert len(str(error)) < 2_000
    else:
        assert len(config.sliding_windows) == config.num_hidden_layers


# Files.


def test_a_folder_without_config_says_what_it_holds(tmp_path: Path) -> None:
    (tmp_path / "weights.gguf").touch()
    with pytest.raises(ConfigError, match=r"no config\.json\. It holds: weights\.gguf"):
        ModelConfig.from_folder(tmp_path)
