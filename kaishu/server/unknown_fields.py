"""The warning about fields that the API doesn't have, and that were left unread.

Owns its header, after RFC 9110's form of header values; with `strict` such fields are refused instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import quote

HEADER = "X-Kaishu-Ignored-Fields"
_MOST_OF_NAME = 100
_MOST_CHARACTERS = 1024  # of the value; proxies and clients take 4 to 8 KiB of headers


def warning_headers(names: Sequence[str]) -> dict[str, str]:
    """A header that says which fields are unknown; nothing where there are none.

    names: or places, as messages[2].colour, of those inside other fields; percent-encoded but for their brackets
    """
    if not names:
        return {}
    said: list[str] = []
    room = _MOST_CHARACTERS
    for name in names:
        shown = quote(name[:_MOST_OF_NAME], safe="[]") or '""'
        room -= len(shown) + 2
        if room < 0:
            return {HEADER: ", ".join([*said, "..."])}
        said.append(shown)
    return {HEADER: ", ".join(said)}
