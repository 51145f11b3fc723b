"""What kernels do with the pages: find a head's place, write a key or a value, clear a page, undo int8's scales.

Owns everything that differs between pages of bfloat16 and of int8; pages.py draws both. How pages are multiplied is
page_products.py's. Called by forward.py and the modules of attention.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numba.extending import overload

from kaishu.cpu.norm import round_words
from kaishu.cpu.pages import SEGMENT
from kaishu.cpu.vector import (
    KERNEL,
    floats_at,
    halves_at,
    int8_at,
    lanes,
    larger_magnitude,
    largest_magnitude,
    load,
    magnitude,
    round_even,
    splat,
    store,
    store_int8,
    words_at,
)


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
        largest = larger_magnitude(largest, magnitude(load(values, index + channel)))
    top = largest_magnitude(largest)
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


def by_kind(bf16: Any, int8: Any) -> Any:
    """One of two functions, by the type of the pages' record: it is settled when a kernel is compiled."""

    def choose(pages: Any, *arguments: Any) -> Any:
        raise NotImplementedError("only compiled code knows which")

    @overload(choose)
    def chosen(pages, *arguments):  # noqa: ANN002  # Numba compares this signature with the lambda's
        own = int8 if "scales" in pages.fields else bf16
        return lambda pages, *arguments: own(pages, *arguments)  # noqa: PLW0108  # Numba wants a function of its own

    return choose


kept_at = by_kind(_halves_kept, _bytes_kept)  # (pages): a pointer to their memory, typed by what is kept there
# (pages, place, slot, heads, index): write a key, or a value, to its slot. place: where the head's keys begin; heads:
# the address of float32, of which the head's, zeros behind it, start at `index`, and are overwritten
keep_key, keep_value = by_kind(_keep_bf16_key, _keep_int8_key), by_kind(_keep_bf16_value, _keep_int8_value)
# (pages, page, layer, heads): make room in a page before its first position is written. Values that no query may see
# are weighed with zero, and zero times what an earlier request left there must be zero, even if that was no number
clear_values = by_kind(_clear_bf16, _clear_int8)
# (pages, table, place, count, rows, scores, score_index): multiply rows of scores by the scales of the keys or values
# of `count` pages, which begin at `place` in page 0; keys and values in bf16 have none
scale_scores = by_kind(_scale_nothing, _scale_rows)
