"""Request bodies: bytes off the wire, as JSON.

Owns the limits of size, time and form, all of which are checked before anything looks at the content. What the fields
mean is others'.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

from starlette.requests import Request

from kaishu.errors import InvalidRequestError, shortened
from kaishu.json_fields import shown
from kaishu.server.refusals import RefusedError, too_large
from kaishu.server.settings import ServerSettings

_PARSED_AT_ONCE_BYTES = 64 << 10  # what parses in about a millisecond; more goes to a thread


async def json_body(request: Request, settings: ServerSettings) -> Any:
    """The body as Python's values. What it says about the model comes into the log.

    raises: RefusedError (413, 415, 408); InvalidRequestError for what isn't JSON; ClientDisconnect
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json" and not kind.endswith("+json"):
        raise RefusedError(  # pages of other sites may send other types to this machine unasked
            f"The Content-Type is {shown(kind or None)}; allowed: application/json.",
            status=415,
            code="content_type",
            hint="With curl, add -H 'Content-Type: application/json'.",
        )
    try:
        raw = await asyncio.wait_for(_read(request, settings.max_body_bytes), settings.body_timeout_s)
    except TimeoutError:
        raise RefusedError(
            f"The body didn't arrive within {settings.body_timeout_s:g} s.",
            status=408,
            code="body_timeout",
            headers={"Connection": "close"},
        ) from None
    body = parsed(raw) if len(raw) <= _PARSED_AT_ONCE_BYTES else await asyncio.to_thread(parsed, raw)
    if isinstance(body, dict) and isinstance(body.get("model"), str):
        request.state.model = shortened(body["model"])
    return body


async def _read(request: Request, most_bytes: int) -> bytes:
    said = request.headers.get("content-length", "")
    if said.isdigit() and len(said) < 20 and int(said) > most_bytes:
        raise _closing(too_large("The body", int(said), most_bytes))
    chunks, size = [], 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > most_bytes:
            raise _closing(too_large("The body", size, most_bytes))
        chunks.append(chunk)
    return b"".join(chunks)


def _closing(refusal: RefusedError) -> RefusedError:
    """What is left of the body won't be read, so the connection can't go on."""
    refusal.headers["Connection"] = "close"
    return refusal


def parsed(raw: bytes) -> Any:
    """JSON and nothing else: no NaN, no field twice, no text that isn't UTF-8, nothing nested beyond reason.

    raises: InvalidRequestError
    """
    try:
        return json.loads(raw.decode("utf-8"), parse_constant=_no_constant, object_pairs_hook=_object)
    except InvalidRequestError:
        raise
    except UnicodeDecodeError as error:
        raise _not_json(f"byte {error.start:,} is no UTF-8") from None
    except json.JSONDecodeError as error:
        raise _not_json(f"{error.msg} in line {error.lineno:,}, column {error.colno:,}") from None
    except RecursionError:
        raise _not_json("it is nested too deep") from None
    except ValueError:  # Python reads no whole numbers of more than 4,300 digits
        raise _not_json("it has a number of thousands of digits") from None


def _not_json(found: str) -> InvalidRequestError:
    return InvalidRequestError(f"The body is not JSON that can be read: {found}.", field="body")


def _no_constant(name: str) -> float:
    raise _not_json(f"it has {name}, which is no number of JSON")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for name, value in pairs:
        if name in made:
            raise InvalidRequestError(f"The field {shown(name)} is there twice.", field=shortened(name))
        made[name] = value
    return made
