"""A thought as one opaque text, for programs that keep of a thought what `reasoning.encrypted_content` gives them.

Owns its form. In OpenAI's API it is encrypted, since thoughts are secret there and nothing is stored; here a thought is
no secret, so it is only packed, and any server unpacks it. Used by responses_answers.py and responses_input.py.
"""

from __future__ import annotations

import base64

_OURS = "kaishu-thought-"


def packed(thought: str) -> str:
    """A thought as one word of ASCII."""
    return _OURS + base64.b64encode(thought.encode()).decode("ascii")


def unpacked(text: object) -> str | None:
    """The thought; None where `packed` didn't make it."""
    if not isinstance(text, str) or not text.startswith(_OURS):
        return None
    try:
        return base64.b64decode(text.removeprefix(_OURS), validate=True).decode()
    except ValueError:
        return None
