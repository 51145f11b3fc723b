"""The gate: who may come in, and how often.

Owns three questions, in this order: whether the server was asked by one of its own names, whether the client has a key,
and whether it has asked too often. What it refuses never reaches a route. Knows nothing of what requests want. Stands
behind access.py, which made `scope["state"]`.

The first question is there because of DNS rebinding: a page of another site can make its own name mean 127.0.0.1, and
then its scripts reach a server on this machine as if they were that server's own. What they can't change is the Host
header, which has the page's name.
"""

from __future__ import annotations

from collections.abc import Iterable

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from kaishu.errors import shown
from kaishu.server.keys import Keys
from kaishu.server.limits import Limits
from kaishu.server.refusals import RefusedError, error_body, unauthorized
from kaishu.server.settings import ServerSettings

OPEN_PATHS = frozenset({"/", "/health", "/ready"})  # for which no key is needed, nor counted
OPEN_FOLDERS = ("/page/",)  # the page's files
_LOCAL_NAMES = ("localhost", "127.0.0.1", "::1")


class Gate:
    """The layer.

    keys:   none lets everybody in
    limits: of each key, or of each address where there are no keys
    """

    def __init__(self, app: ASGIApp, *, settings: ServerSettings, keys: Keys, limits: Limits) -> None:
        self._app, self._keys, self._limits = app, keys, limits
        self._hosts = allowed_hosts(settings)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request, let in or refused."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            client = self._let_in(scope)
        except RefusedError as refusal:
            await _answer(scope, send, refusal)
            return
        try:
            await self._app(scope, receive, send)
        finally:
            if client is not None:
                self._limits.leave(client)

    def _let_in(self, scope: Scope) -> str | None:
        """return: whom the limits count it for; None where they don't

        raises: RefusedError
        """
        headers = Headers(scope=scope)
        if self._hosts is not None and (name := host_name(headers.get("host", ""))) not in self._hosts:
            raise _not_this_host(name)
        if scope["path"] in OPEN_PATHS or scope["path"].startswith(OPEN_FOLDERS):
            return None
        if len(self._keys):
            client = self._key_name(headers)
            scope["state"]["key_name"] = client
        else:
            client = (scope.get("client") or ("unknown",))[0]
        self._limits.enter(client)
        return client

    def _key_name(self, headers: Headers) -> str:
        """raises: RefusedError, 401"""
        kind, _, said = headers.get("authorization", "").strip().partition(" ")
        key = said.strip() if kind.lower() == "bearer" else headers.get("x-api-key", "").strip()
        if not key:
            raise unauthorized("There is no API key.")
        name = self._keys.name_of(key)
        if name is None:
            raise unauthorized("The API key is not one of this server's.")
        return name


def allowed_hosts(settings: ServerSettings) -> frozenset[str] | None:
    """The names by which a server may be asked; None for any."""
    if not settings.is_local and not settings.allowed_hosts:
        return None
    names: Iterable[str] = (*_LOCAL_NAMES, settings.host, *settings.allowed_hosts)
    return frozenset(host_name(name) for name in names)


def host_name(said: str) -> str:
    """A Host header's name, in lower case, without port and brackets."""
    said = said.strip().lower()
    if said.startswith("["):
        return said[1:].partition("]")[0]
    if said.count(":") > 1:  # an address of IPv6 without brackets, as settings have it
        return said
    return said.partition(":")[0].rstrip(".")


def _not_this_host(name: str) -> RefusedError:
    found = f"{shown(name)}, which is not one of this server's names" if name else "missing"
    return RefusedError(
        f"The Host header is {found}.",
        status=403,
        kind="permission_error",
        code="host_not_allowed",
        hint="If people are meant to reach it by that name, start the server with --allowed-hosts and the name.",
    )


async def _answer(scope: Scope, send: Send, refusal: RefusedError) -> None:
    body = error_body(scope["path"], refusal, scope["state"]["request_id"])
    await JSONResponse(body, refusal.status, refusal.headers)(scope, _nothing, send)


async def _nothing() -> Message:
    """A refusal is sent without the body being read."""
    return {"type": "http.disconnect"}
