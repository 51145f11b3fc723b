"""What a message and a tool may be, and what is said about those that may not."""

from __future__ import annotations

import copy
import json
import re

import pytest

from kaishu.errors import InvalidMessagesError
from kaishu.text.messages import MAX_PARTS, MAX_TOOLS, clean_messages, clean_tools

ASK = {"role": "user", "content": "q"}


def called(arguments: object) -> list[dict]:
    call = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": arguments}}
    return [ASK, {"role": "assistant", "content": None, "tool_calls": [call]}]


def arguments_of(messages: list[dict]) -> object:
    return clean_messages(messages)[1]["tool_calls"][0]["function"]["arguments"]


@pytest.mark.parametrize("text", ['{"b": 1, "a": "北京"}', '{"b":1,"a":"\\u5317\\u4eac"}', ' {"b": 1,\n"a": "北京"} '])
def test_arguments_as_a_string_are_the_object_that_it_holds(text):
    assert list(arguments_of(called(text)).items()) == [("b", 1), ("a", "北京")]


@pytest.mark.parametrize(
    "arguments",
    [
        *("", " ", "null", "[]", "{bad", '"{}"', "5", None, [], 5, '{"a": NaN}', '{"a": 1e999}', {"a": float("inf")}),
        *('{"a": "\\ud800"}', '{"a": ' + "9" * 5000 + "}", '{"a":' * 5000 + "1" + "}" * 5000, {"a": object()}, {1: 2}),
    ],
    ids=lambda value: repr(value)[:20],
)
def test_arguments_that_are_no_object_are_an_error_that_names_them(arguments):
    with pytest.raises(InvalidMessagesError, match=r"messages\[1\]\.tool_calls\[0\]\.function\.arguments"):
        clean_messages(called(arguments))


def test_a_string_and_the_dict_render_alike(template):
    arguments = {"it's": "<b>查询</b> & a/b", "n": [1, None, {"k": 2.5}]}
    assert (
        template.render(called(json.dumps(arguments))).text
        == template.render(called(json.dumps(arguments, ensure_ascii=False, indent=1))).text
        == template.render(called(arguments)).text
    )
    assert (
        '"arguments": {"it\'s": "<b>查询</b> & a/b", "n": [1, null, {"k": 2.5}]}'
        in template.render(called(arguments)).text
    )


def test_the_callers_objects_are_left_alone(template):
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}]
    messages = [
        {"role": "developer", "content": [{"type": "text", "text": "a"}]},
        *called('{"a": {"b": []}}'),
        {"role": "tool", "content": {"x": 1}},
    ]
    before = copy.deepcopy((messages, tools))
    cleaned = clean_messages(messages)
    cleaned[2]["tool_calls"][0]["function"]["arguments"]["a"]["b"].append(1)
    clean_tools(tools)[0]["function"]["parameters"]["type"] = "changed"
    template.render(messages, tools=tools)
    assert (messages, tools) == before


def test_text_parts_are_the_string_that_they_add_up_to(template):
    parts = [{"type": "text", "text": "a<b"}, {"type": "text", "text": ""}, {"type": "text", "text": "\nc"}]
    for role in ("system", "user", "assistant", "tool"):
        whole = [ASK, {"role": role, "content": "a<b\nc"}]
        assert template.render([ASK, {"role": role, "content": parts}]).text == template.render(whole).text


def test_an_object_as_a_tools_content_is_json(template):
    prompt = template.render([ASK, {"role": "tool", "content": {"b": "北京", "a": [1.5, None]}}])
    assert '<tool_response>\n{"b": "北京", "a": [1.5, null]}\n</tool_response>' in prompt.text


@pytest.mark.parametrize("fields", [{}, {"content": None}, {"content": ""}, {"content": None, "refusal": None}])
def test_an_assistant_may_say_nothing_and_never_says_none(fields, template):
    prompt = template.render([ASK, {"role": "assistant", **fields}, ASK])
    assert "None" not in prompt.text and "null" not in prompt.text
    assert "<|im_start|>assistant\n<|im_end|>" in prompt.text


def test_what_sdks_send_back_is_understood():
    dumped = {
        "role": "assistant",
        "content": "Hi",
        "refusal": None,
        "annotations": [],
        "audio": None,
        "function_call": None,
        "tool_calls": None,
        "reasoning": "r",
    }
    assert clean_messages([dumped]) == [{"role": "assistant", "content": "Hi", "reasoning_content": "r"}]


def test_developer_counts_as_system_first_or_late(template):
    first = [{"role": "developer", "content": "D"}, ASK]
    assert template.render(first).text == template.render([{"role": "system", "content": "D"}, ASK]).text
    late = template.render([ASK, {"role": "developer", "content": "D"}, ASK, {"role": "system", "content": "E"}]).text
    assert "<|im_start|>system\nD<|im_end|>" in late and "<|im_start|>system\nE<|im_end|>" in late


