"""The process around the application: where it listens, what it says, and how it ends.

Owns the sockets, TLS, the signals, and the bound within which a process that was told to stop has gone. HTTP itself is
uvicorn's, the application app.py's. Called by kaishu/cli/serve.py.

How it ends: at SIGTERM or Ctrl-C new requests get 503, running ones go on for at most `drain_s`; then they end with an
error, and what still runs after GRACE_S is left behind. A second Ctrl-C leaves at once.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import signal
import socket
import ssl
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from types import FrameType
from typing import Any

import uvicorn

from kaishu.errors import ListenError
from kaishu.server.app import create_app
from kaishu.server.logs import configure_logs
from kaishu.server.metrics import Metrics
from kaishu.server.service import Life, Service
from kaishu.server.settings import ServerSettings

GRACE_S = 5.0  # after drain_s, for requests to end with an error and for the engine's step
_CANCELLED_AFTER_S = 2  # of those, until a request that takes no notice of that is cancelled
_IDLE_S = 75  # of a connection between two requests; longer than clients and proxies keep theirs, so that they close it
_STOPPED = 130
_EVERY_ADDRESS = ("", "0.0.0.0", "::")
_LOG = logging.getLogger("kaishu.server")


def run_server(
    settings: ServerSettings,
    load: Callable[[ServerSettings, Metrics], Service],
    *,
    has_keys: bool,
    on_ready: Callable[[Service, str], None],
) -> None:
    """Serve until a signal ends it.

    load:     makes the service, in a thread, while /health answers already
    has_keys: whether clients need a key, for the warning
    on_ready: told the service and the server's address once requests are answered
    raises:   ListenError, ConfigError; what `load` raises
    """
    configure_logs(settings)
    check_certificate(settings)
    app = create_app(settings, load)
    sockets = listening_sockets(settings.host, settings.port)
    for listening in sockets:
        bound_unread(listening, settings.send_timeout_s)
    url = shown_url(settings, sockets[0].getsockname()[1])
    if not settings.is_local and not has_keys:
        _LOG.warning(
            "Everybody who can reach %s may use this server: it listens beyond this machine and asks for no key. "
            "Set KAISHU_API_KEYS or --api-keys-file, or listen at 127.0.0.1.",
            url,
        )
    config = uvicorn.Config(
        app,
        lifespan="on",
        ws="none",
        log_config=None,
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,  # anybody on this machine could name any address
        timeout_keep_alive=_IDLE_S,
        timeout_graceful_shutdown=_CANCELLED_AFTER_S,
        ssl_certfile=settings.tls_certificate,
        ssl_keyfile=settings.tls_key,
    )
    life: Life = app.state.life
    server = DrainingServer(config, life, on_ready=lambda service: on_ready(service, url))
    _LOG.info("Listening at %s; the model is being loaded.", url)
    server.run(sockets)
    if life.problem is not None:
        raise life.problem


class DrainingServer(uvicorn.Server):
    """uvicorn's server, which finishes what it has begun before it ends, and ends connections that say nothing.

    on_ready: told the service once it is there
    """

    def __init__(self, config: uvicorn.Config, life: Life, *, on_ready: Callable[[Service], None]) -> None:
        super().__init__(config)
        self._life, self._on_ready = life, on_ready
        self._is_announced = False
        self._cut_off_at: float | None = None  # of time.monotonic(), once it drains
        self._has_said_so = False
        self._silent_since: dict[Any, float] = {}  # connections, with a time of time.monotonic()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """The signal handler. The signal isn't raised again in the end, as by uvicorn: to end when told is no error."""
        if self._cut_off_at is not None:
            if sig == signal.SIGINT:
                _leave(_STOPPED)
            return
        if self._life.state == "loading":  # nothing was promised to anybody, and a thread can't be stopped
            _leave(0)
        drain_s = self._life.settings.drain_s
        self._cut_off_at = time.monotonic() + drain_s
        self._life.state = "draining"
        last_resort = threading.Timer(drain_s + GRACE_S, _leave, args=(0,))
        last_resort.daemon = True
        last_resort.start()

    async def on_tick(self, counter: int) -> bool:
        """Called ten times a second. return: whether to close the sockets and end"""
        if self._life.state == "failed":
            return True
        if self._life.state == "ready" and not self._is_announced and self._life.service is not None:
            self._is_announced = True
            self._on_ready(self._life.service)
        if self._cut_off_at is not None:
            if not self.server_state.tasks:
                return True
            if not self._has_said_so:
                self._has_said_so = True
                _LOG.info("Ending; %d requests may go on for %g s. Ctrl-C ends them now.", *self._left())
            if time.monotonic() >= self._cut_off_at:
                await self._cut_off()
                return True
        if counter % 10 == 0:
            self._end_silent(time.monotonic())
        return await super().on_tick(counter)

    def _end_silent(self, now: float) -> None:
        """Between two requests uvicorn gives a connection its time, but not before the first, nor once a head begins:
        so clients that never finish one could use up all that a process may have open, without a key."""
        silent = [one for one in self.server_state.connections if _awaits_head(one)]
        self._silent_since = {one: self._silent_since.get(one, now) for one in silent}
        for one, since in self._silent_since.items():
            if now - since > self._life.settings.body_timeout_s:
                one.transport.close()

    async def _cut_off(self) -> None:
        """End the engine, so that every request ends with an error in its own form."""
        _LOG.warning("%d requests were cut off, %g s after the signal.", *self._left())
        if self._life.service is not None:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._life.service.engine.close(), GRACE_S / 2)

    def _left(self) -> tuple[int, float]:
        return len(self.server_state.tasks), self._life.settings.drain_s


