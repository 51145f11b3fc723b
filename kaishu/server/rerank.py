"""POST /v1/rerank: documents in the order in which they answer a query.

Owns the route, and the form of its bodies and answers, which is that of the rerank APIs of Cohere (version 2) and Jina.
How a document is judged is in reranking.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from kaishu.async_engine import Engine
from kaishu.engine.jobs import Read
from kaishu.errors import InvalidParameterError, InvalidRequestError
from kaishu.many_texts import check_one, checked_texts
from kaishu.openai_fields import Field, boolean, integer, model_name, priority, read_fields
from kaishu.openai_responses import Json, new_id
from kaishu.reranking import DEFAULT_INSTRUCT, answer_ids, ranked, reranking_ids
from kaishu.results import RerankResult
from kaishu.server.bodies import read_body
from kaishu.server.many import rows_of
from kaishu.server.service import service_of
from kaishu.server.unknown_fields import warning_headers
from kaishu.server.waiting import answer_of

router = APIRouter()
MAX_DOCUMENTS = 2048
MAX_QUERY_CHARACTERS = 4_000_000  # over all documents, with each of which the query is read
_READ = Field("read")
RERANK_FIELDS: Mapping[str, Field] = {
    "model": _READ,
    "query": _READ,
    "documents": Field("read", each={"text": _READ}),
    "top_n": _READ,
    "return_documents": _READ,
    "instruct": Field("read", is_ours=True),
    "truncate": Field("read", is_ours=True),
    "priority": Field("read", is_ours=True),
    "max_tokens_per_doc": Field("neutral", instead="Use truncate, which cuts to what the context holds."),
    "user": Field("noted", kind=str),
}


@dataclass(frozen=True)
class RerankCall:
    """A body of /v1/rerank.

    documents: none of them empty
    top_n:     how many results are wanted, the best
    """

    model: str
    query: str
    documents: list[str]
    top_n: int
    return_documents: bool
    instruct: str
    truncate: bool
    priority: int
    unknown_fields: tuple[str, ...]


@router.post("/v1/rerank")
async def rerank(request: Request) -> Response:
    """Put documents in order."""
    service = service_of(request)
    engine, settings = service.engine, service.settings
    call = await read_body(request, settings, partial(read_rerank, allow_unknown=not settings.strict))
    service.check_model(call.model)
    jobs = await asyncio.to_thread(_jobs, call, engine)
    answers = list(answer_ids(engine.loaded.tokenizer))
    rows = await answer_of(request, rows_of(engine, jobs, settings, lambda found: found[0][answers]), settings)
    results = ranked(np.stack(rows))  # [n, 2]
    num_tokens = sum(len(job.token_ids) for job in jobs)
    headers = warning_headers(call.unknown_fields)
    # With the documents it is as large as the body.
    return await asyncio.to_thread(lambda: JSONResponse(rerank_response(call, results, num_tokens), headers=headers))


def read_rerank(body: object, *, allow_unknown: bool = False) -> RerankCall:
    """Read a body.

    body:          parsed JSON
    allow_unknown: see read_fields
    raises:        InvalidRequestError and its kinds, naming the field
    """
    fields, unknown = read_fields(body, RERANK_FIELDS, allow_unknown=allow_unknown)
    model = model_name(fields)
    for name in ("query", "documents"):
        if name not in fields:
            raise InvalidRequestError(f"{name} is missing.", field=name)
    check_one("query", fields["query"])
    instruct = fields.get("instruct", DEFAULT_INSTRUCT)
    check_one("instruct", instruct)
    documents = checked_documents(fields["documents"])
    num_characters = (len(fields["query"]) + len(instruct)) * len(documents)
    if num_characters > MAX_QUERY_CHARACTERS:
        raise InvalidRequestError(
            f"query and instruct, read with each of {len(documents):,} documents, are {num_characters:,} characters; "
            f"allowed: {MAX_QUERY_CHARACTERS:,}.",
            field="query",
            hint="Give fewer documents in one request, or a shorter query.",
        )
    top_n = integer(fields, "top_n", 1, 2**31 - 1)
    return RerankCall(
        model,
        fields["query"],
        documents,
        min(top_n or len(documents), len(documents)),
        boolean(fields, "return_documents", False),
        instruct,
        boolean(fields, "truncate", False),
        priority(fields),
        unknown,
    )


def checked_documents(value: object) -> list[str]:
    """Documents as texts: strings, or objects with a `text`.

    raises: InvalidRequestError and its kinds
    """
    if not isinstance(value, list) or not value:
        raise InvalidParameterError("documents", value, "a list of texts, not empty")
    if len(value) > MAX_DOCUMENTS:
        raise InvalidRequestError(
            f"documents has {len(value):,} entries; allowed: {MAX_DOCUMENTS:,}.",
            field="documents",
            hint="Make it several requests.",
        )
    for index, one in enumerate(value):
        if isinstance(one, dict) and "text" not in one:
            raise InvalidRequestError(f"documents[{index}].text is missing.", field=f"documents[{index}].text")
    texts = [one["text"] if isinstance(one, dict) else one for one in value]
    return checked_texts("documents", texts)


def _jobs(call: RerankCall, engine: Engine) -> list[Read]:
    tokenizer = engine.loaded.tokenizer
    answer_ids(tokenizer)  # it refuses a model that is no reranker
    prompts = reranking_ids(
        tokenizer,
        call.query,
        call.documents,
        instruct=call.instruct,
        context_tokens=engine.loaded.context_tokens,
        truncate=call.truncate,
    )
    return [Read(ids, "last_logits", priority=call.priority) for ids in prompts]


def rerank_response(call: RerankCall, results: Sequence[RerankResult], num_tokens: int) -> Json:
    """The answer, the best document first. num_tokens: that were read"""
    found: list[dict[str, Any]] = []
    for result in results[: call.top_n]:
        one: dict[str, Any] = {"index": result.index, "relevance_score": result.score}
        found.append({**one, "document": {"text": call.documents[result.index]}} if call.return_documents else one)
    usage = {"prompt_tokens": num_tokens, "total_tokens": num_tokens}
    return {"id": new_id("rerank-"), "model": call.model, "results": found, "usage": usage}