WRONG_MESSAGES = {
    "messages is empty": [],
    "messages is null": None,
    "messages is a string": "hi",
    "messages is an object": ASK,
    "messages[0] is a string": ["hi"],
    "messages[1] is null": [ASK, None],
    "messages[0].role is missing": [{"content": "x"}],
    "messages[0].role is 'wizard'": [{"role": "wizard", "content": "x"}],
    "messages[0].role is ['user']": [{"role": ["user"], "content": "x"}],
    "messages[0].content is missing or null": [{"role": "user"}],
    "messages[0].content is missing or null; allowed: a string or a list of text parts, or an object": [
        {"role": "tool"}
    ],
    "messages[0].content is a number": [{"role": "user", "content": 5}],
    "messages[0].content is a boolean": [{"role": "assistant", "content": True}],
    "messages[0].content is an object": [{"role": "user", "content": {"a": 1}}],
    "messages[0].content is an empty list": [{"role": "user", "content": []}],
    "messages[0].content[1] is a part of type 'image_url'": [
        {"role": "user", "content": [{"type": "text", "text": "x"}, {"type": "image_url", "image_url": {"url": "u"}}]}
    ],
    "messages[0].content[0] has no type": [{"role": "user", "content": [{"text": "x"}]}],
    "messages[0].content[0] is a string": [{"role": "user", "content": ["x"]}],
    "messages[0].content[0].text is missing or null": [{"role": "user", "content": [{"type": "text"}]}],
    "messages[0].content[0].text is a number": [{"role": "user", "content": [{"type": "text", "text": 1}]}],
    "messages[0].content[0].foo is not a field of a text part": [
        {"role": "user", "content": [{"type": "text", "text": "x", "foo": 1}]}
    ],
    "messages[0].content[0].image_url is not a field": [
        {"role": "user", "content": [{"type": "text", "text": "x", "image_url": {"url": "u"}}]}
    ],
    "messages[0].content has a lone surrogate, U+D83D, at character 2": [{"role": "user", "content": "ab\ud83dc"}],
    "messages[0]: a key has a lone surrogate": [{"role": "user", "content": "a", "\udc00": 1}],
    "messages[0] has the key 5": [{"role": "user", "content": "a", 5: 1}],
    "messages[0].contents is not a field": [{"role": "user", "content": "a", "contents": "b"}],
    "messages[0].audio is not a field": [{"role": "assistant", "content": "a", "audio": {"id": "x"}}],
    "messages[0].reasoning differs": [{"role": "assistant", "reasoning": "a", "reasoning_content": "b"}],
    "messages[0].reasoning_content is in a message of role user": [ASK | {"reasoning_content": "r"}],
    "messages[0].tool_calls is in a message of role user": [ASK | {"tool_calls": [1]}],
    "messages[0].tool_calls is a string": [{"role": "assistant", "tool_calls": "x"}],
    "messages[0].tool_calls is a boolean": [{"role": "assistant", "tool_calls": False}],
    "messages[0].tool_calls[0] is a string": [{"role": "assistant", "tool_calls": ["x"]}],
    "messages[0].tool_calls[0].function is null": [{"role": "assistant", "tool_calls": [{"function": None}]}],
    "messages[0].tool_calls[0].type is 'x'": [{"role": "assistant", "tool_calls": [{"type": "x"}]}],
    "messages[0].tool_calls[0].name is missing": [{"role": "assistant", "tool_calls": [{"arguments": {}}]}],
    "messages[0].tool_calls[0].name is 'a\"b'": [
        {"role": "assistant", "tool_calls": [{"name": 'a"b', "arguments": {}}]}
    ],
    "messages[0].tool_calls[0].foo is not a field of a call": [
        {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": {}}, "foo": 1}]}
    ],
    "messages[0].tool_calls[0].name is not a field of a call": [
        {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": {}}, "name": "g"}]}
    ],
    "messages[0].tool_calls[0].function.foo is not a field of a called function": [
        {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": {}, "foo": 1}}]}
    ],
    "messages[0].tool_calls[0].id is a number": [
        {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": {}}, "id": 5}]}
    ],
    "messages[0].name is a number": [ASK | {"name": 5}],
    "messages[0].tool_call_id is a list": [{"role": "tool", "content": "x", "tool_call_id": [1]}],
}


@pytest.mark.parametrize("found, messages", WRONG_MESSAGES.items(), ids=WRONG_MESSAGES)
def test_wrong_messages_are_named_by_path(found, messages):
    with pytest.raises(InvalidMessagesError, match=re.escape(found)) as caught:
        clean_messages(messages)
    assert "allowed: " in caught.value.message
    assert caught.value.message.startswith(caught.value.field)
    caught.value.message.encode()  # an error about text that can't be encoded can itself be shown


class Message:
    def model_dump(self) -> dict:
        return ASK


def test_an_object_instead_of_a_dict_says_what_to_pass():
    with pytest.raises(InvalidMessagesError, match=r"Python Message[\s\S]*model_dump\(\)"):
        clean_messages([Message()])


def function(**fields: object) -> dict:
    return {"type": "function", "function": {"name": "f", **fields}}


WRONG_TOOLS = {
    "tools[0].function.parameters.x is a number of 16,610 bits": [function(parameters={"x": 10**5000})],
    "tools[0].type is a number of thousands of digits": [{"type": 10**5000}],
    "tools is an object": {"type": "function"},
    "tools is a string": "f",
    "tools[0] is a string": ["f"],
    "tools[0].type is missing": [{"name": "f"}],
    "tools[0].type is 'retrieval'": [{"type": "retrieval"}],
    "tools[0].function is null": [{"type": "function"}],
    "tools[0].function.name is missing": [{"type": "function", "function": {}}],
    "tools[0].function.name is ''": [function(name="")],
    "tools[0].function.name is 'a\\nb'": [function(name="a\nb")],
    "tools[0].function.name is a number": [function(name=5)],
    "tools[0].function.description is a number": [function(description=5)],
    "tools[0].function.strict is a string": [function(strict="yes")],
    "tools[0].function.parameters is a list": [function(parameters=[])],
    "tools[0].function.parameters.x is nan": [function(parameters={"x": float("nan")})],
    "tools[0].function.parameters.x is a Python set": [function(parameters={"x": {1}})],
    "tools[0].function.parameters has the key 1": [function(parameters={1: 2})],
    "tools[0].function.parameters.x[1] has a lone surrogate": [function(parameters={"x": ["a", "\udfff"]})],
    "tools[1].function.name is 'f' again": [function(), function()],
}


@pytest.mark.parametrize("found, tools", WRONG_TOOLS.items(), ids=WRONG_TOOLS)
def test_wrong_tools_are_named_by_path(found, tools):
    with pytest.raises(InvalidMessagesError, match=re.escape(found)):
        clean_tools(tools)


def test_a_byte_that_is_not_utf8_is_not_called_half_an_emoji():
    with pytest.raises(InvalidMessagesError, match=r"U\+DCFF, at character 1;[\s\S]*byte 0xFF of something that isn't"):
        clean_messages([ASK | {"content": b"a\xff".decode(errors="surrogateescape")}])
    with pytest.raises(InvalidMessagesError, match="emoji"):
        clean_messages([ASK | {"content": "a\udc7f"}])


def test_tools_nested_without_end_are_an_error():
    nested: dict = {}
    for _ in range(10_000):
        nested = {"a": nested}
    with pytest.raises(InvalidMessagesError, match=r"tools\[0\] is nested more than 100 levels"):
        clean_tools([function(parameters=nested)])


@pytest.mark.parametrize("tools", [None, [], ()])
def test_no_tools_are_no_tools(tools):
    assert clean_tools(tools) is None


def test_the_type_of_a_call_may_be_left_out_or_null():
    for call in ({"type": None}, {}):
        message = {"role": "assistant", "tool_calls": [{**call, "function": {"name": "f", "arguments": {}}}]}
        assert clean_messages([ASK, message])[1]["tool_calls"][0]["type"] == "function"


@pytest.mark.parametrize(
    "message",
    [
        {"role": "user", "content": "a", "x" * 100_000: 1},
        {"role": "tool", "content": {"x" * 100_000: float("nan")}},
        {"role": "x" * 100_000, "content": "a"},
    ],
)
def test_errors_stay_short(message):
    with pytest.raises(InvalidMessagesError) as caught:
        clean_messages([message])
    assert len(str(caught.value)) < 500 and len(caught.value.field) < 200


def test_parts_and_tools_have_bounds():
    part = {"type": "text", "text": "a"}
    assert clean_messages([{"role": "user", "content": [part] * MAX_PARTS}])[0]["content"] == "a" * MAX_PARTS
    with pytest.raises(InvalidMessagesError, match=r"messages\[0\].content has 10,001 parts; allowed: 10,000"):
        clean_messages([{"role": "user", "content": [part] * (MAX_PARTS + 1)}])
    with pytest.raises(InvalidMessagesError, match="tools has 2,049 entries; allowed: 2,048"):
        clean_tools([{"type": "function", "function": {"name": f"f{i}"}} for i in range(MAX_TOOLS + 1)])
