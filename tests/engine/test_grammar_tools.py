"""A model that knows nothing makes valid calls, as text/tool_calls.py reads them and Qwen3's template writes them."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
from jsonschema import Draft202012Validator

from kaishu.engine.grammar_tools import tool_call_format
from kaishu.errors import InvalidMessagesError, InvalidParameterError, InvalidRequestError
from kaishu.text.template import ChatTemplate
from kaishu.text.tool_calls import CALL_END, CALL_START, ToolCallScanner
from tests.engine.random_model import written_ids
from tests.qwen3_files import find_qwen3_files
from tests.tiny_checkpoints import VOCAB_SIZE

WEATHER = {
    "type": "object",
    "properties": {"city": {"enum": ["北京", "🙂"]}, "days": {"type": "integer", "minimum": 1, "maximum": 20}},
    "required": ["city"],
}


def tool(name, **function):
    return {"type": "function", "function": {"name": name, **function}}


TOOLS = [tool("get_weather", description="Asks.", parameters=WEATHER), tool("get"), tool("天気", parameters=WEATHER)]
SCHEMAS = {"get_weather": WEATHER, "get": {"const": {}}, "天気": WEATHER}


def calls_in(text: str):
    """The calls of an answer that is nothing but calls, by the scanner that the server uses."""
    found = []
    while text:
        scanner = ToolCallScanner()
        assert text.startswith(CALL_START)
        text = scanner.push(text.removeprefix(CALL_START))
        assert scanner.state == "whole" and scanner.is_valid
        found.append((scanner.name, json.loads(scanner.take_arguments())))
        text = text.removeprefix("\n") if text else text
    return found


@pytest.mark.parametrize("parallel", [False, True])
@pytest.mark.parametrize("name", [None, "get_weather", "get", "天気"])
@pytest.mark.parametrize("tokens", ["qwen3", "byte"])
def test_any_answer_is_a_valid_call(name, parallel, tokens, request):
    compiler = request.getfixturevalue(f"{tokens}_compiler")
    tokenizer = request.getfixturevalue("qwen3" if tokens == "qwen3" else "byte_tokenizer")
    format_ = tool_call_format(TOOLS, name=name, is_required=True, parallel=parallel)
    assert format_ is not None
    grammar = compiler.compile(format_)
    counts, names = [], set()
    for seed in range(10):
        ids = written_ids(grammar, tokenizer, np.random.default_rng(seed), limit=500)
        if ids is None:
            continue
        tags = [tokenizer.control_tokens[CALL_START], tokenizer.control_tokens[CALL_END]]
        calls = calls_in(tokenizer.decode(ids))
        assert [i for i in ids if i in tags] == tags * len(calls)  # the tags are control tokens
        for called, arguments in calls:
            Draft202012Validator(SCHEMAS[called]).validate(arguments)
            assert set(arguments) <= {"city", "days"}
        counts.append(len(calls))
        names |= {called for called, _ in calls}
    assert len(counts) >= 5
    assert parallel or set(counts) == {1}
    assert names == {name} if name else len(names) > 1


def test_a_call_is_written_as_the_template_teaches_and_writes_it(qwen3_compiler, qwen3):
    template = ChatTemplate.from_folder(find_qwen3_files(), control_tokens=qwen3.control_tokens)
    call = {"type": "function", "function": {"name": "get_weather", "arguments": {"city": "北京", "days": 3}}}
    messages = [{"role": "user", "content": "?"}, {"role": "assistant", "content": "", "tool_calls": [call, call]}]
    prompt = template.render(messages).text
    written = re.search(r"<tool_call>.*</tool_call>", prompt, re.DOTALL)
    assert written is not None
    format_ = tool_call_format(TOOLS, name="get_weather", is_required=True, parallel=True)
    state = qwen3_compiler.compile(format_).start()
    for token_id in qwen3.encode(written[0], allow_control=True):
        state.accept(token_id)
    assert not state.is_over  # there may be a third
    assert set(qwen3.eos_token_ids) & {i for i in range(151640, 151650) if state.allowed()[i >> 5] >> (i & 31) & 1}


def test_without_a_required_call_nothing_is_constrained():
    assert tool_call_format(TOOLS, name=None, is_required=False, parallel=True) is None
    assert tool_call_format(None, name=None, is_required=False, parallel=True) is None


@pytest.mark.parametrize("tools", [None, []])
@pytest.mark.parametrize("name", [None, "get"])
def test_a_required_call_without_tools_is_an_error(tools, name):
    with pytest.raises(InvalidRequestError, match="there are no tools") as raised:
        tool_call_format(tools, name=name, is_required=True, parallel=True)
    assert raised.value.field == "tool_choice"


def test_an_unknown_name_is_an_error_that_lists_the_known():
    with pytest.raises(InvalidParameterError, match="'got'; allowed: 'get_weather', 'get', '天気'") as raised:
        tool_call_format(TOOLS, name="got", is_required=False, parallel=True, field_name="tool_choice.function.name")
    assert raised.value.field == "tool_choice.function.name"


def test_tools_that_are_none_are_refused_as_in_a_prompt():
    with pytest.raises(InvalidMessagesError):
        tool_call_format([{"type": "function"}], name=None, is_required=True, parallel=True)


@pytest.mark.parametrize(
    ("parameters", "says"),
    [
        ({"type": "object", "properties": {"a": {"not": {}}}}, r"tools\[1\]\.function\.parameters: #/properties/a/not"),
        ({"type": "array"}, r"tools\[1\]\.function\.parameters is .*type object"),
        ({"properties": {"a": {"oneOf": [{}, {"type": "null"}]}}}, r"parameters: #/properties/a/oneOf"),
    ],
)
def test_a_tool_whose_arguments_can_not_be_enforced_is_named(parameters, says, byte_compiler):
    tools = [tool("fine"), tool("hard", parameters=parameters)]
    with pytest.raises(InvalidRequestError, match=says) as raised:
        byte_compiler.compile(tool_call_format(tools, name=None, is_required=True, parallel=True))
    assert raised.value.field == "tools[1].function.parameters"
    assert tool_call_format(tools, name="fine", is_required=True, parallel=True) is not None  # it isn't called


def test_schemas_are_looked_at_where_time_is_bounded(byte_tokenizer):
    """Not where the format is made, which nothing gives up on; and once for many requests with the same tools."""
    from kaishu.engine.grammar import GrammarCompiler

    event = {"type": "object", "properties": {"at": {"format": "date-time"}, "by": {"format": "email"}}}
    union = {"type": "object", "properties": {"a": {"anyOf": [{**event, "required": [f"a{n}"]} for n in range(100)]}}}
    tools = [tool(f"f{n}", parameters=union) for n in range(20)]
    compiler = GrammarCompiler(byte_tokenizer, num_rows=VOCAB_SIZE, end_token_ids=[256], compile_seconds=0.001)
    with pytest.raises(InvalidRequestError, match="tool_choice is too complex: it took more"):
        compiler.compile(tool_call_format(tools, name=None, is_required=True, parallel=True))
    for thread in compiler._runaways:
        thread.join()


def test_further_arguments_are_left_out_unless_asked_for(byte_compiler, byte_tokenizer):
    open_ = {"type": "object", "properties": {"a": {"const": 1}}, "additionalProperties": {"const": 2}}
    for parameters, accepted in (
        (open_, True),
        ({**open_, "additionalProperties": False}, False),
        ({"properties": {"a": {"const": 1}}}, False),
    ):
        format_ = tool_call_format([tool("f", parameters=parameters)], name="f", is_required=True, parallel=False)
        state = byte_compiler.compile(format_).start()
        text = '<tool_call>\n{"name": "f", "arguments": {"a":1,"b":2'
        try:
            for token_id in byte_tokenizer.encode(text, allow_control=True):
                state.accept(token_id)
        except AssertionError:
            assert not accepted
        else:
            assert accepted


def test_a_tokenizer_without_the_tags_is_an_error(byte_tokenizer, monkeypatch):
    from kaishu.engine.grammar import GrammarCompiler

    format_ = tool_call_format(TOOLS, name="get", is_required=True, parallel=False)
    compiler = GrammarCompiler(byte_tokenizer, num_rows=256, end_token_ids=[], compile_seconds=600)
    with pytest.raises(InvalidRequestError, match="tool_call"):
        compiler.compile(format_)
