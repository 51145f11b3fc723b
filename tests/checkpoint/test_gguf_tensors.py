"""Tensors of a GGUF: their names, the order of their rows, and reading a part of one."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest

from kaishu.checkpoint.gguf import GgufFile, GgufTensor, open_gguf
from kaishu.checkpoint.gguf_blocks import FORMATS
from kaishu.checkpoint.gguf_tensors import GgufMatrix, ReorderedTensor, half_split_rows, standard_tensors
from kaishu.checkpoint.quantised import QuantisedTensor
from kaishu.checkpoint.safetensors import StoredTensor
from kaishu.errors import CheckpointError
from tests.checkpoint.gguf_files import interleaved
from tests.checkpoint.gguf_scalars import random_blocks
from tests.memory import run_measured


def write(path: Path, tensors: dict[str, tuple[np.ndarray, str]]) -> GgufFile:
    writer = gguf.GGUFWriter(path, "llama")
    for name, (stored, kind) in tensors.items():
        writer.add_tensor(name, stored, raw_dtype=gguf.GGMLQuantizationType[kind])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return open_gguf(path)


@pytest.mark.parametrize("heads, head_dim", [(1, 2), (4, 16), (3, 6)])
def test_the_converters_order_of_rows_is_undone(heads: int, head_dim: int, rng: np.random.Generator) -> None:
    original = rng.normal(size=(heads * head_dim, 5))
    assert np.array_equal(interleaved(original, heads)[half_split_rows(heads, len(original))], original)


def test_interleaved_and_half_split_rope_turn_the_same_pairs(rng: np.random.Generator) -> None:
    """The reason for the order: neighbours in the file are what stands half a head apart in Hugging Face's."""
    order = half_split_rows(2, 16)
    for head in (0, 8):
        for pair in range(4):
            assert (order[head + pair], order[head + pair + 4]) == (head + 2 * pair, head + 2 * pair + 1)


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_K"])
def test_rows_of_q_and_k_are_put_back_for_llama_and_left_for_others(
    tmp_path: Path, kind: str, rng: np.random.Generator
) -> None:
    rows = {"attn_q": 64, "attn_k": 32, "attn_v": 32}
    stored = {f"blk.0.{name}.weight": (random_blocks(rng, kind, count, 256), kind) for name, count in rows.items()}
    file = write(tmp_path / "model.gguf", stored)
    for is_interleaved in (True, False):
        found = standard_tensors(file, 4, 2, is_interleaved=is_interleaved)
        for name, heads in {"q": 4, "k": 2, "v": 0}.items():
            tensor = found[f"model.layers.0.self_attn.{name}_proj.weight"]
            raw, _ = stored[f"blk.0.attn_{name}.weight"]
            expected = gguf.quants.dequantize(raw, gguf.GGMLQuantizationType[kind])
            if is_interleaved and heads:
                expected = expected[half_split_rows(heads, len(expected))]
                assert not np.array_equal(tensor.values(0, 32), gguf.quants.dequantize(raw[:32], tensor_type(kind)))
            assert np.array_equal(tensor.values(0, rows[f"attn_{name}"]), expected)
            assert np.array_equal(tensor.values(5, 21), expected[5:21])
            groups = tensor.groups(5, 21)
            assert np.array_equal(groups.whole, tensor.groups(0, 32).whole[5:21])


def tensor_type(kind: str) -> gguf.GGMLQuantizationType:
    return gguf.GGMLQuantizationType[kind]


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16"])
@pytest.mark.parametrize("leaf", ["weight", "bias"])
def test_plain_rows_are_put_back_too(tmp_path: Path, kind: str, leaf: str, rng: np.random.Generator) -> None:
    storage = {"F32": "<f4", "F16": "<f2", "BF16": "<u2"}[kind]
    shape = (16, 6) if leaf == "weight" else (16,)
    original = rng.integers(0, 1000, shape).astype(storage)
    stored = interleaved(original, 2)
    file = write(tmp_path / "model.gguf", {f"blk.7.attn_q.{leaf}": (stored.view(np.uint8), kind)})
    tensor = standard_tensors(file, 2, 1, is_interleaved=True)[f"model.layers.7.self_attn.q_proj.{leaf}"]
    assert isinstance(tensor, StoredTensor) and isinstance(tensor, ReorderedTensor)
    assert tensor.dtype == kind and np.array_equal(tensor.read(), original)
    plain = standard_tensors(file, 2, 1, is_interleaved=False)[f"model.layers.7.self_attn.q_proj.{leaf}"]
    assert type(plain) is StoredTensor and np.array_equal(plain.read(), stored)


