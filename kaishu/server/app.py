"""The application: routes, the gate in front of them, and what becomes of errors.

Owns the putting together, and the beginning and end of a server's life. What a route does is its own file's.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response

from kaishu import __version__
from kaishu.errors import KaishuError
from kaishu.server import chat_completions, completions, embeddings, models, rerank, responses, tokens
from kaishu.server.metrics import Metrics
from kaishu.server.refusals import LEFT, RefusedError, headers_of, openai_error, status_of
from kaishu.server.service import Life, Service
from kaishu.server.settings import ServerSettings
from kaishu.server.waiting import ClientLeft

ROUTERS = (
    chat_completions.router,
    completions.router,
    embeddings.router,
    rerank.router,
    responses.router,
    models.router,
    tokens.router,
)
_LOG = logging.getLogger("kaishu.server")


def create_app(settings: ServerSettings, load: Callable[[ServerSettings, Metrics], Service]) -> FastAPI:
    """The server as an ASGI application.

    load: makes the service, in a thread, once the application starts; until then requests are refused with 503
    """
    life = Life(settings, Metrics(), load)
    app = FastAPI(title="Kaishu", version=__version__, docs_url=None, redoc_url=None, lifespan=_lifespan)
    app.state.life = life
    for router in ROUTERS:
        app.include_router(router)
    for kind in (KaishuError, HTTPException, ClientLeft, ClientDisconnect, Exception):
        app.add_exception_handler(kind, _failed)
    return app


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    life: Life = app.state.life
    loading = asyncio.create_task(_load(life))
    try:
        yield
    finally:
        life.state = "draining"
        loading.cancel()
        with suppress(asyncio.CancelledError):
            await loading
        if life.service is not None:
            await life.service.engine.close()


async def _load(life: Life) -> None:
    try:
        life.service = await asyncio.to_thread(life.load, life.settings, life.metrics)
        life.state = "ready"
    except Exception as problem:
        life.problem, life.state = problem, "failed"
        _LOG.error("The model couldn't be loaded. %s", problem, exc_info=not isinstance(problem, KaishuError))


async def _failed(request: Request, error: Exception) -> Response:
    """The answer to a request that failed, in the form that the path's clients read."""
    if isinstance(error, ClientLeft | ClientDisconnect):
        return Response(status_code=LEFT)
    if isinstance(error, HTTPException):
        error = _of_the_router(request, error)
    status = status_of(error)
    if status == 500:
        _LOG.error("A request failed.", exc_info=error)
    return JSONResponse(openai_error(error), status_code=status, headers=headers_of(error))


def _of_the_router(request: Request, error: HTTPException) -> RefusedError:
    """No such path, or no such method on it."""
    path = request.url.path[:80]
    if error.status_code == 405:
        message = f"{request.method} is not allowed for {path}."
        return RefusedError(message, status=405, code="method_not_allowed", headers=dict(error.headers or {}))
    return RefusedError(
        f"There is nothing at {path}.", status=404, code="not_found", hint="GET /openapi.json lists all."
    )
