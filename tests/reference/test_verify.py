"""`kaishu verify`'s comparison: right models agree, and one wrong weight is found in the very stage that uses it."""

import dataclasses
import sys

import pytest
import torch

from kaishu.errors import (
    CheckpointError,
    ConfigError,
    InvalidParameterError,
    InvalidRequestError,
    MissingDependencyError,
)
from kaishu.reference.verify import (
    compare_stages,
    reference_stages,
    transformers_stages,
    verify_against_transformers,
)
from tests.checkpoint.gguf_files import write_gguf
from tests.reference.parity import random_ids
from tests.tiny_checkpoints import KINDS


@pytest.mark.parametrize("kind", KINDS)
def test_a_right_model_agrees_in_every_stage(kind, tiny_checkpoint):
    folder = tiny_checkpoint(kind)
    report = verify_against_transformers(folder)
    assert report.agrees and report.first_difference is None
    assert report.same_choices == report.num_tokens == 64
    layers = sum(stage.stage.endswith(".attention") for stage in report.stages)
    assert len(report.stages) == 3 * layers + 3
    assert [report.stages[0].stage, report.stages[-1].stage] == ["embed_tokens", "logits"]
    assert all(stage.largest > 0 for stage in report.stages)


@pytest.mark.parametrize("kind", ["dense_tied", "moe", "qwen2"])
def test_a_right_model_agrees_in_bfloat16(kind, tiny_checkpoint):
    report = verify_against_transformers(tiny_checkpoint(kind), dtype="bfloat16", tokens=random_ids(320, 20))
    assert report.agrees and report.num_tokens == 20


def with_weight_changed(model, path, change):
    """The model with one tensor replaced; `path` leads to it by field names and indices."""

    def replaced(node, steps):
        if not steps:
            return change(node.clone())
        head, *rest = steps
        if isinstance(head, int):
            return (*node[:head], replaced(node[head], rest), *node[head + 1 :])
        return dataclasses.replace(node, **{head: replaced(getattr(node, head), rest)})

    return replaced(model, path)


def one_wrong_number(weight):
    weight.view(-1)[7] += 1.0
    return weight


@pytest.mark.parametrize(
    "kind, path, stage",
    [
        ("dense_untied", ["embed_tokens"], "embed_tokens"),
        ("dense_tied", ["layers", 0, "input_layernorm"], "layers.0.attention"),
        ("dense_tied", ["layers", 1, "self_attn", "q_proj", "weight"], "layers.1.attention"),
        ("dense_tied", ["layers", 2, "self_attn", "k_norm"], "layers.2.attention"),
        ("qwen2", ["layers", 1, "self_attn", "v_proj", "bias"], "layers.1.attention"),
        ("dense_tied", ["layers", 1, "post_attention_layernorm"], "layers.1.feed_forward"),
        ("dense_tied", ["layers", 2, "mlp", "down_proj", "weight"], "layers.2.feed_forward"),
        ("moe", ["layers", 1, "mlp", "gate", "weight"], "layers.1.feed_forward"),
        ("moe", ["layers", 2, "mlp", "experts", 3, "up_proj", "weight"], "layers.2.feed_forward"),
        ("dense_tied", ["norm"], "norm"),
        ("dense_untied", ["lm_head", "weight"], "logits"),
        ("dense_tied", ["rope_frequencies"], "layers.0.attention"),
    ],
)
def test_one_wrong_weight_is_found_in_the_stage_that_uses_it(kind, path, stage, tiny_checkpoint, tiny_model):
    ids = [0, *random_ids(320, 40)]
    theirs = transformers_stages(tiny_checkpoint(kind), "float32", ids)
    ours = reference_stages(with_weight_changed(tiny_model(kind), path, one_wrong_number), ids)
    comparisons = compare_stages(ours, theirs, "float32")
    assert next(comparison.stage for comparison in comparisons if not comparison.agrees) == stage


def test_a_missing_step_is_found_too(tiny_checkpoint, tiny_model):
    """Without QK-norm nothing has a wrong shape; the first attention tells."""
    model = tiny_model("dense_tied")
    bare = [
        dataclasses.replace(b, self_attn=dataclasses.replace(b.self_attn, q_norm=None, k_norm=None))
        for b in model.layers
    ]
    ids = random_ids(320, 10)
    ours = reference_stages(dataclasses.replace(model, layers=tuple(bare)), ids)
    comparisons = compare_stages(ours, transformers_stages(tiny_checkpoint("dense_tied"), "float32", ids), "float32")
    assert next(c.stage for c in comparisons if not c.agrees) == "layers.0.attention"


def test_a_stage_that_is_not_a_number_never_agrees():
    ours, theirs = {"norm": torch.tensor([torch.nan])}, {"norm": torch.tensor([torch.nan])}
    assert not compare_stages(ours, theirs, "float32")[0].agrees


def test_without_transformers_the_error_says_what_to_install(monkeypatch, tiny_checkpoint):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(MissingDependencyError, match="kaishu verify needs the package transformers"):
        verify_against_transformers(tiny_checkpoint("dense_tied"))


def test_tokens_that_the_model_cannot_run_are_refused(tiny_checkpoint):
    folder = tiny_checkpoint("dense_tied")
    for tokens, words in [
        ([], "There are 0 tokens to compare; allowed: 1 to 512"),
        ([1] * 513, "There are 513 tokens to compare; allowed: 1 to 512"),
        ([320], "The token id 320 is not one of the model's; allowed: 0 to 319"),
        ([3, -1], "The token id -1 is not one of the model's; allowed: 0 to 319"),
    ]:
        with pytest.raises(InvalidRequestError, match=words):
            verify_against_transformers(folder, tokens=tokens)
    with pytest.raises(InvalidParameterError, match="dtype is 'int8'"):
        verify_against_transformers(folder, dtype="int8")


def test_a_folder_that_does_not_open_is_refused_before_transformers_fills_it_up(own_checkpoint, tmp_path):
    with pytest.raises(ConfigError):
        verify_against_transformers(tmp_path)
    folder = own_checkpoint("dense_tied")
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(CheckpointError):
        verify_against_transformers(folder)


@pytest.mark.parametrize("kind", ["dense_tied", "moe", "qwen2"])
def test_a_gguf_file_is_compared_with_what_transformers_widens_it_to(kind, tiny_checkpoint, tmp_path):
    report = verify_against_transformers(write_gguf(tiny_checkpoint(kind), tmp_path / "模型 a.gguf"))
    assert report.agrees and report.num_tokens == 64


def test_a_split_gguf_is_refused_before_transformers_fills_it_up(tiny_checkpoint, tmp_path):
    path = write_gguf(tiny_checkpoint("dense_tied"), tmp_path / "a.gguf", split_max_tensors=10)
    with pytest.raises(
        CheckpointError, match=r"a-00001-of-0000\d.gguf is one of \d parts of a GGUF model; .* whole ones"
    ):
        verify_against_transformers(path)


def test_a_package_that_transformers_needs_for_the_weights_is_named(monkeypatch, tiny_checkpoint, tmp_path):
    path = write_gguf(tiny_checkpoint("dense_tied"), tmp_path / "a.gguf")
    monkeypatch.setattr("transformers.modeling_gguf_pytorch_utils.is_gguf_available", lambda *_: False)
    with pytest.raises(MissingDependencyError, match=r"Reading a.gguf in transformers needs the package gguf"):
        verify_against_transformers(path)
