"""Chunks of streamed completions add up to the whole answer, however the engine cuts its events."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from kaishu.deltas import CompletionDeltas
from kaishu.engine.stream import ChoiceEnd, Event, RequestEnd, TextPiece
from kaishu.openai_requests import read_completion
from kaishu.openai_responses import Echo, completion_response
from kaishu.results import CompletionEnd, PositionLogprobs, PromptRead, Timing, TokenLogprob, Usage
from kaishu.server.completion_chunks import CompletionChunks

LETTERS = st.sampled_from(["a", "bc", " ", "\n", "é", "楷", "🙂"])
LISTS = ("tokens", "token_logprobs", "top_logprobs", "text_offset")


def position(token_id: int, text: str) -> PositionLogprobs:
    token = TokenLogprob(token_id, text, text.encode(), -0.25 * (token_id + 1))
    return PositionLogprobs(token, (TokenLogprob(9, "other", b"other", -0.125), token))


@st.composite
def jobs(draw: st.DrawFn, n: int, prompt: tuple[PositionLogprobs, ...] | None) -> list[Event]:
    """The engine's events of one prompt."""
    queues: list[list[Event]] = []
    for choice in range(n):
        tokens = draw(st.lists(LETTERS, max_size=5))
        positions = tuple(position(i, text) for i, text in enumerate(tokens))
        events: list[Event] = []
        done, num_hidden = 0, 0  # the text of the last tokens may come late
        while done < len(tokens):
            upto = draw(st.integers(done + 1, len(tokens)))
            held = draw(st.integers(0, min(1, upto - done)))
            text = "".join(tokens[num_hidden : upto - held])
            events.append(TextPiece(choice, text, tuple(range(done, upto)), positions[done:upto]))
            done, num_hidden = upto, upto - held
        rest = "".join(tokens[num_hidden:])
        if rest:
            events.append(TextPiece(choice, rest, ()))
        reason = draw(st.sampled_from(["stop", "length"]))
        events.append(ChoiceEnd(choice, "".join(tokens), (1,), reason, len(tokens), 0, positions))
        queues.append(events)
    mixed: list[Event] = []
    while any(queues):
        mixed.append(draw(st.sampled_from([queue for queue in queues if queue])).pop(0))
    read = [] if prompt is None else [PromptRead(prompt)]
    return [*read, *mixed, RequestEnd(Usage(3, 4, 1), Timing(0.0, 0.0, 0), prompt)]


def call_of(num_prompts: int, n: int, **fields: Any):
    body = {"model": "m", "prompt": ["p"] * num_prompts, "n": n, "stream": True, **fields}
    return read_completion(body, may_stream=True)


def added_up(chunks: list[dict[str, Any]], num_choices: int) -> list[dict[str, Any]]:
    found = [{"index": i, "text": "", "logprobs": None, "finish_reason": None} for i in range(num_choices)]
    for chunk in chunks:
        assert chunk["object"] == "text_completion" and chunk["model"] == "m" and chunk["id"] == chunks[0]["id"]
        for choice in chunk["choices"]:
            whole = found[choice["index"]]
            assert whole["finish_reason"] is None, "nothing follows the end"
            whole["text"] += choice["text"]
            whole["finish_reason"] = choice["finish_reason"]
            if choice["logprobs"] is not None:
                assert set(choice["logprobs"]) == set(LISTS)
                whole["logprobs"] = whole["logprobs"] or {name: [] for name in LISTS}
                for name in LISTS:
                    whole["logprobs"][name] += choice["logprobs"][name]
    return found


@given(st.data(), st.integers(1, 3), st.integers(1, 2), st.booleans(), st.booleans(), st.booleans(), st.booleans())
def test_chunks_add_up_to_the_whole_answer(data, num_prompts, n, wants_logprobs, include_usage, echoes, wants_text):
    fields: dict[str, Any] = {"logprobs": 1} if wants_logprobs else {}
    if include_usage:
        fields["stream_options"] = {"include_usage": True}
    if echoes:
        fields |= {"echo": True} if wants_text else {"echo": True, "max_tokens": 0}
    call = call_of(num_prompts, n, **fields)
    prompts = [data.draw(st.lists(LETTERS, min_size=1, max_size=4)) for _ in range(num_prompts)]
    said = [Echo("".join(one), position(0, one[0]).chosen) for one in prompts] if echoes else None
    chunks, made, answers = CompletionChunks(call, said), [], {}
    queues = []
    for place, prompt in enumerate(prompts):
        read = tuple(position(i, text) for i, text in enumerate(prompt[1:])) if echoes and wants_logprobs else None
        queues.append((place, data.draw(jobs(n, read)), call.new_deltas()))
    while any(events for _, events, _ in queues):
        place, events, deltas = data.draw(st.sampled_from([one for one in queues if one[1]]))
        for found in deltas.push(events.pop(0)):
            made += chunks.push(place, found)
            if isinstance(found.delta, CompletionEnd):
                answers[place] = found.delta.completion
    made += chunks.end()
    whole = completion_response([answers[place] for place in range(num_prompts)], "m", echoes=said)
    if include_usage:
        assert made[-1]["choices"] == [] and made[-1]["usage"] == whole["usage"]
        assert all(chunk["usage"] is None for chunk in made[:-1])
    else:
        assert all("usage" not in chunk for chunk in made)
    found = added_up(made, num_prompts * n)
    for choice, expected in zip(found, whole["choices"], strict=True):
        if not wants_logprobs or not expected["logprobs"]["tokens"]:
            expected["logprobs"] = None
        assert choice == expected
    if not call.wants_text:
        assert [choice["text"] for choice in found] == ["".join(prompt) for prompt in prompts for _ in range(n)]
        assert {choice["finish_reason"] for choice in found} == {"length"}
        assert all(answer.usage.completion_tokens == 0 for answer in answers.values())


def test_a_choice_that_is_over_says_so_before_others_are():
    chunks, deltas = CompletionChunks(call_of(1, 2), None), CompletionDeltas()
    events = [TextPiece(1, "b", (1,)), ChoiceEnd(1, "b", (1,), "stop", 1, 0, None), TextPiece(0, "a", (1,))]
    made = [chunk for event in events for found in deltas.push(event) for chunk in chunks.push(0, found)]
    said = [chunk["choices"][0] for chunk in made]
    assert [(one["index"], one["text"], one["finish_reason"]) for one in said] == [
        (1, "b", None),
        (1, "", "stop"),
        (0, "a", None),
    ]
