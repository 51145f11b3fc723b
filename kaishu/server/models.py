"""GET /v1/models, and /v1/models/NAME.

Owns these routes. There is one model, under all of its names.
"""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request

from kaishu.openai_responses import Json
from kaishu.server.service import Service, service_of

router = APIRouter()


@router.get("/v1/models")
async def models(request: Request) -> Json:
    """List the names of the model."""
    service = service_of(request)
    return {"object": "list", "data": [_model(service, name) for name in service.names]}


@router.get("/v1/models/{name:path}")
async def model(name: str, request: Request) -> Json:
    """One of them."""
    service = service_of(request)
    service.check_model(name)
    return _model(service, name)


def _model(service: Service, name: str) -> Json:
    context_tokens = service.engine.loaded.context_tokens
    return {
        "id": name,
        "object": "model",
        "created": service.created,
        "owned_by": "kaishu",
        # Not OpenAI's; the names by which other servers say it.
        "context_length": context_tokens,
        "max_model_len": context_tokens,
    }
