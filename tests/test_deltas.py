"""What callers get of the engine's events: text or channels as they come, and the whole at the end, for each choice."""

from __future__ import annotations

import itertools

import pytest

from kaishu.deltas import ChatDeltas, ChoiceDelta, CompletionDeltas
from kaishu.engine.stream import ChoiceEnd, RequestEnd, TextPiece
from kaishu.results import (
    ChatEnd,
    ChoiceOver,
    CompletionEnd,
    PositionLogprobs,
    PromptRead,
    TextDelta,
    Timing,
    TokenLogprob,
    Usage,
)
from kaishu.text.channels import (
    ChannelParser,
    ContentDelta,
    ThinkingDelta,
    ToolCallArguments,
    ToolCallEnd,
    ToolCallStart,
)

USAGE, TIMING = Usage(7, 9, 3, 2), Timing(0.5, 1.0, 8)
CALL = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'


def logprob(token_id: int) -> PositionLogprobs:
    return PositionLogprobs(TokenLogprob(token_id, str(token_id), b"", -0.5))


def end(choice: int, text: str, ids: tuple[int, ...], reason="stop", logprobs=None) -> ChoiceEnd:
    return ChoiceEnd(choice, text, ids, reason, len(ids) + 1, 0, logprobs)


def chat(thinking="closed", parse_tool_calls=True) -> ChatDeltas:
    return ChatDeltas(lambda: ChannelParser(thinking, parse_tool_calls=parse_tool_calls))


def pushed(deltas, events) -> list[ChoiceDelta]:
    return [delta for event in events for delta in deltas.push(event)]


def answered(text: str, reason="stop", **options):
    """A chat whose output is one text, in pieces of three characters, a token each."""
    pieces = [TextPiece(0, text[i : i + 3], (i,)) for i in range(0, len(text), 3)]
    events = [*pieces, end(0, text, (1,), reason), RequestEnd(USAGE, TIMING, None)]
    *found, over, last = pushed(chat(**options), events)
    assert isinstance(over.delta, ChoiceOver) and isinstance(last.delta, ChatEnd)
    return [delta.delta for delta in found], last.delta.completion


# Completions


def test_text_comes_as_it_is_and_the_end_has_the_whole():
    given = (logprob(4),)
    events = [
        PromptRead(given),
        TextPiece(0, "a", (1,), (logprob(1),)),
        TextPiece(0, "bc", (2, 3), (logprob(2), logprob(3))),
        end(0, "abc", (1, 2, 3), "length", (logprob(1), logprob(2), logprob(3))),
        RequestEnd(USAGE, TIMING, given),
    ]
    read, first, second, over, last = pushed(CompletionDeltas(), events)
    assert read == ChoiceDelta(0, PromptRead(given)) and isinstance(over.delta, ChoiceOver)
    assert [delta.is_for_one_choice for delta in (read, first, second, over, last)] == [False, True, True, False, True]
    assert first == ChoiceDelta(0, TextDelta("a"), (1,), (logprob(1),))
    assert second == ChoiceDelta(0, TextDelta("bc"), (2, 3), (logprob(2), logprob(3)))
    assert isinstance(last.delta, CompletionEnd)
    whole = last.delta.completion
    assert (whole.text, whole.token_ids, whole.finish_reason) == ("abc", (1, 2, 3), "length")
    assert (whole.usage, whole.timing, whole.prompt_logprobs, whole.alternatives) == (USAGE, TIMING, given, ())
    assert whole.logprobs == (logprob(1), logprob(2), logprob(3))


def test_tokens_whose_text_is_not_certain_yet_are_told_and_nothing_at_all_is_not():
    deltas = CompletionDeltas()
    assert deltas.push(TextPiece(0, "", (5,))) == [ChoiceDelta(0, TextDelta(""), (5,))]
    assert not ChoiceDelta(0, TextDelta(""), (5,)).is_for_one_choice
    assert deltas.push(TextPiece(0, "", ())) == []


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_choices_of_a_completion_are_in_their_order_whichever_ends_first(order):
    texts = ["zero", "one", "two"]
    pieces = [TextPiece(choice, texts[choice], (choice,)) for choice in order]
    ends = [end(choice, texts[choice], (choice,), "length" if choice == 1 else "stop") for choice in order]
    *found, last = pushed(CompletionDeltas(), [*pieces, *ends, RequestEnd(USAGE, TIMING, None)])
    said = [(delta.choice, delta.delta.text) for delta in found if isinstance(delta.delta, TextDelta)]
    assert said == [(choice, texts[choice]) for choice in order]
    overs = [(delta.choice, delta.delta.answer.text) for delta in found if isinstance(delta.delta, ChoiceOver)]
    assert overs == said, "each choice's end comes when it does"
    first = last.delta.completion
    assert [one.text for one in (first, *first.alternatives)] == texts
    assert [one.finish_reason for one in (first, *first.alternatives)] == ["stop", "length", "stop"]
    assert all(one.usage == USAGE and one.timing == TIMING for one in first.alternatives)
    assert all(one.alternatives == () for one in first.alternatives)


