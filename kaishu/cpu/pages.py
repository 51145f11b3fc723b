"""The KV cache of the CPU executor: pages of bfloat16, laid out so that a page is two little weight matrices.

Owns the layout and the memory. Which page holds which positions is the caller's business, see batch.py.

One page holds `page_tokens` positions of every layer and key head, one after another, so that memory is taken as pages
are used. For one layer and head:

    keys    for each block of `lanes` positions, for each pair of channels: [lanes, 2]     rows are positions, K is d
    values  for each block of `lanes` channels, for each pair of positions: [lanes, 2]     rows are channels, K is p

which is the order of packed bfloat16 weights: scores are a linear layer of the keys, and so is the sum of values.
"""

from __future__ import annotations

import mmap
from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from kaishu.config import ModelConfig
from kaishu.cpu.layout import padded
from kaishu.cpu.vector import KERNEL, bfloat_bits


class Pages(NamedTuple):
    """The cache and its sizes, as the kernels see it.

    memory:       uint16, the bits of bfloat16; all pages
    page_tokens:  p
    head_dim:     d with the zeros behind it, a multiple of 2 · lanes
    head_size:    elements of one layer's and head's keys; as many values follow
    layer_size:   elements of one layer in a page
    page_size:    elements of a page
    """

    memory: Any
    page_tokens: int
    head_dim: int
    head_size: int
    layer_size: int
    page_size: int


def allocate_pages(config: ModelConfig, num_pages: int, page_tokens: int, lanes: int) -> Pages:
    """Reserve address space for all pages; memory is taken when a page is first written."""
    head_dim = padded(config.head_dim, 2 * lanes)
    head_size = head_dim * page_tokens
    layer_size = 2 * head_size * config.num_key_value_heads
    page_size = layer_size * config.num_hidden_layers
    return Pages(_reserve(num_pages * page_size), page_tokens, head_dim, head_size, layer_size, page_size)


def _reserve(elements: int) -> NDArray[np.uint16]:
    """Zeros that take no memory until they are written."""
    num_bytes = max(elements * 2, mmap.PAGESIZE)
    if not hasattr(mmap, "MAP_NORESERVE"):
        return np.zeros(num_bytes // 2, np.uint16)
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_NORESERVE
    return np.frombuffer(mmap.mmap(-1, num_bytes, flags=flags), np.uint16)


@njit(**KERNEL)
def place_of(pages: Any, page: int, layer: int, head: int) -> int:
    """Where one layer's and head's keys begin in a page."""
    return page * pages.page_size + layer * pages.layer_size + head * 2 * pages.head_size


@njit(**KERNEL)
def store_key(pages: Any, place: int, slot: int, key: Any, width: int) -> None:
    """key: [≥ d] float32, rotated; width: lanes"""
    start = place + (slot // width * (pages.head_dim // 2) * width + slot % width) * 2
    for channel in range(pages.head_dim):
        pages.memory[start + (channel // 2 * width) * 2 + channel % 2] = bfloat_bits(key[channel])


@njit(**KERNEL)
def store_value(pages: Any, place: int, slot: int, value: Any, width: int) -> None:
    """value: [≥ d] float32"""
    pairs = pages.page_tokens // 2
    start = place + pages.head_size + (slot // 2 * width) * 2 + slot % 2
    for channel in range(pages.head_dim):
        offset = (channel // width * pairs * width + channel % width) * 2
        pages.memory[start + offset] = bfloat_bits(value[channel])


@njit(**KERNEL)
def clear_values(pages: Any, page: int, layer: int, heads: int) -> None:
    """Zero a page's values before its first position is written: values that no query may see are weighed with zero,
    and zero times what an earlier request left there must be zero, even if that was not a number."""
    for head in range(heads):
        start = place_of(pages, page, layer, head) + pages.head_size
        pages.memory[start : start + pages.head_size] = 0
