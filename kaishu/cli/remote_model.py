"""A model behind any server that speaks OpenAI's API, as `kaishu chat --url` talks to it.

Owns the requests and, in words, everything that can go wrong with them. What comes back is read by remote_stream.py.
To chat.py it is what LLM is: something that streams a chat. Nothing of a model is loaded here.
"""

from __future__ import annotations

import http.client
import json
import re
import ssl
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from kaishu.cli.chat_session import said_fields
from kaishu.cli.http_answer import HttpAnswer, asked
from kaishu.cli.remote_stream import RemoteAnswer, error_words, event_data
from kaishu.errors import InvalidParameterError, RemoteError, shortened
from kaishu.results import ChatEnd
from kaishu.text.channels import ChannelDelta

if TYPE_CHECKING:
    from kaishu.sampling import SamplingParams

CONNECT_S, SILENCE_S = 10.0, 600.0  # a request may wait long before its first token
_MOST_ERROR_BYTES, _MOST_BYTES = 64 << 10, 64 << 20
_HINTS = {
    401: "Give the server's key: --api-key KEY, or KAISHU_API_KEY in the environment.",
    403: "Give a key that may do this: --api-key KEY, or KAISHU_API_KEY in the environment.",
    404: "Check the address, and the model's name: --model NAME.",
    429: "Ask again in a while.",
    503: "Ask again in a while.",
}


class RemoteModel:
    """A model of a server.

    url:     of the server, with or without /v1
    model:   its name there; None: the first one that the server lists
    api_key: if the server wants one
    raises:  InvalidParameterError, RemoteError
    """

    def __init__(self, url: str, *, model: str | None = None, api_key: str | None = None) -> None:
        self.url = api_url(url)
        self._headers = _headers(api_key)
        listed = self._models(is_needed=model is None)
        if model is None and not listed:
            raise RemoteError(f"The server at {self.url} lists no model.", hint="Name one: --model NAME.")
        self.name = str(listed[0].get("id")) if model is None else model
        entry = next((entry for entry in listed if entry.get("id") == self.name), {})
        sizes = (entry.get(name) for name in ("max_model_len", "context_length", "context_window"))
        self.context_tokens = next((size for size in sizes if isinstance(size, int) and size > 0), None)
        self.description = f"at {self.url}"
        self.notes: tuple[str, ...] = ()

    def stream_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        params: SamplingParams,
        tools: Sequence[Any] | None = None,
        thinking: bool | None = None,
    ) -> Iterator[ChannelDelta | ChatEnd]:
        """As LLM.stream_chat. Leaving the iterator closes the connection, which ends the work on the other side.

        raises: RemoteError
        """
        body = request_body(self.name, messages, tools, thinking, params)
        answer = RemoteAnswer()
        try:
            with self._asked("POST", "/chat/completions", json.dumps(body).encode()) as found:
                _check(found)
                yield from _deltas(found, answer)
        except (OSError, http.client.HTTPException) as error:
            raise self._broken(error) from None
        if not answer.is_whole:
            raise RemoteError(
                "The server broke the answer off: it ended without a finish_reason.", hint="Its log may say why."
            )
        yield from answer.end()
        yield ChatEnd(answer.completion())

    def _asked(self, method: str, path: str, body: bytes | None = None) -> AbstractContextManager[HttpAnswer]:
        return asked(
            method, self.url + path, headers=self._headers, body=body, connect_s=CONNECT_S, silence_s=SILENCE_S
        )

    def _models(self, *, is_needed: bool) -> list[dict[str, Any]]:
        """What the server lists. Some list nothing, which only matters where no model was named."""
        try:
            with self._asked("GET", "/models") as answer:
                if not is_needed and answer.status in (404, 405, 501):
                    return []
                _check(answer)
                found = json.loads(answer.read(_MOST_BYTES))
        except (OSError, http.client.HTTPException) as error:
            raise self._broken(error) from None
        except (ValueError, RecursionError):
            raise RemoteError(f"What is at {self.url}/models is no list of models.", hint=_IS_IT_OPENAI) from None
        entries = found.get("data") if isinstance(found, dict) else found
        return [entry for entry in entries if isinstance(entry, dict)] if isinstance(entries, list) else []

    def _broken(self, error: Exception) -> RemoteError:
        """What went wrong with the connection."""
        if isinstance(error, ssl.SSLCertVerificationError):
            return RemoteError(
                f"The certificate of {self.url} is not one that this machine trusts: {error.verify_message}.",
                hint="If it is yours, name it: SSL_CERT_FILE=certificate.pem kaishu chat …",
            )
        if isinstance(error, ssl.SSLError):
            return RemoteError(
                f"{self.url} doesn't speak https: {error.reason or error}.", hint="It may speak http instead."
            )
        if isinstance(error, TimeoutError):
            return RemoteError(
                f"The server at {self.url} doesn't answer: {CONNECT_S:g} s for the connection, {SILENCE_S:g} s for "
                "each piece of an answer."
            )
        if isinstance(error, http.client.HTTPException | ConnectionResetError | BrokenPipeError):
            return RemoteError("The server broke the answer off.", hint="Its log may say why.")
        words = getattr(error, "strerror", None) or str(error)
        return RemoteError(f"Nothing answers at {self.url}: {_sentence(words)}", hint=_IS_IT_RUNNING)


