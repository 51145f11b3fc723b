"""The warning about fields that the API doesn't have, and that were left unread.

Owns its header, after RFC 9110's form of header values; with `strict` such fields are refused instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import quote

HEADER = "X-Kaishu-Ignored-Fields"


def warning_headers(names: Sequence[str]) -> dict[str, str]:
    """Names of unknown fields, percent-encoded, as a header; nothing where there are none."""
    if not names:
        return {}
    shown = [quote(name[:64], safe="", errors="replace") for name in names[:16]]
    return {HEADER: ", ".join([*shown, *(["..."] if len(names) > 16 else [])])}
