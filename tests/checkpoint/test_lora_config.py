"""adapter_config.json: every field that means something is obeyed or refused with words."""

from __future__ import annotations

import math
from typing import Any

import pytest

from kaishu.checkpoint.lora_config import LoraConfig, lora_config_from_json
from kaishu.errors import CheckpointError

# What peft 0.21 writes for LoraConfig(r=16, lora_alpha=32, target_modules=["q_proj", "v_proj"]).
WRITTEN: dict[str, Any] = {
    "alora_invocation_tokens": None, "alpha_pattern": {}, "arrow_config": None, "auto_mapping": None,
    "base_model_name_or_path": "Qwen/Qwen3-0.6B", "bias": "none", "corda_config": None, "ensure_weight_tying": False,
    "eva_config": None, "exclude_modules": None, "fan_in_fan_out": False, "inference_mode": True,
    "init_lora_weights": True, "layer_replication": None, "layers_pattern": None, "layers_to_transform": None,
    "loftq_config": {}, "lora_alpha": 32, "lora_bias": False, "lora_dropout": 0.05, "megatron_config": None,
    "megatron_core": "megatron.core", "modules_to_save": None, "peft_type": "LORA", "peft_version": "0.21.2",
    "qalora_group_size": 16, "r": 16, "rank_pattern": {}, "revision": None, "target_modules": ["q_proj", "v_proj"],
    "target_parameters": None, "task_type": "CAUSAL_LM", "trainable_token_indices": None, "use_dora": False,
    "use_qalora": False, "use_rslora": False,
}  # fmt: skip
Q0, V1, UP1 = "model.layers.0.self_attn.q_proj", "model.layers.1.self_attn.v_proj", "model.layers.1.mlp.up_proj"


def config(**changes: Any) -> LoraConfig:
    return lora_config_from_json(WRITTEN | changes, "adapter_config.json")


def test_what_peft_writes_is_read():
    read = config()
    assert (read.base, read.rank_of(Q0), read.scale_of(Q0)) == ("Qwen/Qwen3-0.6B", 16, 2.0)
    assert [read.is_target(module) for module in (Q0, V1, UP1, "lm_head")] == [True, True, False, False]


def test_the_scale_is_alpha_over_r_or_its_root():
    assert config(r=8, lora_alpha=4).scale_of(Q0) == 0.5
    assert config(r=8, lora_alpha=4, use_rslora=True).scale_of(Q0) == pytest.approx(4 / math.sqrt(8))
    patterns = {"rank_pattern": {"layers.1.self_attn.v_proj": 4}, "alpha_pattern": {"v_proj": 2.5}}
    read = config(r=8, lora_alpha=16, **patterns)
    assert (read.rank_of(Q0), read.scale_of(Q0)) == (8, 2.0)
    assert (read.rank_of(V1), read.scale_of(V1)) == (4, 0.625)
    assert config(r=8, lora_alpha=16, use_rslora=True, **patterns).scale_of(V1) == pytest.approx(1.25)


def test_alpha_is_8_where_nothing_is_said_as_in_peft():
    assert config(lora_alpha=None, r=4).scale_of(Q0) == 2.0


@pytest.mark.parametrize(
    "changes, targets",
    [
        ({"target_modules": ["q_proj"]}, {Q0}),
        ({"target_modules": [Q0]}, {Q0}),
        ({"target_modules": ["layers.0.self_attn.q_proj"]}, {Q0}),
        ({"target_modules": ["proj"]}, set()),
        ({"target_modules": "all-linear"}, {Q0, V1, UP1}),
        ({"target_modules": "ALL-linear", "exclude_modules": ["q_proj"]}, {V1, UP1}),
        ({"target_modules": "all-linear", "modules_to_save": ["up_proj"]}, {Q0, V1}),
        ({"target_modules": ["q_proj", "v_proj"], "layers_to_transform": [1]}, {V1}),
        ({"target_modules": ["q_proj", "v_proj"], "layers_to_transform": 0, "layers_pattern": "layers"}, {Q0}),
        ({"target_modules": ["q_proj", "v_proj"], "layers_to_transform": [], "layers_pattern": []}, {Q0, V1}),
        ({"target_modules": [Q0, "v_proj"], "layers_to_transform": [5]}, {Q0}),  # a whole name counts in any layer
    ],
)
def test_targets_are_names_or_their_ends(changes, targets):
    read = config(**changes)
    assert {module for module in (Q0, V1, UP1, "lm_head") if read.is_target(module)} == targets


