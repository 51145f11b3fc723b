"""Kernels that are compiled once for all tests, and tiny packed models that tests share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kaishu.cpu.executor import CpuExecutor
from kaishu.cpu.kernels import Kernels
from kaishu.cpu.packing import pack_linear
from kaishu.cpu.store import KERNELS_FOLDER, cache_folder
from kaishu.cpu.threads import Ranks
from tests.cpu.machine_code import make_on_demand
from tests.cpu.packed_models import PackedModel, packed_model
from tests.cpu.packed_tensors import LANES, packer, sized

make_on_demand()


@pytest.fixture(scope="session")
def kernels() -> Kernels:
    """The kernels, from the tests' cache (see tests/conftest.py) or compiled into it, which takes half a minute."""
    return Kernels(cache_folder() / KERNELS_FOLDER)


@pytest.fixture(scope="session")
def packed(kernels: Kernels, tiny_checkpoint: Any) -> Callable[..., PackedModel]:
    """`packed(kind, weights, head=None, **options)`: a tiny checkpoint, packed once a session. Don't change it.

    kind, options: as for tiny_checkpoint
    weights, head: as for CpuExecutor.from_checkpoint
    """
    from kaishu.checkpoint import open_checkpoint

    made: dict[str, PackedModel] = {}

    def model_of(kind: str, weights: str = "bf16", head: str | None = None, **options: Any) -> PackedModel:
        key = f"{kind} {weights} {head} {sorted(options.items())}"
        if key not in made:
            made[key] = packed_model(open_checkpoint(tiny_checkpoint(kind, **options)), kernels, weights, head)
        return made[key]

    return model_of


@pytest.fixture
def pack(tmp_path: Path, kernels: Kernels) -> Callable[..., Any]:
    """`pack(weights, kind, …)`: one packed tensor, see packed_tensors.packer."""
    return packer(tmp_path, kernels)


@pytest.fixture
def pack_stored(kernels: Kernels) -> Callable[..., Any]:
    """`pack_stored(tensor, kind, lanes=8, ranks=1)`: a QuantisedTensor, packed. return: the linear, the memory"""

    def packed_stored(tensor: Any, kind: Any, lanes: int = LANES, ranks: int = 1) -> tuple[Any, Any]:
        linear, memory = sized(tensor.name, kind, *tensor.shape, lanes)
        threads = Ranks(ranks)
        pack_linear(tensor, linear, memory, threads, kernels)
        threads.close()
        return linear, memory

    return packed_stored


@pytest.fixture
def start() -> Iterator[Callable[..., CpuExecutor]]:
    """`start(model, threads=1, num_pages=…, page_tokens=None)`: an executor, closed when the test is over."""
    running: list[CpuExecutor] = []

    def started(model: PackedModel, **options: Any) -> CpuExecutor:
        running.append(model.executor(**options))
        return running[-1]

    yield started
    for executor in running:
        executor.close()
