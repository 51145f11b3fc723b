"""One HTTP request and its answer as it comes, with what Python itself has.

Owns the connection: two limits of time, proxies of the environment (never for this machine itself), and no redirects,
since a key must not follow one. What is sent and what an answer means is remote_model.py's.
"""

from __future__ import annotations

import base64
import http.client
import ssl
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from urllib.parse import quote, unquote, urlsplit

_CHUNK_BYTES = 1 << 16
_LOCAL = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True)
class HttpAnswer:
    """An answer whose body may still be on its way.

    location: where else to look, of a redirect
    """

    status: int
    reason: str
    kind: str
    location: str | None
    _response: http.client.HTTPResponse

    def chunks(self) -> Iterator[bytes]:
        """The body, in pieces as they come.

        raises: OSError, http.client.HTTPException where the connection breaks
        """
        while chunk := self._response.read1(_CHUNK_BYTES):
            yield chunk

    def read(self, most_bytes: int) -> bytes:
        """The body, or its beginning."""
        return self._response.read(most_bytes)


@contextmanager
def asked(
    method: str,
    url: str,
    *,
    headers: Mapping[str, str],
    body: bytes | None = None,
    connect_s: float,
    silence_s: float,
) -> Iterator[HttpAnswer]:
    """Ask, and have the connection closed when this context is left, whether the answer is whole or not.

    connect_s: for the connection; silence_s: between two pieces
    raises:    OSError, of which TimeoutError and ssl.SSLError are kinds; http.client.HTTPException
    """
    connection, target, permission = connected(url, connect_s)
    with closing(connection):
        connection.sock.settimeout(silence_s)
        connection.request(method, target, body=body, headers={**headers, **permission})
        response = connection.getresponse()
        with response:  # it has the socket, too
            yield HttpAnswer(
                response.status,
                response.reason,
                response.headers.get("Content-Type", ""),
                response.headers.get("Location"),
                response,
            )


def connected(url: str, timeout_s: float) -> tuple[http.client.HTTPConnection, str, Mapping[str, str]]:
    """A connection to a URL's server, or to the proxy on the way; what to ask it for; headers for the proxy.

    raises: OSError, http.client.HTTPException
    """
    parts = urlsplit(url)
    host, is_tls = parts.hostname or "", parts.scheme == "https"
    port = parts.port or (443 if is_tls else 80)
    path = quote(parts.path or "/", safe="/%:@!$&'()*+,;=~")
    proxy = proxy_for(host, parts.scheme)
    tls = ssl.create_default_context() if is_tls else None
    permission: Mapping[str, str] = {}
    if proxy is None:
        connection = _connection(host, port, timeout_s, tls)
        target = path
    else:
        way = urlsplit(proxy if "://" in proxy else f"http://{proxy}")
        permission = _permission(way.username, way.password)
        connection = _connection(way.hostname or "", way.port or 80, timeout_s, tls)
        if is_tls:
            connection.set_tunnel(host, port, headers=permission)
            target, permission = path, {}  # which only the proxy sees
        else:
            target = f"http://{parts.netloc}{path}"
    connection.connect()
    return connection, target, permission


def proxy_for(host: str, scheme: str) -> str | None:
    """The proxy that the environment names for a host; None for this machine itself."""
    if host in _LOCAL or urllib.request.proxy_bypass(host):
        return None
    return urllib.request.getproxies().get(scheme)


def _connection(host: str, port: int, timeout_s: float, tls: ssl.SSLContext | None) -> http.client.HTTPConnection:
    if tls is None:
        return http.client.HTTPConnection(host, port, timeout=timeout_s)
    return http.client.HTTPSConnection(host, port, timeout=timeout_s, context=tls)


def _permission(user: str | None, password: str | None) -> dict[str, str]:
    if user is None:
        return {}
    said = base64.b64encode(f"{unquote(user)}:{unquote(password or '')}".encode()).decode()
    return {"Proxy-Authorization": f"Basic {said}"}
