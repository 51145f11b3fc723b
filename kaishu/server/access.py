"""Every request's record: an id at its beginning, a line in the log and a count at its end.

Only probes (/health, /ready) that find all well have no line: they come every few seconds and would hide the others.

Owns these, and what becomes of a bug: whatever escapes from the layers below is logged here with the request's id and
answered with a 500 that says nothing of it. Outside of it is only what CORS adds. Who may come in is gate.py's matter.

What others know goes into the scope: `scope["state"]["request_id"]` is made here; `["model"]` and `["key_name"]` are
put there by bodies.py and gate.py, and `scope["kaishu.status"]` by waiting.py where the outcome isn't what was sent.
"""

from __future__ import annotations

import json
import logging
import re
import secrets
import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from kaishu.server.metrics import Metrics
from kaishu.server.refusals import error_body, status_of

REQUEST_ID = "X-Request-Id"
ANTHROPIC_REQUEST_ID = "request-id"  # where Anthropic's clients look for it
MOST_LOGGED_BYTES = 64 << 10  # of a body, where bodies are logged
_WORD = re.compile(r"[\w.:/+-]+", re.ASCII)
_SANE_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
_PROBES = ("/health", "/ready")
_METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
_LOG = logging.getLogger("kaishu.access")


class Access:
    """The layer.

    log_prompts: write bodies of requests and answers into the log
    """

    def __init__(self, app: ASGIApp, *, metrics: Metrics, log_prompts: bool) -> None:
        self._app, self._metrics, self._log_prompts = app, metrics, log_prompts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request; the server's beginning and end pass through, and WebSockets are closed."""
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1000})
        elif scope["type"] != "http":
            await self._app(scope, receive, send)
        else:
            await self._request(scope, receive, send)

    async def _request(self, scope: Scope, receive: Receive, send: Send) -> None:
        said = Headers(scope=scope).get(REQUEST_ID, "")
        request_id = said if _SANE_ID.fullmatch(said) else secrets.token_hex(16)
        scope.setdefault("state", {})["request_id"] = request_id
        record = _Record(request_id, receive, send, self._log_prompts)
        begin = time.perf_counter()
        try:
            await self._app(scope, record.receive, record.send)
        except Exception as problem:
            note_failure(scope, problem)
            if record.status is None:
                body = error_body(scope["path"], problem, request_id)
                await JSONResponse(body, status_of(problem))(scope, record.receive, record.send)
            # With an answer under way the connection is all that is left to tell it; uvicorn closes it.
        finally:
            self._note(scope, record, time.perf_counter() - begin)

    def _note(self, scope: Scope, record: _Record, seconds: float) -> None:
        status = scope.get("kaishu.status") or record.status or 500
        method = scope["method"] if scope["method"] in _METHODS else "other"
        self._metrics.count_http(method, path_label(scope), status, seconds)
        if scope["path"] in _PROBES and status < 400:
            return
        state = scope["state"]
        fields: dict[str, Any] = {
            "status": status,
            "method": method,
            "path": scope["path"][:256],
            "ms": round(seconds * 1000, 1),
            "bytes": record.sent_bytes,
            "model": state.get("model"),
            "key": state.get("key_name"),
            "client": (scope.get("client") or ("unknown",))[0],
            "id": record.request_id,
        }
        fields = {name: value for name, value in fields.items() if value is not None}
        if self._log_prompts:
            fields |= {"request": record.asked.text, "answer": record.answered.text}
        _LOG.info("%s", _line(fields), extra={"fields": fields})


def _line(fields: Mapping[str, Any]) -> str:
    """For people. What clients chose is quoted where it could be taken for more than one word."""
    path, rest = quote(fields["path"], errors="replace"), dict(fields)
    for name in ("status", "method", "path", "ms", "bytes"):
        del rest[name]
    words = (
        f"{name}={value if _WORD.fullmatch(value) else json.dumps(value, ensure_ascii=False)}"
        for name, value in rest.items()
    )
    return "{status} {method} {} {ms} ms {bytes} bytes ".format(path, **fields) + " ".join(words)


def note_failure(scope: Scope, error: BaseException) -> None:
    """A request failed: its status, for its line, and if it is a bug of ours all about it into the log."""
    scope["kaishu.status"] = status_of(error)
    if scope["kaishu.status"] == 500:
        request_id = scope["state"]["request_id"]
        _LOG.error("A request failed. id=%s", request_id, exc_info=error, extra={"fields": {"id": request_id}})


def path_label(scope: Scope) -> str:
    """A request's path as a metric's label: one of few, whatever clients send."""
    route = scope.get("route")
    return str(getattr(route, "path", "other"))


class _Record:
    """What goes through, noted on its way.

    status:     that was sent; None before
    sent_bytes: of the answer's body
    """

    def __init__(self, request_id: str, receive: Receive, send: Send, keeps_bodies: bool) -> None:
        self.request_id, self._receive, self._send = request_id, receive, send
        self.status: int | None = None
        self.sent_bytes = 0
        self._keeps_bodies, self.asked, self.answered = keeps_bodies, _Kept(), _Kept()

    async def receive(self) -> Message:
        message = await self._receive()
        if self._keeps_bodies and message["type"] == "http.request":
            self.asked.add(message.get("body", b""))
        return message

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = MutableHeaders(raw=message.setdefault("headers", []))
            headers[REQUEST_ID] = headers[ANTHROPIC_REQUEST_ID] = self.request_id
        elif message["type"] == "http.response.body":
            body = message.get("body", b"")
            self.sent_bytes += len(body)
            if self._keeps_bodies:
                self.answered.add(body)
        await self._send(message)


class _Kept:
    """The beginning of a body."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._room = MOST_LOGGED_BYTES

    def add(self, part: bytes) -> None:
        """More of it."""
        if self._room > 0 and part:
            self._parts.append(bytes(part[: self._room]))
            self._room -= len(part)

    @property
    def text(self) -> str:
        """What was kept, and a mark where something is missing."""
        return b"".join(self._parts).decode("utf-8", errors="replace") + ("…" if self._room < 0 else "")