# Chats


def test_a_thought_and_an_answer_are_told_apart_as_they_come():
    found, whole = answered("plan it\n</think>\n\nHello.", thinking="open")
    assert "".join(delta.text for delta in found if isinstance(delta, ThinkingDelta)) == "plan it" == whole.reasoning
    assert "".join(delta.text for delta in found if isinstance(delta, ContentDelta)) == "Hello." == whole.content
    assert (whole.finish_reason, whole.usage, whole.timing) == ("stop", USAGE, TIMING)


def test_a_chat_without_a_thought_has_an_empty_one():
    _, whole = answered("Hello.")
    assert (whole.reasoning, whole.content, whole.tool_calls, whole.logprobs) == ("", "Hello.", (), None)


def test_calls_come_as_start_arguments_and_end():
    found, whole = answered(f"{CALL}\n{CALL}")
    starts = [delta for delta in found if isinstance(delta, ToolCallStart)]
    assert [(start.index, start.name) for start in starts] == [(0, "f"), (1, "f")]
    for index in (0, 1):
        arguments = [delta.text for delta in found if isinstance(delta, ToolCallArguments) and delta.index == index]
        assert "".join(arguments) == '{"a": 1}'
    assert sum(isinstance(delta, ToolCallEnd) for delta in found) == 2
    assert [(call.name, call.arguments, call.id) for call in whole.tool_calls] == [
        ("f", '{"a": 1}', start.id) for start in starts
    ]
    assert whole.finish_reason == "tool_calls" and whole.content == ""


@pytest.mark.parametrize(
    ("text", "reason", "expected"),
    [
        (CALL, "stop", "tool_calls"),
        (CALL, "length", "length"),  # something was to follow, so nobody knows whether this was all
        (CALL[:-20], "length", "length"),
        (CALL[:-20], "stop", "stop"),  # no call is whole
        (f"{CALL}\n{CALL[:-20]}", "stop", "tool_calls"),
        ("no call", "stop", "stop"),
    ],
)
def test_a_chat_ends_with_tool_calls_only_where_it_ended_by_itself_and_one_is_whole(text, reason, expected):
    assert answered(text, reason)[1].finish_reason == expected


def test_without_tools_a_call_is_text():
    found, whole = answered(CALL, parse_tool_calls=False)
    assert whole.content == CALL and all(isinstance(delta, ContentDelta) for delta in found)


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_choices_of_a_chat_are_read_each_by_itself(order):
    texts = ["a\n</think>\n\nzero", f"b\n</think>\n\n{CALL}", "c"]
    deltas = chat(thinking="open")
    pieces = [TextPiece(n, texts[n][i : i + 2], (i,)) for i in range(0, 90, 2) for n in order if i < len(texts[n])]
    ends = [end(n, texts[n], (n,), "length" if n == 2 else "stop") for n in order]
    *found, last = pushed(deltas, [*pieces, *ends, RequestEnd(USAGE, TIMING, None)])
    first = last.delta.completion
    choices = [first, *first.alternatives]
    assert [(one.reasoning, one.content) for one in choices] == [("a", "zero"), ("b", ""), ("c", "")]
    assert [one.finish_reason for one in choices] == ["stop", "tool_calls", "length"]
    assert [len(one.tool_calls) for one in choices] == [0, 1, 0]
    assert all(one.usage == USAGE and one.alternatives == () for one in first.alternatives)
    for number, one in enumerate(choices):
        streamed = [delta.delta for delta in found if delta.choice == number]
        assert "".join(d.text for d in streamed if isinstance(d, ThinkingDelta)) == one.reasoning
        assert "".join(d.text for d in streamed if isinstance(d, ContentDelta)) == one.content


def test_no_token_is_lost_while_its_text_is_held_back():
    """`</think>` comes in pieces that say nothing by themselves."""
    text = "plan\n</think>\n\nHi."
    pieces = [TextPiece(0, letter, (place,), (logprob(place),)) for place, letter in enumerate(text)]
    found = pushed(chat(thinking="open"), [*pieces, end(0, text, tuple(range(len(text))))])
    assert [token for delta in found for token in delta.token_ids] == list(range(len(text)))
    assert [one.chosen.token_id for delta in found for one in delta.logprobs] == list(range(len(text)))
    first_of_answer = next(delta for delta in found if isinstance(delta.delta, ContentDelta))
    assert first_of_answer.token_ids[-1] == text.index("H")
