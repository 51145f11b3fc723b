"""The KV cache of the CPU executor: pages of bfloat16 or int8, laid out so that a page is two little weight matrices.

Owns the layout and the memory. Which page holds which positions is the caller's business, see batch.py; kernels write
the pages with page_access.py and multiply them with page_products.py.

One page holds `page_tokens` positions of every layer and key head, one after another, so that memory is taken as pages
are used. For one layer and head:

    keys    for each block of `lanes` positions, for each pair of channels: [lanes, 2]     rows are positions, K is d
    values  for each block of `lanes` channels, for each pair of positions: [lanes, 2]     rows are channels, K is p

which is the order of packed bfloat16 weights: scores are a linear layer of the keys, and so is the sum of values. In
int8 a pair is [2, lanes], and every position of a head has two float32 scales, its key's and its value's, in a memory
of their own: for each head the p of the keys, then the p of the values.

Between two pages lies an unused head. The same head of every page is read in turn, and at distances that are multiples
of 64 KiB all of them would compete for the same few lines of the caches. The memory asks for large pages of the
operating system's, since nearly every head would else need an address translation of its own.
"""

from __future__ import annotations

import contextlib
import mmap
import sys
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from kaishu.config import ModelConfig
from kaishu.cpu.layout import GROUP, padded
from kaishu.cpu.records import INT8_PAGES, PAGES, address, record

SEGMENT = 256  # positions that share a softmax (see attention.py); rows of scores are so far apart
KeyValueKind = Literal["bf16", "int8"]


def allocate_pages(
    config: ModelConfig, num_pages: int, page_tokens: int, kind: KeyValueKind = "bf16"
) -> tuple[Any, tuple[NDArray[Any], ...]]:
    """Reserve address space for all pages; memory is taken when a page is first written.

    return: the record PAGES or INT8_PAGES for the kernels, and the memories it points to, which the caller keeps:
            uint16 or int8; with int8 also the scales, float32
    """
    fields = _sizes(config, page_tokens)
    page_size, head_dim = fields["page_size"], fields["head_dim"]
    if kind == "bf16":
        memory = _reserve(num_pages * page_size, np.uint16)
        return record(PAGES, fields | {"memory": address(memory)}), (memory,)
    memory = _reserve(num_pages * page_size, np.int8)
    scales = _reserve(num_pages * page_size // head_dim, np.float32)
    return record(INT8_PAGES, fields | {"memory": address(memory), "scales": address(scales)}), (memory, scales)


def _sizes(config: ModelConfig, page_tokens: int) -> dict[str, int]:
    """The fields of PAGES but the address; sizes in elements."""
    head_dim = padded(config.head_dim, GROUP)
    head_size = head_dim * page_tokens
    layer_size = 2 * head_size * config.num_key_value_heads
    page_size = layer_size * config.num_hidden_layers + 2 * head_size
    return {
        "page_tokens": page_tokens,
        "head_dim": head_dim,
        "head_size": head_size,
        "layer_size": layer_size,
        "page_size": page_size,
    }


def page_bytes(config: ModelConfig, page_tokens: int, kind: KeyValueKind = "bf16") -> int:
    """What one page takes when all of it is written, with the unused head and, in int8, the scales."""
    sizes = _sizes(config, page_tokens)
    if kind == "bf16":
        return 2 * sizes["page_size"]
    return sizes["page_size"] + 4 * (sizes["page_size"] // sizes["head_dim"])


def page_contents(
    config: ModelConfig, num_pages: int, page_tokens: int, memories: tuple[NDArray[Any], ...]
) -> tuple[NDArray[np.uint8], ...]:
    """Of each memory of `allocate_pages` the bytes that mean something, by page.

    return: [P, bytes] uint8, views without the unused head
    """
    sizes = _sizes(config, page_tokens)
    page_size, used = sizes["page_size"], sizes["layer_size"] * config.num_hidden_layers
    views: list[NDArray[np.uint8]] = []
    for memory, values in zip(memories, (1, sizes["head_dim"]), strict=False):  # a scale for so many values
        size = memory.itemsize * page_size // values
        whole = memory.view(np.uint8)[: num_pages * size].reshape(num_pages, size)
        views.append(whole[:, : memory.itemsize * used // values])
    return tuple(views)


def _reserve(elements: int, dtype: type[np.generic]) -> NDArray[Any]:
    """Zeros that take no memory until they are written."""
    num_bytes = max(elements * np.dtype(dtype).itemsize, mmap.PAGESIZE)
    if not hasattr(mmap, "MAP_ANONYMOUS"):
        return np.zeros(num_bytes // np.dtype(dtype).itemsize, dtype)
    # Address space isn't memory: the system shall not count it as such. Before Python 3.13 the flag has no name.
    no_reserve: int = getattr(mmap, "MAP_NORESERVE", 0x4000 if sys.platform == "linux" else 0)
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | no_reserve
    memory = mmap.mmap(-1, num_bytes, flags=flags)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # a kernel without large pages
            memory.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(memory, dtype)
