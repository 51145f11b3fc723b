"""Items become the messages that a chat would have, and errors name the item."""

from __future__ import annotations

from typing import get_type_hints

import pytest
from openai.types import responses as types
from openai.types.responses import response_input_item_param as items
from openai.types.responses import response_reasoning_item_param as thought

from kaishu.errors import InvalidRequestError
from kaishu.openai_fields import UnknownFields, spelt
from kaishu.server.responses_input import ITEMS, PART, TOOL, Conversation, read_tools, shown_tool
from kaishu.server.responses_thoughts import packed
from kaishu.text.messages import clean_messages, clean_tools


def messages_of(given, instructions=None):
    """As the template gets them; errors as the body spells them."""
    conversation = Conversation()
    if instructions is not None:
        conversation.add_instructions(instructions)
    conversation.add_input(given)
    with spelt(conversation.names):
        return clean_messages(conversation.messages)


def user(text):
    return {"role": "user", "content": text}


CALL = {
    "type": "function_call",
    "id": "fc_1",
    "call_id": "c1",
    "name": "add",
    "arguments": '{"a": 1}',
    "status": "completed",
}
RESULT = {"type": "function_call_output", "call_id": "c1", "output": "2"}
THOUGHT = {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}]}
SAID = {
    "type": "message",
    "id": "msg_1",
    "role": "assistant",
    "status": "completed",
    "content": [{"type": "output_text", "text": "Well", "annotations": [], "logprobs": []}],
}
CALLED = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": {"a": 1}}}


def test_a_text_is_a_users_message_and_instructions_come_first():
    assert messages_of("Hi") == [user("Hi")]
    assert messages_of("Hi", "Be kind.") == [{"role": "system", "content": "Be kind."}, user("Hi")]


@pytest.mark.parametrize("role, read", [("user", "user"), ("system", "system"), ("developer", "system")])
def test_a_message_has_a_text_or_parts_of_text(role, read):
    parts = [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]
    for item in ({"role": role, "content": parts}, {"type": "message", "role": role, "content": "ab"}):
        assert messages_of([item]) == [{"role": read, "content": "ab"}]


def test_thought_text_and_calls_are_one_turn_of_the_assistant():
    turn = {"role": "assistant", "reasoning_content": "Hm.", "content": "Well", "tool_calls": [CALLED]}
    result = {"role": "tool", "tool_call_id": "c1", "content": "2"}
    assert messages_of([user("?"), THOUGHT, SAID, CALL, RESULT]) == [user("?"), turn, result]


def test_calls_at_the_same_time_are_of_one_turn_and_each_has_its_result():
    other = {**CALL, "call_id": "c2", "name": "sub"}
    read = messages_of([user("?"), CALL, other, RESULT, {**RESULT, "call_id": "c2"}, SAID])
    assert [message["role"] for message in read] == ["user", "assistant", "tool", "tool", "assistant"]
    assert [call["function"]["name"] for call in read[1]["tool_calls"]] == ["add", "sub"]


def test_a_text_after_a_call_and_a_thought_after_a_text_are_of_further_turns():
    read = messages_of([user("?"), CALL, RESULT, SAID, SAID, THOUGHT, SAID])
    assert [message["role"] for message in read] == ["user", "assistant", "tool", *["assistant"] * 3]
    assert [message.get("reasoning_content") for message in read[-3:]] == [None, None, "Hm."]
    called, spoken, _ = messages_of([user("?"), CALL, SAID, RESULT])[1:]
    assert called["content"] == "" and spoken == {"role": "assistant", "content": "Well"}, "in the order they came"


def test_a_thought_is_its_content_or_else_its_summary_and_an_empty_one_is_none():
    summed = {"type": "reasoning", "id": "r", "summary": [{"type": "summary_text", "text": t} for t in ("A.", "B.")]}
    empty = {"type": "reasoning", "id": "r", "summary": [], "encrypted_content": None}
    assert messages_of([user("?"), summed, SAID])[1]["reasoning_content"] == "A.\n\nB."
    assert messages_of([user("?"), THOUGHT, summed, SAID])[1]["reasoning_content"] == "Hm.\n\nA.\n\nB."
    assert "reasoning_content" not in messages_of([user("?"), empty, SAID])[1]


