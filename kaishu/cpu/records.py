"""What the kernels are given: records of addresses and sizes, filled in by executor.py.

Owns the records' fields. Numba would pass a tuple of sixty arrays as hundreds of arguments to every function, and take
a minute to compile that; a record is one pointer. So a kernel reads `floats_at(hidden.at)[row * hidden.width + column]`
where numpy would say `hidden[row, column]`.

All matrices are row by row, float32 unless said otherwise; `at` is the address of the first element and `width` the
elements of a row, with the zeros behind them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

MATRIX = np.dtype([("at", "i8"), ("width", "i8")])

# The rows that a linear layer multiplies, in the forms that kernels read; columns beyond K are zero. Only the forms
# that are read are made (layout.py's WHOLE and ROUNDED); others hold whatever was there. activations.py has the order
# of what follows the words.
#   words:  [T, K] float32; ROUNDED with BF16 instructions pairs of bfloat16 in the first K/2 32-bit words of each row
#   whole:  [T, K] int8, the same quantised in groups of 32
#   scales: [T, K/32] float32, one for each group
#   sums:   [T, K/32] int32, eight times the sum of each group's whole numbers
#   shifts: [T, K/32] 32 bits, what each lane's sum of 4-bit products begins with, so that q counts as q - 8
#   tiles:  [T, K] bfloat16: what ROUNDED is with tile registers, where words stay float32
ACTIVATIONS = np.dtype([(name, "i8") for name in ("words", "whole", "scales", "sums", "shifts", "tiles", "width")])

# The packed weights (see layout.py) and the model's sizes. forms: Layout.forms_read; head_forms: what the head reads
MODEL = np.dtype(
    [
        ("address", "i8"),
        ("linears", "i8"),
        ("layers", "i8"),
        ("norms", "i8"),
        ("windows", "i8"),
        ("frequencies", "i8"),
        ("num_layers", "i8"),
        ("head", "i8"),
        ("embedding", "i8"),
        ("forms", "i8"),
        ("head_forms", "i8"),
        ("hidden_size", "i8"),
        ("num_heads", "i8"),
        ("num_key_value_heads", "i8"),
        ("head_dim", "i8"),
        ("num_experts", "i8"),
        ("experts_per_token", "i8"),
        ("is_renormalised", "i8"),
        ("eps", "f4"),
        ("rotary_factor", "f4"),
    ]
)

# A TokenBatch, int32 as there, and what follows from it.
#   sequence_of:  [T] int32, which sequence a row belongs to
#   piece_starts: [B + 1] int32, the first piece of attention of each sequence
#   all_rows:     [T] int32, 0 to T - 1
#   logits:       [R, V] float32, where the answer goes; at 0 for no answer
#   maxima:       [R, V / 64 rounded up] float32, beside it the largest logit of each block, see likeliest.py
STEP = np.dtype(
    [
        ("token_ids", "i8"),
        ("positions", "i8"),
        ("query_starts", "i8"),
        ("page_table", "i8"),
        ("logit_rows", "i8"),
        ("sequence_of", "i8"),
        ("piece_starts", "i8"),
        ("all_rows", "i8"),
        ("logits", MATRIX),
        ("maxima", MATRIX),
        ("tokens", "i8"),
        ("sequences", "i8"),
        ("table_width", "i8"),
        ("num_logit_rows", "i8"),
    ]
)

# The KV cache, see pages.py: bfloat16 bits at `memory`, and sizes in elements.
PAGES = np.dtype(
    [
        ("memory", "i8"),
        ("page_tokens", "i8"),
        ("head_dim", "i8"),
        ("head_size", "i8"),
        ("layer_size", "i8"),
        ("page_size", "i8"),
    ]
)
# The same for pages of int8; a kernel is compiled for the one or the other by the type of its record. The scales come
# first, because Numba takes a record that begins with all fields of another for one of the other's kind.
INT8_PAGES = np.dtype([("scales", "i8"), *((name, "i8") for name in PAGES.names or ())])

# A tensor to be packed, see quantise.py.
#   source:       the address of [rows, columns], row by row; stored: 0 for bfloat16, 1 for float16, 2 for float32
#   kind, inputs: see layout.py: which kind of weights, and K with its padding
#   source_scales, source_minimums: of a tensor that is quantised already, [rows, columns / 32] float16
PACKING = np.dtype(
    [
        ("source", "i8"),
        ("stored", "i8"),
        ("rows", "i8"),
        ("columns", "i8"),
        ("kind", "i8"),
        ("lanes", "i8"),
        ("inputs", "i8"),
        ("weights", "i8"),
        ("scales", "i8"),
        ("minimums", "i8"),
        ("source_scales", "i8"),
        ("source_minimums", "i8"),
    ]
)

# Memory between stages, with room for at least T rows. Of attention (R rows of a tile, see attention.py):
#   of each rank, for its tile: queries, gathered, joined: [ranks · R, d] · scores: [ranks · R, SEGMENT]
#   and own_largest, own_sums, joined_largest, joined_sums: [ranks, at least R]
#   of segments that are computed apart: largest, sums: [pieces, R] · partial: [pieces · R, d]
# Of experts (k chosen for each token, see experts.py):
#   router: [T, E] · chosen, places: [T, k] int64 · shares: [T, k] · expert_starts: [E + 1] int64
#   busy: [E + 1] int64, the experts that have rows, and last how many these are
#   expert_rows, expert_inner: Activations of [T · k] rows · expert_gates, expert_values, expert_out: [T · k, …]
_MATRICES = (
    "hidden",
    "qkv",
    "gates",
    "values",
    "delta",
    "cos",
    "sin",
    "heads",
    "queries",
    "scores",
    "gathered",
    "joined",
)
_RANKS_OWN = ("own_largest", "own_sums", "joined_largest", "joined_sums")
_MORE_MATRICES = (*_RANKS_OWN, "largest", "sums", "partial", "router", "shares")
_EXPERTS = ("chosen", "places", "expert_starts", "busy", "expert_gates", "expert_values", "expert_out")
_ACTIVATIONS = ("normed", "attended", "inner", "expert_rows", "expert_inner")
BUFFERS = np.dtype(
    [(name, MATRIX) for name in _MATRICES + _MORE_MATRICES + _EXPERTS] + [(name, ACTIVATIONS) for name in _ACTIVATIONS]
)


def address(array: NDArray[Any]) -> int:
    """Where an array's first element lies. Whoever uses the address keeps the array."""
    assert array.flags.c_contiguous, "kernels read rows one after another"
    return int(array.ctypes.data)


def matrix(array: NDArray[Any]) -> tuple[int, int]:
    """The fields of MATRIX for an array; of one dimension: a single row."""
    return address(array), array.shape[-1]


def record(dtype: np.dtype[Any], fields: Mapping[str, Any]) -> NDArray[Any]:
    """A record with every field set, in memory of its own.

    return: [] dtype, an array of no dimensions: kernels get its address
    """
    assert dtype.names is not None and set(fields) == set(dtype.names), set(dtype.names or ()) ^ set(fields)
    return np.array(tuple(fields[name] for name in dtype.names), dtype)
