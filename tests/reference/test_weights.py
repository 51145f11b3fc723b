"""Stored tensors become torch tensors bit for bit, in memory of their own; devices and dtypes are spelt one way."""

from pathlib import Path

import numpy as np
import pytest
import torch

from kaishu.checkpoint import StoredTensor
from kaishu.errors import InvalidParameterError
from kaishu.reference.weights import to_torch, torch_device, torch_dtype
from tests.reference.parity import TensorInMemory, our_model


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_every_bit_arrives(dtype, rng):
    values = torch.tensor(rng.normal(size=(3, 5))).to(dtype)
    values[0, :3] = torch.tensor([-0.0, float("inf"), float("nan")])
    found = to_torch(TensorInMemory("x", values, []))
    assert found.dtype == dtype
    assert torch.equal(found.view(torch.uint8), values.view(torch.uint8))


def test_the_tensor_owns_its_memory_even_if_the_file_is_mapped_read_only():
    class Mapped(StoredTensor):
        array = np.arange(4, dtype=np.float32)

        def read(self):
            self.array.flags.writeable = False
            return self.array

    tensor = to_torch(Mapped("x", "F32", (4,), Path("nowhere"), 0))
    tensor.add_(1)
    assert Mapped.array.tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("stored", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("asked", ["float32", "bfloat16"])
def test_files_in_any_dtype_become_the_dtype_asked_for(stored, asked, tiny_checkpoint):
    from safetensors.torch import load_file

    folder = tiny_checkpoint("dense_tied", dtype=stored)
    expected = load_file(folder / "model.safetensors")["model.layers.1.self_attn.q_proj.weight"]
    weight = our_model(folder, dtype=asked).layers[1].self_attn.q_proj.weight
    assert torch.equal(weight, expected.to(getattr(torch, asked)))


def test_a_dtype_or_device_that_does_not_exist_is_an_error_that_says_what_does():
    with pytest.raises(InvalidParameterError, match="dtype is 'float64'; allowed: float32 or bfloat16"):
        torch_dtype("float64")
    for name in ("abacus", "cuda:977", ""):
        with pytest.raises(InvalidParameterError, match="allowed: cpu, or a device that this torch can use") as caught:
            torch_device(name)
        assert caught.value.field == "device" and caught.value.hint
