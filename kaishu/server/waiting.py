"""Waiting for an answer while the client may leave, be slow, or wait too long.

Owns the three ways in which a request ends before its answer is whole: the client left, a time is up, the client reads
nothing. Each ends the engine's work on it. Knows nothing of what is sent.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from kaishu.server.access import note_failure
from kaishu.server.refusals import LEFT, RefusedError, status_of
from kaishu.server.settings import ServerSettings

Answer = TypeVar("Answer")
EVENT_STREAM = "text/event-stream; charset=utf-8"


class ClientLeft(Exception):  # noqa: N818  # nothing failed
    """Nobody waits for the answer any more; what is returned now reaches nobody."""


def out_of_time(limit_s: float) -> RefusedError:
    """The answer took longer than a request may."""
    return RefusedError(
        f"The answer was not complete within {limit_s:g} s.",
        status=504,
        kind="server_error",
        code="request_timeout",
        hint="Ask for fewer tokens, or stream the answer.",
    )


async def answer_of(request: Request, work: Awaitable[Answer], settings: ServerSettings) -> Answer:
    """Wait for work whose result is sent as a whole; it is cancelled when the client leaves or the time is up.

    raises: what the work raises; ClientLeft; RefusedError, 504
    """
    task = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(_left(request.receive))
    try:
        await asyncio.wait({task, leaving}, timeout=settings.request_timeout_s, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        if leaving.done():
            raise ClientLeft
        raise out_of_time(settings.request_timeout_s)
    finally:
        await _ended(task, leaving)


async def _left(receive: Receive) -> None:
    """Until the client has left. The body was read before."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def _ended(*tasks: asyncio.Future[Any]) -> None:
    for task in tasks:
        task.cancel()
        with suppress(asyncio.CancelledError, Exception):
            await task


class EventStream(Response):
    """Server-sent events, sent as they come.

    events:  the bytes of each, ready to be sent; closed when the client leaves or a time is up
    abort:   called at the end, whatever it was; ends the engine's work on it, if there is any left
    failure: the bytes that tell of an error that comes after the beginning
    headers: of the answer, beside the usual ones
    ping:    sent where nothing else was for ping_s, so that whatever passes the stream on keeps it open

    The outcome is in `scope["kaishu.status"]`, for the log, where it isn't 200: 499 (the client left), or that of the
    error.
    """

    def __init__(
        self,
        events: AsyncIterator[bytes],
        settings: ServerSettings,
        failure: Callable[[BaseException], bytes],
        *,
        abort: Callable[[], object] = lambda: None,
        headers: dict[str, str] | None = None,
        ping: bytes = b"",
        ping_s: float = 10.0,
    ) -> None:
        # X-Accel-Buffering keeps nginx from collecting the answer before it passes it on.
        usual = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no", "Content-Type": EVENT_STREAM}
        self.status_code = 200
        self.background = None
        self.init_headers({**usual, **(headers or {})})
        self._events, self._settings, self._failure, self._abort = events, settings, failure, abort
        self._has_begun = False
        self._ping, self._ping_s, self._ping_at = ping, ping_s, 0.0
        self._sends = asyncio.Lock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send them all."""
        sending = asyncio.ensure_future(self._send_all(scope, send))
        leaving = asyncio.ensure_future(_left(receive))
        try:
            await asyncio.wait(
                {sending, leaving}, timeout=self._settings.request_timeout_s, return_when=asyncio.FIRST_COMPLETED
            )
            if sending.done():
                sending.result()
            elif leaving.done():
                scope["kaishu.status"] = LEFT
            else:
                await self._cut_off(sending, scope, send)
        except _ReadsNothing:
            scope["kaishu.status"] = LEFT
        finally:
            self._abort()
            await _ended(sending, leaving)
            close = getattr(self._events, "aclose", None)
            if close is not None:
                await close()

    async def _cut_off(self, sending: asyncio.Future[None], scope: Scope, send: Send) -> None:
        """The time is up."""
        await _ended(sending)
        problem = out_of_time(self._settings.request_timeout_s)
        if not self._has_begun:
            raise problem
        scope["kaishu.status"] = status_of(problem)
        await self._sent(send, _part(self._failure(problem), more=False))

    async def _send_all(self, scope: Scope, send: Send) -> None:
        events = aiter(self._events)
        # An error before the first event is an answer of its own, with its status: so the beginning waits for it.
        first = await anext(events, None)
        await self._sent(send, {"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        self._has_begun = True
        pinging = [asyncio.ensure_future(self._keep_alive(send))] if self._ping else []
        try:
            if first is not None:
                await self._sent(send, _part(first))
            async for event in events:
                await self._sent(send, _part(event))
        except (_ReadsNothing, asyncio.CancelledError):
            raise
        except Exception as error:
            note_failure(scope, error)
            await self._sent(send, _part(self._failure(error)))
        finally:
            await _ended(*pinging)
        await self._sent(send, _part(b"", more=False))

    async def _keep_alive(self, send: Send) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(self._ping_at - loop.time())
            if loop.time() >= self._ping_at:
                await self._sent(send, _part(self._ping))

    async def _sent(self, send: Send, message: Message) -> None:
        async with self._sends:
            try:
                async with asyncio.timeout(self._settings.send_timeout_s):
                    await send(message)
            except (TimeoutError, OSError):
                raise _ReadsNothing from None
            self._ping_at = asyncio.get_running_loop().time() + self._ping_s


def _part(body: bytes, *, more: bool = True) -> Message:
    return {"type": "http.response.body", "body": body, "more_body": more}


class _ReadsNothing(Exception):  # noqa: N818
    """The client takes nothing of what is sent."""
