"""A model is quantised, written, and read back to the bit; what can't be is an error that leaves nothing behind."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from kaishu.checkpoint import open_checkpoint
from kaishu.checkpoint.quantised import QuantisedTensor
from kaishu.errors import CheckpointError, NumericalError
from kaishu.quantiser.quantise import packed, quantise
from kaishu.quantiser.rounding import FORMS, rounded, values_of
from tests.memory import run_measured, write_large_checkpoint

TEXTS = [list(range(i, i + 60)) for i in range(0, 200, 10)]
calibrated = pytest.mark.parametrize("texts", [None, TEXTS], ids=["alone", "calibrated"])
PARTS = ("weight_packed", "weight_scale", "weight_shape")
forms = pytest.mark.parametrize("form", ["int4", "int8"])


@calibrated
@forms
@pytest.mark.parametrize("kind", ["dense_tied", "dense_untied", "qwen2", "moe", "moe_mixed"])
def test_what_is_written_is_read_back_with_the_numbers_and_scales_that_were_chosen(
    kind, form, texts, tiny_checkpoint, tmp_path
):
    source = open_checkpoint(tiny_checkpoint(kind, dtype="bfloat16"))
    report = quantise(source, tmp_path / "模型 out", form, texts=texts, threads=1)
    found = open_checkpoint(tmp_path / "模型 out")
    assert replace(found.config, quantisation=None) == source.config
    total = 0
    for name, tensor in source.tensors.items():
        ours = found.tensors[name]
        if not isinstance(ours, QuantisedTensor):
            np.testing.assert_array_equal(ours.read(), tensor.read())
            continue
        assert ours.layout == form and ours.shape == tensor.shape
        groups = ours.groups(0, tensor.shape[0])
        assert groups.minimums is None and groups.scales.shape == (tensor.shape[0], tensor.shape[1] // 32)
        if texts is None or name in report.unseen:
            chosen = rounded(tensor.values(0, tensor.shape[0]), FORMS[form])
            np.testing.assert_array_equal(groups.numbers(), chosen.whole)
            np.testing.assert_array_equal(groups.scales, chosen.scales)
        np.testing.assert_array_equal(ours.values(0, tensor.shape[0]), values_of(groups))
        total += tensor.num_values
    assert total == sum(kind.weights for kind in report.kinds.values()) > 0
    assert report.bits_per_weight == pytest.approx(4.5 if form == "int4" else 8.5, abs=0.2)  # and 16 bytes of shapes
    assert report.written_bytes == found.nbytes or not report.uneven


@calibrated
def test_threads_change_nothing(texts, tiny_checkpoint, tmp_path):
    source = open_checkpoint(tiny_checkpoint("dense_tied"))
    for threads in (1, 3):
        quantise(source, tmp_path / str(threads), "int4", texts=texts, threads=threads)
    one, three = (load_file(tmp_path / str(threads) / "model.safetensors") for threads in (1, 3))
    assert one.keys() == three.keys()
    same = [np.array_equal(one[name], three[name]) for name in one]
    assert all(same) or (texts is not None and np.mean(same) > 0.9)  # torch's sums depend on its threads


@forms
def test_words_hold_consecutive_numbers_from_their_lowest_bits_on(form, rng):
    bits = FORMS[form].bits
    whole = rng.integers(FORMS[form].lowest, FORMS[form].highest + 1, (3, 64)).astype(np.int8)
    words = packed(whole, bits)
    assert words.dtype == np.int32 and words.shape == (3, 64 * bits // 32)
    for (row, k), q in np.ndenumerate(whole):
        word = int(words[row, k * bits // 32]) & 0xFFFFFFFF
        assert (word >> (k * bits % 32) & ((1 << bits) - 1)) - (1 << (bits - 1)) == q


def test_calibrated_layers_compute_better_what_the_text_brings(tiny_checkpoint, tmp_path):
    source = open_checkpoint(tiny_checkpoint("dense_tied"))
    report = quantise(source, tmp_path / "out", "int4", texts=TEXTS, threads=1)
    assert report.calibration_tokens == 1200 and not report.unseen
    assert set(report.kinds) == {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}
    for kind in report.kinds.values():
        assert 0 < kind.error < 0.9 * kind.nearest_error


def test_experts_that_no_token_reached_are_named_and_rounded(tiny_checkpoint, tmp_path):
    source = open_checkpoint(tiny_checkpoint("moe"))
    report = quantise(source, tmp_path / "out", "int4", texts=[[5, 6]], threads=1)
    assert report.unseen and all(".experts." in name for name in report.unseen)


def test_progress_ends_with_all(tiny_checkpoint, tmp_path):
    source, seen = open_checkpoint(tiny_checkpoint("dense_tied")), []
    quantise(source, tmp_path / "out", "int4", threads=2, progress=lambda *done: seen.append(done))
    assert seen == sorted(seen) and seen[-1][0] == seen[-1][1] > 0


def test_a_quantised_source_is_quantised_again_from_its_values(tiny_checkpoint, tmp_path):
    quantise(open_checkpoint(tiny_checkpoint("dense_tied")), tmp_path / "int8", "int8", threads=1)
    source = open_checkpoint(tmp_path / "int8")
    quantise(source, tmp_path / "int4", "int4", threads=1)
    name = "model.layers.1.mlp.down_proj.weight"
    ours, values = open_checkpoint(tmp_path / "int4").tensors[name], source.tensors[name].values(0, 64)
    np.testing.assert_array_equal(ours.groups(0, 64).numbers(), rounded(values, FORMS["int4"]).whole)
    config = json.loads((tmp_path / "int4" / "config.json").read_text())
    assert config["quantization_config"]["config_groups"]["group_0"]["weights"]["num_bits"] == 4


def test_a_folder_that_holds_something_is_left_as_it_is(tiny_checkpoint, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "precious").write_text("precious")
    with pytest.raises(CheckpointError, match="already holds precious; allowed: a new or an empty folder"):
        quantise(open_checkpoint(tiny_checkpoint("dense_tied")), tmp_path / "out", "int4")
    assert [path.name for path in tmp_path.rglob("*")] == ["out", "precious"]


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e30])
def test_a_weight_that_cannot_be_quantised_is_named_and_nothing_is_left(value, own_checkpoint, tmp_path):
    source = own_checkpoint("dense_tied")
    tensors = load_file(source / "model.safetensors")
    tensors["model.layers.2.mlp.up_proj.weight"][7, 3] = value
    save_file(tensors, source / "model.safetensors", {"format": "pt"})
    with pytest.raises(CheckpointError, match=r"layers\.2\.mlp\.up_proj\.weight has values in rows 0 to 95"):
        quantise(open_checkpoint(source), tmp_path / "out" / "model", "int4", threads=2)
    assert not list((tmp_path / "out").iterdir())
    if not np.isfinite(value):
        with pytest.raises((CheckpointError, NumericalError), match=r"layers\.2\."):
            quantise(open_checkpoint(source), tmp_path / "out" / "model", "int4", texts=TEXTS, threads=1)


def test_a_full_disk_is_an_error_and_leaves_nothing_behind(tiny_checkpoint, tmp_path, monkeypatch):
    source = open_checkpoint(tiny_checkpoint("dense_tied"))
    program = f"""
