"""What HTTP itself makes us refuse: no key, a body that is too large, a server that isn't ready.

Owns these errors with their status, and from any error to an answer in the form that the path's clients read. What is
wrong with a request's content is said by the errors of kaishu/errors.py, with the words they have there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kaishu.errors import InvalidRequestError, KaishuError
from kaishu.openai_responses import error_response, error_status

MESSAGES = "/v1/messages"  # and what is below has Anthropic's form
_ANTHROPIC_KINDS = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}
LEFT = 499  # the client closed the connection first; only logs and metrics see it


class RefusedError(KaishuError):
    """A request that isn't let in, or not answered.

    status:  of HTTP
    kind:    `type` of the error in OpenAI's form
    code:    `code` there
    headers: that the answer has, as Retry-After
    """

    def __init__(
        self,
        message: str,
        *,
        status: int,
        kind: str = "invalid_request_error",
        code: str | None = None,
        hint: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message, hint=hint)
        self.status, self.kind, self.code, self.headers = status, kind, code, dict(headers or {})


def unauthorized(found: str) -> RefusedError:
    """401. found: what was wrong, without the key itself"""
    return RefusedError(
        found,
        status=401,
        kind="authentication_error",
        code="invalid_api_key",
        hint="Send the header `Authorization: Bearer KEY`.",
        headers={"WWW-Authenticate": "Bearer"},
    )


def too_large(what: str, found: int, allowed: int) -> RefusedError:
    """413."""
    return RefusedError(f"{what} has {found:,} bytes or more; allowed: {allowed:,}.", status=413, code="body_too_large")


def too_many(message: str, retry_after_s: float, code: str = "rate_limit_exceeded") -> RefusedError:
    """429."""
    seconds = max(1, -(-int(retry_after_s * 1000) // 1000))
    return RefusedError(
        message,
        status=429,
        kind="rate_limit_error",
        code=code,
        hint=f"Send it again in {seconds} s.",
        headers={"Retry-After": str(seconds)},
    )


def unavailable(message: str, code: str, retry_after_s: int = 1) -> RefusedError:
    """503: the server is loading, or on its way out."""
    return RefusedError(
        message, status=503, kind="server_error", code=code, headers={"Retry-After": str(retry_after_s)}
    )


def status_of(error: BaseException) -> int:
    """The HTTP status of any error; 500 for what is a bug of ours."""
    return error.status if isinstance(error, RefusedError) else error_status(error)


def headers_of(error: BaseException) -> dict[str, str]:
    """The headers that an answer with this error has beside the usual ones."""
    if isinstance(error, RefusedError):
        return error.headers
    return {"Retry-After": "1"} if status_of(error) in (429, 503) else {}


def error_body(path: str, error: BaseException, request_id: str | None = None) -> dict[str, Any]:
    """An error as the clients of a path read it.

    path:       of the request
    request_id: by which the log knows it
    """
    is_anthropics = path == MESSAGES or path.startswith(f"{MESSAGES}/")
    return anthropic_error(error, request_id) if is_anthropics else openai_error(error)


def anthropic_error(error: BaseException, request_id: str | None = None) -> dict[str, Any]:
    """An error as Anthropic's clients read it. A server that loads or drains is `overloaded_error`, but with 503."""
    status = status_of(error)
    kind = _ANTHROPIC_KINDS.get(status, "invalid_request_error" if status < 500 else "api_error")
    said: dict[str, Any] = {"type": kind, "message": openai_error(error)["error"]["message"]}
    if isinstance(error, InvalidRequestError) and error.field == "thread":
        # Anthropic's client, which asks for threads wherever it runs tools, sends whole conversations from here on.
        said["details"] = {"error_code": "thread_unsupported_request", "unsupported": ["thread"]}
    return {"type": "error", "error": said, "request_id": request_id}


def openai_error(error: BaseException) -> dict[str, Any]:
    """An error as OpenAI's clients read it."""
    body = error_response(error)
    if isinstance(error, RefusedError):
        body["error"] |= {"type": error.kind, "code": error.code}
    return body