def test_a_thought_that_was_packed_here_is_read_where_its_content_was_not_kept():
    kept = {"type": "reasoning", "id": "r", "summary": [{"type": "summary_text", "text": "S"}]}
    kept["encrypted_content"] = packed("Whole.")
    assert messages_of([user("?"), kept, SAID])[1]["reasoning_content"] == "Whole."
    both = {**THOUGHT, "encrypted_content": packed("Whole.")}
    assert messages_of([user("?"), both, SAID])[1]["reasoning_content"] == "Hm."
    wrong = {**kept, "encrypted_content": packed("\x00\ufffe")}
    assert messages_of([user("?"), wrong, SAID])[1]["reasoning_content"] == "\x00\ufffe", "as any other text"


def test_a_result_may_be_parts_of_text():
    parts = [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]
    assert messages_of([CALL, {**RESULT, "output": parts}])[1]["content"] == "ab"


REFUSED = [
    (None, "input"),
    ([], "input"),
    (7, "input"),
    (["Hi"], "input[0]"),
    ([{}], "input[0].type"),
    ([{"type": "web_search_call", "id": "w"}], "input[0].type"),
    ([{"id": "msg_1"}], "input[0]"),
    ([{"type": "item_reference", "id": "msg_1"}], "input[0]"),
    ([user("?"), {"role": "tool", "content": "x"}], "input[1].role"),
    ([{"role": "user"}], "input[0].content"),
    ([{"role": "user", "content": []}], "input[0].content"),
    ([{"role": "user", "content": ["x"]}], "input[0].content[0]"),
    ([{"role": "user", "content": [{"type": "input_text"}]}], "input[0].content[0].text"),
    ([{"role": "user", "content": [{"type": "input_text", "text": "\ud800"}]}], "input[0].content[0].text"),
    ([{"role": "user", "content": "\ud800"}], "input[0].content"),
    ([{"role": "user", "content": "x", "colour": "red"}], "input[0].colour"),
    ([CALL, RESULT, {**CALL, "arguments": "[1]"}, RESULT], "input[2].arguments"),
    ([SAID, {**CALL, "arguments": "{"}, RESULT], "input[1].arguments"),
    ([{**CALL, "name": 'a"b'}, RESULT], "input[0].name"),
    ([user("?"), CALL, user("!")], "input[1]"),
    ([CALL, CALL, RESULT], "input[1].call_id"),
    ([CALL, RESULT, RESULT], "input[2].call_id"),
    ([{**CALL, "call_id": None}], "input[0].call_id"),
    ([{**CALL, "caller": {"type": "program", "caller_id": "p"}}], "input[0].caller"),
    ([user("?"), RESULT], "input[1].call_id"),
    ([CALL, {**RESULT, "output": None}], "input[1].output"),
    ([CALL, {**RESULT, "output": [{"type": "input_image", "image_url": "u"}]}], "input[1].output[0].type"),
    ([{**THOUGHT, "encrypted_content": "gAAA"}], "input[0].encrypted_content"),
    ([{**THOUGHT, "content": [{"type": "text", "text": "x"}]}], "input[0].content[0].type"),
]


@pytest.mark.parametrize("given, field", REFUSED)
def test_what_can_not_be_read_is_refused_with_its_place(given, field):
    with pytest.raises(InvalidRequestError) as caught:
        messages_of(given)
    assert caught.value.field == field
    assert caught.value.message.startswith((field, 'There is no field "colour" in input[0];'))