@pytest.mark.parametrize(
    "changes",
    [
        {"target_modules": r".*\.(q|v)_proj"},
        {"target_modules": "(a+)+$"},
        {"target_modules": None},
        {"target_modules": ["q_proj"], "exclude_modules": r".*\.0\..*"},
    ],
)
def test_targets_that_are_an_expression_are_what_the_file_has(changes):
    assert config(**changes).targets is None


def test_stacks_of_experts_are_named_as_parameters():
    read = config(target_modules=["q_proj"], target_parameters=["mlp.experts.gate_up_proj", "gate.weight"])
    assert read.is_parameter("model.layers.3.mlp.experts.gate_up_proj")
    assert not read.is_parameter("model.layers.3.mlp.experts.down_proj")
    assert read.is_target("model.layers.3.mlp.gate")


@pytest.mark.parametrize(
    "changes, said",
    [
        ({"peft_type": "LOHA"}, r'peft_type is "LOHA"; allowed: LORA'),
        ({"peft_type": None}, "peft_type is null"),
        ({"r": None}, "r is null"),
        ({"r": 0}, "r is 0; allowed: an integer from 1"),
        ({"r": True}, "r is true; allowed"),
        ({"r": 1 << 40}, "r is 1099511627776; allowed: an integer from 1 to 65,536"),
        ({"lora_alpha": "32"}, 'lora_alpha is "32"; allowed: a number'),
        ({"lora_alpha": float("nan")}, "lora_alpha is NaN; allowed: a number"),
        ({"bias": "all"}, 'bias is "all"; allowed: none'),
        ({"bias": "lora_only"}, 'bias is "lora_only"; allowed: none'),
        ({"fan_in_fan_out": True}, "fan_in_fan_out is true; allowed: false"),
        ({"use_dora": True}, "use_dora is true; allowed: false, null or absent: only plain LoRA is merged"),
        ({"lora_bias": True}, "lora_bias is true; allowed: false"),
        ({"use_qalora": True}, "use_qalora is true"),
        ({"trainable_token_indices": [1, 2]}, r"trainable_token_indices is \[1, 2\]"),
        ({"layer_replication": [[0, 4], [2, 5]]}, "layer_replication is"),
        ({"alora_invocation_tokens": [7]}, "alora_invocation_tokens is"),
        ({"megatron_config": {"a": 1}}, "megatron_config is"),
        ({"something_new": 3}, "something_new is 3; allowed: false, null or absent"),
        ({"init_lora_weights": "pissa"}, 'init_lora_weights is "pissa"; allowed: true, false, gaussian'),
        ({"init_lora_weights": "olora"}, 'init_lora_weights is "olora"'),
        ({"init_lora_weights": "loftq"}, 'init_lora_weights is "loftq"'),
        ({"init_lora_weights": ["x"]}, r'init_lora_weights is \["x"\]'),
        ({"target_modules": [1]}, r"target_modules is \[1\]; allowed: a list of names"),
        ({"target_modules": {"q": 1}}, "target_modules is .*; allowed: a list of names"),
        ({"target_modules": ["a"] * 10_001}, "target_modules has 10,001 names; allowed: 10,000"),
        ({"exclude_modules": [""]}, r'exclude_modules is \[""\]'),
        ({"modules_to_save": "lm_head"}, 'modules_to_save is "lm_head"; allowed: a list'),
        ({"layers_to_transform": [-1]}, "layers_to_transform is .*; allowed: an integer"),
        ({"layers_to_transform": [1], "layers_pattern": "blocks"}, 'layers_pattern is "blocks"; allowed: layers'),
        ({"rank_pattern": {"q": 1.5}}, "rank_pattern is .*; allowed: whole numbers"),
        ({"rank_pattern": {"q": 0}}, "rank_pattern is .*; allowed: whole numbers"),
        ({"rank_pattern": [1]}, r"rank_pattern is \[1\]; allowed: an object"),
        ({"rank_pattern": {"(a+)+": 4}}, r'rank_pattern has the key "\(a\+\)\+"; allowed: names'),
        ({"alpha_pattern": {"q": "x"}}, 'alpha_pattern: "q" is "x"; allowed: a number'),
        ({"alpha_pattern": {"q": float("inf")}}, 'alpha_pattern: "q" is Infinity; allowed: a number'),
    ],
)
def test_what_is_not_merged_is_refused_by_name(changes, said):
    with pytest.raises(CheckpointError, match=f"^adapter_config.json: {said}"):
        config(**changes)
