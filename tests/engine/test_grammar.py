"""Answers of a model that knows nothing have the form that was asked for, and end where they may."""

from __future__ import annotations

import json
import re
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from kaishu.engine import grammar as module
from kaishu.engine.grammar import GrammarCompiler
from kaishu.errors import GrammarsBusyError, InvalidRequestError
from kaishu.output_format import OutputFormat
from tests.engine.conftest import PATIENT, QWEN3_ROWS
from tests.engine.random_model import ids_of, written_ids
from tests.tiny_checkpoints import VOCAB_SIZE

PERSON = {
    "type": "object",
    "properties": {
        "名前": {"enum": ["北京", "🙂", "é", "e\u0301"]},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 4}, "maxItems": 2},
    },
    "required": ["名前", "age", "tags"],
    "additionalProperties": False,
}
WORDS = ["北京", "🙂", "é", "e\u0301", "<|im_end|>", 'a"b\\', "a b", "ab", "a", "{}", "x\ny"]
FORMATS = {
    "schema": OutputFormat.json_schema(PERSON),
    "object": OutputFormat.json_object(),
    "letters": OutputFormat.regex(r"^\p{L}+$"),
    "date": OutputFormat.regex(r"[0-9]{4}-[0-9]{2}"),
    "choice": OutputFormat.choice(WORDS),
    "sum": OutputFormat.lark('start: term ("+" term)*\nterm: NUMBER | "(" start ")"\nNUMBER: /[0-9]{1,3}/'),
    "schema in Lark": OutputFormat.lark('start: "answer: " %json {"type": "array", "items": {"const": "é"}}'),
}


def has_form(name: str, text: str) -> bool:
    if name == "schema":
        value = json.loads(text)
        return list(value) == list(PERSON["properties"]) and value["名前"] in PERSON["properties"]["名前"]["enum"]
    if name == "object":
        return isinstance(json.loads(text), dict)
    if name == "schema in Lark":
        return set(json.loads(text.removeprefix("answer: "))) <= {"é"}
    if name == "letters":
        return text.isalpha()
    patterns = {"date": r"\d{4}-\d\d", "sum": r"[0-9+()]+", "choice": "|".join(map(re.escape, WORDS))}
    return re.fullmatch(patterns[name], text) is not None


@pytest.fixture(params=["qwen3", "bytes"])
def model(request):
    """A compiler and its tokenizer."""
    names = ("qwen3_compiler", "qwen3") if request.param == "qwen3" else ("byte_compiler", "byte_tokenizer")
    return tuple(request.getfixturevalue(name) for name in names)


@pytest.mark.parametrize("name", FORMATS)
def test_every_answer_has_the_form(name, model):
    compiler, tokenizer = model
    grammar = compiler.compile(FORMATS[name])
    num_over = 0
    for seed in range(5):
        ids = written_ids(grammar, tokenizer, np.random.default_rng(seed), limit=120)
        if ids is not None:
            num_over += 1
            text = b"".join(map(tokenizer.token_bytes, ids)).decode()  # legal UTF-8
            assert has_form(name, text), text
    assert num_over >= (0 if name == "letters" else 2)  # letters have no end that a random model would find soon


@pytest.mark.parametrize("text", [*WORDS, "c", "e", "ba", ""])
def test_a_choice_is_one_of_the_strings_to_the_byte(text, model):
    compiler, tokenizer = model
    state = compiler.compile(FORMATS["choice"]).start()
    raw = text.encode()
    while raw:
        fitting = [i for i in ids_of(state.allowed()) if raw.startswith(tokenizer.token_bytes(i))]
        fitting = [i for i in fitting if i not in tokenizer.control_tokens.values()]
        if not fitting:
            assert text not in WORDS
            return
        state.accept(max(fitting, key=lambda i: len(tokenizer.token_bytes(i))))
        raw = (
            raw[len(tokenizer.token_bytes(fitting[-1])) :]
            if len(fitting) == 1
            else raw[max(len(tokenizer.token_bytes(i)) for i in fitting) :]
        )
    ends = set(ids_of(state._tokens.ended))
    assert (ends <= set(ids_of(state.allowed()))) == (text in WORDS)
    assert state.is_over == (text in WORDS and text != "a")


