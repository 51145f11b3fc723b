"""What every route needs: the engine, the names it answers to, the settings; and whether it is there yet.

Owns the life of a server: loading, ready, draining. Knows nothing of HTTP's forms. Put together by app.py.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from starlette.requests import HTTPConnection

from kaishu.async_engine import Engine
from kaishu.errors import InvalidParameterError, KaishuError, ModelNotFoundError, shown
from kaishu.server.metrics import Metrics
from kaishu.server.refusals import unavailable
from kaishu.server.settings import ServerSettings


@dataclass(frozen=True)
class Service:
    """A model that is ready to answer.

    names:   that requests may use; the first is the one that is shown
    created: Unix time at which it was ready
    streams: of the chats that are being streamed, by the id in their chunks, the engine's number
    """

    engine: Engine
    settings: ServerSettings
    metrics: Metrics
    names: tuple[str, ...]
    created: int = field(default_factory=lambda: int(time.time()))
    streams: dict[str, int] = field(default_factory=dict)

    def check_model(self, name: str) -> None:
        """raises: ModelNotFoundError for any other model than the one that is here"""
        if name not in self.names:
            raise ModelNotFoundError(
                f"There is no model {shown(name)} here; allowed: {', '.join(self.names)}.",
                hint="GET /v1/models lists them.",
            )

    def check_messages(self, messages: object) -> None:
        """raises: InvalidParameterError where a chat has too many"""
        if isinstance(messages, list) and len(messages) > self.settings.max_messages:
            raise InvalidParameterError(
                "messages", f"a list of {len(messages):,}", f"at most {self.settings.max_messages:,} messages"
            )


@dataclass
class Life:
    """Where a server stands.

    load: makes the engine; runs in a thread of its own
    """

    settings: ServerSettings
    metrics: Metrics
    load: Callable[[ServerSettings, Metrics], Service]
    state: Literal["loading", "ready", "draining", "failed"] = "loading"
    service: Service | None = None
    problem: BaseException | None = None

    def ready_service(self) -> Service:
        """raises: RefusedError, 503, where the server isn't ready"""
        if self.state == "loading":
            raise unavailable("The model is still being loaded.", "loading")
        if self.state == "draining":
            raise unavailable("The server is about to stop and takes no new requests.", "draining", 5)
        if self.service is None:
            said = self.problem.message if isinstance(self.problem, KaishuError) else "See the server's log."
            raise unavailable(f"The model couldn't be loaded. {said}", "failed", 60)
        return self.service


def life_of(connection: HTTPConnection) -> Life:
    """The server's life, which app.py put where every route finds it."""
    found: Life = connection.app.state.life
    return found


def service_of(connection: HTTPConnection) -> Service:
    """raises: RefusedError, 503, where the server isn't ready"""
    return life_of(connection).ready_service()
