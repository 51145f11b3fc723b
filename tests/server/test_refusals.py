"""Refusals, and the form in which the clients of a path read an error."""

from __future__ import annotations

from typing import Any

import pytest

from kaishu.errors import InvalidParameterError, KaishuError, ModelNotFoundError, QueueFullError
from kaishu.server.refusals import (
    RefusedError,
    anthropic_error,
    error_body,
    headers_of,
    openai_error,
    status_of,
    too_large,
    too_many,
    unauthorized,
    unavailable,
)

ERRORS: list[tuple[BaseException, int, str, str]] = [  # with its status, and its type for OpenAI's and Anthropic's
    (InvalidParameterError("n", 0, "at least 1"), 400, "invalid_request_error", "invalid_request_error"),
    (unauthorized("There is no API key."), 401, "authentication_error", "authentication_error"),
    (RefusedError("x", status=403, kind="permission_error"), 403, "permission_error", "permission_error"),
    (ModelNotFoundError("There is no model."), 404, "invalid_request_error", "not_found_error"),
    (RefusedError("x", status=405), 405, "invalid_request_error", "invalid_request_error"),
    (RefusedError("x", status=408), 408, "invalid_request_error", "timeout_error"),
    (too_large("The body", 9, 5), 413, "invalid_request_error", "request_too_large"),
    (too_many("Too many.", 1.5), 429, "rate_limit_error", "rate_limit_error"),
    (QueueFullError(5, 5), 429, "rate_limit_error", "rate_limit_error"),
    (ZeroDivisionError("secret"), 500, "server_error", "api_error"),
    (unavailable("Loading.", "loading"), 503, "server_error", "overloaded_error"),
    (RefusedError("x", status=504, kind="server_error"), 504, "server_error", "timeout_error"),
]


@pytest.mark.parametrize(("error", "status", "openais", "anthropics"), ERRORS)
def test_an_error_has_its_status_and_type_in_either_form(
    error: BaseException, status: int, openais: str, anthropics: str
) -> None:
    assert status_of(error) == status
    assert openai_error(error)["error"]["type"] == openais
    found = anthropic_error(error, "id-1")
    assert found["error"]["type"] == anthropics and (found["type"], found["request_id"]) == ("error", "id-1")
    message = openai_error(error)["error"]["message"]
    assert found["error"]["message"] == message and "secret" not in message
    if isinstance(error, KaishuError):
        assert error.message in message


@pytest.mark.parametrize(
    ("path", "is_anthropics"),
    [
        ("/v1/messages", True),
        ("/v1/messages/count_tokens", True),
        ("/v1/messages/other", True),
        ("/v1/messages2", False),
        ("/v1/chat/completions", False),
        ("/", False),
    ],
)
def test_the_path_says_which_form(path: str, is_anthropics: bool) -> None:
    error = too_large("The body", 9, 5)
    expected: Any = anthropic_error(error, "id") if is_anthropics else openai_error(error)
    assert error_body(path, error, "id") == expected


@pytest.mark.parametrize(
    ("error", "headers"),
    [
        (too_many("x", 0.2), {"Retry-After": "1"}),
        (too_many("x", 61.001), {"Retry-After": "62"}),
        (QueueFullError(5, 5), {"Retry-After": "1"}),
        (unavailable("x", "draining", 5), {"Retry-After": "5"}),
        (unauthorized("x"), {"WWW-Authenticate": "Bearer"}),
        (ModelNotFoundError("x"), {}),
        (ZeroDivisionError(), {}),
    ],
)
def test_headers_say_when_to_come_back_and_how_to_get_in(error: BaseException, headers: dict[str, str]) -> None:
    assert headers_of(error) == headers