@pytest.mark.parametrize(
    "table, theirs",
    [
        (ITEMS["message"], [items.EasyInputMessageParam, items.Message, items.ResponseOutputMessageParam]),
        (ITEMS["function_call"], [items.ResponseFunctionToolCallParam]),
        (ITEMS["function_call_output"], [items.FunctionCallOutput]),
        (ITEMS["reasoning"], [items.ResponseReasoningItemParam]),
        (PART, [types.ResponseInputTextParam, types.ResponseOutputTextParam, thought.Content, thought.Summary]),
        (TOOL, [types.FunctionToolParam]),
    ],
)
def test_every_key_that_the_client_can_send_has_its_place_and_no_other(table, theirs):
    assert {key for one in theirs for key in get_type_hints(one)} == set(table)


def test_keys_that_no_item_has_are_noted_with_their_places_however_little_they_say():
    unknown = UnknownFields(are_allowed=True)
    conversation = Conversation(unknown)
    part = {"type": "input_text", "text": "x", "size": 0}
    thought = {**THOUGHT, "content": [{"type": "reasoning_text", "text": "Hm.", "tone": {}}]}
    said = {"role": "user", "content": [part], "colour": ""}
    result = {**RESULT, "b": [], "output": [{**part, "annotations": []}]}
    conversation.add_input([said, thought, {**CALL, "a": None}, result])
    read_tools([{"type": "function", "name": "f", "c": {}}], unknown)
    assert unknown.places == [
        "input[0].colour",
        "input[0].content[0].size",
        "input[1].content[0].tone",
        "input[2].a",
        "input[3].b",
        "input[3].output[0].size",
        "tools[0].c",
    ]


@pytest.mark.parametrize("kind", ["input_image", "input_file", "input_audio", "refusal"])
def test_parts_that_are_no_text_are_refused_by_name(kind):
    with pytest.raises(InvalidRequestError, match=f"{kind}.*\n  The model reads text only") as caught:
        messages_of([{"role": "user", "content": [{"type": "input_text", "text": "?"}, {"type": kind}]}])
    assert caught.value.field == "input[0].content[1].type"


def test_instructions_that_are_no_text_are_refused():
    for instructions, message in (([user("x")], "instructions is"), ("\ud800", "instructions has")):
        with pytest.raises(InvalidRequestError, match=message) as caught:
            messages_of("Hi", instructions)
        assert caught.value.field == "instructions"


def tools_of(given):
    tools, names = read_tools(given, UnknownFields())
    with spelt(names):
        return clean_tools(tools)


def test_a_function_becomes_the_chats_form_of_it():
    parameters = {"type": "object", "properties": {}}
    flat = {"type": "function", "name": "f", "description": "d", "parameters": parameters, "strict": True}
    assert tools_of([flat]) == [
        {"type": "function", "function": {"name": "f", "description": "d", "parameters": parameters}}
    ]
    assert tools_of([{"type": "function", "name": "g", "parameters": None}]) == [
        {"type": "function", "function": {"name": "g"}}
    ]
    assert shown_tool({"type": "function", "name": "g"}) == {
        "type": "function",
        "name": "g",
        "description": None,
        "parameters": None,
        "strict": None,
    }


@pytest.mark.parametrize(
    "given, field",
    [
        ("x", "tools"),
        ([1], "tools[0]"),
        ([{"type": "web_search"}], "tools[0].type"),
        ([{"name": "f"}], "tools[0].type"),
        ([{"type": "function"}], "tools[0].name"),
        ([{"type": "function", "name": "f"}, {"type": "function", "name": "f"}], "tools[1].name"),
        ([{"type": "function", "name": "f", "parameters": 1}], "tools[0].parameters"),
        ([{"type": "function", "name": "f", "strict": 1}], "tools[0].strict"),
        ([{"type": "function", "name": "f", "defer_loading": True}], "tools[0].defer_loading"),
        ([{"type": "function", "function": {"name": "f"}}], "tools[0].function"),
    ],
)
def test_other_tools_are_refused_by_name(given, field):
    with pytest.raises(InvalidRequestError) as caught:
        tools_of(given)
    assert caught.value.field == field
