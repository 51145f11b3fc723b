"""GET /health, /ready and /metrics: for those who watch over the server.

Owns these routes. What is counted is in metrics.py.
"""

from __future__ import annotations

import asyncio

from fastapi import APIRouter
from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from kaishu.server.service import life_of

router = APIRouter()


@router.head("/health", include_in_schema=False)  # as some probes ask
@router.get("/health")
async def health(request: Request) -> Response:
    """Whether the process lives; it does when it answers."""
    return JSONResponse({"status": "ok", "state": life_of(request).state})


@router.head("/ready", include_in_schema=False)
@router.get("/ready")
async def ready(request: Request) -> Response:
    """Whether requests are answered: 200, or 503 with the reason."""
    life_of(request).ready_service()
    return JSONResponse({"status": "ready"})


@router.get("/metrics")
async def metrics(request: Request) -> Response:
    """Everything that is counted, for Prometheus."""
    text = await asyncio.to_thread(life_of(request).metrics.text)
    return Response(text, media_type=CONTENT_TYPE_PLAIN_0_0_4)
