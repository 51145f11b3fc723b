"""Merging: base + scale · B · A, row by row, against the same sums in float64."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from kaishu.checkpoint.lora_tensors import EmbeddingChange, ExpertChange, LinearChange, MergedTensor
from kaishu.checkpoint.quantised import Groups, QuantisedTensor
from kaishu.checkpoint.safetensors import StoredTensor, open_safetensors

N, K, R, E = 12, 8, 3, 4


@pytest.fixture
def stored(tmp_path, rng):
    """`stored(shape)`: a tensor in a file, and the same numbers in float64."""

    def make(*shape: int, dtype: type = np.float32) -> tuple[StoredTensor, np.ndarray]:
        values = rng.normal(size=shape).astype(dtype)
        path = Path(tmp_path) / f"{len(list(tmp_path.iterdir()))}.safetensors"
        save_file({"x": values}, path)
        return open_safetensors(path).tensors["x"], values.astype(np.float64)

    return make


class Nibbles:
    """A base that is quantised, as far as MergedTensor can tell."""

    name, dtype, shape, nbytes, num_values, layout = "w", "Q4_0", (N, K), 60, N * K, "int4"

    def __init__(self, values: np.ndarray) -> None:
        self._values = values.astype(np.float32)

    def values(self, first: int, last: int) -> np.ndarray:
        return self._values[first:last]

    def groups(self, first: int, last: int) -> Groups | None:
        raise AssertionError("the base's whole numbers are not the sum's")


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_a_linear_module_gets_b_times_a(stored, dtype):
    (base, w), (a, wa), (b, wb) = stored(N, K), stored(R, K, dtype=dtype), stored(N, R, dtype=dtype)
    merged = MergedTensor("w", base, LinearChange(a, b), 0.75)
    expected = w + 0.75 * (wb @ wa)
    np.testing.assert_allclose(merged.values(0, N), expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(merged.values(5, 9), expected[5:9], rtol=1e-5, atol=1e-6)
    assert merged.values(0, N).dtype == np.float32
    assert isinstance(merged, QuantisedTensor) and merged.groups(0, N) is None
    assert (merged.layout, merged.shape, merged.num_values) == ("bf16", (N, K), N * K)
    assert merged.dtype == "F32 + LoRA r=3"
    assert merged.nbytes == base.nbytes + a.nbytes + b.nbytes


def test_an_embedding_keeps_both_transposed(stored):
    (base, w), (a, wa), (b, wb) = stored(N, K), stored(R, N), stored(K, R)
    merged = MergedTensor("w", base, EmbeddingChange(a, b), 2.0)
    assert merged.change.shape == (N, K)
    np.testing.assert_allclose(merged.values(2, 11), (w + 2.0 * (wb @ wa).T)[2:11], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("is_transposed", [False, True])
def test_stacked_experts_alternate_in_b_and_follow_each_other_in_a(stored, is_transposed):
    """The sum as PEFT writes it: o r e, e r i → e o i; or e i o, where it takes the outputs for inputs."""
    inputs, outputs = (N, K) if is_transposed else (K, N)
    (a, wa), (b, wb) = stored(E * R, inputs), stored(outputs, R * E)
    order = "eio" if is_transposed else "eoi"
    delta = np.einsum(f"ore,eri->{order}", wb.reshape(outputs, R, E), wa.reshape(E, R, inputs))
    assert delta.shape == (E, N, K)
    for expert in range(E):
        for first, rows in ((0, N), (0, N // 2), (N // 2, N // 2)):
            change = ExpertChange(a, b, expert, E, first, rows, is_transposed)
            expected = delta[expert, first : first + rows]
            assert change.shape == expected.shape and change.rank == R
            np.testing.assert_allclose(change.rows(0, rows), expected, rtol=1e-5, atol=1e-6)
            np.testing.assert_allclose(change.rows(1, 4), expected[1:4], rtol=1e-5, atol=1e-6)
    shares = [ExpertChange(a, b, e, E, f, N // 2, is_transposed).nbytes for e in range(E) for f in (0, N // 2)]
    by_inputs = (b if is_transposed else a).nbytes  # both halves of an expert need all of it
    assert sum(shares) == a.nbytes + b.nbytes + by_inputs


def test_several_adapters_add_up(stored):
    (base, w), (a, wa), (b, wb), (c, wc), (d, wd) = stored(N, K), stored(R, K), stored(N, R), stored(1, K), stored(N, 1)
    once = MergedTensor("w", base, LinearChange(a, b), 0.5)
    twice = MergedTensor("w", once, LinearChange(c, d), 3.0)
    np.testing.assert_allclose(twice.values(0, N), w + 0.5 * wb @ wa + 3.0 * wd @ wc, rtol=1e-5, atol=1e-6)
    assert twice.dtype == "F32 + LoRA r=3 + LoRA r=1" and twice.layout == "bf16"


def test_a_quantised_base_is_not_rounded_to_4_bits_again(stored):
    (a, wa), (b, wb), (_, w) = stored(R, K), stored(N, R), stored(N, K)
    merged = MergedTensor("w", Nibbles(w), LinearChange(a, b), 1.0)
    np.testing.assert_allclose(merged.values(3, 7), (w + wb @ wa)[3:7], rtol=1e-5, atol=1e-6)
    assert merged.layout == "int8" and merged.groups(0, N) is None and merged.dtype == "Q4_0 + LoRA r=3"
    assert MergedTensor("w", merged, LinearChange(a, b), 1.0).layout == "int8"
