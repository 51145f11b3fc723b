"""One request at a time: whoever comes while another is being answered is refused, not mixed into it.

Owns the lock and the words. Knows nothing of requests. Held by llm.py around everything that uses the executor's pages.
"""

from __future__ import annotations

import threading

from kaishu.errors import InvalidRequestError


class Turns:
    """Use as a context: `with turns: …`. A second one that begins before the first has ended is an error."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        if not self._lock.acquire(blocking=False):
            raise InvalidRequestError(
                "This LLM is still answering another request, and it answers one at a time.",
                field="prompt",
                hint="Finish or close the other stream first.",
            )

    def __exit__(self, *_: object) -> None:
        self._lock.release()