def _awaits_head(connection: Any) -> bool:
    """Whether no request runs on it, and no time for the next one to begin does.

    connection: one of uvicorn's protocols
    """
    is_idle = connection.cycle is None or connection.cycle.response_complete
    return is_idle and connection.timeout_keep_alive_task is None


def _leave(code: int) -> None:
    """End the process now, whatever its threads do."""
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


def listening_sockets(host: str, port: int) -> list[socket.socket]:
    """Sockets bound to every address of a host's name, all at one port.

    port:   0 for any that is free
    raises: ListenError
    """
    try:
        found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise ListenError(
            f"There is no address {host}: {getattr(error, 'strerror', None) or error}.",
            hint="127.0.0.1 is this machine alone, 0.0.0.0 every address that it has.",
        ) from None
    sockets: list[socket.socket] = []
    problem: OSError | None = None
    for family, _, _, _, address in dict.fromkeys(found):
        at = sockets[0].getsockname()[1] if sockets and port == 0 else port
        # asyncio sends small packets at once (TCP_NODELAY) only where a socket says that it is of TCP; else the second
        # of two writes waits for 40 ms.
        listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6 and sockets:  # else it would take the others' port, too
                listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            listening.bind((address[0], at, *address[2:]))
            listening.listen()  # so that a port that is taken is noticed before the model is loaded
            sockets.append(listening)
        except OSError as error:
            listening.close()
            problem = error
    if problem is not None and (not sockets or problem.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)):
        for listening in sockets:
            listening.close()
        raise _cannot_listen(host, port, problem)
    return sockets


def bound_unread(listening: socket.socket, seconds: float) -> None:
    """Have the kernel end a connection whose client has read nothing for so long.

    A request that is cut off because of that leaves bytes behind which the kernel holds for the client, and with them
    the connection: for ever, as long as the client lives. Only Linux can be told; connections inherit it.
    """
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        milliseconds = min(int(seconds * 1000), 2**31 - 1)
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, milliseconds)


def _cannot_listen(host: str, port: int, problem: OSError) -> ListenError:
    at = f"{host}:{port}"
    if problem.errno == errno.EADDRINUSE:
        return ListenError(
            f"Port {port} of {host} is in use already.",
            hint=f"Another server may be running there. Choose another port, as --port {min(port + 1, 65_535)}.",
        )
    if problem.errno == errno.EACCES:
        return ListenError(
            f"Ports below 1024, as that of {at}, are for the system's own programs.", hint="Choose one above, as 8000."
        )
    if problem.errno == errno.EADDRNOTAVAIL:
        return ListenError(
            f"{host} is no address of this machine.",
            hint="127.0.0.1 is this machine alone, 0.0.0.0 every address that it has.",
        )
    return ListenError(f"{at} can't be listened at: {problem.strerror or problem}.")


def check_certificate(settings: ServerSettings) -> None:
    """Whether certificate and key can be used, before anything else is done.

    raises: ListenError
    """
    if settings.tls_certificate is None or settings.tls_key is None:
        return
    for file in (settings.tls_certificate, settings.tls_key):
        try:
            file.read_bytes()
        except OSError as error:
            raise ListenError(f"{file} can't be read: {error.strerror or error}.") from None
    try:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(settings.tls_certificate, settings.tls_key, password=lambda: "")
    except (OSError, ValueError) as error:
        raise ListenError(
            f"{settings.tls_certificate} and {settings.tls_key} are not a certificate and its key that can be used: "
            f"{getattr(error, 'reason', None) or error}.",
            hint="Both are in PEM form; the key has no passphrase.",
        ) from None


def shown_url(settings: ServerSettings, port: int) -> str:
    """The address that a person on this machine can open."""
    host = "127.0.0.1" if settings.host in _EVERY_ADDRESS else settings.host
    scheme = "http" if settings.tls_certificate is None else "https"
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"


def ready_lines(service: Service, url: str) -> Sequence[str]:
    """What a person is told once the server is ready, and what can be done next."""
    loaded = service.engine.loaded
    return (
        f"Kaishu serves {service.names[0]} at {url}",
        f"  {loaded.description}; context {loaded.context_tokens:,} tokens",
        f"  in a browser:   {url}/",
        f"  in an app:      base URL {url}/v1, model {service.names[0]}",
        f"  in a terminal:  kaishu chat --url {url}",
        "  Ctrl-C ends it.",
    )
