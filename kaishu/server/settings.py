"""What a server is told: one frozen object, whichever way it was said.

Owns the fields, their bounds and their defaults. Knows nothing of where they were written: configuration.py reads them
from the command line, the environment and a file.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from kaishu.errors import InvalidParameterError

_MIB = 1 << 20
_ORIGIN = re.compile(r"\*|[a-z][a-z0-9+.-]*://[^/?#@A-Z\s]+")
_HOST = re.compile(r"[\w.-]+(:\d+)?|\[[\da-fA-F:.]+\](:\d+)?|[\da-fA-F]*:[\da-fA-F]*:[\da-fA-F:.]*", re.ASCII)


@dataclass(frozen=True)
class ServerSettings:
    """Where to listen, whom to let in, and how much of everything one request may take.

    host, port:          where to listen; loopback, so only this machine, by default. Port 0 is any that is free
    names:               the names that requests may give as `model`; the first is shown. Empty: the model's own
    api_keys_file:       a file with a key in each line, `NAME KEY` or only `KEY`; KAISHU_API_KEYS has further ones
    allowed_hosts:       names by which the server may be asked (the Host header), beside the address it listens at
    cors_origins:        pages of which other sites may read answers; none by default
    strict:              refuse fields that the API doesn't have, instead of a warning header
    max_body_bytes:      of a request
    max_messages:        of a chat
    max_waiting:         requests that wait for the engine; more are refused with 429
    max_running:         requests that are computed at the same time
    sequences:           so many requests of the whole context have room for their keys and values at once; of shorter
                         ones more. Where there is no room a request waits, or is computed again later
    key_requests_per_minute, key_concurrent_requests: of each key, or of each address where there are no keys
    request_timeout_s:   from when a request is understood to the end of its answer
    queue_timeout_s:     until the engine begins with it
    body_timeout_s:      until its head has arrived, and again until its body has
    send_timeout_s:      for how long a client may read nothing
    drain_s:             after SIGTERM, until running answers are cut off
    log_format:          "text" for people, "json" with one object in each line
    log_prompts:         write what people ask and get into the log
    tls_certificate, tls_key: files in PEM form, for https
    """

    host: str = "127.0.0.1"
    port: int = 8000
    names: tuple[str, ...] = ()
    api_keys_file: Path | None = None
    allowed_hosts: tuple[str, ...] = ()
    cors_origins: tuple[str, ...] = ()
    strict: bool = False
    max_body_bytes: int = 16 * _MIB
    max_messages: int = 2048
    max_waiting: int = 256
    max_running: int = 32
    sequences: int = 1
    key_requests_per_minute: int | None = None
    key_concurrent_requests: int | None = None
    request_timeout_s: float = 3600.0
    queue_timeout_s: float = 300.0
    body_timeout_s: float = 30.0
    send_timeout_s: float = 60.0
    drain_s: float = 30.0
    log_format: Literal["text", "json"] = "text"
    log_prompts: bool = False
    tls_certificate: Path | None = None
    tls_key: Path | None = None

    def __post_init__(self) -> None:
        """raises: InvalidParameterError"""
        self._check_number("port", 0, 65_535)
        for name in ("max_body_bytes", "max_messages", "max_waiting", "max_running", "sequences"):
            self._check_number(name, 1, 1 << 40)
        for name in ("key_requests_per_minute", "key_concurrent_requests"):
            if getattr(self, name) is not None:
                self._check_number(name, 1, 1 << 40)
        for name in ("request_timeout_s", "queue_timeout_s", "body_timeout_s", "send_timeout_s", "drain_s"):
            self._check_seconds(name)
        # What a browser never sends would be allowed in vain.
        origins = (
            '"*", or what browsers send as Origin: https://a.b or http://localhost:3000, in small letters, no path'
        )
        self._check_each("cors_origins", _ORIGIN, origins)
        self._check_each("allowed_hosts", _HOST, "names or addresses without scheme and path, and without *")
        if self.log_format not in ("text", "json"):
            raise InvalidParameterError("log_format", self.log_format, "text, json")
        if (self.tls_certificate is None) != (self.tls_key is None):
            missing = "tls_key" if self.tls_key is None else "tls_certificate"
            raise InvalidParameterError(missing, None, "a file in PEM form, since https needs certificate and key")

    @property
    def is_local(self) -> bool:
        """Only programs of this machine can connect."""
        return is_loopback(self.host)

    def _check_each(self, name: str, pattern: re.Pattern[str], allowed: str) -> None:
        for value in getattr(self, name):
            if not pattern.fullmatch(value):
                raise InvalidParameterError(name, value, allowed)

    def _check_number(self, name: str, low: int, high: int) -> None:
        value = getattr(self, name)
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise InvalidParameterError(name, value, f"a whole number from {low:,} to {high:,}")

    def _check_seconds(self, name: str) -> None:
        value = getattr(self, name)
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value <= 1e6:
            raise InvalidParameterError(name, value, "a number of seconds above 0, at most 1,000,000")


def is_loopback(host: str) -> bool:
    """Whether an address or name can be reached from this machine alone."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