@pytest.mark.parametrize("kind", FORMATS)
def test_a_stack_of_experts_is_sliced(tmp_path: Path, kind: str, rng: np.random.Generator) -> None:
    raw = random_blocks(rng, kind, 3 * 8, 256).reshape(3, 8, -1)
    file = write(tmp_path / "model.gguf", {"blk.2.ffn_down_exps.weight": (raw, kind)})
    found = standard_tensors(file, 1, 1, is_interleaved=False)
    assert list(found) == [f"model.layers.2.mlp.experts.{expert}.down_proj.weight" for expert in range(3)]
    for expert, tensor in enumerate(found.values()):
        assert isinstance(tensor, QuantisedTensor) and (tensor.shape, tensor.dtype) == ((8, 256), kind)
        assert tensor.nbytes == raw[expert].nbytes and tensor.num_values == 8 * 256
        assert np.array_equal(tensor.values(2, 7), gguf.quants.dequantize(raw[expert, 2:7], tensor_type(kind)))


def test_a_stack_of_plain_experts_is_sliced(tmp_path: Path, rng: np.random.Generator) -> None:
    values = rng.normal(size=(3, 4, 6)).astype(np.float32)
    file = write(tmp_path / "model.gguf", {"blk.0.ffn_up_exps.weight": (values, "F32")})
    for expert, tensor in enumerate(standard_tensors(file, 1, 1, is_interleaved=False).values()):
        assert isinstance(tensor, StoredTensor) and np.array_equal(tensor.read(), values[expert])


@pytest.mark.parametrize(
    "name, values, kind, words",
    [
        ("blk.0.attn_norm.weight", np.zeros(34, np.uint8), "Q8_0", "quantised tensors are matrices"),
        ("blk.0.ffn_up_exps.weight", np.zeros((2, 4), np.float32), "F32", r"allowed: \[experts, outputs, inputs\]"),
        ("blk.0.attn_q.weight", np.zeros((6, 4), np.float32), "F32", "4 heads of an even number of rows"),
        ("blk.0.ssm_a", np.zeros(4, np.float32), "F32", r"1 tensors that this family doesn't use: blk\.0\.ssm_a"),
        ("blk.00.attn_q.weight", np.zeros((8, 4), np.float32), "F32", "doesn't use"),
        ("model.norm.weight", np.zeros(4, np.float32), "F32", "doesn't use"),
        ("blk.0.ffn_up_exps.bias", np.zeros((2, 4), np.float32), "F32", "doesn't use"),
        ("blk.0.attn_q.scale", np.zeros(4, np.float32), "F32", "doesn't use"),
    ],
)
def test_tensors_without_a_place_are_named(
    tmp_path: Path, name: str, values: np.ndarray, kind: str, words: str
) -> None:
    file = write(tmp_path / "model.gguf", {name: (values, kind)})
    with pytest.raises(CheckpointError, match=words):
        standard_tensors(file, 4, 2, is_interleaved=True)


def test_a_file_that_shrinks_is_an_error_and_no_crash(tmp_path: Path, rng: np.random.Generator) -> None:
    path = tmp_path / "model.gguf"
    file = write(path, {"output.weight": (random_blocks(rng, "Q4_0", 64, 64), "Q4_0")})
    tensor = standard_tensors(file, 1, 1, is_interleaved=False)["lm_head.weight"]
    with path.open("r+b") as opened:
        opened.truncate(path.stat().st_size - 100)
    with pytest.raises(CheckpointError, match="has shrunk"):
        tensor.values(0, 64)
    assert tensor.values(0, 1).shape == (1, 64)


def test_a_large_embedding_is_read_by_rows(tmp_path: Path) -> None:
    """512 MB of Q8_0 that would be 1.9 GB in float32, a few rows at a time, in a process of its own."""
    rows, row_bytes = 1 << 17, 3840 // 32 * 34
    path = tmp_path / "sparse"
    with path.open("wb") as file:
        file.truncate(64 + rows * row_bytes)
    program = f"""
from kaishu.checkpoint.gguf_tensors import GgufMatrix
matrix = GgufMatrix("embedding", "Q8_0", ({rows}, 3840), Path({str(path)!r}), 64)
matrix.values(0, 64); matrix.groups(0, 64)
before, total = peak_mb(), 0.0
for first in range(0, {rows}, 8192):
    total += float(matrix.values(first, first + 64).sum()) + float(matrix.groups(first, first + 64).whole.sum())
print(total, peak_mb() - before)
"""
    total, megabytes = run_measured(program)
    assert float(total) == 0.0 and float(megabytes) < 20


def test_a_matrix_is_what_the_executors_ask_for(tmp_path: Path) -> None:
    matrix = GgufMatrix("name", "Q4_1", (4, 64), tmp_path / "file", 0)
    assert isinstance(matrix, QuantisedTensor) and not isinstance(matrix, StoredTensor)
    assert matrix.layout == "int4_minimum" and matrix.nbytes == 4 * 2 * 20
    assert not isinstance(StoredTensor("name", "F32", (1,), tmp_path, 0), QuantisedTensor)
    assert GgufTensor("name", "Q4_1", (4, 64), tmp_path, 0).nbytes == matrix.nbytes
