"""Numbers of bytes as people write them: `4.0 GB` in what is shown, `4GB` or `2GiB` in what is typed.

Owns both directions. Knows nothing of what the bytes are for.
"""

from __future__ import annotations

import re

from kaishu.errors import InvalidParameterError

_SIZE = re.compile(r"(?P<number>\d{1,20}(?:\.\d{1,9})?)\s*(?P<unit>[a-z]*)", re.IGNORECASE | re.ASCII)
_UNITS = {"": 1, "b": 1}
_UNITS |= {f"{prefix}b": 1000**power for power, prefix in enumerate("kmgt", 1)}
_UNITS |= {f"{prefix}ib": 1024**power for power, prefix in enumerate("kmgt", 1)}
_ALLOWED = "a number of bytes, or one with a unit: 512MB, 4GB, 2GiB"
_LARGEST = 1 << 60


def size(nbytes: int) -> str:
    """Bytes as people say them, in powers of 1000."""
    value, unit = float(nbytes), "B"
    for larger in ("kB", "MB", "GB", "TB"):
        if value < 999.95:
            break
        value, unit = value / 1000, larger
    return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"


def parse_size(field: str, value: object) -> int:
    """How many bytes are meant.

    field:  what the value was given as, for messages
    value:  a whole number, or text such as "4GB" (powers of 1000), "2GiB" (powers of 1024), "1.5 GB"
    return: at least 1
    raises: InvalidParameterError
    """
    if isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= _LARGEST:
        return value
    found = _SIZE.fullmatch(value.strip()) if isinstance(value, str) else None
    if found is None or found["unit"].lower() not in _UNITS:
        raise InvalidParameterError(field, value, _ALLOWED)
    nbytes = int(float(found["number"]) * _UNITS[found["unit"].lower()])
    if not 1 <= nbytes <= _LARGEST:
        raise InvalidParameterError(field, value, _ALLOWED)
    return nbytes
