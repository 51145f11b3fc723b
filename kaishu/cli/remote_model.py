"""A model behind any server that speaks OpenAI's API, as `kaishu chat --url` talks to it.

Owns the requests and, in words, everything that can go wrong with them. What comes back is read by remote_stream.py.
To chat.py it is what LLM is: something that streams a chat. Nothing of a model is loaded here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kaishu.cli.chat_session import said_fields
from kaishu.cli.remote_stream import RemoteAnswer, error_words, event_data
from kaishu.errors import InvalidParameterError, RemoteError, shortened
from kaishu.results import ChatEnd
from kaishu.text.channels import ChannelDelta

if TYPE_CHECKING:
    import httpx

    from kaishu.sampling import SamplingParams

CONNECT_S, SILENCE_S = 10.0, 600.0  # a request may wait long before its first token
_MOST_ERROR_BYTES = 64 << 10
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
    client:  for tests
    raises:  InvalidParameterError, RemoteError
    """

    def __init__(
        self, url: str, *, model: str | None = None, api_key: str | None = None, client: httpx.Client | None = None
    ) -> None:
        self.url = api_url(url)
        self._headers = _headers(api_key)
        self._client = client or _new_client()
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
        import httpx

        body = request_body(self.name, messages, tools, thinking, params)
        answer = RemoteAnswer()
        try:
            with self._client.stream(
                "POST", f"{self.url}/chat/completions", json=body, headers=self._headers
            ) as response:
                self._check(response)
                yield from _deltas(response, answer)
        except (httpx.HTTPError, httpx.InvalidURL, httpx.StreamError) as error:
            raise self._broken(error) from None
        if not answer.is_whole:
            raise RemoteError(
                "The server broke the answer off: it ended without a finish_reason.", hint="Its log may say why."
            )
        yield from answer.end()
        yield ChatEnd(answer.completion())

    def _models(self, *, is_needed: bool) -> list[dict[str, Any]]:
        """What the server lists. Some list nothing, which only matters where no model was named."""
        import httpx

        try:
            with self._client.stream("GET", f"{self.url}/models", headers=self._headers) as response:
                if not is_needed and response.status_code in (404, 405, 501):
                    return []
                self._check(response)
                response.read()
                found = response.json()
        except (httpx.HTTPError, httpx.InvalidURL, httpx.StreamError) as error:
            raise self._broken(error) from None
        except ValueError:
            raise RemoteError(
                f"What is at {self.url}/models is no list of models.", hint="Does the address lead to OpenAI's API?"
            ) from None
        entries = found.get("data") if isinstance(found, dict) else found
        return [entry for entry in entries if isinstance(entry, dict)] if isinstance(entries, list) else []

    def _check(self, response: httpx.Response) -> None:
        """raises: RemoteError for every status but 200"""
        status = response.status_code
        if status == 200:
            return
        said = b""
        for chunk in response.iter_bytes():
            said += chunk
            if len(said) > _MOST_ERROR_BYTES:
                break
        try:
            words = error_words(json.loads(said))
        except (ValueError, RecursionError):  # a proxy's page
            words = response.reason_phrase or "no reason was given"
        if location := response.headers.get("location"):
            words = f"{words}, to {location}"
        raise RemoteError(f"The server answers {status}: {_sentence(words)}", hint=_HINTS.get(status))

    def _broken(self, error: Exception) -> RemoteError:
        """What went wrong with the connection."""
        import httpx

        if isinstance(error, httpx.ConnectTimeout):
            return RemoteError(f"Nothing answers at {self.url} within {CONNECT_S:g} s.", hint=_IS_IT_RUNNING)
        if isinstance(error, httpx.TimeoutException):
            return RemoteError(f"The server at {self.url} has said nothing for {SILENCE_S:g} s.")
        if isinstance(error, httpx.ConnectError):
            if "CERTIFICATE_VERIFY_FAILED" in str(error):
                return RemoteError(
                    f"The certificate of {self.url} is not one that this machine trusts.",
                    hint="If it is yours, name it: SSL_CERT_FILE=certificate.pem kaishu chat …",
                )
            hint = "It may speak http instead of https." if "[SSL: " in str(error) else _IS_IT_RUNNING
            return RemoteError(f"Nothing answers at {self.url}: {shortened(str(error))}.", hint=hint)
        if isinstance(error, httpx.RemoteProtocolError | httpx.ReadError):
            return RemoteError("The server broke the answer off.", hint="Its log may say why.")
        return RemoteError(f"{self.url} can't be asked: {_sentence(str(error))}")


_IS_IT_RUNNING = "Is the server running? `kaishu serve` starts one."


def api_url(url: str) -> str:
    """The address that /chat/completions follows: as typed, and with /v1 where there was no path.

    raises: InvalidParameterError
    """
    typed = url.strip()
    if "://" not in typed:
        is_here = re.match(r"(localhost|127\.|\[::1\])", typed)
        typed = f"{'http' if is_here else 'https'}://{typed}"
    match = re.fullmatch(r"(?P<server>https?://[^/?#\s]+)(?P<path>/[^?#\s]*)?", typed, re.IGNORECASE)
    if match is None:
        raise InvalidParameterError("--url", url, "an address such as http://127.0.0.1:8000")
    path = (match["path"] or "").rstrip("/").removesuffix("/chat/completions")
    return match["server"] + (path or "/v1")


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


def _deltas(response: httpx.Response, answer: RemoteAnswer) -> Iterator[ChannelDelta]:
    if "event-stream" not in response.headers.get("content-type", ""):  # the whole answer at once
        yield from answer.push(_parsed(response.read().decode("utf-8", errors="replace")))
        return
    for data in event_data(response.iter_bytes()):
        if data.strip() == "[DONE]":
            return
        yield from answer.push(_parsed(data))


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise RemoteError(
            f"The server's answer is not JSON: {shortened(text)}", hint="Does the address lead to OpenAI's API?"
        ) from None


def _headers(api_key: str | None) -> dict[str, str]:
    if api_key is None:
        return {}
    if not re.fullmatch(r"[!-~]+", api_key):
        raise InvalidParameterError("--api-key", "a key with other characters", "letters, digits and signs of ASCII")
    return {"Authorization": f"Bearer {api_key}"}


def _new_client() -> httpx.Client:
    import httpx

    here: dict[str, Any] = dict.fromkeys(("all://localhost", "all://127.0.0.1", "all://[::1]"))  # past any proxy
    return httpx.Client(timeout=httpx.Timeout(SILENCE_S, connect=CONNECT_S), mounts=here)


def _sentence(words: str) -> str:
    return words if words.endswith((".", "!", "?")) else f"{words}."