def test_ids_without_a_token_and_control_tokens_are_never_allowed(qwen3_compiler, qwen3):
    mask = qwen3_compiler.compile(OutputFormat.regex("(?s:.*)")).start().allowed()
    assert mask.dtype == np.uint32
    assert mask.shape == (QWEN3_ROWS // 32,)
    assert not mask.flags.writeable
    allowed = set(ids_of(mask))
    assert len(allowed) > 140_000
    assert allowed & set(qwen3.control_tokens.values()) == {151645, 151643}  # it may end
    assert max(allowed) < qwen3.vocab_size


def test_a_token_of_any_kind_is_one_that_there_is_and_ends_nothing(qwen3_compiler, qwen3):
    state = qwen3_compiler.compile(OutputFormat.lark('start: <[*]> "x"')).start()
    allowed = set(ids_of(state.allowed()))
    assert max(allowed) < qwen3.vocab_size
    assert qwen3.control_tokens["<think>"] in allowed
    assert not {151645, 151643} & allowed


def test_rows_that_are_no_multiple_of_32_have_a_mask_of_their_own_length(byte_tokenizer):
    for rows in (283, 287, 288, 289, 320, 321):
        end = byte_tokenizer.control_tokens["<|im_end|>"]
        compiler = GrammarCompiler(byte_tokenizer, num_rows=rows, end_token_ids=[end], compile_seconds=PATIENT)
        state = compiler.compile(OutputFormat.choice(["a"])).start()
        assert state.allowed().shape == (-(-rows // 32),)
        assert state.forced(9) == [*byte_tokenizer.encode("a"), end]


def test_a_control_token_is_allowed_where_a_grammar_names_it(qwen3_compiler, qwen3):
    state = qwen3_compiler.compile(OutputFormat.lark('start: <tool_call> "a"')).start()
    assert ids_of(state.allowed()) == [qwen3.control_tokens["<tool_call>"]]
    state.accept(qwen3.control_tokens["<tool_call>"])
    assert [qwen3.token_bytes(i) for i in ids_of(state.allowed())] == [b"a"]


def test_what_is_looked_at_changes_nothing(qwen3_compiler, qwen3):
    """Masks are the same whether asked for at each step, after forced tokens were looked at, or at the end only."""
    grammar = qwen3_compiler.compile(FORMATS["schema"])
    ids = qwen3.encode('{"名前": "北京", "age": 42, "tags": ["ab", "c"]}')
    asked, looked, late = grammar.start(), grammar.start(), grammar.start()
    for token_id in ids:
        looked.forced(30)
        assert not looked.is_over
        assert (asked.allowed() == looked.allowed()).all()
        asked.accept(token_id)
        looked.accept(token_id)
        late._mask = None
        assert late._matcher.consume_token(token_id)
    assert (late.allowed() == asked.allowed()).all()
    assert asked.is_over and late.is_over and not asked.has_ended


def test_forced_tokens_are_those_of_the_tokenizer(qwen3_compiler, qwen3):
    text = "The quick brown fox, 北京 and e\u0301."
    state = qwen3_compiler.compile(OutputFormat.choice([text])).start()
    ids = state.forced(100)
    assert b"".join(map(qwen3.token_bytes, ids)).decode() == text
    assert ids[:6] == qwen3.encode(text)[:6]
    assert state.forced(3) == ids[:3]
    assert state.forced(0) == []
    for token_id in ids:
        state.accept(token_id)
    assert state.is_over
    assert state.forced(5) == []  # two end tokens: the model chooses


def test_a_state_ends_with_an_end_token(byte_compiler, byte_tokenizer):
    state = byte_compiler.compile(OutputFormat.choice(["a"])).start()
    for token_id in state.forced(5):
        state.accept(token_id)
    assert state.has_ended and state.is_over
    with pytest.raises(InvalidRequestError, match="nothing follows an end token"):
        state.allowed()


@pytest.mark.parametrize("call", ["allowed", "accept"])
def test_a_grammar_that_holds_up_a_step_ends_its_answer(call, byte_compiler, byte_tokenizer, monkeypatch):
    """The clock is the thread's own processor time, so that a busy machine ends nothing."""
    state = byte_compiler.compile(OutputFormat.regex("[ab]+")).start()
    if call == "accept":
        state.allowed()
    readings = iter([10.0, 10.0 + module.STEP_SECONDS + 0.01])
    monkeypatch.setattr(module.time, "thread_time", lambda: next(readings))
    with pytest.raises(InvalidRequestError, match=r"output_format can't be followed any further: .* 0\.15 seconds"):
        state.allowed() if call == "allowed" else state.accept(byte_tokenizer.encode("a")[0])


@pytest.mark.parametrize("token_id", [-1, 0, VOCAB_SIZE, 10**9])
def test_a_token_that_is_not_allowed_is_a_bug_of_the_engine(token_id, byte_compiler):
    with pytest.raises(AssertionError):
        byte_compiler.compile(OutputFormat.choice(["z"])).start().accept(token_id)


@pytest.mark.parametrize(
    ("format_", "says"),
    [
        (OutputFormat.regex("(?=a)b"), "output_format is no regex.*look-around"),
        (OutputFormat.regex("(a"), "output_format is no regex.*unclosed group"),
        (OutputFormat.regex(r"(a)\1"), "backreference"),
        (OutputFormat.regex("[^\\s\\S]"), "output_format"),
        (OutputFormat.lark("begin: /a/"), "output_format is no lark"),
        (OutputFormat.lark('start: "a'), "output_format is no lark"),
        (OutputFormat.lark("start: start"), "admits no answer"),
        (OutputFormat.lark('start: <|no_such|> "a"'), "output_format is no lark"),
        (OutputFormat.lark('start: "a" <|im_end|>'), "names <.im_end.>, which ends an answer"),
        (OutputFormat.lark("start: <[151645]>"), "admits no answer"),
        (OutputFormat.json_schema({"$ref": "#"}), "admits no answer"),
        (OutputFormat.json_schema({"type": "object", "properties": {"a": {"not": {}}}}), "#/properties/a/not"),
    ],
)
def test_what_can_not_be_followed_is_refused_when_it_is_compiled(format_, says, qwen3_compiler):
    with pytest.raises(InvalidRequestError, match=says) as raised:
        qwen3_compiler.compile(format_)
    assert raised.value.field == "output_format"
    assert "<state>" not in str(raised.value)


def test_a_grammar_that_has_no_way_on_ends_with_an_error(byte_compiler, byte_tokenizer):
    end = byte_tokenizer.control_tokens["<|im_end|>"]
    state = byte_compiler.compile(OutputFormat.lark(f'start: "a long way" <[{end}]> "b"')).start()
    for token_id in byte_tokenizer.encode("a long way"):
        state.accept(token_id)
    with pytest.raises(InvalidRequestError, match="no token that could come next"):
        state.allowed()


@pytest.mark.parametrize(
    "format_",
    [
        OutputFormat.json_schema({"type": "string", "pattern": "^a{1000000}$"}),
        OutputFormat.json_schema(
            {"allOf": [{"anyOf": [{"required": [f"{i}{j}"]} for i in range(6)]} for j in range(7)]}
        ),
        OutputFormat.lark('start: A{1000}\nA: B{1000}\nB: "b"{1000}'),
        OutputFormat.regex("(a{1,1000}){1,1000}"),
    ],
)
def test_what_would_take_too_long_is_refused(format_, qwen3_compiler):
    with pytest.raises(InvalidRequestError, match=r"too complex|too large|more than 20,000 characters"):
        qwen3_compiler.compile(format_)


def test_nothing_is_built_before_the_first_grammar_and_then_once(byte_tokenizer, monkeypatch):
    built = []
    original = module.GrammarTokens
    monkeypatch.setattr(module, "GrammarTokens", lambda *args, **kw: built.append(1) or original(*args, **kw))
    compiler = GrammarCompiler(byte_tokenizer, num_rows=VOCAB_SIZE, end_token_ids=[256], compile_seconds=PATIENT)
    assert built == []
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(compiler.compile, [OutputFormat.choice([str(i % 4)]) for i in range(64)]))
    assert built == [1]
    assert all(grammar.format == OutputFormat.choice([str(i % 4)]) for i, grammar in enumerate(made))


def test_compiled_grammars_are_kept_up_to_a_number(byte_tokenizer, monkeypatch):
    monkeypatch.setattr(module, "MAX_COMPILED", 2)
    compiler = GrammarCompiler(byte_tokenizer, num_rows=VOCAB_SIZE, end_token_ids=[256], compile_seconds=PATIENT)
    a, b, c = (OutputFormat.choice([letter]) for letter in "abc")
    first = compiler.compile(a)
    compiler.compile(b)
    assert compiler.compile(OutputFormat.choice(["a"], field_name="other")) is first
    compiler.compile(c)
    assert len(compiler._compiled) == 2
    assert compiler.compile(a) is first  # b was used longest ago


def test_states_work_in_other_threads_and_apart_from_each_other(byte_compiler, byte_tokenizer):
    grammar = byte_compiler.compile(FORMATS["schema"])

    def write(seed):
        return written_ids(grammar, byte_tokenizer, np.random.default_rng(seed), steps_ahead=False)

    alone = [write(seed) for seed in range(12)]
    with ThreadPoolExecutor(6) as pool:
        assert list(pool.map(write, range(12))) == alone


def test_a_grammar_that_takes_too_long_is_given_up_and_few_run_on(byte_tokenizer, monkeypatch):
    go_on = threading.Event()

    def slow(format_, tokens):
        assert go_on.wait(60)
        raise AssertionError("nobody waits for this")

    compiler = GrammarCompiler(byte_tokenizer, num_rows=VOCAB_SIZE, end_token_ids=[256], compile_seconds=0.01)
    monkeypatch.setattr(module, "_compiled", slow)
    for letter in "ab":
        with pytest.raises(InvalidRequestError, match=r"too complex: it took more than 0\.01 seconds"):
            compiler.compile(OutputFormat.choice([letter]))
    with pytest.raises(GrammarsBusyError, match="output_format can't be compiled now: earlier grammars"):
        compiler.compile(OutputFormat.choice(["c"]))
    runaways = list(compiler._runaways)
    go_on.set()
    for thread in runaways:
        thread.join()
    with pytest.raises(AssertionError):  # there is room again
        compiler._compile_seconds = PATIENT
        compiler.compile(OutputFormat.choice(["d"]))
