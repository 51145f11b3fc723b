"""What `quantization_config` may say, as the tools that quantise write it, and what is refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from kaishu.config import config_from_json
from kaishu.errors import ConfigError
from kaishu.json_fields import JsonFields
from kaishu.quantisation_config import METHODS, QuantisationConfig, quantisation_from_json
from tests.checkpoint.quantised_files import AWQ, FP8, GPTQ, SMALL, compressed

FP8_FLOAT = {"num_bits": 8, "type": "float"}


def parse(said: Any, name: str = "quantization_config") -> QuantisationConfig | None:
    return quantisation_from_json(JsonFields({name: said}, "config.json", ConfigError))


@pytest.mark.parametrize("nothing", [None, {}])
def test_no_quantisation_is_none(nothing: Any) -> None:
    assert parse(nothing) is None


def test_the_older_name_of_the_field_means_the_same() -> None:
    said = compressed()
    assert parse(said, "compression_config") == parse(said)
    both = {"compression_config": said, "quantization_config": compressed(num_bits=8)}
    with pytest.raises(ConfigError, match=r"compression_config is .*; allowed: absent, or the same"):
        quantisation_from_json(JsonFields(both, "config.json", ConfigError))


def test_it_is_part_of_the_model_config_and_so_of_a_checkpoints_identity() -> None:
    first = config_from_json({**SMALL, "quantization_config": GPTQ})
    second = config_from_json({**SMALL, "quantization_config": {**GPTQ, "checkpoint_format": "gptq_v2"}})
    assert first.quantisation is not None and repr(first) != repr(second)


AS_WRITTEN: list[tuple[dict[str, Any], QuantisationConfig]] = [
    (  # Qwen3-8B-AWQ
        {
            "bits": 4,
            "group_size": 128,
            "modules_to_not_convert": None,
            "quant_method": "awq",
            "version": "gemm",
            "zero_point": True,
        },
        QuantisationConfig("awq", (4,), (128,)),
    ),
    (  # AutoGPTQ
        {
            "bits": 4,
            "group_size": -1,
            "damp_percent": 0.01,
            "desc_act": True,
            "static_groups": False,
            "sym": True,
            "true_sequential": True,
            "model_name_or_path": None,
            "model_file_base_name": "model",
            "quant_method": "gptq",
        },
        QuantisationConfig("gptq", (4,), (-1,), zeros_less_one=True, is_act_ordered=True),
    ),
    (  # GPTQModel
        {
            "bits": 8,
            "group_size": 32,
            "desc_act": False,
            "sym": False,
            "lm_head": False,
            "quant_method": "gptq",
            "checkpoint_format": "gptq_v2",
            "format": "gptq_v2",
            "pack_dtype": "int32",
            "dynamic": {"-:.*mlp.gate$": {}, "+:.*down": {"bits": 4, "group_size": 64}, "lm_head": {}},
            "meta": {"quantizer": ["gptqmodel:1.2"]},
        },
        QuantisationConfig("gptq", (8, 4), (32, 64)),
    ),
]


@pytest.mark.parametrize("said, meaning", AS_WRITTEN)
def test_what_the_tools_write_is_understood(said: dict[str, Any], meaning: QuantisationConfig) -> None:
    assert parse(said) == meaning


def test_float8_says_what_becomes_of_activations() -> None:
    found = parse({**FP8, "modules_to_not_convert": ["lm_head"]})
    assert found is not None and (found.method, found.bits, found.block) == ("fp8", (8,), (128, 128))
    assert len(found.notes) == 1 and "activations in dynamic FP8 too; only the weights are read" in found.notes[0]
    static = parse({**FP8, "weight_block_size": None, "activation_scheme": "static"})
    assert static is not None and static.block is None and "static FP8" in static.notes[0]


def test_what_compressed_tensors_asks_for_beyond_weights_is_said() -> None:
    said = compressed("int-quantized", num_bits=8, strategy="channel", group_size=None)
    assert parse(said) == QuantisationConfig("compressed-tensors", (8,), (-1,))
    said["config_groups"]["group_0"]["input_activations"] = {"num_bits": 8, "type": "int", "dynamic": True}
    said["kv_cache_scheme"] = {"num_bits": 8, "type": "float"}
    found = parse(said)
    assert found is not None and len(found.notes) == 2
    assert "activations in 8-bit int too" in found.notes[0] and "keys and values" in found.notes[1]


def test_several_schemes_join() -> None:
    said = compressed("mixed-precision")
    first = {**said["config_groups"]["group_0"], "format": "pack-quantized"}
    second = compressed("float-quantized", **FP8_FLOAT, strategy="block", block_structure=[128, 128])
    other = {**second["config_groups"]["group_0"], "format": "float-quantized"}
    said["config_groups"] = {"group_0": first, "group_1": other}
    assert parse(said) == QuantisationConfig("compressed-tensors", (4, 8), (32, -1), block=(128, 128))


def changed(said: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {**said, **fields}


WRONG: list[tuple[Any, str]] = [
    (7, "quantization_config is 7; allowed: an object"),
    ({"bits": 4}, "quant_method is null; allowed: awq, gptq, fp8, compressed-tensors"),
    ({"quant_method": "bitsandbytes"}, 'quant_method is "bitsandbytes"; allowed: awq, gptq, fp8'),
    ({"quant_method": ["gptq"]}, "quant_method is"),
    (changed(AWQ, version="gemv"), 'version is "gemv"; allowed: gemm'),
    (changed(AWQ, bits=8), "bits is 8; allowed: 4"),
    (changed(AWQ, bits="4"), "bits"),
    (changed(AWQ, zero_point=False), "zero_point is false; allowed: true"),
    (changed(AWQ, backend="llm-awq"), "backend"),
    (changed(AWQ, group_size=0), "group_size is 0"),
    (changed(AWQ, group_size=None), "group_size is null"),
    (changed(GPTQ, bits=3), "bits is 3; allowed: 4 or 8"),
    (changed(GPTQ, checkpoint_format="marlin"), 'checkpoint_format is "marlin"; allowed: gptq, gptq_v2'),
    (changed(GPTQ, checkpoint_format="gptq", format="gptq_v2"), "format is"),
    (changed(GPTQ, is_marlin_format=True), "is_marlin_format is true; allowed: false"),
    (changed(GPTQ, pack_dtype="int64"), "pack_dtype"),
    (changed(GPTQ, adapter={"name": "eora"}), "adapter"),
    (changed(GPTQ, rotation="hadamard"), "rotation"),
    (changed(GPTQ, desc_act="yes"), "desc_act"),
    (changed(GPTQ, dynamic={"x": {"bits": 2}}), "dynamic: bits is 2|bits is 2; allowed: 4 or 8"),
    (changed(FP8, fmt="e5m2"), 'fmt is "e5m2"; allowed: e4m3'),
    (changed(FP8, weight_block_size=[128]), "weight_block_size is .*; allowed: two sizes"),
    (changed(FP8, weight_block_size=[128, 0]), "weight_block_size"),
    (changed(FP8, activation_scheme="odd"), "activation_scheme"),
    (changed(FP8, expert_dtype="fp4"), "expert_dtype"),
    (compressed("marlin-24"), 'format is "marlin-24"; allowed: pack-quantized'),
    (compressed("nvfp4-pack-quantized"), "format is"),
    (changed(compressed(), format=None), "format is missing|format is null"),
    (changed(compressed(), config_groups={}), "config_groups"),
    (changed(compressed(), config_groups={"g": {"weights": None}}), "g is .*how its weights are quantised"),
    (changed(compressed(), config_groups={"g": 3}), "g is 3"),
    (compressed(num_bits=3), "num_bits is 3; allowed: 4 or 8"),
    (compressed(num_bits=4, type="float"), "num_bits is 4; allowed: 8"),
    (compressed(strategy="tensor_group"), 'strategy is "tensor_group"; allowed: tensor, channel, group'),
    (compressed(strategy="block"), "strategy"),
    (compressed(group_size=None), "group_size"),
    (changed(compressed(), sparsity_config={"format": "sparse-24-bitmask"}), "sparsity_config: format is"),
    (changed(compressed(), transform_config={"config_groups": {"u": {}}}), "transform_config: config_groups"),
]


@pytest.mark.parametrize("said, words", WRONG)
def test_what_is_not_read_is_named_with_what_is(said: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        parse(said)
    assert "config.json" in str(caught.value)


def test_every_method_has_a_reader() -> None:
    examples = {"awq": AWQ, "gptq": GPTQ, "fp8": FP8, "compressed-tensors": compressed()}
    assert [parse(examples[method]).method for method in METHODS] == list(METHODS)
