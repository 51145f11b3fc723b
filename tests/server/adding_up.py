"""What a client makes of a stream: chunks added up to whole answers, and everything checked that the API promises.

Owns the reading of streams by tests, after OpenAI's reference of chat.completion.chunk and text_completion objects.
Knows nothing of how they are made.
"""

from __future__ import annotations

import json
from typing import Any

import httpx

Json = dict[str, Any]


def chunks_of(response: httpx.Response) -> list[Json]:
    """The chunks of a stream that ended as it should."""
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    events = response.text.split("\n\n")
    assert events[-2:] == ["data: [DONE]", ""]
    return [json.loads(event.removeprefix("data: ")) for event in events[:-2]]


def added_up(chunks: list[Json], *, n: int = 1, wants_usage: bool = False) -> Json:
    """A stream as the chat.completion it stands for.

    n:           choices
    wants_usage: the stream was asked to end with the usage
    """
    assert len({(chunk["id"], chunk["created"], chunk["model"], chunk["object"]) for chunk in chunks}) == 1
    assert chunks[0]["object"] == "chat.completion.chunk" and chunks[0]["id"].startswith("chatcmpl-")
    usage = None
    if wants_usage:
        *chunks, last = chunks
        usage = last["usage"]
        assert last["choices"] == [] and usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
        assert all(chunk["usage"] is None for chunk in chunks)
    else:
        assert all("usage" not in chunk for chunk in chunks)
    choices = [_Choice(index) for index in range(n)]
    for chunk in chunks:
        (choice,) = chunk["choices"]
        choices[choice["index"]].add(choice)
    return {"choices": [choice.whole() for choice in choices], "usage": usage}


class _Choice:
    def __init__(self, index: int) -> None:
        self.index, self.is_begun, self.finish_reason = index, False, None
        self.texts = {"content": "", "reasoning_content": "", "reasoning": ""}
        self.calls: list[Json] = []
        self.logprobs: list[Json] | None = None

    def add(self, choice: Json) -> None:
        assert self.finish_reason is None, "nothing follows the end"
        delta = choice["delta"]
        assert ("role" in delta) == (not self.is_begun), "the first says whose turn it is, and no other"
        self.is_begun = True
        assert delta.pop("role", "assistant") == "assistant"
        for call in delta.pop("tool_calls", []):
            if call["index"] == len(self.calls):
                assert call["id"] and call["type"] == "function" and call["function"]["name"]
                self.calls.append({"id": call["id"], "type": "function", "function": dict(call["function"])})
            else:
                assert call["index"] == len(self.calls) - 1, "calls come one after the other"
                assert set(call) == {"index", "function"} and set(call["function"]) == {"arguments"}
                self.calls[-1]["function"]["arguments"] += call["function"]["arguments"]
        for name, text in delta.items():
            self.texts[name] += text
        if choice["logprobs"] is not None:
            self.logprobs = [*(self.logprobs or []), *choice["logprobs"]["content"]]
        self.finish_reason = choice["finish_reason"]

    def whole(self) -> Json:
        assert self.finish_reason in ("stop", "length", "tool_calls"), "there is one reason, and it is the last"
        assert self.texts["reasoning"] == self.texts["reasoning_content"]
        content = self.texts["content"]
        message: Json = {
            "role": "assistant",
            "content": None if self.calls and not content else content,
            "refusal": None,
        }
        for name in ("reasoning_content", "reasoning"):
            if self.texts[name]:
                message[name] = self.texts[name]
        if self.calls:
            message["tool_calls"] = self.calls
        logprobs = None if self.logprobs is None else {"content": self.logprobs, "refusal": None}
        return {
            "index": self.index,
            "message": message,
            "logprobs": logprobs,
            "finish_reason": self.finish_reason,
        }
