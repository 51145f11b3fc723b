"""The application: routes, the gate in front of them, and what becomes of errors.

Owns the putting together, and the beginning and end of a server's life. What a route does is its own file's.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response

from kaishu.errors import KaishuError
from kaishu.server import (
    chat_completions,
    completions,
    embeddings,
    health,
    messages,
    models,
    openapi,
    page,
    rerank,
    responses,
    tokens,
)
from kaishu.server.access import ANTHROPIC_REQUEST_ID, REQUEST_ID, Access, note_failure
from kaishu.server.gate import Gate
from kaishu.server.keys import ENVIRONMENT, Keys, read_keys
from kaishu.server.limits import Limits
from kaishu.server.metrics import Metrics
from kaishu.server.refusals import LEFT, RefusedError, error_body, headers_of, status_of
from kaishu.server.service import Life, Service
from kaishu.server.settings import ServerSettings
from kaishu.server.unknown_fields import HEADER as IGNORED_FIELDS
from kaishu.server.waiting import ClientLeft

ROUTERS = (
    chat_completions.router,
    completions.router,
    embeddings.router,
    rerank.router,
    responses.router,
    messages.router,
    models.router,
    tokens.router,
    health.router,
    openapi.router,
    page.router,
)


def create_app(
    settings: ServerSettings,
    load: Callable[[ServerSettings, Metrics], Service],
    *,
    environment: Mapping[str, str] = os.environ,
) -> FastAPI:
    """The server as an ASGI application.

    load:        makes the service, in a thread, once the application starts; until then requests are refused with 503
    environment: its KAISHU_API_KEYS are keys, beside those of settings.api_keys_file
    raises:      ConfigError for keys that can't be used
    """
    keys = read_keys(settings.api_keys_file, environment.get(ENVIRONMENT, ""))
    life = Life(settings, Metrics(), load)
    # No redirect where only a / is too many: behind a proxy with TLS it would lead, with the key, to http.
    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None, redirect_slashes=False, lifespan=_lifespan)
    app.state.life = life
    for router in ROUTERS:
        app.include_router(router)
    for kind in (KaishuError, HTTPException, ClientLeft, ClientDisconnect):  # what else escapes is access.py's
        app.add_exception_handler(kind, _failed)
    _add_layers(app, life, keys)
    return app


def _add_layers(app: FastAPI, life: Life, keys: Keys) -> None:
    """Around all routes, the innermost first.

    What CORS adds is outermost, so that a page that may ask can read every refusal and every 500. Its preflights (the
    browser's question whether a page may ask) pass neither the log nor the gate: browsers send them without a key, and
    the answer is the same whoever asks and by whatever name: which origins may, which the settings say to everybody. So
    the check of the Host header would protect nothing there; the request that follows is checked.
    """
    settings = life.settings
    limits = Limits(settings.key_requests_per_minute, settings.key_concurrent_requests)
    app.add_middleware(Gate, settings=settings, keys=keys, limits=limits)
    app.add_middleware(Access, metrics=life.metrics, log_prompts=settings.log_prompts)
    if settings.cors_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=settings.cors_origins,
            allow_methods=["GET", "POST"],
            allow_headers=["*"],
            expose_headers=[REQUEST_ID, ANTHROPIC_REQUEST_ID, IGNORED_FIELDS, "Retry-After"],
        )


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
        service = await asyncio.to_thread(life.load, life.settings, life.metrics)
        life.metrics.show_engine(service.names[0], service.engine.statistics)
        life.service, life.state = service, "ready"
    except Exception as problem:  # whoever runs the server raises it
        life.problem, life.state = problem, "failed"


async def _failed(request: Request, error: Exception) -> Response:
    """The answer to a request that failed, in the form that the path's clients read."""
    if isinstance(error, ClientLeft | ClientDisconnect):
        return Response(status_code=LEFT)
    if isinstance(error, HTTPException):
        error = _of_the_router(request, error)
    note_failure(request.scope, error)
    body = error_body(request.url.path, error, getattr(request.state, "request_id", None))
    return JSONResponse(body, status_code=status_of(error), headers=headers_of(error))


def _of_the_router(request: Request, error: HTTPException) -> RefusedError:
    """No such path, or no such method on it."""
    path = request.url.path[:80]
    if error.status_code == 405:
        message = f"{request.method} is not allowed for {path}."
        return RefusedError(message, status=405, code="method_not_allowed", headers=dict(error.headers or {}))
    return RefusedError(
        f"There is nothing at {path}.", status=404, code="not_found", hint="GET /openapi.json lists all."
    )
