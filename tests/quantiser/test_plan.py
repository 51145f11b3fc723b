"""What is quantised and what isn't, in every family."""

from __future__ import annotations

import pytest

from kaishu.checkpoint import open_checkpoint
from kaishu.errors import CheckpointError
from kaishu.quantiser.plan import kind_of, plan_of
from kaishu.quantiser.rounding import FORMS


def planned(folder, form="int4"):
    return plan_of(open_checkpoint(folder), FORMS[form])


@pytest.mark.parametrize("kind", ["dense_tied", "dense_untied", "qwen2", "llama_biased", "moe"])
def test_embeddings_heads_norms_biases_and_routers_stay(kind, tiny_checkpoint):
    plan = planned(tiny_checkpoint(kind))
    assert {*plan.quantised, *plan.kept} == set(plan.checkpoint.tensors)
    assert all(".layers." in name and name.endswith("_proj.weight") for name in plan.quantised)
    assert not any(name.endswith("_proj.weight") and name not in plan.uneven for name in plan.kept)
    for name in ("model.embed_tokens.weight", "model.norm.weight", "model.layers.0.input_layernorm.weight"):
        assert name in plan.kept
    if kind == "moe":
        assert "model.layers.0.mlp.gate.weight" in plan.kept
        assert r"re:.*mlp\.gate$" in plan.quantization_config()["ignore"]


def test_a_layer_without_whole_groups_stays_and_is_named(tiny_checkpoint):
    plan = planned(tiny_checkpoint("moe"))  # experts of 40: down_proj has 40 inputs
    assert set(plan.uneven) == {name for name in plan.checkpoint.tensors if "experts" in name and "down_proj" in name}
    assert "model.layers.0.mlp.experts.0.down_proj" in plan.quantization_config()["ignore"]
    assert "model.layers.0.mlp.experts.0.up_proj.weight" in plan.quantised


def test_where_nothing_can_be_quantised_that_is_an_error(tiny_checkpoint):
    with pytest.raises(CheckpointError, match="has a multiple of 32 inputs"):
        planned(tiny_checkpoint("dense_tied", hidden_size=40, num_attention_heads=2, head_dim=20, intermediate_size=48))


@pytest.mark.parametrize("form, words, bits", [("int4", 8, 4.5), ("int8", 16, 8.5)])
def test_sizes_are_those_of_the_form(form, words, bits, tiny_checkpoint):
    plan = planned(tiny_checkpoint("dense_tied"), form)
    tensors = plan.tensors()
    name = "model.layers.0.self_attn.q_proj.weight"
    assert tensors[f"{name}_packed"].shape == (128, words) and tensors[f"{name}_packed"].dtype == "I32"
    assert tensors[f"{name}_scale"].shape == (128, 2)
    parts = [tensors[f"{name}_{part}"].nbytes for part in ("packed", "scale")]
    assert 8 * sum(parts) / (128 * 64) == bits


def test_kinds_are_the_last_words_of_linear_layers_alone():
    assert kind_of("model.layers.3.mlp.experts.11.down_proj.weight") == "down_proj"
    assert kind_of("model.layers.3.mlp.gate.weight") is None
    assert kind_of("model.layers.3.self_attn.q_proj.bias") is None
    assert kind_of("model.layers.3.self_attn.q_norm.weight") is None
