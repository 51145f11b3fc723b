"""The agent loop: over a script that notes what it is asked, over the real LLM, and with the bundled model."""

from __future__ import annotations

import copy

import pytest

from kaishu.agent import NOT_ALLOWED, Answered, CallEnded, CallStarted, answer_call, run, said_call
from kaishu.errors import ContextLengthError, InvalidMessagesError, InvalidParameterError, NumericalError
from kaishu.llm import LLM
from kaishu.results import ChatCompletion, Timing, Usage
from kaishu.text.channels import ToolCall
from kaishu.text.messages import clean_messages
from kaishu.tool_functions import read_tools

QUESTION = [{"role": "user", "content": "Weather in Paris?"}]


def get_weather(city: str, days: int = 1) -> dict[str, object]:
    """Get the weather of a city."""
    if city == "Atlantis":
        raise LookupError("no such city")
    return {"city": city, "temperature": 20 + days}


def called(name: str, arguments: str, number: int = 1, *, is_whole: bool = True) -> ToolCall:
    return ToolCall(f"call_{number}", name, arguments, is_whole)


def answer(
    content: str = "", *calls: ToolCall, reasoning: str = "", finish_reason: str | None = None
) -> ChatCompletion:
    reason = finish_reason or ("tool_calls" if any(call.is_whole for call in calls) else "stop")
    return ChatCompletion(content, reasoning, calls, reason, (1,), Usage(10, 2, 4, 1), Timing(0.0, 0.0, 0))


class Script:
    """Gives these answers, or raises these errors; keeps what it was asked."""

    def __init__(self, *answers: ChatCompletion | Exception) -> None:
        self._answers = iter(answers)
        self.asked: list[list[object]] = []
        self.tools: list[object] = []

    def __call__(self, messages, *, tools):
        clean_messages(messages)  # what no template would take fails here
        self.asked.append(copy.deepcopy(messages))
        self.tools = tools
        following = next(self._answers)
        if isinstance(following, Exception):
            raise following
        return following


def test_calls_are_run_and_their_results_given_back_until_an_answer_comes():
    first = answer("Let me look.", called("get_weather", '{"city": "Paris", "days": 2}'), reasoning="hm")
    script = Script(first, answer("22 degrees."))
    given = copy.deepcopy(QUESTION)
    result = run(script, given, [get_weather])
    assert given == QUESTION, "the caller's messages stay as they are"
    assert script.tools[0]["function"]["name"] == "get_weather"
    assert script.asked[1][1:] == [
        {
            "role": "assistant",
            "content": "Let me look.",
            "reasoning_content": "hm",
            "tool_calls": [
                {
                    "id": "call_1",
                    "type": "function",
                    "function": {"name": "get_weather", "arguments": '{"city": "Paris", "days": 2}'},
                }
            ],
        },
        {
            "role": "tool",
            "tool_call_id": "call_1",
            "name": "get_weather",
            "content": '{"city": "Paris", "temperature": 22}',
        },
    ]
    assert result.messages == [*script.asked[1], {"role": "assistant", "content": "22 degrees."}]
    assert (result.content, result.finish_reason, result.num_rounds, result.num_calls) == ("22 degrees.", "stop", 2, 1)
    assert result.usage == Usage(20, 4, 8, 2)


def test_several_calls_of_one_answer_are_run_in_order():
    calls = [called("get_weather", f'{{"city": "{city}"}}', i) for i, city in enumerate(["Oslo", "Atlantis", "Rome"])]
    script = Script(answer("", *calls), answer("Done."))
    result = run(script, QUESTION, [get_weather])
    results = [message["content"] for message in script.asked[1] if message["role"] == "tool"]
    assert results == [
        '{"city": "Oslo", "temperature": 21}',
        "error: LookupError: no such city",
        '{"city": "Rome", "temperature": 21}',
    ]
    assert result.num_calls == 3


def test_the_limit_ends_the_loop_with_its_calls_run_and_it_can_go_on():
    call = answer("", called("get_weather", '{"city": "Oslo"}'))
    result = run(Script(call, call), QUESTION, [get_weather], limit=2)
    assert (result.finish_reason, result.num_rounds, result.num_calls) == ("limit", 2, 2)
    assert result.completion is call and result.messages[-1]["role"] == "tool"
    assert run(Script(answer("At last.")), result.messages, [get_weather]).content == "At last."


@pytest.mark.parametrize(
    "call, told",
    [
        (called("get_wether", "{}"), "error: there is no function 'get_wether'; allowed: 'get_weather'."),
        (called('a"b\ud800', "{}"), "error: there is no function 'a\"b\\ud800'; allowed: 'get_weather'."),
        (
            called("get_weather", '{"city": "Pa', is_whole=False),
            "error: The text of the arguments is not valid JSON: Unterminated string starting at: line 1 column 10 "
            '(char 9). The call was get_weather({"city": "Pa).',
        ),
        (
            called("get_weather", '{"city": "Oslo"}', is_whole=False),
            'error: The call broke off before its end. The call was get_weather({"city": "Oslo"}).',
        ),
        (
            called("get_weather", '{"city": NaN}'),
            "error: arguments.city is nan; allowed: a finite number, since JSON has no other. "
            'The call was get_weather({"city": NaN}).',
        ),
        (called("get_weather", '{"town": "Oslo"}'), "error: town doesn't exist; allowed: city, days."),
        (called("get_weather", '{"city": 3}'), "error: city is 3; allowed: a string."),
    ],
)
def test_a_call_that_cannot_be_made_is_told_to_the_model_and_nobody_is_asked(call, told):
    script = Script(answer("", call), answer("Sorry."))
    asked = []
    result = run(script, QUESTION, [get_weather], approve=lambda call: not asked.append(call))
    assert script.asked[1][-1]["content"] == told
    assert result.content == "Sorry."
    assert not asked


