"""Whole quantised checkpoints: a tiny Qwen3 from transformers, quantised by scalar packers, opened as a user would."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load_file

from kaishu.checkpoint import Checkpoint, open_checkpoint
from kaishu.checkpoint.quantised import QuantisedTensor
from kaishu.checkpoint.safetensors import StoredTensor
from kaishu.errors import CheckpointError, ConfigError
from tests.checkpoint.quantised_files import AWQ, FP8, GPTQ, MODULE, compressed, read_all, write
from tests.checkpoint.quantised_packers import (
    Drawing,
    draw,
    e4m3_value,
    pack_awq,
    pack_compressed,
    pack_gptq,
    pack_int8,
)

Tiny = Callable[..., Path]
Parts = dict[str, Any]
Quantise = Callable[[np.random.Generator, int, int], tuple[Parts, NDArray[np.float32]]]


def by_gptq(how: dict[str, Any]) -> Quantise:
    def quantise(rng: np.random.Generator, rows: int, inputs: int) -> tuple[Parts, NDArray[np.float32]]:
        weight = draw(rng, Drawing(rows, inputs, lowest_zero=1, **how))
        return pack_gptq(weight), weight.values()

    return quantise


def by_awq(rng: np.random.Generator, rows: int, inputs: int) -> tuple[Parts, NDArray[np.float32]]:
    weight = draw(rng, Drawing(rows, inputs))
    return pack_awq(weight), weight.values()


def by_compressed(rng: np.random.Generator, rows: int, inputs: int) -> tuple[Parts, NDArray[np.float32]]:
    weight = draw(rng, Drawing(rows, inputs, is_symmetric=True))
    return pack_compressed(weight, is_symmetric=True), weight.values()


def by_int8(rng: np.random.Generator, rows: int, inputs: int) -> tuple[Parts, NDArray[np.float32]]:
    weight = draw(rng, Drawing(rows, inputs, 8, -1, is_symmetric=True))
    return {**pack_int8(weight, is_symmetric=True), "input_scale": np.ones(1, np.float32)}, weight.values()


def by_fp8(rng: np.random.Generator, rows: int, inputs: int) -> tuple[Parts, NDArray[np.float32]]:
    import torch

    drawn = rng.integers(0, 126, (rows, inputs)).astype(np.uint8)
    scale = rng.uniform(1e-5, 1e-4, (-(-rows // 32), -(-inputs // 32))).astype(np.float32)
    table = np.array([e4m3_value(pattern) for pattern in range(126)], np.float32)
    spread = np.repeat(np.repeat(scale, 32, axis=0), 32, axis=1)[:rows, :inputs]
    parts = {"weight": torch.from_numpy(drawn).view(torch.float8_e4m3fn), "weight_scale_inv": scale}
    return parts, table[drawn] * spread


ACT_ORDER = {"is_act_ordered": True, "is_symmetric": True}
INT8 = compressed("int-quantized", num_bits=8, strategy="channel", group_size=None)
METHODS: dict[str, tuple[dict[str, Any], Quantise, str]] = {
    "gptq": (GPTQ, by_gptq({}), "int8"),
    "gptq_symmetric": ({**GPTQ, "sym": True}, by_gptq({"is_symmetric": True}), "int4"),
    "gptq_act_order": ({**GPTQ, "desc_act": True, "sym": True}, by_gptq(ACT_ORDER), "bf16"),
    "awq": (AWQ, by_awq, "int8"),
    "fp8": ({**FP8, "weight_block_size": [32, 32]}, by_fp8, "bf16"),
    "compressed": (compressed(), by_compressed, "int4"),
    "compressed_int8": (INT8, by_int8, "int8"),
}


def quantise_folder(
    source: Path, target: Path, method: str, *, plain: tuple[str, ...] = ()
) -> tuple[Path, dict[str, NDArray[np.float32]]]:
    """Put random quantised weights in the place of a checkpoint's linear layers.

    plain:  pieces of the names of modules that stay as they are
    return: the folder, and what each weight in it is
    """
    said, quantise, _ = METHODS[method]
    rng, stored, values = np.random.default_rng(5), {}, {}
    for name, array in load_file(source / "model.safetensors").items():
        module = name.removesuffix(".weight")
        if not name.endswith("_proj.weight") or any(piece in name for piece in plain):
            stored[name] = values[name] = array
            continue
        parts, values[name] = quantise(rng, *array.shape)
        stored |= {f"{module}.{part}": tensor for part, tensor in parts.items()}
    target.mkdir()
    write(target / "model.safetensors", stored)
    config = json.loads((source / "config.json").read_text())
    (target / "config.json").write_text(json.dumps({**config, "quantization_config": said}))
    return target, values


def check_values(checkpoint: Checkpoint, expected: dict[str, NDArray[np.float32]], layout: str) -> None:
    assert set(checkpoint.tensors) == set(expected)
    for name, values in expected.items():
        tensor = checkpoint.tensors[name]
        if isinstance(tensor, StoredTensor):
            np.testing.assert_array_equal(tensor.read(), values)
            continue
        assert tensor.layout == layout and tensor.name == name
        np.testing.assert_array_equal(tensor.values(0, len(values)), values)


@pytest.mark.parametrize("kind", ["dense_tied", "dense_biased"])
@pytest.mark.parametrize("method", METHODS)
def test_a_whole_checkpoint_opens_with_every_value_right(
    method: str, kind: str, tiny_checkpoint: Tiny, tmp_path: Path
) -> None:
    folder, expected = quantise_folder(tiny_checkpoint(kind), tmp_path / "q", method)
    checkpoint = open_checkpoint(folder)
    check_values(checkpoint, expected, METHODS[method][2])
    quantised = [name for name, t in checkpoint.tensors.items() if isinstance(t, QuantisedTensor)]
    assert sum(name.endswith("_proj.weight") for name in expected) == len(quantised) == 21
    assert checkpoint.nbytes <= (folder / "model.safetensors").stat().st_size


@pytest.mark.parametrize("method", ["gptq_symmetric", "awq", "fp8", "compressed"])
def test_experts_are_quantised_and_their_router_is_not(method: str, tiny_checkpoint: Tiny, tmp_path: Path) -> None:
    folder = tiny_checkpoint("moe", moe_intermediate_size=32)
    folder, expected = quantise_folder(folder, tmp_path / "q", method)
    checkpoint = open_checkpoint(folder)
    check_values(checkpoint, expected, METHODS[method][2])
    assert isinstance(checkpoint.tensors["model.layers.0.mlp.gate.weight"], StoredTensor)
    assert isinstance(checkpoint.tensors["model.layers.0.mlp.experts.5.down_proj.weight"], QuantisedTensor)


@pytest.mark.parametrize("method", ["gptq", "awq", "fp8", "compressed"])
def test_modules_that_were_not_converted_stay_plain(method: str, tiny_checkpoint: Tiny, tmp_path: Path) -> None:
    folder, expected = quantise_folder(
        tiny_checkpoint("dense_untied"), tmp_path / "q", method, plain=("layers.0.", "down_proj")
    )
    checkpoint = open_checkpoint(folder)
    check_values(checkpoint, expected, METHODS[method][2])
    for name, tensor in checkpoint.tensors.items():
        is_plain = "layers.0." in name or not name.endswith("_proj.weight") or "down_proj" in name
        assert isinstance(tensor, StoredTensor) == is_plain, name


def test_notes_say_what_becomes_of_activations(tiny_checkpoint: Tiny, tmp_path: Path) -> None:
    folder, _ = quantise_folder(tiny_checkpoint("dense_tied"), tmp_path / "q", "fp8")
    assert any("activations in dynamic FP8 too" in note for note in open_checkpoint(folder).notes)


def test_how_zeros_are_stored_changes_the_identity(tiny_checkpoint: Tiny, tmp_path: Path) -> None:
    folder, _ = quantise_folder(tiny_checkpoint("dense_tied"), tmp_path / "q", "gptq")
    first = open_checkpoint(folder).identity
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"]["checkpoint_format"] = "gptq_v2"
    (folder / "config.json").write_text(json.dumps(config))
    assert open_checkpoint(folder).identity != first


def test_zeros_that_old_quantisers_wrote_for_biases_are_left_out(tiny_checkpoint: Tiny, tmp_path: Path) -> None:
    folder, expected = quantise_folder(tiny_checkpoint("dense_tied"), tmp_path / "q", "gptq")
    tensors: dict[str, Any] = load_file(folder / "model.safetensors")
    names = [name.removesuffix(".weight") + ".bias" for name in expected if name.endswith("_proj.weight")]
    rows = {name: expected[name.removesuffix(".bias") + ".weight"].shape[0] for name in names}
    write(folder / "model.safetensors", tensors | {name: np.zeros(rows[name], np.float16) for name in names})
    check_values(open_checkpoint(folder), expected, "int8")
    one = np.zeros(rows[names[3]], np.float16)
    one[5] = 1
    write(folder / "model.safetensors", tensors | {names[3]: one})
    with pytest.raises(CheckpointError, match=names[3]):
        open_checkpoint(folder)


def test_an_unknown_method_is_an_error(own_checkpoint: Tiny) -> None:
    folder = own_checkpoint("dense_tied")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "quantization_config": {"quant_method": "hqq"}}))
    with pytest.raises(ConfigError, match='quant_method is "hqq"; allowed: awq, gptq, fp8, compressed-tensors'):
        open_checkpoint(folder)


def test_quantised_tensors_without_a_config_for_them_are_explained(tiny_checkpoint: Tiny, tmp_path: Path) -> None:
    folder, _ = quantise_folder(tiny_checkpoint("dense_tied"), tmp_path / "q", "awq")
    config = json.loads((folder / "config.json").read_text())
    del config["quantization_config"]
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match=r"qweight(.|\n)*config\.json has no quantization_config"):
        open_checkpoint(folder)


def test_a_weight_that_is_both_plain_and_quantised_is_refused(rng: np.random.Generator, tmp_path: Path) -> None:
    parts = {f"{MODULE}.{part}": tensor for part, tensor in pack_awq(draw(rng, Drawing(8, 64))).items()}
    plain = np.zeros((8, 64), np.float16)
    with pytest.raises(
        CheckpointError, match=rf"{MODULE}\.weight is stored plain \(F16\), but with qweight, qzeros, sca"
    ):
        read_all(tmp_path, {**parts, f"{MODULE}.weight": plain}, AWQ)


def test_scales_beside_a_plain_weight_are_refused(tmp_path: Path) -> None:
    tensors = {f"{MODULE}.weight": np.zeros((8, 64), np.float16), f"{MODULE}.weight_scale": np.ones(1, np.float32)}
    for said in (FP8, compressed()):
        with pytest.raises(CheckpointError, match=rf"{MODULE}\.weight is stored plain"):
            read_all(tmp_path, tensors, said)


def test_what_is_stored_for_activations_is_left_out(rng: np.random.Generator, tmp_path: Path) -> None:
    parts, _ = by_int8(rng, 8, 64)
    beside = {"model.layers.0.self_attn.k_scale": np.ones(1, np.float32), f"{MODULE}.output_scale": np.ones(1)}
    found = read_all(tmp_path, {**{f"{MODULE}.{p}": t for p, t in parts.items()}, **beside}, INT8)
    assert list(found) == [f"{MODULE}.weight"]
