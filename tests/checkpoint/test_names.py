"""Which tensors a model needs, against the parameters that transformers gives the same config."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kaishu.checkpoint.gguf_tensors import GgufMatrix
from kaishu.checkpoint.names import EMBEDDING, HEAD, NeededTensor, needed_tensors, select, standard_names
from kaishu.checkpoint.quantised import QuantisedTensor
from kaishu.checkpoint.safetensors import StoredTensor
from kaishu.config import ModelConfig, config_from_json
from kaishu.errors import CheckpointError
from tests.test_config import ARCHITECTURES, FAMILIES, QWEN3_06B, SMALL, SMALL_MOE, their_model


def stored(needed: dict[str, NeededTensor], **shapes: tuple[int, ...]) -> dict[str, StoredTensor]:
    """Tensors as a file would have them, without the file."""
    return {n: StoredTensor(n, "F32", shapes.get(n, t.shape), Path("model.safetensors"), 0) for n, t in needed.items()}


def in_our_spelling(name: str, shape: tuple[int, ...]) -> list[tuple[str, tuple[int, ...]]]:
    """Transformers keeps experts stacked in memory; files, and we, have them one by one."""
    prefix, _, kind = name.rpartition(".")
    if not prefix.endswith(".experts"):
        return [(name, shape)]
    count, rows, columns = shape
    if kind == "down_proj":
        return [(f"{prefix}.{expert}.down_proj.weight", (rows, columns)) for expert in range(count)]
    return [
        (f"{prefix}.{expert}.{part}.weight", (rows // 2, columns))
        for expert in range(count)
        for part in ("gate_proj", "up_proj")
    ]


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("family, changes", ARCHITECTURES)
def test_the_names_and_shapes_are_those_of_transformers(family: str, changes: dict[str, Any], tied: bool) -> None:
    raw = {**FAMILIES[family], **changes, "tie_word_embeddings": tied}
    theirs = dict(
        pair for name, p in their_model(raw).named_parameters() for pair in in_our_spelling(name, tuple(p.shape))
    )
    assert {name: tensor.shape for name, tensor in needed_tensors(config_from_json(raw)).items()} == theirs


def test_meanings_say_what_a_tensor_is_and_why_it_has_its_shape() -> None:
    needed = needed_tensors(config_from_json(QWEN3_06B))
    attention = "model.layers.0.self_attn."
    assert needed[attention + "q_proj.weight"].meaning == "queries: 16 heads × 128, from D = 1,024"
    assert needed[attention + "k_proj.weight"].meaning == "keys: 8 heads × 128, each shared by 2 query heads"
    assert needed[attention + "o_proj.weight"].meaning == "back to D = 1,024, from 16 heads × 128"
    assert "also the output head (tied)" in needed[EMBEDDING].meaning
    assert len(needed) == 310  # of Qwen3-0.6B: 28 layers × 11, the embedding, the last norm
    assert all("\n" not in tensor.meaning and len(tensor.meaning) < 120 for tensor in needed.values())
    experts = needed_tensors(config_from_json(SMALL_MOE))
    assert experts["model.layers.0.mlp.gate.weight"].meaning.startswith("the router: a score for each of E = 4 experts")


CONFIG = config_from_json({**SMALL, "tie_word_embeddings": False})


def test_exactly_the_needed_tensors_come_out_in_their_order() -> None:
    needed = needed_tensors(CONFIG)
    assert list(select(CONFIG, dict(reversed(stored(needed).items())))) == list(needed)


def test_missing_and_unused_tensors_are_named_together() -> None:
    found = stored(needed_tensors(CONFIG))
    del found["model.norm.weight"], found["model.layers.3.mlp.up_proj.weight"]
    found["model.layers.9.extra"] = found[HEAD]
    with pytest.raises(CheckpointError) as caught:
        select(CONFIG, found)
    for words in (
        "lack 2 tensors that qwen3 needs: model.layers.3.mlp.up_proj.weight, model.norm.weight",
        "have 1 tensors that qwen3 doesn't use: model.layers.9.extra",
    ):
        assert words in str(caught.value)


def test_a_layer_too_many_or_too_few_is_not_cut_off_silently() -> None:
    for layers in (3, 5):
        other = config_from_json({**SMALL, "tie_word_embeddings": False, "num_hidden_layers": layers})
        with pytest.raises(CheckpointError, match=r"11 tensors that qwen3 .*: model\.layers\.\d\."):
            select(other, stored(needed_tensors(CONFIG)))


@pytest.mark.parametrize(
    "name",
    [
        "model.rotary_emb.inv_freq",
        "model.layers.0.self_attn.rotary_emb.inv_freq",
        "model.layers.0.self_attn.masked_bias",
    ],
)
def test_known_leftovers_are_harmless(name: str) -> None:
    found = stored(needed_tensors(CONFIG))
    assert name not in select(CONFIG, {**found, name: found[HEAD]})


def test_wrong_shapes_are_named_with_both_shapes() -> None:
    name = "model.layers.2.self_attn.k_proj.weight"
    with pytest.raises(
        CheckpointError, match=rf"{name} in model.safetensors is \[64, 32\], not \[64, 64\] \(keys: 2 heads × 32"
    ):
        select(CONFIG, stored(needed_tensors(CONFIG), **{name: (64, 32)}))


def test_a_missing_head_of_an_untied_model_is_explained() -> None:
    found = stored(needed_tensors(CONFIG))
    del found[HEAD]
    with pytest.raises(CheckpointError, match=r"lm_head\.weight(.|\n)*tie_word_embeddings is false, so"):
        select(CONFIG, found)


def test_quantised_tensors_are_recognised() -> None:
    found = stored(needed_tensors(CONFIG))
    linear = found.pop("model.layers.0.mlp.up_proj.weight")
    with pytest.raises(
        CheckpointError, match=r"parts of quantised weights, but config\.json has no quantization_config"
    ):
        select(CONFIG, {**found, "model.layers.0.mlp.up_proj.qweight": linear})


def test_matrices_may_be_quantised_and_norms_may_not() -> None:
    found: dict[str, StoredTensor | QuantisedTensor] = {**stored(needed_tensors(CONFIG))}
    matrix, norm = "model.layers.0.mlp.up_proj.weight", "model.norm.weight"
    found[matrix] = GgufMatrix(matrix, "Q4_0", found[matrix].shape, Path("x.gguf"), 0)
    assert select(CONFIG, found)[matrix] is found[matrix]
    found[norm] = GgufMatrix(norm, "Q4_0", found[norm].shape, Path("x.gguf"), 0)
    with pytest.raises(CheckpointError, match=rf"1 tensors have a type .*: {norm} \(Q4_0\); .* for matrices quantised"):
        select(CONFIG, found)


def test_a_quantised_matrix_of_a_wrong_shape_is_named_and_so_is_where_the_shape_is_from() -> None:
    found: dict[str, StoredTensor | QuantisedTensor] = {**stored(needed_tensors(CONFIG))}
    found[HEAD] = GgufMatrix(HEAD, "Q4_0", (8, 32), Path("x.gguf"), 0)
    with pytest.raises(CheckpointError, match=r"that its file gives them: lm_head\.weight \(Q4_0\) is \[8, 32\], not"):
        select(CONFIG, found, source="its file")


@pytest.mark.parametrize("changes", [{"num_hidden_layers": 10_000, "num_experts": 65_536}, {"num_experts": 65_536}])
def test_a_config_of_more_tensors_than_any_model_has_is_refused_at_once(changes: dict[str, Any]) -> None:
    config = config_from_json({**SMALL_MOE, **changes})
    with pytest.raises(CheckpointError, match=r"of 65,536 experts, some .* tensors; allowed: 100,000"):
        select(config, {})


@pytest.mark.parametrize("dtype", ["F8_E4M3", "I8", "F64", "U8"])
def test_a_type_that_weights_do_not_have_is_named(dtype: str) -> None:
    found = stored(needed_tensors(CONFIG))
    found[HEAD] = StoredTensor(HEAD, dtype, found[HEAD].shape, Path("x"), 0)
    with pytest.raises(CheckpointError, match=rf"lm_head\.weight \({dtype}\); allowed: F32, F16, BF16"):
        select(CONFIG, found)


@pytest.mark.parametrize("shape", [(2, 8), (1 << 40, 0, 0), (2, 8, 4, 4)])
def test_a_strange_stack_of_experts_is_an_error(shape: tuple[int, ...]) -> None:
    name = "model.layers.0.mlp.experts.down_proj"
    with pytest.raises(CheckpointError, match=r"allowed: \[experts, outputs, inputs\]"):
        standard_names({name: StoredTensor(name, "F32", shape, Path("x"), 0)})


def test_an_expert_stored_alone_and_in_a_stack_is_an_error() -> None:
    stack, alone = "model.layers.0.mlp.experts.down_proj", "model.layers.0.mlp.experts.1.down_proj.weight"
    with pytest.raises(CheckpointError, match="stored twice"):
        standard_names(
            {
                alone: StoredTensor(alone, "F32", (8, 4), Path("x"), 0),
                stack: StoredTensor(stack, "F32", (2, 8, 4), Path("x"), 0),
            }
        )


def test_a_config_without_the_model_wide_prefix_is_the_same_model() -> None:
    bare = {n.removeprefix("model."): t for n, t in stored(needed_tensors(CONFIG)).items()}
    assert set(standard_names(bare)) == set(needed_tensors(CONFIG))
    assert all(name == tensor.name for name, tensor in standard_names(bare).items())


def test_sparse_and_dense_layers_stand_side_by_side() -> None:
    config: ModelConfig = config_from_json({**SMALL_MOE, "mlp_only_layers": [1]})
    names = needed_tensors(config)
    assert "model.layers.1.mlp.gate_proj.weight" in names and "model.layers.1.mlp.gate.weight" not in names
    assert "model.layers.0.mlp.experts.3.up_proj.weight" in names and "model.layers.0.mlp.up_proj.weight" not in names
