"""Bytes as people write them, both ways."""

from __future__ import annotations

import pytest

from kaishu.byte_sizes import parse_size, size
from kaishu.errors import InvalidParameterError


@pytest.mark.parametrize(
    "nbytes, text",
    [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (999_949, "999.9 kB"), (999_951, "1.0 MB"), (4 * 10**9, "4.0 GB")],
)
def test_bytes_are_shown_in_powers_of_1000(nbytes, text):
    assert size(nbytes) == text


@pytest.mark.parametrize(
    "value, nbytes",
    [
        (1, 1),
        (10**10, 10**10),
        ("123456", 123_456),
        ("7b", 7),
        ("512MB", 512 * 10**6),
        ("4GB", 4 * 10**9),
        (" 4 gb ", 4 * 10**9),
        ("1.5kB", 1500),
        ("2GiB", 2 << 30),
        ("0.5 TiB", 1 << 39),
    ],
)
def test_a_size_may_have_a_unit_of_either_kind(value, nbytes):
    assert parse_size("max_memory", value) == nbytes


@pytest.mark.parametrize(
    "value",
    ["", "GB", "4 G", "-4GB", "4e9", "1_000", "٤GB", "4GB4", "4.GB", 0, "0", "0.0001kB", -1, 4.5, True, None, "9" * 30,
     "99999999999TB", 1 << 61, b"4GB"],
)  # fmt: skip
def test_anything_else_is_an_error_that_shows_what_is_allowed(value):
    with pytest.raises(InvalidParameterError, match=r"^max_memory is .*; allowed: .*512MB, 4GB, 2GiB"):
        parse_size("max_memory", value)