import resource
from kaishu.checkpoint import open_checkpoint
from kaishu.errors import CheckpointError
from kaishu.quantiser.quantise import quantise
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 17, 1 << 17))  # a larger file fails as on a full disk
try:
    quantise(open_checkpoint(Path({str(source.folder)!r})), Path({str(tmp_path)!r}) / "model", "int8")
except CheckpointError as problem:
    print(problem)
"""
    assert " ".join(run_measured(program)).endswith("can't be written: File too large.")
    assert not list(tmp_path.iterdir())
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10, 9, 1))
    with pytest.raises(CheckpointError, match=r"needs [\d,]+ bytes, but .* has 1 free"):
        quantise(source, tmp_path / "model", "int8")


def test_an_interruption_leaves_nothing_behind(tiny_checkpoint, tmp_path):
    def stop(done: int, every: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        quantise(open_checkpoint(tiny_checkpoint("dense_tied")), tmp_path / "out", "int4", progress=stop)
    assert not list(tmp_path.iterdir())


@forms
def test_the_format_s_own_library_reads_the_same_weights(form, tiny_checkpoint, tmp_path):
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.quantization import QuantizationConfig
    from safetensors.torch import load_file as load_tensors

    quantise(open_checkpoint(tiny_checkpoint("dense_tied", dtype="bfloat16")), tmp_path / "out", form, threads=1)
    config = json.loads((tmp_path / "out" / "config.json").read_text())["quantization_config"]
    official = QuantizationConfig.model_validate(config)
    scheme = official.config_groups["group_0"]
    compressor = BaseCompressor.get_value_from_registry("pack-quantized")
    stored = load_tensors(tmp_path / "out" / "model.safetensors")
    for name, tensor in open_checkpoint(tmp_path / "out").tensors.items():
        if isinstance(tensor, QuantisedTensor):
            parts = {part: stored[f"{name}{part.removeprefix('weight')}"] for part in PARTS}
            expected = compressor.decompress(parts, scheme)["weight"].float().numpy()
            ours = tensor.values(0, tensor.shape[0]).astype(np.float16).astype(np.float32)  # it multiplies in float16
            np.testing.assert_array_equal(ours, expected)


def test_memory_holds_a_few_pieces(tmp_path):
    (tmp_path / "model").mkdir()
    write_large_checkpoint(tmp_path / "model")
    program = f"""
from kaishu.checkpoint import open_checkpoint
from kaishu.quantiser.quantise import quantise
source = open_checkpoint(Path({str(tmp_path)!r}) / "model")
before = peak_mb()
quantise(source, Path({str(tmp_path)!r}) / "out", "int4", threads=1)
print(before, peak_mb())
"""
    before, after = map(float, run_measured(program))
    assert after - before < 100  # the model is 200 MB
