"""From an answer's deltas to the events of /v1/responses, and to the response that they add up to.

Owns the events, after OpenAI's reference, and their order. What a delta is was decided by text/channels.py. A whole
answer is what the events of a streamed one end with, so the two can't differ. Pure: knows nothing of HTTP.

Each stretch of thought, of text, and each call is an item of the output: it is added, grows, is done.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from kaishu.deltas import ChoiceDelta
from kaishu.openai_responses import Json, new_id
from kaishu.results import ChatCompletion, ChatEnd, PositionLogprobs
from kaishu.sampling import SamplingParams
from kaishu.server.responses_answers import (
    Status,
    call_item,
    ended_response,
    error_object,
    message_item,
    new_response,
    summary_part,
    text_part,
    thought_item,
    thought_part,
    token_logprobs,
)
from kaishu.server.responses_logprobs import TextTokens
from kaishu.text.channels import ContentDelta, ThinkingDelta, ToolCallArguments, ToolCallEnd, ToolCallStart

Events = Iterator[Json]  # without their sequence_number


class ResponseEvents:
    """One answer's events.

    model, echo, params: as for new_response
    only_first_call, packs_thoughts: of ResponseCall

    `response` is what there is of it: at the end the whole.
    """

    def __init__(
        self,
        model: str,
        echo: Mapping[str, Any],
        params: SamplingParams,
        *,
        only_first_call: bool = False,
        packs_thoughts: bool = False,
    ) -> None:
        self.response = new_response(model, echo, params)
        self._wants_logprobs, self._only_first_call = params.logprobs is not None, only_first_call
        with_summary = self.response["reasoning"]["summary"] is not None
        self._new_thought = partial(_Thought, with_summary=with_summary, is_packed=packs_thoughts)
        self._num_events = 0
        self._open: _Thought | _Text | _Call | None = None

    def push(self, found: ChoiceDelta) -> Events:
        """The events of one delta; before those of the first, the response's beginning; of the last, its end."""
        yield from map(self._numbered, self._of(found))

    def failed(self, error: BaseException) -> Events:
        """The events that end an answer which can't go on."""
        yield from map(self._numbered, self._failure(error))

    def _numbered(self, event: Json) -> Json:
        self._num_events += 1
        return {"type": event["type"], "sequence_number": self._num_events - 1, **event}

    def _of(self, found: ChoiceDelta) -> Events:
        yield from self._beginning()
        match found.delta:
            case ChatEnd(completion):
                yield from self._end(completion)
            case ThinkingDelta(text):
                if not isinstance(self._open, _Thought):
                    yield from self._begin(self._new_thought(self._place))
                yield from self._grown(text)
            case ContentDelta(text):
                if not isinstance(self._open, _Text):
                    yield from self._begin(_Text(self._place))
                yield from self._grown(text, found.logprobs if self._wants_logprobs else ())
            case ToolCallStart(index, call_id, name) if self._is_wanted(index):
                yield from self._begin(_Call(self._place, call_id, name))
            case ToolCallArguments(index, text) if self._is_wanted(index):
                yield from self._grown(text)
            case ToolCallEnd(index, is_whole) if self._is_wanted(index):
                yield from self._close("completed" if is_whole else "incomplete")

    def _beginning(self) -> Events:
        if not self._num_events:
            yield {"type": "response.created", "response": self.response}
            yield {"type": "response.in_progress", "response": self.response}

    def _end(self, completion: ChatCompletion) -> Events:
        status: Status = "incomplete" if completion.finish_reason == "length" else "completed"
        says_something = any(item["type"] != "reasoning" for item in self.response["output"])
        if status == "completed" and not says_something and not isinstance(self._open, _Text):
            yield from self._begin(_Text(self._place))  # an answer is there, if an empty one
        yield from self._close(status)
        self.response = ended_response(self.response, status, usage=completion.usage)
        yield {"type": f"response.{status}", "response": self.response}

    def _failure(self, error: BaseException) -> Events:
        yield from self._beginning()
        yield from self._close("incomplete")
        self.response = ended_response(self.response, "failed", error=error_object(error))
        yield {"type": "response.failed", "response": self.response}

    def _is_wanted(self, call: int) -> bool:
        return not (self._only_first_call and call)

    @property
    def _place(self) -> int:
        """Where in the output the next item stands."""
        return len(self.response["output"]) + (self._open is not None)

    def _begin(self, item: _Thought | _Text | _Call) -> Events:
        yield from self._close("completed")
        self._open = item
        yield {"type": "response.output_item.added", "output_index": item.place, "item": item.whole("in_progress")}
        yield from item.begun()

    def _grown(self, text: str, tokens: Sequence[PositionLogprobs] = ()) -> Events:
        assert self._open is not None
        if text:
            yield from self._open.grown(text, tokens)

    def _close(self, status: Status) -> Events:
        item = self._open
        if item is None:
            return
        self._open = None
        yield from item.done()
        whole = item.whole(status)
        # A new list: the response that earlier events hold stays what it was.
        self.response = {**self.response, "output": [*self.response["output"], whole]}
        yield {"type": "response.output_item.done", "output_index": item.place, "item": whole}