def test_what_a_prompt_cannot_repeat_of_a_call_is_left_out():
    assert said_call(called("f", '{"a": 1}')) == {"name": "f", "arguments": '{"a": 1}'}
    assert said_call(called('f"\\\n', '{"a": ')) == {"name": "f", "arguments": "{}"}
    assert said_call(called('"', "[1]")) == {"name": "none", "arguments": "{}"}


def test_a_refused_call_is_not_run_and_the_model_is_told():
    ran = []

    def delete(path: str) -> None:
        ran.append(path)

    calls = [called("delete", '{"path": "/"}', 1), called("delete", '{"path": "/tmp/a"}', 2)]
    script = Script(answer("", *calls), answer("Fine."))
    run(script, QUESTION, [delete], approve=lambda call: call.id == "call_2")
    assert ran == ["/tmp/a"]
    assert [message["content"] for message in script.asked[1][-2:]] == [NOT_ALLOWED, "null"]


def test_events_come_in_the_order_of_what_happens():
    call, refused = called("get_weather", '{"city": "Oslo"}', 1), called("get_weather", '{"city": "Rome"}', 2)
    first, last = answer("", call, refused), answer("Done.")
    events: list[object] = []
    run(Script(first, last), QUESTION, [get_weather], approve=lambda call: call.id == "call_1", on_event=events.append)
    assert events == [
        Answered(first),
        CallStarted(call),
        CallEnded(call, '{"city": "Oslo", "temperature": 21}'),
        CallEnded(refused, NOT_ALLOWED),
        Answered(last),
    ]


def test_a_call_of_a_tool_without_function_ends_the_run_for_the_caller_to_answer():
    other = {"type": "function", "function": {"name": "ask_user"}}
    calls = [called("get_weather", '{"city": "Oslo"}', 1), called("ask_user", "{}", 2)]
    result = run(Script(answer("", *calls)), QUESTION, [get_weather, other])
    assert (result.finish_reason, result.num_calls) == ("tool_calls", 0)
    assert len(result.messages[-1]["tool_calls"]) == 2


def test_an_answer_that_was_cut_short_ends_the_run_and_its_calls_are_not_run():
    cut = answer("I", called("get_weather", '{"city": "Oslo"}'), finish_reason="length")
    result = run(Script(cut), QUESTION, [get_weather])
    assert (result.finish_reason, result.num_calls) == ("length", 0)
    assert result.messages[-1] == {"role": "assistant", "content": "I"}


def test_results_that_no_longer_fit_end_the_run_but_a_question_that_does_not_is_an_error():
    first = answer("", called("get_weather", '{"city": "Oslo"}'))
    result = run(Script(first, ContextLengthError(600, 512)), QUESTION, [get_weather])
    assert (result.finish_reason, result.num_rounds, result.num_calls) == ("length", 1, 1)
    assert result.completion is first and result.messages[-1]["role"] == "tool"
    with pytest.raises(ContextLengthError):
        run(Script(ContextLengthError(600, 512)), QUESTION, [get_weather])
    with pytest.raises(NumericalError):
        run(Script(first, NumericalError("NaN")), QUESTION, [get_weather])


def test_what_cannot_be_run_is_refused_before_the_model_is_asked():
    def again(city: str) -> str: ...

    again.__name__ = "get_weather"
    script = Script()
    for limit in (0, True, 2.0):
        with pytest.raises(InvalidParameterError, match=r"limit is .*; allowed: a whole number of at least 1"):
            run(script, QUESTION, [get_weather], limit=limit)
    with pytest.raises(InvalidMessagesError, match="one tool of each name"):
        run(script, QUESTION, [get_weather, again])
    with pytest.raises(InvalidMessagesError, match="tools is"):
        run(script, QUESTION, get_weather)
    with pytest.raises(InvalidMessagesError, match="messages is 'hi'; allowed: a list of messages"):
        run(script, "hi", [get_weather])
    assert not script.asked


def test_one_call_alone():
    (function,) = read_tools([get_weather])
    assert answer_call({"get_weather": function}, called("get_weather", '{"city": "Oslo"}')).startswith('{"city"')
    assert answer_call({}, called("get_weather", "{}")).endswith("allowed: none.")


def get_current(city: str) -> dict[str, object]:
    """Get the current weather of a city

    city: the city
    """
    return {"temperature": 21, "condition": "sunny"}


@pytest.fixture(scope="module")
def tiny() -> LLM:
    return LLM("tiny", threads=1)


def test_the_bundled_model_calls_and_answers_from_the_result(tiny):
    question = [{"role": "user", "content": "What's the weather in Paris?"}]
    result = tiny.run(question, tools=[get_current], thinking=False)
    assert (result.num_rounds, result.num_calls, result.finish_reason) == (2, 1, "stop")
    assert "21" in result.content and "sunny" in result.content


def test_a_required_call_of_a_function_can_be_made(tiny):
    from kaishu.tool_functions import call_tool

    greeting = [{"role": "user", "content": "Hello!"}]
    forced = tiny.chat(greeting, tools=[get_weather], tool_choice="required", thinking=False, max_tokens=60)
    assert forced.finish_reason == "tool_calls"
    assert '"temperature"' in call_tool(get_weather, forced.tool_calls[0].arguments)
