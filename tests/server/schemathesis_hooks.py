"""What schemathesis is told of this server beside its document: how to keep cases short and consistent.

Owns nothing else. Loaded by schemathesis itself, which test_schemathesis.py starts, through SCHEMATHESIS_HOOKS.
"""

from typing import Any

import schemathesis

MOST_TOKENS, MOST_CHOICES = 4, 2
LENGTHS = {
    "/v1/chat/completions": "max_tokens",
    "/v1/completions": "max_tokens",
    "/v1/responses": "max_output_tokens",
    "/v1/messages": "max_tokens",
}


@schemathesis.hook
def before_call(context: schemathesis.HookContext, case: schemathesis.Case, kwargs: dict) -> None:
    """What is right by itself stays right, and what is wrong stays wrong."""
    body, name = case.body, LENGTHS.get(case.operation.path)
    if name is not None and isinstance(body, dict):
        _shorten(body, name, is_required=case.operation.path == "/v1/messages")
        _agree(body)


def _shorten(body: dict[str, Any], name: str, *, is_required: bool) -> None:
    if name == "max_tokens" and _is_within(body.get("max_completion_tokens"), 1):
        body["max_completion_tokens"] = MOST_TOKENS
        if _is_within(body.get(name), 1):
            body[name] = MOST_TOKENS
    elif _is_within(body.get(name), 1) or (body.get(name) is None and not is_required):
        body[name] = MOST_TOKENS
    if _is_within(body.get("n"), MOST_CHOICES + 1, 128):
        body["n"] = MOST_CHOICES


def _agree(body: dict[str, Any]) -> None:
    """Fields that contradict each other would have most cases refused before anything else is looked at."""
    if isinstance(body.get("stream_options"), dict) and body.get("stream") in (None, False):
        body["stream"] = True
    if _is_within(body.get("best_of"), 1, 128):
        body["best_of"] = body.get("n") or 1
    if body.get("tools") in (None, []) and _asks_for_a_call(body.get("tool_choice")):
        body["tool_choice"] = None
    thinking = body.get("thinking")
    if isinstance(thinking, dict) and _is_within(thinking.get("budget_tokens"), MOST_TOKENS):
        thinking["budget_tokens"] = 1


def _asks_for_a_call(choice: object) -> bool:
    match choice:
        case "required" | {"type": "any"}:
            return True
        case {"type": "function" | "tool", "name": str()} | {"type": "function", "function": {"name": str()}}:
            return len(choice) == 2
    return False


def _is_within(value: object, low: int, high: float = float("inf")) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high
