"""What could be compiled for ever is ended in time, and nothing of it runs on."""

import json

import pytest

from kaishu.engine.grammar import GrammarCompiler
from kaishu.engine.grammar_tools import tool_call_format
from kaishu.engine.grammar_trial import ends_in_time, may_run_on
from kaishu.errors import InvalidRequestError
from kaishu.output_format import OutputFormat
from tests.engine.conftest import PATIENT
from tests.tiny_checkpoints import VOCAB_SIZE

EXPRESSIONS = [f".*a.{{{n}}}b.*c.{{{n + 3}}}.*" for n in range(5, 35)]
MULTIPLES = [{"type": "integer", "multipleOf": n} for n in (9973, 9967)]
ENDLESS = {
    "patterns": OutputFormat.json_schema({"type": "string", "allOf": [{"pattern": one} for one in EXPRESSIONS]}),
    "patterns of a property": OutputFormat.json_schema(
        {"allOf": [{"type": "object", "properties": {"a": {"pattern": one}}} for one in EXPRESSIONS]}
    ),
    "multiples": OutputFormat.json_schema({"allOf": MULTIPLES}),
    "expressions": OutputFormat.lark("start: T\nT: " + " & ".join(f"/{one}/" for one in EXPRESSIONS)),
    "multiples in a call": tool_call_format(
        [{"type": "function", "function": {"name": "f", "parameters": {"properties": {"a": {"allOf": MULTIPLES}}}}}],
        name="f",
        is_required=True,
        parallel=False,
    ),
    "patterns spelt in another way": OutputFormat.lark(
        'start: %json {"type": "string", "allOf": ['
        + ", ".join(f'{{"p\\u0061ttern": {json.dumps(one)}}}' for one in EXPRESSIONS)
        + "]}"
    ),
}
USUAL = {
    "patterns": OutputFormat.json_schema(
        {"anyOf": [{"type": "object", "properties": {"a": {"type": "string", "pattern": "^[A-Z]{2}$"}}}] * 40}
    ),
    "expressions": OutputFormat.lark("start: T\nT: /[a-z]+/ & /.*a.*/"),
    "what is wrong": OutputFormat.lark("start: & &"),
}


@pytest.mark.parametrize("name", ENDLESS)
def test_what_could_run_for_ever_is_ended_and_refused(name, byte_tokenizer):
    compiler = GrammarCompiler(byte_tokenizer, num_rows=VOCAB_SIZE, end_token_ids=[256], compile_seconds=2)
    with pytest.raises(InvalidRequestError, match="too complex: it took more than 2 seconds"):
        compiler.compile(ENDLESS[name])
    assert not compiler._runaways


@pytest.mark.parametrize("name", USUAL)
def test_what_ends_by_itself_is_let_through(name):
    assert may_run_on(USUAL[name]) and ends_in_time(USUAL[name], PATIENT)


def test_most_formats_need_no_process_of_their_own():
    person = {"type": "object", "properties": {"name": {"type": "string", "pattern": "^[A-Z]"}}}
    many = {"type": "object", "properties": {f"a{n}": person["properties"]["name"] for n in range(40)}}
    for format_ in (
        OutputFormat.json_schema(person),
        OutputFormat.json_schema(many),
        OutputFormat.json_object(),
        OutputFormat.regex("a&b&c"),
    ):
        assert not may_run_on(format_)


def test_what_ends_the_process_is_refused(tmp_path, monkeypatch):
    dies = tmp_path / "python"
    dies.write_text("#!/bin/sh\nkill -9 $$\n")
    dies.chmod(0o755)
    monkeypatch.setattr("sys.executable", str(dies))
    assert not ends_in_time(USUAL["patterns"], PATIENT)
