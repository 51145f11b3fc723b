"""Request bodies: bytes off the wire, as JSON.

Owns the limits of size, time and form, all of which are checked before anything looks at the content, and where that
happens: beside the event loop if it takes time. What the fields mean is others'.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Any, TypeVar

from starlette.requests import Request

from kaishu.errors import InvalidRequestError, shortened
from kaishu.json_fields import shown
from kaishu.server.refusals import RefusedError, too_large
from kaishu.server.settings import ServerSettings

Call = TypeVar("Call")
_READ_AT_ONCE_BYTES = 16 << 10  # usually some tenths of a millisecond, at the worst a few; more goes to a thread
_DISCARDED_BYTES, _DISCARD_S = 256 << 20, 1.0  # of a body that is too large, at most
MAX_VALUES = 1_000_000  # a value takes up to a hundred bytes of memory, and two of the body
MAX_DEPTH = 128  # what messages, tools and schemas may be is less; so nothing that recurses over values gets too deep


async def read_body(request: Request, settings: ServerSettings, read: Callable[[Any], Call]) -> Call:
    """The body, as `read` understands it. What it says about the model comes into the log.

    read:   is given Python's values; runs in a thread where the body is large
    raises: RefusedError (413, 415, 408); InvalidRequestError for what isn't JSON; ClientDisconnect; what `read` raises
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json" and not kind.endswith("+json"):
        raise RefusedError(  # pages of other sites may send other types to this machine unasked
            f"The Content-Type is {shown(kind or None)}; allowed: application/json.",
            status=415,
            code="content_type",
            hint="With curl, add -H 'Content-Type: application/json'.",
        )
    coding = request.headers.get("content-encoding", "").strip().lower()
    if coding not in ("", "identity"):  # a few bytes can become gigabytes
        raise RefusedError(
            f"The Content-Encoding is {shown(coding)}; allowed: none.",
            status=415,
            code="content_encoding",
            hint="Send the body as it is, not compressed.",
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

    def understood() -> Call:
        body = parsed(raw)
        if isinstance(body, dict) and isinstance(body.get("model"), str):
            request.state.model = shortened(body["model"])
        return read(body)

    return understood() if len(raw) <= _READ_AT_ONCE_BYTES else await asyncio.to_thread(understood)


async def _read(request: Request, most_bytes: int) -> bytes:
    said = request.headers.get("content-length", "")
    if said.isdigit() and len(said) < 20 and int(said) > most_bytes:
        if "expect" not in request.headers:  # who asks first has sent nothing yet
            await _discard(request.stream())
        raise _closing(too_large("The body", int(said), most_bytes))
    chunks: list[bytes] = []
    size = 0
    stream = request.stream()
    async for chunk in stream:
        size += len(chunk)
        if size > most_bytes:
            chunks.clear()
            await _discard(stream)
            raise _closing(too_large("The body", size, most_bytes))
        chunks.append(chunk)
    return b"".join(chunks)


async def _discard(stream: AsyncIterator[bytes]) -> None:
    """Take in some of what is still to come: a connection that is closed before loses the answer on its way, and most
    clients read none before they have sent everything."""
    size = 0
    with suppress(TimeoutError):
        async with asyncio.timeout(_DISCARD_S):
            async for chunk in stream:
                size += len(chunk)
                if size > _DISCARDED_BYTES:
                    return


def _closing(refusal: RefusedError) -> RefusedError:
    """What is left of the body won't be read, so the connection can't go on."""
    refusal.headers["Connection"] = "close"
    return refusal


def parsed(raw: bytes) -> Any:
    """JSON and nothing else: no NaN, no field twice, no text that UTF-8 can't carry, nothing nested beyond reason.

    raises: InvalidRequestError
    """
    num_values = sum(raw.count(sign) for sign in b",[{")  # more where texts have such signs, never fewer
    if num_values > MAX_VALUES:
        raise _not_json(f"it has about {num_values:,} values, and at most {MAX_VALUES:,} are read")
    try:
        found = _READER.decode(raw.decode("utf-8"))
        _check_depth(raw, found)
        _check_surrogates(raw, found)
        return found
    except InvalidRequestError:
        raise
    except UnicodeDecodeError as error:
        raise _not_json(f"byte {error.start:,} is no UTF-8") from None
    except json.JSONDecodeError as error:
        raise _not_json(f"{error.msg} in line {error.lineno:,}, column {error.colno:,}") from None
    except RecursionError:
        raise _too_deep() from None
    except ValueError:  # Python reads no whole numbers of more than 4,300 digits
        raise _not_json("it has a number of thousands of digits") from None


def _not_json(found: str) -> InvalidRequestError:
    return InvalidRequestError(f"The body is not JSON that can be read: {found}.", field="body")


def _too_deep() -> InvalidRequestError:
    return _not_json(f"it is nested too deep, beyond {MAX_DEPTH} levels")


def _check_depth(raw: bytes, value: Any) -> None:
    if raw.count(b"[") + raw.count(b"{") <= MAX_DEPTH:
        return
    level = [value]
    for _ in range(MAX_DEPTH + 1):
        nested = (one.values() if isinstance(one, dict) else one for one in level if isinstance(one, dict | list))
        level = [inner for one in nested for inner in one]
        if not level:
            return
    raise _too_deep()


def _check_surrogates(raw: bytes, value: Any) -> None:
    """Halves of surrogate pairs can be written as escapes, but no UTF-8 has them, so no answer could show them."""
    if rb"\ud" not in raw and rb"\uD" not in raw:
        return
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        half = ord(error.object[error.start])
        raise InvalidRequestError(
            f"The body has a lone surrogate, \\u{half:04x}, which is half of a character.",
            field="body",
            hint="It usually comes from cutting a text in the middle of an emoji; cut elsewhere.",
        ) from None


def _int(text: str) -> int:
    return int(text)


def _float(text: str) -> float:
    return float(text)


def _no_constant(name: str) -> float:
    raise _not_json(f"it has {name}, which is no number of JSON")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for name, value in pairs:
        if name in made:
            sayable = name.encode(errors="replace").decode()  # it may have half of a surrogate pair
            raise InvalidRequestError(f"The field {shown(sayable)} is there twice.", field=shortened(sayable))
        made[name] = value
    return made


# What is written in C alone never lets other threads go on: for half a second, with a million numbers. Python's own
# functions do, every few milliseconds.
_READER = json.JSONDecoder(parse_int=_int, parse_float=_float, parse_constant=_no_constant, object_pairs_hook=_object)
