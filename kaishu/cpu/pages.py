"""The KV cache of the CPU executor: pages of bfloat16, laid out so that a page is two little weight matrices.

Owns the layout and the memory. Which page holds which positions is the caller's business, see batch.py.

One page holds `page_tokens` positions of every layer and key head, one after another, so that memory is taken as pages
are used. For one layer and head:

    keys    for each block of `lanes` positions, for each pair of channels: [lanes, 2]     rows are positions, K is d
    values  for each block of `lanes` channels, for each pair of positions: [lanes, 2]     rows are channels, K is p

which is the order of packed bfloat16 weights: scores are a linear layer of the keys, and so is the sum of values.

Between two pages lies an unused head. The same head of every page is read in turn, and at distances that are multiples
of 64 KiB all of them would compete for the same few lines of the caches. The memory asks for large pages of the
operating system's, since nearly every head would else need an address translation of its own.
"""

from __future__ import annotations

import mmap
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from kaishu.config import ModelConfig
from kaishu.cpu.layout import GROUP, padded
from kaishu.cpu.records import PAGES, address, record
from kaishu.cpu.vector import KERNEL, halves_at, lanes, words_at


def allocate_pages(config: ModelConfig, num_pages: int, page_tokens: int, lanes: int) -> tuple[Any, NDArray[np.uint16]]:
    """Reserve address space for all pages; memory is taken when a page is first written.

    return: the record PAGES for the kernels, and the memory it points to, which the caller keeps
    """
    head_dim = padded(config.head_dim, GROUP)
    head_size = head_dim * page_tokens
    layer_size = 2 * head_size * config.num_key_value_heads
    page_size = layer_size * config.num_hidden_layers + 2 * head_size
    memory = _reserve(num_pages * page_size)
    fields = {
        "memory": address(memory),
        "page_tokens": page_tokens,
        "head_dim": head_dim,
        "head_size": head_size,
        "layer_size": layer_size,
        "page_size": page_size,
    }
    return record(PAGES, fields), memory


def _reserve(elements: int) -> NDArray[np.uint16]:
    """Zeros that take no memory until they are written."""
    num_bytes = max(elements * 2, mmap.PAGESIZE)
    if not hasattr(mmap, "MAP_NORESERVE"):
        return np.zeros(num_bytes // 2, np.uint16)
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_NORESERVE
    memory = mmap.mmap(-1, num_bytes, flags=flags)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(memory, np.uint16)


@njit(**KERNEL)
def place_of(pages, page, layer, head):
    """Where one layer's and head's keys begin in a page."""
    return page * pages.page_size + layer * pages.layer_size + head * 2 * pages.head_size


@njit(**KERNEL)
def store_key(pages, place, slot, key, index):
    """key: pointer to pairs of bfloat16; the rotated key, zeros behind it, starts at `index`"""
    memory, width, pairs = words_at(pages.memory), lanes(), pages.head_dim // 2
    start = place // 2 + slot // width * pairs * width + slot % width
    for pair in range(pairs):
        memory[start + pair * width] = key[index + pair]


@njit(**KERNEL)
def store_value(pages, place, slot, value, index):
    """value: pointer to bfloat16; the value, zeros behind it, starts at `index`"""
    memory, width, pairs = halves_at(pages.memory), lanes(), pages.page_tokens // 2
    start = place + pages.head_size + slot // 2 * width * 2 + slot % 2
    for block in range(pages.head_dim // width):
        for lane in range(width):
            memory[start + (block * pairs * width + lane) * 2] = value[index + block * width + lane]


@njit(**KERNEL)
def clear_values(pages, page, layer, heads):
    """Zero a page's values before its first position is written: values that no query may see are weighed with zero,
    and zero times what an earlier request left there must be zero, even if that was not a number."""
    memory = halves_at(pages.memory)
    for head in range(heads):
        start = place_of(pages, page, layer, head) + pages.head_size
        for element in range(start, start + pages.head_size):
            memory[element] = 0