class _Thought:
    """An item that grows: a thought. place: in the output"""

    def __init__(self, place: int, *, with_summary: bool, is_packed: bool) -> None:
        self.place, self._id = place, new_id("rs_")
        self._with_summary, self._is_packed = with_summary, is_packed
        here = {"item_id": self._id, "output_index": place}
        self._in_it, self._in_summary = {**here, "content_index": 0}, {**here, "summary_index": 0}
        self._texts: list[str] = []

    def begun(self) -> Events:
        yield {"type": "response.content_part.added", **self._in_it, "part": thought_part("")}
        if self._with_summary:
            yield {"type": "response.reasoning_summary_part.added", **self._in_summary, "part": summary_part("")}

    def grown(self, text: str, tokens: Sequence[PositionLogprobs]) -> Events:
        self._texts.append(text)
        yield {"type": "response.reasoning_text.delta", **self._in_it, "delta": text}
        if self._with_summary:
            yield {"type": "response.reasoning_summary_text.delta", **self._in_summary, "delta": text}

    def done(self) -> Events:
        text = "".join(self._texts)
        yield {"type": "response.reasoning_text.done", **self._in_it, "text": text}
        yield {"type": "response.content_part.done", **self._in_it, "part": thought_part(text)}
        if self._with_summary:
            yield {"type": "response.reasoning_summary_text.done", **self._in_summary, "text": text}
            yield {"type": "response.reasoning_summary_part.done", **self._in_summary, "part": summary_part(text)}

    def whole(self, status: Status) -> Json:
        text = None if status == "in_progress" else "".join(self._texts)
        forms = {"with_summary": self._with_summary, "is_packed": self._is_packed}
        return thought_item(text, status, self._id, **forms)


class _Text:
    """An item that grows: a message."""

    def __init__(self, place: int) -> None:
        self.place, self._id = place, new_id("msg_")
        self._in_it = {"item_id": self._id, "output_index": place, "content_index": 0}
        self._texts: list[str] = []
        self._tokens, self._logprobs = TextTokens(), list[Json]()

    def begun(self) -> Events:
        yield {"type": "response.content_part.added", **self._in_it, "part": text_part("")}

    def grown(self, text: str, tokens: Sequence[PositionLogprobs]) -> Events:
        self._texts.append(text)
        new = [token_logprobs(token) for token in self._tokens.push(text, tokens)]
        self._logprobs += new
        yield {"type": "response.output_text.delta", **self._in_it, "delta": text, "logprobs": new}

    def done(self) -> Events:
        text = "".join(self._texts)
        yield {"type": "response.output_text.done", **self._in_it, "text": text, "logprobs": self._logprobs}
        yield {"type": "response.content_part.done", **self._in_it, "part": text_part(text, self._logprobs)}

    def whole(self, status: Status) -> Json:
        part = None if status == "in_progress" else text_part("".join(self._texts), self._logprobs)
        return message_item(part, status, self._id)


class _Call:
    """An item that grows: a call of a function."""

    def __init__(self, place: int, call_id: str, name: str) -> None:
        self.place, self._id, self._call_id, self._name = place, new_id("fc_"), call_id, name
        self._in_it = {"item_id": self._id, "output_index": place}
        self._texts: list[str] = []

    def begun(self) -> Events:
        yield from ()

    def grown(self, text: str, tokens: Sequence[PositionLogprobs]) -> Events:
        self._texts.append(text)
        yield {"type": "response.function_call_arguments.delta", **self._in_it, "delta": text}

    def done(self) -> Events:
        arguments = "".join(self._texts)
        yield {"type": "response.function_call_arguments.done", **self._in_it, "arguments": arguments}

    def whole(self, status: Status) -> Json:
        return call_item(self._call_id, self._name, "".join(self._texts), status, self._id)
