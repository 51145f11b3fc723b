"""Conversations in Anthropic's form, translated: what becomes of each block, and what is refused with its place."""

from __future__ import annotations

from typing import Any

import pytest

from kaishu.errors import InvalidRequestError
from kaishu.openai_fields import UnknownFields
from kaishu.server.messages_history import MAX_BLOCKS, History, system_text
from kaishu.text.messages import clean_messages

CALLS = {
    "role": "assistant",
    "content": [
        {"type": "thinking", "thinking": "Both.", "signature": "s"},
        {"type": "redacted_thinking", "data": "xyz"},
        {"type": "text", "text": "I look "},
        {"type": "text", "text": "it up."},
        {"type": "tool_use", "id": "a", "name": "weather", "input": {"city": "Berlin"}},
        {"type": "tool_use", "id": "b", "name": "time", "input": {}, "caller": {"type": "direct"}},
    ],
}


STRICT = UnknownFields()


def read(messages: Any, unknown: UnknownFields = STRICT) -> History:
    return History(messages, unknown)


def result(call_id: str, content: Any = "ok", **more: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": call_id, "content": content, **more}


def user(*content: Any) -> dict[str, Any]:
    return {"role": "user", "content": list(content)}


def text(said: str) -> dict[str, Any]:
    return {"type": "text", "text": said}


ASKED = user(text("Hi"))


def test_blocks_become_texts_thoughts_calls_and_results_in_the_order_of_the_calls() -> None:
    answered = user(text("And now?"), result("b", [text("noon"), text("sharp")]), result("a", "rain", is_error=True))
    history = read([ASKED, CALLS, answered])
    assert history.messages == [
        {"role": "user", "content": "Hi"},
        {
            "role": "assistant",
            "content": "I look it up.",
            "reasoning_content": "Both.",
            "tool_calls": [
                {"id": "a", "type": "function", "function": {"name": "weather", "arguments": {"city": "Berlin"}}},
                {"id": "b", "type": "function", "function": {"name": "time", "arguments": {}}},
            ],
        },
        {"role": "tool", "content": "error: rain", "tool_call_id": "a"},
        {"role": "tool", "content": "noon\n\nsharp", "tool_call_id": "b"},
        {"role": "user", "content": "And now?"},
    ]
    assert history.places == ["messages[0]", "messages[1]", "messages[2]", "messages[2]", "messages[2]"]
    assert not history.ends_with_assistant
    assert len(clean_messages(history.messages)) == 5, "it is what templates take"


def test_results_may_come_in_several_messages_and_have_no_content() -> None:
    history = read([ASKED, CALLS, user({"type": "tool_result", "tool_use_id": "a"}), user(result("b"))])
    assert [message["content"] for message in history.messages[2:]] == ["", "ok"]


def test_a_string_is_one_text_and_system_messages_stay_where_they_are() -> None:
    history = read(
        [{"role": "user", "content": "a"}, {"role": "system", "content": "b"}, {"role": "assistant", "content": "c"}]
    )
    assert [(message["role"], message["content"]) for message in history.messages] == [
        ("user", "a"),
        ("system", "b"),
        ("assistant", "c"),
    ]
    assert history.ends_with_assistant


def test_a_thought_that_was_left_out_is_none() -> None:
    answered = {"role": "assistant", "content": [{"type": "thinking", "thinking": "", "signature": "s"}, text("x")]}
    assert read([ASKED, answered]).messages[1] == {"role": "assistant", "content": "x"}


def test_an_answer_of_no_blocks_can_be_sent_back() -> None:
    assert read([ASKED, {"role": "assistant", "content": []}, ASKED]).messages[1]["content"] == ""


def test_system_is_a_text_or_several() -> None:
    assert system_text("Be brief.", STRICT) == "Be brief."
    assert system_text([text("Be brief."), {**text("Be kind."), "cache_control": {"type": "ephemeral"}}], STRICT) == (
        "Be brief.\n\nBe kind."
    )


def test_keys_that_no_message_and_no_block_has_are_noted_with_their_places() -> None:
    unknown = UnknownFields(are_allowed=True)
    answered = user({**result("a", [{**text("x"), "c": None}]), "b": ""}, result("b"))
    read([{**ASKED, "a": 1}, CALLS, answered], unknown)
    assert unknown.places == ["messages[0].a", "messages[2].content[0].b", "messages[2].content[0].content[0].c"]
    system_text([{**text("x"), "d": 1}], unknown)
    assert unknown.places[-1] == "system[0].d"


@pytest.mark.parametrize(
    ("messages", "field", "words"),
    [
        (None, "messages", "a list of at least one message"),
        ([], "messages", "a list of at least one message"),
        (["Hi"], "messages[0]", "an object"),
        ([{"role": "tool", "content": "x"}], "messages[0].role", "user, assistant, system"),
        ([{"role": "user", "content": "x", "name": "y"}], "messages[0].name", "There is no field"),
        ([{"role": "user"}], "messages[0].content", "a string or a list of blocks"),
        ([{"role": "user", "content": []}], "messages[0].content", "at least one block"),
        ([user("x")], "messages[0].content[0]", "an object"),
        ([user({"type": "text"})], "messages[0].content[0].text", "a string"),
        ([user(text("\ud800"))], "messages[0].content[0].text", "messages[0].content[0].text"),
        ([{"role": "user", "content": "\ud800"}], "messages[0].content", "messages[0].content"),
        ([user({"type": "image", "source": {}})], "messages[0].content[0].type", "reads text only"),
        ([user({"type": "document", "source": {}})], "messages[0].content[0].type", "reads text only"),
        ([user({"type": "thinking", "thinking": "x"})], "messages[0].content[0].type", "text, tool_result"),
        ([user(result("a"))], "messages[0].content[0].tool_use_id", "there are none"),
        ([ASKED, CALLS, user(result("c"))], "messages[2].content[0].tool_use_id", "(a, b)"),
        ([ASKED, CALLS, user(result("a"), result("a"))], "messages[2].content[1].tool_use_id", "'a'"),
        ([ASKED, CALLS, user(result("a"))], "messages[1]", "no result of b"),
        ([ASKED, CALLS, user(result("a")), CALLS], "messages[1]", "no result of b"),
        ([ASKED, CALLS, user(result("a", 5))], "messages[2].content[0].content", "a string or a list"),
        ([ASKED, CALLS, user(result("a", [{"type": "image"}]))], "messages[2].content[0].content[0].type", "text only"),
        ([ASKED, CALLS, user(result("a", is_error="no"))], "messages[2].content[0].is_error", "true or false"),
        ([ASKED, CALLS, CALLS], "messages[2].content[4].id", "no other call has"),
        (
            [ASKED, {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "f", "input": "{}"}]}],
            "messages[1].content[0].input",
            "an object",
        ),
        (
            [ASKED, {"role": "assistant", "content": [{"type": "server_tool_use"}]}],
            "messages[1].content[0].type",
            "tool_use",
        ),
        ([user(*[text("x")] * (MAX_BLOCKS + 1))], "messages[0].content", "10,001 blocks"),
        ([user(*[text("x")] * 6000), user(*[text("x")] * 6000)], "messages", "more than 10,000 blocks"),
    ],
)
def test_what_cannot_be_translated_is_refused_with_its_place(messages: Any, field: str, words: str) -> None:
    with pytest.raises(InvalidRequestError) as found:
        read(messages)
    assert found.value.field == field and words in str(found.value)


def test_ten_thousand_calls_and_results_take_no_quadratic_time() -> None:
    """2 · 4,999 blocks; a list of open calls would be searched 25 million times."""
    calls = [{"type": "tool_use", "id": str(number), "name": "f", "input": {}} for number in range(4999)]
    results = [result(str(number)) for number in reversed(range(4999))]
    history = read([ASKED, {"role": "assistant", "content": calls}, *(user(one) for one in results)])
    assert [message["tool_call_id"] for message in history.messages[2:4]] == ["4998", "4997"]
