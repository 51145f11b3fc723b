"""From the engine's events to what callers get: deltas of text or of channels, and whole answers at the end.

Owns that translation and nothing that waits. Knows nothing of threads, terminals or HTTP. Used by llm.py and
async_engine.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from kaishu.engine.stream import ChoiceEnd, Event, RequestEnd, TextPiece
from kaishu.results import (
    ChatCompletion,
    ChatEnd,
    ChoiceOver,
    Completion,
    CompletionEnd,
    FinishReason,
    PositionLogprobs,
    PromptRead,
    TextDelta,
    Timing,
    Usage,
)
from kaishu.text.channels import ChannelCollector, ChannelDelta, ChannelParser

Delta = PromptRead | TextDelta | ChannelDelta | ChoiceOver | CompletionEnd | ChatEnd
_NO_USAGE, _NO_TIMING = Usage(0, 0), Timing(0.0, 0.0, 0)  # of a choice, until the request is over


@dataclass(frozen=True)
class ChoiceDelta:
    """A delta, and which of the request's n choices it belongs to.

    token_ids, logprobs: of the steps since the last delta, with the first one that they made certain
    """

    choice: int
    delta: Delta
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[PositionLogprobs, ...] = ()

    @property
    def is_for_one_choice(self) -> bool:
        """Whether it says something where there is one choice, the whole of which comes at the end."""
        match self.delta:
            case PromptRead() | ChoiceOver() | TextDelta(""):
                return False
        return True


class CompletionDeltas:
    """One completion request's events.

    wants_text: False where the prompt alone is of interest: the engine chooses a token after it, and nobody is told
    """

    def __init__(self, *, wants_text: bool = True) -> None:
        self._wants_text = wants_text
        self._completions: dict[int, Completion] = {}

    def push(self, event: Event) -> list[ChoiceDelta]:
        """The deltas of an event; of the last one, CompletionEnd with everything."""
        if not self._wants_text:
            event = _without_text(event)
        match event:
            case PromptRead():
                return [ChoiceDelta(0, event)]
            case TextPiece(choice, text, token_ids, logprobs):
                return [ChoiceDelta(choice, TextDelta(text), token_ids, logprobs)] if text or token_ids else []
            case ChoiceEnd():
                completion = Completion(
                    event.text,
                    event.token_ids,
                    event.finish_reason,
                    _NO_USAGE,
                    _NO_TIMING,
                    event.logprobs,
                    stop_string=event.stop_string,
                )
                self._completions[event.choice] = completion
                return [ChoiceDelta(event.choice, ChoiceOver(completion))]
            case RequestEnd():
                return [ChoiceDelta(0, CompletionEnd(self._whole(event)))]

    def _whole(self, end: RequestEnd) -> Completion:
        first, *others = (
            replace(completion, usage=end.usage, timing=end.timing, prompt_logprobs=end.prompt_logprobs)
            for _, completion in sorted(self._completions.items())
        )
        return replace(first, alternatives=tuple(others))


def _without_text(event: Event) -> Event:
    match event:
        case TextPiece(choice):
            return TextPiece(choice, "", ())
        case ChoiceEnd(choice):
            return ChoiceEnd(choice, "", (), "length", 0, 0, None if event.logprobs is None else ())
        case RequestEnd(usage):
            return replace(event, usage=replace(usage, completion_tokens=0, reasoning_tokens=0))
    return event


class ChatDeltas:
    """One chat request's events.

    new_parser: makes what reads one choice
    """

    def __init__(self, new_parser: Callable[[], ChannelParser]) -> None:
        self._new_parser = new_parser
        self._parsers: dict[int, ChannelParser] = {}
        self._collectors: dict[int, ChannelCollector] = {}
        self._answers: dict[int, ChatCompletion] = {}
        self._unsaid: dict[int, tuple[tuple[int, ...], tuple[PositionLogprobs, ...]]] = {}

    def push(self, event: Event) -> list[ChoiceDelta]:
        """The deltas of an event; of the last one, ChatEnd with everything."""
        match event:
            case TextPiece(choice, text, token_ids, logprobs):
                ids_before, logprobs_before = self._unsaid.get(choice, ((), ()))
                self._unsaid[choice] = ids_before + token_ids, logprobs_before + logprobs
                return self._said(choice, self._parser(choice).push(text))
            case ChoiceEnd():
                found = self._said(event.choice, self._parser(event.choice).finish())
                answer = self._answers[event.choice] = self._answer(event)
                return [*found, ChoiceDelta(event.choice, ChoiceOver(answer))]
            case RequestEnd():
                first, *others = (
                    replace(answer, usage=event.usage, timing=event.timing)
                    for _, answer in sorted(self._answers.items())
                )
                return [ChoiceDelta(0, ChatEnd(replace(first, alternatives=tuple(others))))]
            case PromptRead():
                raise AssertionError("a chat's prompt isn't asked for log probabilities")

    def _parser(self, choice: int) -> ChannelParser:
        if choice not in self._parsers:
            self._parsers[choice], self._collectors[choice] = self._new_parser(), ChannelCollector()
        return self._parsers[choice]

    def _said(self, choice: int, deltas: list[ChannelDelta]) -> list[ChoiceDelta]:
        """A choice's deltas, the first of them with all tokens that no delta came with yet."""
        for delta in deltas:
            self._collectors[choice].add(delta)
        if not deltas:
            return []
        first, *others = deltas
        token_ids, logprobs = self._unsaid.pop(choice, ((), ()))
        return [ChoiceDelta(choice, first, token_ids, logprobs), *(ChoiceDelta(choice, delta) for delta in others)]

    def _answer(self, end: ChoiceEnd) -> ChatCompletion:
        answer = self._collectors[end.choice].result()
        called = end.finish_reason == "stop" and any(call.is_whole for call in answer.tool_calls)
        reason: FinishReason = "tool_calls" if called else end.finish_reason
        return ChatCompletion(
            content=answer.content,
            reasoning=answer.reasoning or "",
            tool_calls=answer.tool_calls,
            finish_reason=reason,
            token_ids=end.token_ids,
            usage=_NO_USAGE,
            timing=_NO_TIMING,
            logprobs=end.logprobs,
            stop_string=end.stop_string,
        )
