"""The KV cache of the CPU executor: pages of bfloat16 or int8, laid out so that a page is two little weight matrices.

Owns the layout and the memory, and how a key and a value are written. Which page holds which positions is the caller's
business, see batch.py; how pages are multiplied is page_products.py's.

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
from numba import njit
from numba.extending import overload
from numpy.typing import NDArray

from kaishu.config import ModelConfig
from kaishu.cpu.layout import GROUP, padded
from kaishu.cpu.norm import round_words
from kaishu.cpu.records import INT8_PAGES, PAGES, address, record
from kaishu.cpu.vector import (
    KERNEL,
    floats_at,
    halves_at,
    int8_at,
    lanes,
    load,
    magnitude,
    max_lanes,
    maximum,
    round_even,
    splat,
    store,
    store_int8,
    words_at,
)

SEGMENT = 256  # positions that share a softmax (see attention.py); rows of scores are so far apart
KeyValueKind = Literal["bf16", "int8"]


def allocate_pages(
    config: ModelConfig, num_pages: int, page_tokens: int, kind: KeyValueKind = "bf16"
) -> tuple[Any, tuple[NDArray[Any], ...]]:
    """Reserve address space for all pages; memory is taken when a page is first written.

    return: the record PAGES or INT8_PAGES for the kernels, and the memories it points to, which the caller keeps:
            uint16 or int8; with int8 also the scales, float32
    """
    head_dim = padded(config.head_dim, GROUP)
    head_size = head_dim * page_tokens
    layer_size = 2 * head_size * config.num_key_value_heads
    page_size = layer_size * config.num_hidden_layers + 2 * head_size
    fields = {
        "page_tokens": page_tokens,
        "head_dim": head_dim,
        "head_size": head_size,
        "layer_size": layer_size,
        "page_size": page_size,
    }
    if kind == "bf16":
        memory = _reserve(num_pages * page_size, np.uint16)
        return record(PAGES, fields | {"memory": address(memory)}), (memory,)
    memory = _reserve(num_pages * page_size, np.int8)
    scales = _reserve(num_pages * page_size // head_dim, np.float32)
    return record(INT8_PAGES, fields | {"memory": address(memory), "scales": address(scales)}), (memory, scales)


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


@njit(**KERNEL)
def place_of(pages, page, layer, head):
    """Where one layer's and head's keys begin in a page."""
    return page * pages.page_size + layer * pages.layer_size + head * 2 * pages.head_size


@njit(**KERNEL)
def _halves_kept(pages):
    return halves_at(pages.memory)


@njit(**KERNEL)
def _bytes_kept(pages):
    return int8_at(pages.memory)


@njit(**KERNEL)
def _keep_bf16_key(pages, place, slot, heads, index):
    round_words(heads, index, pages.head_dim)
    memory, key, width, pairs = words_at(pages.memory), words_at(heads), lanes(), pages.head_dim // 2
    start = place // 2 + slot // width * pairs * width + slot % width
    for pair in range(pairs):
        memory[start + pair * width] = key[index + pair]


@njit(**KERNEL)
def _keep_bf16_value(pages, place, slot, heads, index):
    round_words(heads, index, pages.head_dim)
    memory, value, width, pairs = halves_at(pages.memory), halves_at(heads), lanes(), pages.page_tokens // 2
    start = place + pages.head_size + slot // 2 * width * 2 + slot % 2
    for block in range(pages.head_dim // width):
        for lane in range(width):
            memory[start + (block * pairs * width + lane) * 2] = value[2 * index + block * width + lane]


@njit(**KERNEL)
def _write(pointer, index, value):
    """In a function of its own, or Numba would take it for dead code (see the operators in vector.py)."""
    pointer[index] = np.float32(value)


@njit(**KERNEL)
def _scaled(pages, place, slot, heads, index):
    """A head to whole numbers, in place, and its scale to where it belongs: max|x| / 127; NaN if there is one."""
    values, width = floats_at(heads), lanes()
    largest = magnitude(load(values, index))
    for channel in range(width, pages.head_dim, width):
        largest = maximum(largest, magnitude(load(values, index + channel)))
    top = max_lanes(largest)
    inverse = np.float32(127.0) / top if top > np.float32(1e-30) else np.float32(0.0)
    for channel in range(0, pages.head_dim, width):
        store(values, index + channel, round_even(load(values, index + channel) * splat(np.float32(inverse))))
    _write(floats_at(pages.scales), place // pages.head_dim + slot, top / np.float32(127.0))


@njit(**KERNEL)
def _keep_int8_key(pages, place, slot, heads, index):
    _scaled(pages, place, slot, heads, index)
    memory, key, width = int8_at(pages.memory), floats_at(heads), lanes()
    start = place + slot // width * width * pages.head_dim + slot % width
    for channel in range(pages.head_dim):
        memory[start + channel * width] = np.int8(key[index + channel])


@njit(**KERNEL)
def _keep_int8_value(pages, place, slot, heads, index):
    _scaled(pages, place + pages.head_size, slot, heads, index)
    memory, value = int8_at(pages.memory), floats_at(heads)
    start = place + pages.head_size + slot * lanes()
    for channel in range(0, pages.head_dim, lanes()):
        store_int8(memory, start + channel * pages.page_tokens, load(value, index + channel))


@njit(**KERNEL)
def _clear_bf16(pages, page, layer, heads):
    memory = halves_at(pages.memory)
    for head in range(heads):
        start = place_of(pages, page, layer, head) + pages.head_size
        for element in range(start, start + pages.head_size):
            memory[element] = 0


@njit(**KERNEL)
def _clear_int8(pages, page, layer, heads):
    scales = floats_at(pages.scales)
    for head in range(heads):
        start = (place_of(pages, page, layer, head) + pages.head_size) // pages.head_dim
        for slot in range(pages.page_tokens):
            scales[start + slot] = np.float32(0.0)


@njit(**KERNEL)
def _scale_nothing(pages, table, place, count, rows, scores, score_index):
    return


@njit(**KERNEL)
def _scale_rows(pages, table, place, count, rows, scores, score_index):
    scales, tokens = floats_at(pages.scales), pages.page_tokens
    for page in range(count):
        start = (table[page] * pages.page_size + place) // pages.head_dim
        for slot in range(0, tokens, lanes()):
            factor = load(scales, start + slot)
            for row in range(rows):
                index = score_index + row * SEGMENT + page * tokens + slot
                store(scores, index, load(scores, index) * factor)


def _by_kind(bf16: Any, int8: Any) -> Any:
    """One of two functions, by the type of the pages' record: it is settled when a kernel is compiled."""

    def choose(pages: Any, *arguments: Any) -> Any:
        raise NotImplementedError("only compiled code knows which")

    @overload(choose)
    def chosen(pages, *arguments):  # noqa: ANN002  # Numba compares this signature with the lambda's
        own = int8 if "scales" in pages.fields else bf16
        return lambda pages, *arguments: own(pages, *arguments)  # noqa: PLW0108  # Numba wants a function of its own

    return choose


kept_at = _by_kind(_halves_kept, _bytes_kept)  # (pages): a pointer to their memory, typed by what is kept there
# (pages, place, slot, heads, index): write a key, or a value, to its slot. place: where the head's keys begin; heads:
# the address of float32, of which the head's, zeros behind it, start at `index`, and are overwritten
keep_key, keep_value = _by_kind(_keep_bf16_key, _keep_int8_key), _by_kind(_keep_bf16_value, _keep_int8_value)
# (pages, page, layer, heads): make room in a page before its first position is written. Values that no query may see
# are weighed with zero, and zero times what an earlier request left there must be zero, even if that was no number
clear_values = _by_kind(_clear_bf16, _clear_int8)
# (pages, table, place, count, rows, scores, score_index): multiply rows of scores by the scales of the keys or values
# of `count` pages, which begin at `place` in page 0; keys and values in bf16 have none
scale_scores = _by_kind(_scale_nothing, _scale_rows)
