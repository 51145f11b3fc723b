"""From requests to jobs: what the model reads, what its answer has to be, and every refusal on the way."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from kaishu.config import GenerationDefaults
from kaishu.errors import InvalidMessagesError, InvalidParameterError, InvalidRequestError
from kaishu.loading import load_model
from kaishu.output_format import OutputFormat
from kaishu.prompting import ChatRequest, Prompting, merged_params
from kaishu.sampling import SamplingParams
from kaishu.text.channels import ToolCallStart

HI = [{"role": "user", "content": "Hi"}]
PARAMS = SamplingParams()
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Rome"}}\n</tool_call>'


def tool(name: str, **properties: Any) -> dict[str, Any]:
    parameters = {"type": "object", "properties": properties, "required": list(properties)}
    return {"type": "function", "function": {"name": name, "description": name, "parameters": parameters}}


TOOLS = [tool("get_weather", city={"type": "string"}), tool("add", a={"type": "integer"}, b={"type": "integer"})]


def get_time(city: str) -> str:
    """Tell the time.

    Args:
        city: where
    """
    return city


@pytest.fixture(scope="module")
def prompting() -> Prompting:
    return Prompting(load_model("tiny", threads=1))


@pytest.fixture(scope="module")
def tokenizer(prompting):
    return prompting._loaded.tokenizer


def accepts(prompting: Prompting, request: ChatRequest, text: str, params: SamplingParams = PARAMS) -> bool:
    """Whether the answer may be this text, and then end."""
    job, tokenizer = prompting.chat(request, params).job, prompting._loaded.tokenizer
    end = tokenizer.control_tokens["<|im_end|>"]
    state = job.grammar.start()
    for token_id in [*tokenizer.encode(text, allow_control=True), end]:
        mask = state.allowed()
        if not mask[token_id >> 5] >> (token_id & 31) & 1:
            return False
        if token_id != end:
            state.accept(token_id)
    return True


# Completions


def test_text_is_encoded_as_it_is_and_ids_stay_what_they_are(prompting, tokenizer):
    assert prompting.completion("Once <|im_end|>", PARAMS).prompt_ids == tokenizer.encode("Once <|im_end|>")
    for ids in ([5, 6], (5, 6), range(5, 7), np.array([5, 6], np.uint16), iter([5, 6])):
        made = prompting.completion(ids, PARAMS).prompt_ids  # type: ignore[arg-type]
        assert made == [5, 6] and all(type(token_id) is int for token_id in made)


def test_a_completion_has_no_budget_for_thoughts(prompting):
    with pytest.raises(InvalidParameterError, match="thinking_budget is 5; allowed: null in plain completion"):
        prompting.completion("Hi", SamplingParams(thinking_budget=5))


def test_a_completion_does_not_think_and_is_free_unless_a_form_was_asked_for(prompting):
    job = prompting.completion("a", PARAMS, priority=3, salt="mine")
    assert (job.thinking, job.grammar, job.priority, job.salt) == ("closed", None, 3, "mine")
    asked = SamplingParams(output_format=OutputFormat.regex("[0-9]+"))
    assert prompting.completion("a", asked).grammar is not None


def test_what_was_not_said_comes_from_the_models_recommendations(prompting):
    assert prompting._loaded.config.generation != GenerationDefaults()
    expected = PARAMS.with_defaults(prompting._loaded.config.generation)
    assert prompting.completion("a", PARAMS).params == prompting.chat(ChatRequest(HI), PARAMS).job.params == expected


@pytest.mark.parametrize("ids", ["ab", b"ab", bytearray(b"ab"), {1: 2}, 5, None, 1.5])
def test_what_is_no_sequence_of_ids_is_refused_by_its_name(prompting, ids):
    with pytest.raises(InvalidParameterError, match=r"^token_ids is .*allowed: a sequence of token ids"):
        prompting.checked_ids("token_ids", ids)


@pytest.mark.parametrize("wrong", [-1, 2**40, 1.0, True, "1", None, np.int64(-1), np.float32(1), [1]])
def test_what_is_no_id_is_refused_and_shown(prompting, wrong):
    last = prompting._loaded.tokenizer.vocab_size - 1
    with pytest.raises(InvalidParameterError, match=f"allowed: token ids from 0 to {last:,}"):
        prompting.checked_ids("prompt", [1, wrong])


def test_the_last_id_is_the_last_token_and_not_the_models_last_row(prompting):
    """What has no token could be computed, but neither be shown nor have come from a text."""
    num_rows, num_tokens = prompting._loaded.config.vocab_size, prompting._loaded.tokenizer.vocab_size
    assert prompting.checked_ids("prompt", [num_tokens - 1]) == [num_tokens - 1]
    for wrong in range(num_tokens, num_rows):
        with pytest.raises(InvalidParameterError):
            prompting.checked_ids("prompt", [wrong])
    assert num_rows > num_tokens


def test_an_id_between_the_others_without_a_token_is_refused(prompting):
    loaded = replace(prompting._loaded)
    loaded.__dict__["limits"] = replace(loaded.limits, absent_token_ids=frozenset({7}))
    with pytest.raises(InvalidParameterError, match="prompt is 7; allowed: token ids that the tokenizer has"):
        Prompting(loaded).checked_ids("prompt", [6, 7])


# Chats


def test_a_chat_is_what_its_template_makes_of_it(prompting, tokenizer):
    request = ChatRequest(HI, TOOLS, thinking=False, priority=-1, salt="mine")
    job = prompting.chat(request, PARAMS).job
    assert job.prompt_ids == tokenizer.encode_prompt(prompting.render(request))
    assert "get_weather" in tokenizer.decode(job.prompt_ids)
    assert (job.thinking, job.grammar, job.priority, job.salt) == ("closed", None, -1, "mine")
    assert prompting.chat(ChatRequest(HI), PARAMS).job.thinking == "none"


def test_functions_are_offered_as_their_definitions(prompting):
    text = prompting.render(ChatRequest(HI, [get_time, TOOLS[1]])).text
    assert '"name": "get_time"' in text and "Tell the time." in text and '"name": "add"' in text


@pytest.mark.parametrize(
    ("tools", "choice", "calls"),
    [(TOOLS, None, 1), (TOOLS, "auto", 1), (TOOLS, "none", 0), (None, None, 0), ([], None, 0)],
)
def test_calls_are_read_where_tools_were_offered_and_may_be_called(prompting, tools, choice, calls):
    parser = prompting.chat(ChatRequest(HI, tools, choice, thinking=False), PARAMS).new_parser()
    found = [*parser.push(CALL), *parser.finish()]
    assert sum(isinstance(delta, ToolCallStart) for delta in found) == calls


def test_each_choice_is_read_by_a_parser_of_its_own(prompting):
    chat = prompting.chat(ChatRequest(HI, TOOLS), PARAMS)
    assert chat.new_parser() is not chat.new_parser()


ADD = '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": 2}}\n</tool_call>'


@pytest.mark.parametrize(
    ("choice", "parallel", "allowed", "refused"),
    [
        (
            "required",
            True,
            [CALL, ADD, f"{CALL}\n{ADD}"],
            ["Hi", CALL.replace("city", "town"), CALL.replace("get", "set")],
        ),
        ("required", False, [CALL, ADD], [f"{CALL}\n{ADD}", "Hi"]),
        ({"type": "function", "function": {"name": "add"}}, True, [ADD], [CALL, f"{ADD}\n{ADD}", "Hi"]),
        ({"type": "function", "name": "add"}, True, [ADD], [CALL, "Hi"]),
    ],
)
def test_a_required_call_is_the_only_answer_that_is_possible(prompting, choice, parallel, allowed, refused):
    request = ChatRequest(HI, TOOLS, choice, parallel_tool_calls=parallel, thinking=False)
    assert all(accepts(prompting, request, text) for text in allowed)
    assert not any(accepts(prompting, request, text) for text in refused)


def test_an_answer_may_have_a_form(prompting):
    params = SamplingParams(output_format=OutputFormat.choice(["yes", "no"]))
    request = ChatRequest(HI, TOOLS, thinking=False)
    assert accepts(prompting, request, "yes", params) and not accepts(prompting, request, "maybe", params)


@pytest.mark.parametrize(
    "request_, params, error, words",
    [
        (
            ChatRequest(HI),
            {"prompt_logprobs": 0},
            InvalidParameterError,
            "prompt_logprobs is 0; allowed: null in a chat",
        ),
        (
            ChatRequest(HI, TOOLS, "must"),
            {},
            InvalidParameterError,
            r'tool_choice is \'must\'; allowed: "auto", "none"',
        ),
        (ChatRequest(HI, TOOLS, {"type": "function"}), {}, InvalidParameterError, "tool_choice is {'type'"),
        (
            ChatRequest(HI, TOOLS, {"type": "function", "function": {"name": 5}}),
            {},
            InvalidParameterError,
            "tool_choice",
        ),
        (ChatRequest(HI, TOOLS, {"type": "tool", "name": "add"}), {}, InvalidParameterError, "tool_choice is"),
        (
            ChatRequest(HI, TOOLS, {"type": "function", "function": {"name": "add", "x": 1}}),
            {},
            InvalidParameterError,
            "tool_choice is",
        ),
        (ChatRequest(HI, TOOLS, 5), {}, InvalidParameterError, "tool_choice is 5"),  # type: ignore[arg-type]
        (
            ChatRequest(HI, TOOLS, {"type": "function", "function": {"name": "sub"}}),
            {},
            InvalidParameterError,
            "tool_choice is 'sub'; allowed: 'get_weather', 'add'",
        ),
        (ChatRequest(HI, None, "required"), {}, InvalidRequestError, "there are no tools to call"),
        (ChatRequest(HI, [], "required"), {}, InvalidRequestError, "there are no tools to call"),
        (
            ChatRequest(HI, TOOLS, "required"),
            {"output_format": OutputFormat.json_object()},
            InvalidRequestError,
            "output_format and tool_choice both say",
        ),
        (ChatRequest(HI, TOOLS, parallel_tool_calls=1), {}, InvalidParameterError, "parallel_tool_calls is 1"),  # type: ignore[arg-type]
        (ChatRequest(HI, TOOLS[0]), {}, InvalidMessagesError, "tools"),  # type: ignore[arg-type]
        (ChatRequest(HI, get_time), {}, InvalidMessagesError, "tools"),  # type: ignore[arg-type]
        (ChatRequest(HI, [{"type": "function"}]), {}, InvalidMessagesError, r"tools\[0\]"),
        (ChatRequest(HI, thinking="no"), {}, InvalidParameterError, "thinking is 'no'"),  # type: ignore[arg-type]
        (ChatRequest([]), {}, InvalidMessagesError, "messages"),
        (ChatRequest(HI), {"output_format": OutputFormat.regex("(")}, InvalidRequestError, "output_format"),
    ],
)
def test_what_can_not_be_honoured_is_refused(prompting, request_, params, error, words):
    with pytest.raises(error, match=words):
        prompting.chat(request_, SamplingParams(**params))


@pytest.mark.parametrize("choice", [None, "auto", "none"])
def test_a_form_and_tools_that_need_not_be_called_go_together(prompting, choice):
    params = SamplingParams(output_format=OutputFormat.json_object())
    assert prompting.chat(ChatRequest(HI, TOOLS, choice), params).job.grammar is not None


# Sampling


def test_sampling_is_given_as_one_object_or_by_names():
    assert merged_params(None, {"top_k": 3}) == SamplingParams(top_k=3)
    given = SamplingParams(top_k=3)
    assert merged_params(given, {}) is given
    assert merged_params(None, {}) == SamplingParams()


@pytest.mark.parametrize(
    "params, fields, error, words",
    [
        (SamplingParams(), {"top_k": 1, "seed": 2}, InvalidRequestError, "given twice: as params and as top_k, seed"),
        ({"top_k": 1}, {}, InvalidParameterError, "fields by name"),
        (None, {"topk": 1}, InvalidRequestError, "Did you mean top_k"),
        (None, {"top_k": -5}, InvalidParameterError, "top_k is -5"),
    ],
)
def test_sampling_that_is_none_is_refused(params, fields, error, words):
    with pytest.raises(error, match=words):
        merged_params(params, fields)
