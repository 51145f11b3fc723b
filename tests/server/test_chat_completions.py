"""POST /v1/chat/completions over a live server: whole answers, streams, and everything that ends one early."""

from __future__ import annotations

import json
from typing import Any

import httpx

ASKED = {"model": "tiny", "messages": [{"role": "user", "content": "What is 17 + 5?"}], "temperature": 0}


def chunks_of(response: httpx.Response) -> list[dict[str, Any]]:
    """The chunks of a stream that ended as it should."""
    assert response.headers["content-type"].startswith("text/event-stream")
    events = response.text.split("\n\n")
    assert events[-2:] == ["data: [DONE]", ""]
    return [json.loads(event.removeprefix("data: ")) for event in events[:-2]]


def test_a_stream_adds_up_to_the_whole_answer(tiny):
    whole = tiny.client.post("/v1/chat/completions", json=ASKED)
    assert whole.status_code == 200, whole.text
    message = whole.json()["choices"][0]["message"]
    chunks = chunks_of(tiny.client.post("/v1/chat/completions", json={**ASKED, "stream": True}))
    said = {"content": "", "reasoning_content": ""}
    for chunk in chunks:
        for name in said:
            said[name] += chunk["choices"][0]["delta"].get(name) or ""
    assert said["content"] == message["content"] != ""
    assert said["reasoning_content"] == (message.get("reasoning_content") or "")
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"
