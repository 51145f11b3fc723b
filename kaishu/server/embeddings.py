"""POST /v1/embeddings.

Owns the route. Bodies and answers are openai_embeddings.py's; the engine reads all texts side by side (many.py).
"""

from __future__ import annotations

import asyncio
from functools import partial

import numpy as np
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from kaishu.openai_embeddings import embedding_jobs, embedding_response, read_embedding
from kaishu.openai_fields import spelt
from kaishu.server.bodies import read_body
from kaishu.server.many import rows_of
from kaishu.server.service import service_of
from kaishu.server.unknown_fields import warning_headers
from kaishu.server.waiting import answer_of

router = APIRouter()


@router.post("/v1/embeddings")
async def embeddings(request: Request) -> Response:
    """Texts as vectors."""
    service = service_of(request)
    engine, settings = service.engine, service.settings
    call = await read_body(request, settings, partial(read_embedding, allow_unknown=not settings.strict))
    service.check_model(call.model)
    with spelt(call.names):
        jobs = await asyncio.to_thread(embedding_jobs, call, engine.loaded, engine.prompting)
        rows = await answer_of(request, rows_of(engine, jobs, settings, lambda found: found), settings)
        found = np.concatenate(rows)  # [n, D]
        answer = await asyncio.to_thread(lambda: JSONResponse(embedding_response(call, found, jobs)))
    answer.headers.update(warning_headers(call.unknown_fields))
    return answer
