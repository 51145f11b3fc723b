"""A conversation as data."""

from __future__ import annotations

import pytest

from kaishu.cli.chat_session import Session, chat_fields, said_fields
from kaishu.errors import InvalidMessagesError, InvalidRequestError
from kaishu.results import ChatCompletion, Timing, Usage
from kaishu.sampling import SamplingParams
from kaishu.text.channels import ToolCall
from kaishu.text.messages import clean_messages


def answer(content: str = "", *, reasoning: str = "", calls: tuple[ToolCall, ...] = ()) -> ChatCompletion:
    reason = "tool_calls" if calls else "stop"
    return ChatCompletion(content, reasoning, calls, reason, (1, 2), Usage(10, 3), Timing(0.5, 0.25, 2))


@pytest.fixture
def session() -> Session:
    return Session(model="tiny")


def test_messages_begin_with_the_system_message_if_there_is_one(session):
    session.ask("hi")
    assert session.messages == [{"role": "user", "content": "hi"}]
    session.system = "Be brief."
    assert session.messages == [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi"}]


def test_an_answer_is_kept_with_its_thought_and_calls_as_the_api_writes_them(session):
    session.ask("weather?")
    session.keep(answer("Looking.", reasoning="hm", calls=(ToolCall("c1", "weather", '{"city": "Paris"}', True),)))
    assert session.turns[-1] == {
        "role": "assistant",
        "content": "Looking.",
        "reasoning_content": "hm",
        "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Paris"}'}}
        ],
    }
    assert (session.totals.answers, session.totals.completion_tokens, session.totals.decoded_tokens) == (1, 3, 2)


def test_tool_results_answer_the_calls_in_order(session):
    with pytest.raises(InvalidMessagesError):
        session.add_tool_result("4")
    session.ask("two things")
    session.keep(answer(calls=(ToolCall("c1", "a", "{}", True), ToolCall("c2", "b", "{}", True))))
    assert [call["id"] for call in session.pending_calls()] == ["c1", "c2"]
    session.add_tool_result("first")
    assert [call["id"] for call in session.pending_calls()] == ["c2"]
    session.add_tool_result("second")
    assert session.pending_calls() == []
    assert [(turn["tool_call_id"], turn["content"]) for turn in session.turns[-2:]] == [
        ("c1", "first"),
        ("c2", "second"),
    ]


def test_a_call_that_broke_off_is_not_kept(session):
    session.ask("weather?")
    session.keep(answer("Let me", calls=(ToolCall("c1", "weather", '{"ci', False),)))
    assert session.turns[-1] == {"role": "assistant", "content": "Let me"}
    assert session.pending_calls() == []


def test_a_stopped_answer_is_kept_if_it_said_something_and_else_the_question_is_taken_back(session):
    session.ask("one")
    assert session.keep_partial("half an ans")
    session.ask("two")
    assert not session.keep_partial("")
    assert [turn["content"] for turn in session.turns] == ["one", "half an ans"]


@pytest.mark.parametrize(
    "name, typed, value",
    [
        ("temperature", "0.7", 0.7),
        ("top_k", "20", 20),
        ("stop", "END", "END"),
        ("stop", "42", "42"),
        ("stop", '["a", "b"]', ["a", "b"]),
        ("ignore_eos", "true", True),
        ("logit_bias", '{"5": -1}', {"5": -1}),
    ],
)
def test_a_field_is_set_from_what_is_typed(session, name, typed, value):
    session.set_field(name, typed)
    assert session.sampling == {name: value}
    assert session.params == SamplingParams.from_fields({name: value})
    session.set_field(name, None)
    assert session.sampling == {}


@pytest.mark.parametrize(
    "name, typed, message",
    [
        ("temperature", "-1", "temperature is -1; allowed: a number of at least 0"),
        ("temperature", "warm", "temperature is 'warm'"),
        ("top_k", "1.5", "top_k is 1.5"),
        ("temprature", "1", "Did you mean temperature"),
        ("temprature", None, "Did you mean temperature"),
        ("max_tokens", "2", "min_tokens is 5"),
        ("temperature", "[" * 100_000, "temperature is"),
    ],
)
def test_a_refused_field_changes_nothing(session, name, typed, message):
    session.set_field("min_tokens", "5")
    with pytest.raises(InvalidRequestError, match=message):
        session.set_field(name, typed)
    assert session.sampling == {"min_tokens": 5}


@pytest.mark.parametrize("name", ["n", "prompt_logprobs", "output_format"])
@pytest.mark.parametrize("typed", ["2", None])
def test_a_field_that_a_chat_has_no_use_for_is_refused_with_the_reason(session, name, typed):
    with pytest.raises(InvalidRequestError, match=f"{name} can't be set in a chat: ") as caught:
        session.set_field(name, typed)
    assert caught.value.field == name and session.sampling == {}


def test_chat_fields_are_those_that_can_be_set():
    assert {"temperature", "seed", "thinking_budget"} <= set(chat_fields())
    assert not {"n", "prompt_logprobs", "output_format"} & set(chat_fields())


def test_said_fields_are_those_that_differ_from_saying_nothing():
    assert said_fields(SamplingParams()) == {}
    assert said_fields(SamplingParams(temperature=0, stop="x", seed=0)) == {"temperature": 0, "stop": ("x",), "seed": 0}


def test_reset_keeps_the_system_message_and_settings(session):
    session.system = "s"
    session.set_field("seed", "1")
    session.ask("hi")
    session.reset()
    assert (session.turns, session.system, session.sampling) == ([], "s", {"seed": 1})


def test_a_call_that_no_prompt_could_repeat_does_not_stay_in_the_way():
    session = Session("tiny")
    session.ask("?")
    session.keep(answer(calls=(ToolCall("1", 'a"b', '{"x": NaN}', is_whole=True),)))
    assert session.pending_calls()[0]["function"] == {"name": "ab", "arguments": "{}"}
    clean_messages(session.messages)


def test_a_question_can_be_taken_back_with_all_that_followed():
    session = Session("tiny", turns=[{"role": role, "content": ""} for role in ("user", "assistant", "user", "tool")])
    session.take_back(2)
    assert [turn["role"] for turn in session.turns] == ["user", "assistant"]
    session.take_back()
    assert [turn["role"] for turn in session.turns] == ["user"]