def _check(answer: HttpAnswer) -> None:
    """raises: RemoteError for every status but 200"""
    if answer.status == 200:
        return
    try:
        words = error_words(json.loads(answer.read(_MOST_ERROR_BYTES)))
    except (ValueError, RecursionError):  # a proxy's page
        words = answer.reason or "no reason was given"
    if answer.location:
        words = f"{words}, to {answer.location}"
    raise RemoteError(f"The server answers {answer.status}: {_sentence(words)}", hint=_HINTS.get(answer.status))


_IS_IT_OPENAI = "Does the address lead to OpenAI's API?"
_IS_IT_RUNNING = "Is the server running? `kaishu serve` starts one."


def api_url(url: str) -> str:
    """The address that /chat/completions follows: as typed, and with /v1 where there was no path.

    raises: InvalidParameterError
    """
    typed = url.strip()
    if "://" not in typed:
        is_here = re.match(r"(localhost|127\.|\[::1\])", typed)
        typed = f"{'http' if is_here else 'https'}://{typed}"
    match = re.fullmatch(r"(?P<server>https?://[^/?#@\s]+)(?P<path>/[^?#\s]*)?", typed, re.IGNORECASE)
    if match is None or not _has_host(match["server"]):
        raise InvalidParameterError("--url", url, "an address such as http://127.0.0.1:8000")
    path = (match["path"] or "").rstrip("/").removesuffix("/chat/completions")
    return match["server"] + (path or "/v1")


def _has_host(server: str) -> bool:
    try:
        parts = urlsplit(server)
        return bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def request_body(
    model: str,
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Any] | None,
    thinking: bool | None,
    params: SamplingParams,
) -> dict[str, Any]:
    """A body of /chat/completions that has nothing but what was set, so that servers refuse no field in vain."""
    fields = said_fields(params)
    if "logprobs" in fields:
        fields |= {"logprobs": True, "top_logprobs": fields["logprobs"]}
    if "logit_bias" in fields:
        fields["logit_bias"] = {str(token_id): bias for token_id, bias in fields["logit_bias"].items()}
    for name in ("stop", "stop_token_ids"):
        if name in fields and not isinstance(fields[name], str):
            fields[name] = list(fields[name])
    if tools:
        fields["tools"] = list(tools)
    if thinking is not None:
        fields["chat_template_kwargs"] = {"enable_thinking": thinking}
    return {
        "model": model,
        "messages": _sent(messages),
        "stream": True,
        "stream_options": {"include_usage": True},
        **fields,
    }


def _sent(messages: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The messages, with thoughts only where a template wants them: since the last question, between calls."""
    last_question = max((place for place, message in enumerate(messages) if message["role"] == "user"), default=-1)
    return [
        message
        if place > last_question
        else {name: value for name, value in message.items() if name != "reasoning_content"}
        for place, message in enumerate(messages)
    ]


def _deltas(found: HttpAnswer, answer: RemoteAnswer) -> Iterator[ChannelDelta]:
    if "event-stream" not in found.kind:  # the whole answer at once
        yield from answer.push(_parsed(found.read(_MOST_BYTES).decode("utf-8", errors="replace")))
        return
    for data in event_data(found.chunks()):
        if data.strip() == "[DONE]":
            return
        yield from answer.push(_parsed(data))


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise RemoteError(f"The server's answer is not JSON: {shortened(text)}", hint=_IS_IT_OPENAI) from None


def _headers(api_key: str | None) -> dict[str, str]:
    headers = {"Content-Type": "application/json", "User-Agent": "kaishu", "Connection": "close"}
    if api_key is None:
        return headers
    if not re.fullmatch(r"[!-~]+", api_key):
        raise InvalidParameterError("--api-key", "a key with other characters", "letters, digits and signs of ASCII")
    return {**headers, "Authorization": f"Bearer {api_key}"}


def _sentence(words: str) -> str:
    return words if words.endswith((".", "!", "?")) else f"{words}."
