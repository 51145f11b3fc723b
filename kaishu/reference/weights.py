"""Stored tensors → torch tensors on a device, in a dtype.

Owns the conversion and the spelling of devices and dtypes. Knows nothing of which tensors a model has: each
operation's file names its own. Reads from checkpoint/, one tensor at a time; read by model.py while it is built.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np
import torch
from torch import Tensor

from kaishu.checkpoint import StoredTensor
from kaishu.errors import InvalidParameterError
from kaishu.reference.linear import Linear

if TYPE_CHECKING:
    from kaishu.checkpoint.quantised import QuantisedTensor

DtypeName = Literal["float32", "bfloat16"]


@dataclass(frozen=True)
class WeightReader:
    """Reads a checkpoint's tensors by their Hugging Face names; each one once, so that it can be dropped after."""

    tensors: Mapping[str, StoredTensor | QuantisedTensor]
    device: torch.device
    dtype: torch.dtype

    def tensor(self, name: str) -> Tensor:
        """Read one tensor. It never shares memory with the file."""
        return to_torch(self.tensors[name]).to(device=self.device, dtype=self.dtype)

    def linear(self, name: str, *, bias: bool) -> Linear:
        """Read `name.weight` and, if the model has one, `name.bias`."""
        return Linear(self.tensor(f"{name}.weight"), self.tensor(f"{name}.bias") if bias else None)


def to_torch(stored: StoredTensor | QuantisedTensor) -> Tensor:
    """A stored tensor as a torch tensor of the same dtype, in memory of its own.

    return: [...] any dtype, as stored, on the CPU; what is stored quantised, as float32

    numpy has no bfloat16: its bits arrive as uint16 and are viewed, not converted.
    """
    if not isinstance(stored, StoredTensor):
        return torch.from_numpy(np.array(stored.values(0, stored.shape[0])))
    array = np.array(stored.read())  # the copy: what is read may be a read-only view of the file
    if stored.dtype == "BF16":
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def torch_dtype(name: str) -> torch.dtype:
    """The torch dtype of that name. Raises InvalidParameterError for any but float32 and bfloat16."""
    if name not in get_args(DtypeName):
        raise InvalidParameterError("dtype", name, " or ".join(get_args(DtypeName)))
    dtype: torch.dtype = getattr(torch, name)
    return dtype


def torch_device(name: str) -> torch.device:
    """The torch device of that name. Raises InvalidParameterError if this machine or this torch has no such device."""
    try:
        device = torch.device(name)
        torch.empty(1, device=device).cpu()  # "meta" has no memory to read from
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).strip().splitlines()[0]
        raise InvalidParameterError(
            "device", name, "cpu, or a device that this torch can use, such as cuda, cuda:1 or mps", hint=reason
        ) from error
    return device
