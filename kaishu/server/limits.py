"""How much one client may ask: requests in a minute, and at the same time.

Owns the counting. Knows nothing of keys, addresses or HTTP beyond the refusal; gate.py says who it is.

Requests of a minute are counted by the generic cell rate algorithm (ITU-T I.371), which is a token bucket in one
number: the time at which the bucket will be full again. So a client who hasn't asked for a minute may send a whole
minute's requests at once, and then one whenever its share of time is over.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from kaishu.server.refusals import too_many

MOST_KNOWN = 16_384  # clients that are remembered while they ask nothing


@dataclass
class _Client:
    """running: its requests at this moment. full_at: when it may send a whole minute's requests again"""

    running: int = 0
    full_at: float = float("-inf")


class Limits:
    """The limits, and who has used how much of them.

    per_minute: requests; None for no limit
    concurrent: requests; None for no limit
    most_known: how many clients without a running request are remembered; of more, those who asked longest ago are
                forgotten, as if they had not asked
    """

    def __init__(
        self,
        per_minute: int | None,
        concurrent: int | None,
        *,
        clock: Callable[[], float] = time.monotonic,
        most_known: int = MOST_KNOWN,
    ) -> None:
        self._per_minute, self._concurrent = per_minute, concurrent
        self._clock, self._most_known = clock, most_known
        self._busy: dict[str, _Client] = {}
        self._idle: OrderedDict[str, _Client] = OrderedDict()  # who asked longest ago is first

    @property
    def num_known(self) -> int:
        """How many clients are remembered."""
        return len(self._busy) + len(self._idle)

    def enter(self, client: str) -> None:
        """A client's request begins; `leave` has to follow.

        raises: RefusedError, 429, if it is one too many; then nothing is counted, and no `leave` follows
        """
        found = self._busy.get(client) or self._idle.get(client) or _Client()
        if self._concurrent is not None and found.running >= self._concurrent:
            raise too_many(
                f"{found.running:,} requests of yours are being answered; allowed at the same time: "
                f"{self._concurrent:,}.",
                1.0,
                "too_many_concurrent_requests",
            )
        if self._per_minute is not None:
            self._take(found, self._per_minute)
        found.running += 1
        self._idle.pop(client, None)
        self._busy[client] = found

    def leave(self, client: str) -> None:
        """A client's request is over."""
        found = self._busy[client]
        found.running -= 1
        if not found.running:
            self._idle[client] = self._busy.pop(client)
            if len(self._idle) > self._most_known:
                self._idle.popitem(last=False)

    def _take(self, client: _Client, per_minute: int) -> None:
        now, share = self._clock(), 60.0 / per_minute  # seconds that one request takes of the minute
        full_at = max(client.full_at, now) + share
        too_early = full_at - now - 60.0
        if too_early > 1e-6:  # sums of shares may be a rounding beyond the minute
            raise too_many(
                f"You have sent {per_minute:,} requests within a minute, which is all that is allowed.", too_early
            )
        client.full_at = full_at
