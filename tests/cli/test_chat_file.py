"""Saved conversations: what is written comes back, and anything else is a clear error."""

from __future__ import annotations

import json

import pytest

from kaishu.cli.chat_file import load, read_tools, save
from kaishu.cli.chat_session import Session
from kaishu.errors import KaishuError

TOOL = {"type": "function", "function": {"name": "f", "parameters": {}}}


@pytest.fixture
def session() -> Session:
    turns = [
        {"role": "user", "content": "你好 <|im_end|> \x1b[2J"},
        {
            "role": "assistant",
            "content": "",
            "reasoning_content": "hm",
            "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "5"},
        {"role": "assistant", "content": "five"},
    ]
    sampling = {"temperature": 0.5, "stop": ["x"], "logit_bias": {3: -1.0}}
    return Session("tiny", system="s", thinking=False, sampling=sampling, tools=[TOOL], turns=turns)


def test_a_saved_chat_comes_back(tmp_path, session):
    file = tmp_path / "chat.json"
    save(session, file)
    loaded = load(file, model="other")
    assert loaded.model == "other"
    assert (loaded.system, loaded.thinking, loaded.tools) == ("s", False, [TOOL])
    assert loaded.turns == session.turns
    assert loaded.params == session.params


def test_the_file_is_readable_json_with_model_and_settings(tmp_path, session):
    file = tmp_path / "chat.json"
    save(session, file)
    text = file.read_text(encoding="utf-8")
    assert "你好" in text
    assert "\n" in text
    content = json.loads(text)
    assert (content["model"], content["sampling"]["temperature"]) == ("tiny", 0.5)


def test_saving_again_replaces_a_saved_chat_and_nothing_else(tmp_path, session):
    file = tmp_path / "chat.json"
    save(session, file)
    session.turns.clear()
    save(session, file)
    assert load(file, model="tiny").turns == []
    foreign = tmp_path / "notes.txt"
    foreign.write_text("precious")
    with pytest.raises(KaishuError, match="exists and is not a saved chat"):
        save(session, foreign)
    assert foreign.read_text() == "precious"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["chat.json", "notes.txt"]


def test_a_place_that_cannot_be_written_is_named(tmp_path, session):
    with pytest.raises(KaishuError, match="can't be written: No such file or directory"):
        save(session, tmp_path / "missing" / "chat.json")


def test_a_message_that_cannot_be_written_leaves_nothing_half_written(tmp_path, session):
    session.ask("half of an emoji: \ud83d")
    with pytest.raises(KaishuError, match=r"can't be written: .*surrogates not allowed"):
        save(session, tmp_path / "chat.json")
    assert list(tmp_path.iterdir()) == []


TOOL_FILES = [(TOOL, [TOOL]), ([TOOL], [TOOL]), ([], None)]


@pytest.mark.parametrize("content, tools", TOOL_FILES)
def test_a_file_of_tools_holds_one_or_a_list(tmp_path, content, tools):
    (tmp_path / "tools.json").write_text(json.dumps(content))
    assert read_tools(tmp_path / "tools.json") == tools


@pytest.mark.parametrize("content", [["f"], [{"name": "f"}], [{"type": "function", "function": {"name": 3}}], 5, "f"])
def test_a_file_of_something_else_than_tools_is_an_error_that_names_it(tmp_path, content):
    (tmp_path / "tools.json").write_text(json.dumps(content))
    with pytest.raises(KaishuError, match=r"tools\.json: tools.*; allowed: "):
        read_tools(tmp_path / "tools.json")


VALID = {"format": "kaishu chat 1", "model": "tiny", "sampling": {}, "messages": []}


@pytest.mark.parametrize(
    "content, message",
    [
        ("{", "is not valid JSON"),
        ("[" * 100_000, "is nested too deeply"),
        ('{"format": "x", "format": "kaishu chat 1"}', "occurs twice"),
        ("[]", "holds a JSON list"),
        ({"format": "kaishu chat 2"}, 'its "format" is not "kaishu chat 1"'),
        ({**VALID, "extra": 1}, "unknown field 'extra'"),
        ({**VALID, "sampling": {"temprature": 1}}, "Did you mean temperature"),
        ({**VALID, "sampling": {"n": 2}}, "n can't be set in a chat"),
        ({**VALID, "sampling": {"temperature": -1}}, "temperature is -1"),
        ({**VALID, "sampling": None}, "'sampling' should be a dict"),
        ({**VALID, "system": 5}, "'system' should be a str, not int"),
        ({**VALID, "messages": {}}, "'messages' should be a list"),
        ({**VALID, "messages": ["hi"]}, "message 0 needs a role"),
        ({**VALID, "messages": [{"role": "system", "content": "x"}]}, "message 0 needs a role"),
        ({**VALID, "messages": [{"role": "user", "content": None}]}, "content that is text"),
        ({**VALID, "messages": [{"role": "tool", "content": "x"}]}, "needs a tool_call_id"),
        ({**VALID, "messages": [{"role": "assistant", "content": "", "tool_calls": [{}]}]}, "tool_calls needs an id"),
        ({**VALID, "messages": [{"role": "assistant", "content": "", "tool_calls": [{"id": "a"}]}]}, "a function with"),
        ({**VALID, "tools": [{}]}, r"tools\[0\].type is missing; allowed: 'function'"),
    ],
)
def test_a_file_that_is_no_saved_chat_is_an_error_that_names_it(tmp_path, content, message):
    file = tmp_path / "bad.json"
    file.write_text(content if isinstance(content, str) else json.dumps(content))
    with pytest.raises(KaishuError, match=message) as caught:
        load(file, model="tiny")
    assert file.name in str(caught.value)


def test_a_missing_or_binary_file_is_an_error(tmp_path):
    with pytest.raises(KaishuError, match="can't be read: No such file"):
        load(tmp_path / "none.json", model="tiny")
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    with pytest.raises(KaishuError, match="is not valid JSON"):
        load(tmp_path / "binary", model="tiny")
